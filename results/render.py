"""Metric tables as terminal text, Markdown, CSV and LaTeX."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, NamedTuple

from results.tables import Entry, MetricTable, Row

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.text import Text

NARROWEST = 60
_FIGURE_WIDTH = 12
_NAME_WIDTH = 15
_WIDEST_NAME = 24


def to_rich(table: MetricTable, width: int) -> RenderableType:
    """The table for a terminal of `width` columns; nothing is ever clipped.

    Schedulers are rows. Where the columns do not fit side by side, they go into blocks one below
    the other.
    """
    from rich.console import Group
    from rich.text import Text

    width = max(width, NARROWEST)
    names = min(_WIDEST_NAME, max(len(row.name) for row in table.rows))
    names = max(_NAME_WIDTH, names) if width >= 110 else _NAME_WIDTH
    per_block = max(1, (width - names) // (_FIGURE_WIDTH + 1))
    blocks = -(-len(table.metrics) // per_block)
    per_block = -(-len(table.metrics) // blocks)
    column = min((width - names) // per_block - 1, 24)
    parts: list[RenderableType] = [Text(line, style="bold") for line in _wrap(table.title, width)]
    starts = range(0, len(table.metrics), per_block)
    parts += [_block(table, range(first, first + per_block), names, column) for first in starts]
    for caption in table.captions:
        parts += [Text(line, style="dim") for line in _wrap(caption, width)]
    return Group(*parts)


def to_text(tables: Iterable[MetricTable], width: int) -> str:
    """The same without colour, for files and pipes."""
    from rich.console import Console

    console = Console(
        width=max(width, NARROWEST), file=io.StringIO(), color_system=None, markup=False
    )
    with console.capture() as captured:
        for table in tables:
            console.print(to_rich(table, width))
            console.print()
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def to_markdown(table: MetricTable) -> str:
    head = ["scheduler", *_headings(table)]
    lines = [f"### {markdown_text(table.title)}", "", _markdown_row(head)]
    lines.append("|---|" + "---:|" * len(table.metrics))
    for row in table.rows:
        name = markdown_text(row.name) + f"<br>*{' '.join(_sublabel(row))}*"
        lines.append(_markdown_row([name, *(_markdown_entry(entry) for entry in row.entries)]))
    lines += ["", *(f"{markdown_text(caption)}  " for caption in table.captions), ""]
    return "\n".join(lines)


def to_latex(table: MetricTable) -> str:
    """A `table` environment for the booktabs package."""
    columns = "l" + "r" * len(table.metrics)
    heads = (["scheduler", *table.headings], ["", *table.units])
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(table.title)}. "]
    lines += [latex_text(caption) for caption in table.captions]
    lines += ["}", rf"\begin{{tabular}}{{{columns}}}", r"\toprule"]
    lines += [latex_row(list(map(latex_text, texts))) for texts in heads]
    lines += [r"\midrule"]
    for row in table.rows:
        name = f"{row.name} ({' '.join(_sublabel(row))})"
        values = [_latex_entry(entry) for entry in row.entries]
        lines.append(latex_row([latex_text(name), *values]))
        changes = [latex_text(f"{e.change} {e.range}".strip()) for e in row.entries]
        if row.label != "published" and any(changes):
            lines.append(latex_row(["", *(rf"{{\small {c}}}" if c else "" for c in changes)]))
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def rows_to_markdown(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Any table of texts under its title."""
    lines = [f"### {markdown_text(title)}", "", _markdown_row(head), "|---" * len(head) + "|"]
    return "\n".join([*lines, *(_markdown_row(list(map(markdown_text, row))) for row in rows), ""])


