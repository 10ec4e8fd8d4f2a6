"""How far any policy could get: a relaxed upper bound on decode throughput.

Nothing is evicted (a turn computes its new tokens only), load is balanced perfectly, every decode
step is as full as the workers allow, prefill rides along for its marginal cost. The makespan is
then at least each of (asymptotic bounds of a closed queueing network)
compute    all steps, shared evenly by the replicas
sessions   each session alone on an idle replica, with its tools; shared evenly by the workers
longest    the longest such session
and no policy can produce the output tokens faster than the largest of them allows.

The bound holds for step times that are affine in their three arguments, and for those whose cost
per sequence does not rise with the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import ceil
from typing import Literal, NamedTuple

StepTime = Callable[[int, int, int], float]
"""Seconds of one engine step: (prefill tokens, decoding sequences, their context tokens in all)."""

Limit = Literal["compute", "sessions", "longest session"]


class TurnWork(NamedTuple):
    """One turn: the prompt is `kept_tokens` seen before in the session plus `new_tokens`."""

    new_tokens: int
    kept_tokens: int
    output_tokens: int
    tool_s: float = 0.0
    """Seconds between the end of this turn and the session's next."""


@dataclass(frozen=True, slots=True)
class ThroughputBound:
    """Output tokens a second no policy can pass, and the shortest makespan behind it."""

    tokens_per_s: float
    limit: Limit
    compute_s: float
    sessions_s: float
    longest_s: float


def decode_throughput_bound(
    sessions: Sequence[Sequence[TurnWork]],
    step_time: StepTime,
    *,
    replicas: int,
    workers: int,
    chunk_tokens: int = 8192,
) -> ThroughputBound:
    """The bound for running all sessions once, `workers` at a time.

    Args:
        sessions: turns in order, one sequence a session.
        step_time: of one replica, in seconds.
        replicas: how many there are; each could hold everything.
        workers: sessions active at once.
        chunk_tokens: most prefill tokens in one step.

    Raises:
        ValueError: no session, no output, or a count below 1.
    """
    if min(replicas, workers, chunk_tokens) < 1:
        raise ValueError("replicas, workers and chunk_tokens must be at least 1")
    output = sum(turn.output_tokens for session in sessions for turn in session)
    if output < 1:
        raise ValueError("the sessions produce no output token")
    batch = ceil(min(workers, len(sessions)) / replicas)
    work = sum(_shared_s(turn, step_time, batch, chunk_tokens) for s in sessions for turn in s)
    alone = [sum(_alone_s(turn, step_time, chunk_tokens) for turn in s) for s in sessions]
    limits: dict[Limit, float] = {
        "compute": work / replicas,
        "sessions": sum(alone) / workers,
        "longest session": max(alone),
    }
    limit = max(limits, key=lambda name: limits[name])
    return ThroughputBound(
        output / limits[limit],
        limit,
        limits["compute"],
        limits["sessions"],
        limits["longest session"],
    )


def _shared_s(turn: TurnWork, step_time: StepTime, batch: int, chunk: int) -> float:
    """Replica seconds of a turn in full batches: its share of decode steps, prefill on top."""
    context = batch * _mean_context(turn)
    full = step_time(0, batch, context)
    prefill = (step_time(chunk, batch, context) - full) / chunk
    return _decode_steps(turn) * full / batch + turn.new_tokens * prefill


def _alone_s(turn: TurnWork, step_time: StepTime, chunk: int) -> float:
    """Seconds of a turn on an idle replica, and of the tools after it."""
    chunks = [chunk] * (turn.new_tokens // chunk)
    if turn.new_tokens % chunk:
        chunks.append(turn.new_tokens % chunk)
    prefill = sum(step_time(tokens, 0, 0) for tokens in chunks)
    decode = _decode_steps(turn) * step_time(0, 1, _mean_context(turn))
    return prefill + decode + turn.tool_s


def _decode_steps(turn: TurnWork) -> int:
    """The step that ends the prefill gives the first token."""
    return max(0, turn.output_tokens - 1)


def _mean_context(turn: TurnWork) -> int:
    """Context over the decode steps, rounded down so that the bound stays one."""
    return turn.kept_tokens + turn.new_tokens + turn.output_tokens // 2
