"""`agentsched explain`: why a session waited or moved."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def explain(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    session: Annotated[str, typer.Option(metavar="ID", help="Which session.")],
    scheduler: Annotated[str | None, typer.Option(help="Only under this scheduler.")] = None,
    seed: Annotated[int | None, typer.Option(help="Only for this seed.")] = None,
) -> None:
    """Print every decision about a session, in words, from the decision log of a run."""
    from harness.explain import cells_with, explain_session
    from results.store import load_run

    loaded = load_run(run)
    for cell in cells_with(loaded, session, scheduler, seed):
        print(f"{cell.title}:")
        for line in explain_session(loaded.decisions(cell), session):
            print(line)
