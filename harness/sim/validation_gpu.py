"""Hold the simulator against recorded runs of a real engine on GPUs.

One scalar, the host work of a step with a prefill chunk, is fitted on one run; the others are
predicted. Everything else comes from tables, the engine's rules and the link of the machine's
published configuration.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agentsched import SimulationError
from harness.capacity import Cluster, resolve_cluster
from harness.sim.async_engine import engine_for
from harness.sim.content import ContentIndex, Line
from harness.sim.data_parallel import DataParallelStepTime
from harness.sim.engine_types import EngineEvent, EngineParams, EngineRequest
from harness.sim.recorded_runs import METRICS, STATISTICS, RecordedRun, shipped_runs
from harness.sim.step_time import TableStepTime, step_time_for

FITTED_ON = "llama-3.1-8b-1x1xrtx-pro-6000"
_NS = 1e9

Times = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Replay:
    """A recorded run, simulated. Seconds, one entry a request."""

    arrival: Times
    first_token: Times
    last_token: Times
    cached_share: float
    """Prompt tokens found in the prefix cache over all."""
    extrapolated_steps: int
    description: str


@dataclass(frozen=True, slots=True)
class ErrorRow:
    """One statistic of one metric: seconds, signed error in percent."""

    metric: str
    statistic: str
    measured: float
    simulated: float
    error: float
    published_error: float | None
    """Of the simulator that the recorded run comes from, on the same run."""


@dataclass(frozen=True, slots=True)
class RunErrors:
    """A run and how far the simulator is from it."""

    run: str
    fitted: bool
    """The host term was fitted on this run: its errors are no test."""
    prefix_hits: bool
    host_prefill_us: float
    cached_share: float
    extrapolated_steps: int
    description: str
    rows: tuple[ErrorRow, ...]

    def error(self, metric: str, statistic: str) -> float:
        """Signed error in percent."""
        for row in self.rows:
            if (row.metric, row.statistic) == (metric, statistic):
                return row.error
        raise KeyError((metric, statistic))


def validate_gpu(
    runs: Sequence[RecordedRun] | None = None,
    *,
    fitted_on: str = FITTED_ON,
    prefix_hits: bool = False,
) -> list[RunErrors]:
    """Fit the host term on one shipped run, then simulate each run with it.

    Args:
        runs: None: those that ship.
        fitted_on: a shipped run.
        prefix_hits: let requests find the beginnings they share in the prefix cache, in the fit
            too. Off by default: the runs' own files hold no token ids.

    Raises:
        PerformanceDataError: no table, or a damaged one.
    """
    base = next(run for run in shipped_runs() if run.name == fitted_on)
    host = fit_host_term(base, prefix_hits=prefix_hits)
    return [
        compare(run, host, prefix_hits=prefix_hits, fitted=run.name == fitted_on)
        for run in (shipped_runs() if runs is None else runs)
    ]


def fit_host_term(run: RecordedRun, *, prefix_hits: bool = False, most_us: float = 50_000) -> float:
    """The host_prefill_us, in whole microseconds, that brings mean end-to-end time closest to the
    recorded one. 0 if the simulator is too slow without it."""
    measured = float(np.mean([r.last_token_s - r.arrival_s for r in run.requests]))

    def error(host_us: float) -> float:
        played = replay(run, host_us, prefix_hits=prefix_hits)
        return float(np.mean(played.last_token - played.arrival)) - measured

    low, high = 0.0, most_us
    if error(low) >= 0:
        return 0.0
    # Queueing makes the curve jump by a little, never turn: halving finds the crossing.
    while high - low > 1:
        middle = round((low + high) / 2)
        if error(middle) < 0:
            low = middle
        else:
            high = middle
    return min((low, high), key=lambda host_us: abs(error(host_us)))


def compare(
    run: RecordedRun, host_prefill_us: float, *, prefix_hits: bool = False, fitted: bool = False
) -> RunErrors:
    """Simulate a run and state the errors."""
    played = replay(run, host_prefill_us, prefix_hits=prefix_hits)
    outputs = np.array([request.output_tokens for request in run.requests])
    recorded = (
        np.array([request.arrival_s for request in run.requests]),
        np.array([request.first_token_s for request in run.requests]),
        np.array([request.last_token_s for request in run.requests]),
    )
    measured = _metrics(*recorded, outputs)
    simulated = _metrics(played.arrival, played.first_token, played.last_token, outputs)
    rows = [
        _row(
            metric,
            statistic,
            _STATISTICS[statistic](measured[metric]),
            _STATISTICS[statistic](simulated[metric]),
            run.published_error.get((metric, statistic)),
        )
        for metric in METRICS
        for statistic in STATISTICS
    ]
    spans = [float(times.max()) for times in (recorded[2], played.last_token)]
    rows.append(_row("makespan", "total", spans[0], spans[1], None))
    return RunErrors(
        run=run.name,
        fitted=fitted,
        prefix_hits=prefix_hits,
        host_prefill_us=host_prefill_us,
        cached_share=played.cached_share,
        extrapolated_steps=played.extrapolated_steps,
        description=played.description,
        rows=tuple(rows),
    )


_STATISTICS: dict[str, Callable[[Times], float]] = {
    "mean": lambda values: float(np.mean(values)),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p99": lambda values: float(np.percentile(values, 99)),
}


def _metrics(
    arrival: Times, first: Times, last: Times, outputs: NDArray[np.int64]
) -> dict[str, Times]:
    several = outputs > 1
    return {
        "ttft": first - arrival,
        "tpot": (last - first)[several] / (outputs[several] - 1),
        "e2e": last - arrival,
    }


def _row(
    metric: str, statistic: str, measured: float, simulated: float, published: float | None
) -> ErrorRow:
    error = 100 * (simulated / measured - 1)
    return ErrorRow(metric, statistic, measured, simulated, error, published)


def replay(run: RecordedRun, host_prefill_us: float, *, prefix_hits: bool = False) -> Replay:
    """Play the arrivals of a run through a simulated engine with the run's flags."""
    # Where the engine reported its blocks, the estimate of the overhead does not matter.
    overhead = None if run.kv_blocks is None else 0.0
    cluster = resolve_cluster(run.model, run.topology, overhead_gib=overhead)
    steps = run_step_time(run, cluster, host_prefill_us)
    params = EngineParams(
        max_num_batched_tokens=run.max_num_batched_tokens * run.data_parallel,
        max_num_seqs=run.max_num_seqs * run.data_parallel,
        # One request's chunk runs on one rank, within its budget.
        long_prefill_token_threshold=(run.max_num_batched_tokens if run.data_parallel > 1 else 0),
        prefix_caching=prefix_hits,
        async_scheduling=run.async_scheduling,
    )
    contents = ContentIndex(params.block_size)
    blocks = run.kv_blocks or cluster.replicas[0].kv_blocks
    engine = engine_for(params, steps, blocks * run.data_parallel, contents)
    seen = _Seen(len(run.requests))
    lines = _lines_of(run, contents)
    for i, request in enumerate(run.requests):
        now = round(request.arrival_s * _NS)
        seen.take(engine.advance(now))
        engine.submit(EngineRequest(i, lines[i], request.prompt_tokens, request.output_tokens), now)
    while (wake := engine.next_event_time()) is not None:
        seen.take(engine.advance(wake))
    return Replay(
        arrival=np.array([request.arrival_s for request in run.requests]),
        first_token=seen.first / _NS,
        last_token=seen.last / _NS,
        cached_share=seen.cached / sum(request.prompt_tokens for request in run.requests),
        extrapolated_steps=steps.extrapolations,
        description=steps.description,
    )


