"""`agentsched grade`: how many tasks the agents of a run solved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from agentsched import UsageError
from cli import console


def grade(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Of the instances; the workload's own.")
    ] = None,
    split: Annotated[str, typer.Option(help="Of the data set.")] = "test",
    workers: Annotated[int, typer.Option(min=1, help="Instances graded at a time.")] = 4,
    python: Annotated[
        str | None, typer.Option(metavar="PATH", help="Interpreter that has swebench.")
    ] = None,
) -> None:
    """Grade what agents handed in: by the tasks' own tests, SWE-bench in its Docker images."""
    from shlex import join

    from harness.live.agents import grading
    from results.store import load_run

    loaded = load_run(run)
    grades = list(grading.grade_rewards(loaded))
    wanted = list(grading.predictions(loaded))
    reason = grading.why_not(python) if wanted else None
    if reason is None:
        grades += [grading.grade_patches(w, dataset, split, workers, python) for w in wanted]
    grading.save(loaded, grades)
    if grades:
        console.print_columns(
            ("cell", "sessions", "graded", "resolved", "by"),
            [(g.cell, str(g.sessions), str(g.graded), f"{g.resolved:g}", g.how) for g in grades],
        )
    if reason is not None:
        print("The patches are kept. To grade them on a machine that can:")
        for one in wanted:
            for number in range(len(one.rounds)):
                print(f"  {join(grading.command(one, number, dataset, split, workers, 'python'))}")
        raise UsageError(f"SWE-bench cannot be graded here: {reason[0]}", reason[1])
    if not grades:
        raise UsageError(
            f"{run} holds nothing to grade", "give a run whose workload real agents played"
        )
