"""A plan in words, as `agentsched run` prints it before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.plan import Plan, PlannedWorkload


def plan_lines(plan: Plan, folder: Path, jobs: int | None) -> Iterator[str]:
    """One line or more for replicas, workloads, schedulers and cells."""
    from harness.capacity import explain
    from harness.experiment import estimate_s

    yield (
        f"{plan.spec.name}: {plan.spec.model} on {plan.spec.topology}, {plan.label}, into {folder}"
    )
    for row in explain(plan.cluster):
        yield f"  replicas    {row.count} x {row.gpus} ({row.replicas}, {row.role})"
        unit = "a share of the host" if row.gpu == "cpu" else "a GPU"
        yield (
            f"              {unit}: {row.memory_gib:.1f} GiB = {row.weights_gib:.1f} weights + "
            f"{row.kv_gib:.1f} KV cache + {row.overhead_gib:.1f} overhead + "
            f"{row.unused_gib:.1f} left free"
        )
        yield (
            f"              a replica: {row.kv_tokens:,} tokens of KV cache, "
            f"{row.context_limit:,} tokens at most in one turn"
        )
    if plan.label in ("simulated", "emulated"):
        yield f"  engine      {plan.engine.engine}, {plan.label}"
    for workload in plan.workloads:
        yield from _workload_lines(
            workload, plan.sim.context_limit or plan.cluster.model.context_limit
        )
    yield f"  schedulers  {', '.join(arm.name for arm in plan.arms if arm.router is None)}"
    if any(arm.router is not None for arm in plan.arms):
        yield f"  routers     {', '.join(arm.name for arm in plan.arms if arm.router is not None)}"
    seeds = plan.spec.seeds
    loads = sum(len(w.loads) for w in plan.workloads)
    yield (
        f"  cells       {len(plan.cells)} = {_count(loads, 'load')} x "
        f"{_count(len(plan.arms), 'scheduler')} x {_count(len(seeds), 'seed')}; "
        + (
            f"{_turns(plan):,} turns to play, roughly {duration(estimate_s(plan, jobs))}"
            if plan.live is None
            else "one at a time, as long as they take"
        )
    )
    for warning in plan.warnings():
        yield f"  warning     {warning}"


def _workload_lines(workload: PlannedWorkload, context_limit: int) -> Iterator[str]:
    if workload.driver is not None:
        loads = ", ".join(map(str, workload.loads))
        yield f"  workload    {workload.name} (real agents): {loads} workers"
        yield f"              {_count(workload.sessions, 'task')}"
        return
    origin = " and ".join(workload.origins)
    plural = "worker" if workload.loads == (1,) else "workers"
    workers = ", ".join(map(str, workload.loads)) + f" {plural}"
    load = workers if workload.arrivals is None else "as they arrive"
    if workload.in_place_of is not None:
        origin += f", in place of {workload.in_place_of}"
    yield f"  workload    {workload.name} ({origin}): {load}"
    yield (
        f"              {_count(workload.sessions, 'session')}, {_count(workload.turns, 'turn')}, "
        f"{_millions(workload.prompt_tokens)} prompt and {_millions(workload.output_tokens)} "
        f"output tokens (first seed)"
    )
    if workload.over_limit:
        over = _count(workload.over_limit, "session")
        share = workload.over_limit / workload.sessions
        yield (
            f"              {over} ({share:.0%}) will pass the context limit of "
            f"{context_limit:,} tokens"
        )


def _turns(plan: Plan) -> int:
    runs = len(plan.arms) * len(plan.spec.seeds)
    return runs * sum(w.turns * len(w.loads) for w in plan.workloads)


def _count(number: int, noun: str) -> str:
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def duration(seconds: float) -> str:
    """Seconds in words: `40 s`, `3 min`, `2.5 h`."""
    if seconds < 100:
        return f"{max(round(seconds), 0)} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def _millions(tokens: int) -> str:
    return f"{tokens / 1e6:.1f} M" if tokens >= 1e6 else f"{tokens:,}"
