"""Recorded runs of a real engine, as a finding."""

from __future__ import annotations

from harness.sim.recorded_runs import shipped_runs
from harness.sim.validation_gpu import RunErrors, validate_gpu
from harness.validation.findings import Bound, Finding, Table

HELD_OUT = "qwen3-32b-1x2xrtx-pro-6000"
"""Nothing is fitted to it; the bounds are on it."""

_METRICS = ("ttft", "tpot", "e2e")
_COLUMNS = tuple((metric, statistic) for metric in _METRICS for statistic in ("mean", "p50", "p99"))
_LIMITS = {"mean": 3.0, "p99": 5.0}
_MAKESPAN_LIMIT = 2.0

ABOUT = (
    "Runs of vLLM 0.19.0 that LLMServingSim recorded (measured), replayed by our engine loop with "
    "the runs' flags (simulated). One host term is fitted on Llama-3.1-8B, on mean end-to-end "
    "time; the other runs are predicted. Signed error in percent; below each run LLMServingSim's "
    "own error on it (published). Single-turn and saturated: throughput and queueing are tested, "
    "not caching."
)


def gpu_finding() -> Finding:
    """Fit on one recorded run, predict the others, with prefix hits off and on."""
    found = {hits: validate_gpu(prefix_hits=hits) for hits in (False, True)}
    return Finding(
        name="gpu",
        title="Against recorded GPU runs",
        about=ABOUT,
        tables=tuple(_table(runs, hits) for hits, runs in found.items()),
        bounds=tuple(_bounds(next(run for run in found[False] if run.run == HELD_OUT))),
        notes=("docs/performance-model.md says what to make of these errors.",),
    )


def _table(runs: list[RunErrors], hits: bool) -> Table:
    counts = {run.name: len(run.requests) for run in shipped_runs()}
    columns = (*_COLUMNS, ("makespan", "total"))
    rows = []
    for run in runs:
        name = run.run + (" (fitted on)" if run.fitted else "")
        found = {(row.metric, row.statistic): row for row in run.rows}
        ours = [f"{found[column].error:+.1f}" for column in columns]
        theirs = [_known(found[column].published_error) for column in columns]
        rows += [(name, str(counts[run.run]), *ours), ("- published", "", *theirs)]
    heads = tuple(f"{metric.upper()} {statistic}" for metric, statistic in _COLUMNS)
    title = "Prefix hits " + ("counted" if hits else "off")
    return Table(title, ("run", "requests", *heads, "makespan"), tuple(rows))


def _known(error: float | None) -> str:
    return "" if error is None else f"{error:+.1f}"


def _bounds(run: RunErrors) -> list[Bound]:
    found = [
        Bound(f"{run.run}: {metric.upper()} {statistic}", run.error(metric, statistic), limit)
        for metric in _METRICS
        for statistic, limit in _LIMITS.items()
    ]
    makespan = run.error("makespan", "total")
    return [*found, Bound(f"{run.run}: makespan", makespan, _MAKESPAN_LIMIT)]
