"""`agentsched report`: what run folders say, as tables and as a page."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import console
from cli.list import WIDE

if TYPE_CHECKING:
    from results.run import Run
    from results.tables import MetricTable
    from results.verdicts import Judged


class Format(StrEnum):
    TABLE = "table"
    MD = "md"
    HTML = "html"
    CSV = "csv"
    LATEX = "latex"
    PNG = "png"
    SVG = "svg"


PRINTED = (Format.MD, Format.CSV, Format.LATEX)
"""Go to standard output unless a folder is named; the others are always files."""


class Paper(StrEnum):
    TAO = "tao"
    SMETRIC = "smetric"
    CONSERVE = "conserve"


def report(
    runs: Annotated[list[Path], typer.Argument(metavar="RUN...", help="Run folders.")],
    paper: Annotated[
        Paper | None, typer.Option(help="Also list this paper's figures beside ours, judged.")
    ] = None,
    format_: Annotated[
        Format | None,
        typer.Option("--format", help="One form only; tables and report.html unless given."),
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Replaces the columns; repeatable.")
    ] = None,
    baseline: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Compare with these schedulers only; repeatable."),
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("-o", "--out", help="Folder to write into; the first run's unless given."),
    ] = None,
) -> None:
    """Show a run, finished or not: tables here, and report.html, a page that needs nothing else."""
    from results.metrics import MAIN
    from results.report import write_report
    from results.store import load_run
    from results.tables import tables

    loaded = [load_run(path) for path in runs]
    tags = metric or MAIN
    shown = [
        table for run in loaded for table in tables(run, tags, baseline, named=len(loaded) > 1)
    ]
    if format_ in (None, Format.TABLE):
        _print_tables(shown)
        if paper is not None:
            _print_claims(loaded, paper, baseline)
    elif format_ in PRINTED and out is None:
        _print_source(shown, format_)
        if paper is not None:
            _print_claims_source(loaded, paper, baseline, format_)
        return
    if format_ is not Format.TABLE:
        kinds = ("html",) if format_ is None else (format_.value,)
        folder = out if out is not None else runs[0]
        for path in write_report(loaded, folder, kinds, tags=tags, baselines=baseline):
            print(f"written: {path}")


def _print_tables(shown: list[MetricTable]) -> None:
    from results.render import to_rich, to_text

    terminal = console.output()
    if not terminal.is_terminal:
        print(to_text(shown, console.width()), end="")
        return
    for table in shown:
        terminal.print(to_rich(table, console.width()))
        terminal.print()


def _print_source(shown: list[MetricTable], form: Format | None) -> None:
    from results.render import to_csv, to_latex, to_markdown

    if form is Format.CSV:
        print(to_csv(shown), end="")
        return
    render = to_markdown if form is Format.MD else to_latex
    print("\n".join(map(render, shown)), end="")


CLAIM_COLUMNS = ("published claim", "setting", "published", "ours", "n", "verdict")


def _judged(
    loaded: list[Run], paper: Paper, baselines: list[str] | None
) -> list[tuple[str, Judged]]:
    """The setting and what is found for each of the paper's figures that belong to one."""
    from results.sections import sections

    return [
        (section.table.title, one)
        for section in sections(loaded, baselines=baselines)
        for one in section.judged
        if one.claim.paper == paper
    ]


def _claim_rows(judged: list[tuple[str, Judged]]) -> list[tuple[str, ...]]:
    return [
        (one.claim.id, title, one.claim.text(), one.ours_text(), str(one.n or ""), one.verdict)
        for title, one in judged
    ]


def _print_claims(loaded: list[Run], paper: Paper, baselines: list[str] | None) -> None:
    from results.published import SIZE_TOLERANCE, find, tally_text

    judged = _judged(loaded, paper, baselines)
    print(f"Figures of the {paper} paper (published) beside ours ({_labels(loaded)}):")
    rows = _claim_rows(judged)
    if rows:
        print(
            f"{tally_text(one.verdict for _, one in judged)} (size tolerance {SIZE_TOLERANCE:.0%})"
        )
    if rows and console.width() >= WIDE:
        console.print_columns(CLAIM_COLUMNS, rows)
    elif rows:
        console.print_columns(
            ("published claim", "published, ours, seeds: verdict"),
            [
                (name, f"{theirs}, ours {ours}, n = {n or 0}: {word}")
                for name, _, theirs, ours, n, word in rows
            ],
        )
    total = len(find(paper=paper))
    covered = len({one.claim.id for _, one in judged})
    print(f"{covered} of the paper's {total} figures belong to a setting of this run.\n")


def _print_claims_source(
    loaded: list[Run], paper: Paper, baselines: list[str] | None, form: Format | None
) -> None:
    """The same as source, after the tables. In CSV the published rows are there already."""
    from results.render import rows_to_latex, rows_to_markdown

    if form is Format.CSV:
        return
    title = f"Figures of the {paper} paper (published) beside ours ({_labels(loaded)})"
    render = rows_to_markdown if form is Format.MD else rows_to_latex
    print(f"\n{render(title, CLAIM_COLUMNS, _claim_rows(_judged(loaded, paper, baselines)))}")


def _labels(loaded: list[Run]) -> str:
    return ", ".join(dict.fromkeys(run.label for run in loaded))
