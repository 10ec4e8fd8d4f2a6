"""Comparisons as terminal text, Markdown and CSV."""

from __future__ import annotations

import csv
import io
import textwrap
from typing import TYPE_CHECKING

from results.compare import Change, Comparison, Pair
from results.formatting import interval, level, signed
from results.tables import SHORT_UNITS, UNKNOWN

if TYPE_CHECKING:
    from rich.console import RenderableType

HEADINGS = ("metric", "before", "after", "change", "95 % interval", "")
CSV_COLUMNS = (
    *("workload", "workers", "before", "after", "metric", "unit", "before_mean", "after_mean"),
    *("label_before", "label_after"),
    *("change_percent", "low", "high", "n", "meaning"),
)


def comparison_to_rich(comparison: Comparison, width: int) -> RenderableType:
    """One block a workload, worker count and scheduler; fits 80 columns."""
    from rich import box
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    parts: list[RenderableType] = []
    for pair in comparison.pairs:
        parts += [Text(line, style="bold") for line in textwrap.wrap(_title(pair), width)]
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=0, show_edge=False)
        for index, heading in enumerate(HEADINGS):
            grid.add_column(heading, justify="right" if 0 < index < 5 else "left", overflow="fold")
        for metric in comparison.metrics:
            change = pair.change(metric)
            colour = {"better": "green", "worse": "red"}.get(change.meaning, "dim")
            *texts, meaning = _row(change)
            grid.add_row(*(Text(text) for text in texts), Text(f" {meaning}", style=colour))
        parts += [grid, Text()]
    for note in notes(comparison):
        parts += [Text(line, style="dim") for line in textwrap.wrap(note, width)]
    return Group(*parts)


def comparison_to_text(comparison: Comparison, width: int) -> str:
    """The same without colour."""
    from rich.console import Console

    console = Console(width=width, file=io.StringIO(), color_system=None, markup=False)
    with console.capture() as captured:
        console.print(comparison_to_rich(comparison, width))
    return "".join(f"{line.rstrip()}\n" for line in captured.get().splitlines())


def comparison_to_markdown(comparison: Comparison) -> str:
    lines = []
    for pair in comparison.pairs:
        lines += [
            f"### {_title(pair)}",
            "",
            f"| {' | '.join(HEADINGS)} |",
            "|---|---:|---:|---:|---:|---|",
        ]
        lines += [f"| {' | '.join(_row(pair.change(metric)))} |" for metric in comparison.metrics]
        lines.append("")
    return "\n".join([*lines, *(f"{note}  " for note in notes(comparison)), ""])


def comparison_to_csv(comparison: Comparison) -> str:
    """One line a pair and metric, full precision."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(CSV_COLUMNS)
    for pair in comparison.pairs:
        for metric in comparison.metrics:
            change = pair.change(metric)
            means = [e.mean if e else "" for e in (change.before, change.after)]
            percent = "" if change.percent is None else change.percent
            where = [pair.workload, pair.workers, pair.before[1], pair.after[1]]
            labels = [group.label_of(name) for group, name in pair.sides]
            spread = change.interval or ("", "")
            line = [*where, metric.tag, metric.unit, *means, *labels, percent, *spread, change.n]
            writer.writerow([*line, change.meaning])
    return out.getvalue()


def notes(comparison: Comparison) -> list[str]:
    """What the two runs are, and what could not be compared."""
    before, after = comparison.before, comparison.after
    lines = [f"before: {before.path} ({before.label}); after: {after.path} ({after.label})"]
    if before.label != after.label:
        lines.append(
            f"The runs are not of the same kind: a change from {before.label} to {after.label} "
            "holds the difference between the two kinds as well."
        )
    lines += dict.fromkeys(
        f"Not to be used: {run.path}, {group.title}, {why}."
        for pair in comparison.pairs
        for run, (group, _) in zip((before, after), pair.sides, strict=True)
        for why in group.invalid
    )
    changes = [pair.change(metric) for pair in comparison.pairs for metric in comparison.metrics]
    counts = {change.n for change in changes if change.n}
    if any(change.n == 0 and change.percent is not None for change in changes):
        lines.append("Where no seed is in both runs, the change is unpaired and has no interval.")
    lines.append(
        "Change: (after - before) / before over common seeds; 95 % bootstrap interval, seeds drawn "
        f"jointly; n = {', '.join(map(str, sorted(counts))) or '0'}."
    )
    lines += [f"Not compared: {text}." for text in comparison.unmatched]
    return lines


def _title(pair: Pair) -> str:
    return f"{pair.name} ({pair.kind})"


def _row(change: Change) -> list[str]:
    unit = SHORT_UNITS.get(change.metric.unit, change.metric.unit)
    return [
        f"{change.metric.title} ({unit})" if unit else change.metric.title,
        UNKNOWN if change.before is None else level(change.before),
        UNKNOWN if change.after is None else level(change.after),
        UNKNOWN if change.percent is None else signed(change.percent),
        "" if change.interval is None else interval(change.interval),
        change.meaning,
    ]
