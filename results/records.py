"""What a cell records. Times are integer nanoseconds since the start of the cell."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Label = Literal["simulated", "emulated", "measured", "published", "external"]
TurnStatus = Literal["ok", "failed", "rejected", "client_gone", "context_exceeded", "too_long"]
SessionStatus = Literal[
    "finished", "failed", "rejected", "client_gone", "context_exceeded", "too_long", "deadline"
]


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One finished turn.

    `context_exceeded` turns were never sent (they would pass the model's context limit);
    `too_long` ones were refused by the engine (prompt longer than its KV cache).
    """

    session: str
    turn: int
    """0-based."""
    workload: str
    status: TurnStatus
    arrived: int
    """The request reached the gateway."""
    dispatched: int | None
    """Last dispatch to a replica; dispatched - arrived is the pause."""
    first_token: int | None
    finished: int
    replica: str | None
    prefill_replica: str | None
    attempts: int
    prompt_tokens: int
    cached_tokens: int | None
    """As the engine reported; None where it did not."""
    output_tokens: int
    visible: bool
    last: bool
    """Last turn of its session."""
    held: bool
    """It waited at the gateway."""
    moved: bool
    """Served by another replica than the session's turn before."""
    tool_end: int | None
    """When the tools before this turn ended (equals `arrived` in a simulated closed loop)."""
    tool_s: float
    """Seconds the tool calls after this turn take by themselves (waiting for a CPU is extra: the
    next turn's `tool_end` minus this turn's `finished` is the time as it ran)."""
    wait_s: float
    """Seconds after this turn that were not tool calls."""
    longest_gap: int | None
    """Longest time between two successive tokens of this turn; None where not observed."""
    error: str | None = None
    prefilled: int | None = None
    """The prefill leg ended; None of a turn in one leg, or where not observed."""
    kv_sent: int | None = None
    """KV computed elsewhere set out for this turn's replica, from its prefill replica or a shared
    store (the last time, if there were several); None without a transfer, or where not observed:
    real engines count transfers, and do not tell the moments of each."""
    kv_received: int | None = None
    """It was there; kv_received - kv_sent is the transfer, waiting for the link included."""


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """One ended session."""

    session: str
    workload: str
    origin: str
    parent: str | None
    status: SessionStatus
    started: int
    """When a worker took it up."""
    finished: int
    turns_done: int
    turns_total: int
    error: str | None = None


@dataclass(frozen=True, slots=True)
class ReplicaRecord:
    """State of one replica at one time (true values in simulation, gauges when measured)."""

    time: int
    replica: str
    running: int
    waiting: int
    kv_used: float
    """Share of KV blocks held by running requests."""
    kv_cached: float | None
    """Share of KV blocks holding reusable text, running ones included; None if not known."""
    preemptions: int
    """Cumulative."""
    prefill_tokens: int
    """Computed (not cached) prompt tokens, cumulative."""
    decode_tokens: int
    """Output tokens, cumulative."""


@dataclass(frozen=True, slots=True)
class DecisionRecord:
    """One line of the decision log: what the scheduler did, to what, and why."""

    time: int
    event: str
    command: str
    session: str | None
    turn: str | None
    replica: str | None
    why: str
