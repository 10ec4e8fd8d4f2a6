"""`agentsched compare`: what changed from one run to another."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from cli import console


class Format(StrEnum):
    TABLE = "table"
    MD = "md"
    CSV = "csv"


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="A run folder.")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Another.")],
    metric: Annotated[
        list[str] | None, typer.Option(metavar="TAG", help="Replaces the main metrics; repeatable.")
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONDITION",
            help="End with code 4 if it holds, as 'ttft.p95 > +5%'; repeatable.",
        ),
    ] = None,
    format_: Annotated[Format, typer.Option("--format", help="How to print it.")] = Format.TABLE,
) -> None:
    """Compare two runs seed by seed; with --fail-if, as a gate for continuous integration."""
    from results import compare_view
    from results.compare import compare as compare_runs
    from results.metrics import MAIN
    from results.store import load_run

    found = compare_runs(load_run(before), load_run(after), metric or MAIN, fail_if or ())
    if format_ is Format.MD:
        print(compare_view.comparison_to_markdown(found))
    elif format_ is Format.CSV:
        print(compare_view.comparison_to_csv(found), end="")
    elif console.output().is_terminal:
        console.output().print(compare_view.comparison_to_rich(found, console.width()))
    else:
        print(compare_view.comparison_to_text(found, console.width()))
    found.check()