def run_step_time(
    run: RecordedRun, cluster: Cluster, host_prefill_us: float
) -> TableStepTime | DataParallelStepTime:
    """Step times for a run's engine, with the host term given."""
    rank = step_time_for(
        cluster.model,
        cluster.replicas[0],
        host_prefill_us=host_prefill_us,
        max_num_seqs=run.max_num_seqs,
        expert_ranks=run.data_parallel,
    )
    return rank if run.data_parallel == 1 else DataParallelStepTime(rank, run.data_parallel)


class _Seen:
    """What the client saw, in nanoseconds."""

    def __init__(self, requests: int) -> None:
        self.first = np.full(requests, np.nan)
        self.last = np.full(requests, np.nan)
        self.cached = 0

    def take(self, events: Sequence[EngineEvent]) -> None:
        for event in events:
            if event.kind == "first_token":
                self.first[event.id] = event.time
            elif event.kind == "finished":
                self.last[event.id] = event.time
                self.cached += event.cached_tokens
            else:
                raise SimulationError(
                    f"request {event.id} of the recorded run was rejected: {event.reason}",
                    "check the model and topology of the run",
                )


def _lines_of(run: RecordedRun, contents: ContentIndex) -> list[Line]:
    """Each request's text: what it shares with an earlier one, then its own."""
    texts: list[list[tuple[str, int]]] = []
    for i, request in enumerate(run.requests):
        left, text = request.shared_tokens, []
        for segment, tokens in (
            texts[request.shared_with] if request.shared_with is not None else ()
        ):
            if left > 0:
                text.append((segment, min(tokens, left)))
                left -= min(tokens, left)
        own = request.prompt_tokens + request.output_tokens - sum(tokens for _, tokens in text)
        texts.append([*text, (f"request {i}", own)])
    return [contents.intern(text) for text in texts]