def rows_to_latex(title: str, head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same as a `table` environment for the booktabs package."""
    lines = [r"\begin{table}", r"\centering", rf"\caption{{{latex_text(title)}.}}"]
    lines += [rf"\begin{{tabular}}{{{'l' * len(head)}}}", r"\toprule"]
    lines += [latex_row(list(map(latex_text, head))), r"\midrule"]
    lines += [latex_row(list(map(latex_text, row))) for row in rows]
    return "\n".join([*lines, r"\bottomrule", r"\end{tabular}", r"\end{table}", ""])


def to_csv(tables: Sequence[MetricTable]) -> str:
    """One line a figure, full precision, ours and published."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(_CSV_COLUMNS)
    for table in tables:
        group = table.group
        for metric in table.metrics:
            where = [group.run, group.workload, group.workers]
            for name, figure in group.figures(metric.tag).items():
                own, gap = figure.estimate, figure.difference
                line: list[object] = [*where, name, group.label_of(name), metric.tag, metric.unit]
                line += [own.mean, *(own.interval or ("", "")), own.n] if own else [""] * 4
                line += [int(figure.best)]
                line += [gap.percent, *(gap.interval or ("", ""))] if gap else [""] * 3
                line += [gap.n, gap.against] if gap else ["", ""]
                writer.writerow([*line, ""])
            for claim in group.claims:
                if claim.metric == metric.tag:
                    line = [*where, claim.scheduler, "published", metric.tag, claim.unit, ""]
                    line += [claim.low, claim.high, "", "", "", "", "", "", claim.comparator]
                    writer.writerow([*line, claim.id])
    return out.getvalue()


_CSV_COLUMNS = (
    *("run", "workload", "workers", "scheduler", "label", "metric", "unit"),
    *("mean", "low", "high", "n", "best"),
    *("difference_percent", "difference_low", "difference_high", "difference_n", "against"),
    "claim",
)


def _block(table: MetricTable, columns: range, names: int, column: int) -> RenderableType:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    picked = [i for i in columns if i < len(table.metrics)]
    grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
    grid.add_column(Text("scheduler"), width=names, no_wrap=True)
    for i in picked:
        heading = "\n".join([*_wrap(table.headings[i], column), table.units[i] or " "])
        grid.add_column(
            Text(heading, style="bold"), width=column, no_wrap=True, justify="right", vertical="top"
        )
    forms = {i: _form([row.entries[i] for row in table.rows], column) for i in picked}
    for row in table.rows:
        entries = [_entry_text(row.entries[i], forms[i], column, row.label) for i in picked]
        grid.add_row(_name_text(row, names), *entries)
    return grid


def _name_text(row: Row, width: int) -> Text:
    from rich.text import Text

    text = Text()
    if row.label != "published":
        text.append("\n".join(_wrap(row.name, width)) + "\n", style="bold")
    text.append("\n".join(_wrap(" ".join(_sublabel(row)), width)), style="dim italic")
    return text


class _Form(NamedTuple):
    """How the entries of one column are set, all of them alike."""

    spread_apart: bool
    """Half the interval's width below the mean."""
    range_apart: bool
    """The interval of the difference below the difference."""
    tight: bool


def _form(entries: Sequence[Entry], width: int) -> _Form:
    """The roomiest form in which every entry of a column fits."""
    values = max(len(_starred(entry)) for entry in entries)
    for form in (
        _Form(values > width, False, False),
        _Form(values > width, False, True),
        _Form(values > width, True, False),
        _Form(values > width, True, True),
    ):
        if all(len(line) <= width for entry in entries for line in _change_lines(entry, form)):
            return form
    return _Form(values > width, True, True)


def _starred(entry: Entry) -> str:
    mean, *spread = entry.value.split(" ")
    return " ".join([f"{mean}*" if entry.best else mean, *spread])


def _change_lines(entry: Entry, form: _Form) -> list[str]:
    spread = entry.tight if form.tight else entry.range
    parts = [part for part in (entry.change, spread) if part]
    return parts if form.range_apart or not parts else [" ".join(parts)]


def _entry_text(entry: Entry, form: _Form, width: int, label: str) -> Text:
    from rich.text import Text

    text = Text(style="italic" if label == "published" else "")
    value = _starred(entry)
    if form.spread_apart:
        value = value.replace(" ±", "\n±")
    if value:
        text.append(value, style="bold green" if entry.best else "")
    change = "\n".join(
        line if len(line) <= width else line.replace(",", ",\n")
        for line in _change_lines(entry, form)
    )
    if change:
        text.append(f"\n{change}" if value else change, style="dim" if value else "")
    return text


def _sublabel(row: Row) -> list[str]:
    return [row.label, row.note] if row.note else [row.label]


def _wrap(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width) or [""]


def _headings(table: MetricTable) -> list[str]:
    pairs = zip(table.headings, table.units, strict=True)
    return [f"{heading} ({unit})" if unit else heading for heading, unit in pairs]


def _markdown_row(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _markdown_entry(entry: Entry) -> str:
    value = f"**{entry.value}**" if entry.best else entry.value
    return "<br>".join(part for part in (value, f"{entry.change} {entry.range}".strip()) if part)


def markdown_text(text: str) -> str:
    for character in "\\`*_{}[]<>#|":
        text = text.replace(character, f"\\{character}")
    return text


def _latex_entry(entry: Entry) -> str:
    text = latex_text(entry.value or entry.change)
    return rf"\textbf{{{text}}}" if entry.best else text


_LATEX = {
    "\\": r"\textbackslash{}",
    "±": r"$\pm$",
    "…": r"\ldots{}",
    "≤": r"$\leq$",
    "≥": r"$\geq$",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "<": r"\textless{}",
    ">": r"\textgreater{}",
    "|": r"\textbar{}",
} | {character: f"\\{character}" for character in "&%$#_{}"}


_LAST_LATIN = "\u017e"
"""Up to here LaTeX sets UTF-8 without further packages."""


def latex_text(text: str) -> str:
    """Text as LaTeX sets it, whatever users named; characters that it lacks as a question mark."""
    return "".join(
        _LATEX.get(character, character if " " <= character <= _LAST_LATIN else "?")
        for character in text
    )


def latex_row(cells: Sequence[str]) -> str:
    """A line of a table of cells that are LaTeX already."""
    line = " & ".join(cells)
    # What follows the end of the line before would be read as an argument of it.
    return ("{}" if line.startswith(("[", "*")) else "") + line + r" \\"
