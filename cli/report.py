"""`agentsched report`: what run folders say, as tables and as a page."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cli import console

if TYPE_CHECKING:
    from results.run import Run
    from results.tables import MetricTable


class Format(StrEnum):
    TABLE = "table"
    MD = "md"
    HTML = "html"
    CSV = "csv"
    LATEX = "latex"


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
    shown = [table for run in loaded for table in tables(run, tags, baseline)]
    if format_ in (None, Format.TABLE):
        _print_tables(shown)
        if paper is not None:
            _print_claims(loaded, paper, baseline)
    elif format_ is not Format.HTML and out is None:
        _print_source(shown, format_)
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


def _print_source(shown: list[MetricTable], form: Format) -> None:
    from results.render import to_csv, to_latex, to_markdown

    if form is Format.CSV:
        print(to_csv(shown), end="")
        return
    render = to_markdown if form is Format.MD else to_latex
    print("\n".join(map(render, shown)), end="")


def _print_claims(loaded: list[Run], paper: Paper, baselines: list[str] | None) -> None:
    from results.published import find
    from results.sections import sections

    judged = [
        (section.table.title, one)
        for section in sections(loaded, baselines=baselines)
        for one in section.judged
        if one.claim.paper == paper
    ]
    print(f"Figures of the {paper} paper (published) beside ours ({_labels(loaded)}):")
    console.print_columns(
        ("published claim", "setting", "published", "ours", "verdict"),
        [
            (one.claim.id, title, one.claim.text(), one.ours_text(), one.verdict)
            for title, one in judged
        ],
    )
    total = len(find(paper=paper))
    covered = len({one.claim.id for _, one in judged})
    print(f"{covered} of the paper's {total} figures belong to a setting of this run.\n")


def _labels(loaded: list[Run]) -> str:
    return ", ".join(dict.fromkeys(run.label for run in loaded))
