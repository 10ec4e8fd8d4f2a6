"""`agentsched advise`: which scheduler for a trace, by the map of played regimes."""

from __future__ import annotations

from typing import Annotated

import typer

from cli import console


def advise(
    trace: Annotated[str, typer.Argument(metavar="TRACE|WORKLOAD", help="The traffic.")],
    workers: Annotated[int, typer.Option(min=1, help="Sessions active at once.")] = 32,
    model: Annotated[str, typer.Option(help="The model served.")] = "qwen3-32b",
    topology: Annotated[str, typer.Option(help="Replicas and GPUs.")] = "4x2xh100",
    sessions: Annotated[int | None, typer.Option(min=1, help="How many sessions to read.")] = None,
    seed: Annotated[int, typer.Option(min=0, help="Of generated workloads.")] = 0,
    check: Annotated[
        bool, typer.Option("--check", help="Play the traffic itself under the best three too.")
    ] = False,
) -> None:
    """Place traffic on the map of regimes and recommend a scheduler, with the uncertainty."""
    from harness.advice import recommend

    advice = recommend.advise(
        trace,
        workers=workers,
        model=model,
        topology=topology,
        sessions=sessions,
        seed=seed,
        check=check,
    )
    place = advice.place
    print(f"working set over KV      {place.working_set_kv:.2f}")
    print(f"tool time / model time   {place.tool_model:.2f}")
    print(f"workers per replica      {place.workers_per_replica:.1f}")
    print(f"prefill share            {place.prefill_share:.0%}")
    print()
    console.print_columns(
        ("scheduler", "behind the best", "range", "p95 TTFT behind", "best or tied in"),
        [
            (
                one.scheduler,
                f"{one.behind:.1f} %",
                f"{one.low:.1f} to {one.high:.1f} %",
                f"{one.behind_p95:.0f} %",
                f"{one.best_share:.0%}",
            )
            for one in advice.standings
        ],
    )
    if advice.checked:
        print()
        console.print_columns(
            ("played", "task latency", "mean TTFT", "p95 TTFT", "cache hit"),
            [
                (
                    name,
                    f"{one.latency_mean:.1f} s",
                    f"{one.ttft_mean:.2f} s",
                    f"{one.ttft_p95:.2f} s",
                    f"{one.cache_hit:.0%}",
                )
                for name, one in advice.checked
            ],
        )
    print()
    for line in advice.lines:
        print(line)
