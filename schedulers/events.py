"""Events: what a driver tells the control plane, and the control plane a policy.

Each carries `now` in nanoseconds. Where an event concerns a dispatch it carries the `attempt`
number that the dispatch was given. The control plane has already updated its records when a
policy sees an event; the cluster view shows the state after it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from schedulers.types import ReplicaSample, ToolSignal, Turn, Usage


@dataclass(frozen=True, slots=True)
class Event:
    now: int


@dataclass(frozen=True, slots=True)
class TurnArrived(Event):
    """A turn needs a decision: Route, Hold or Reject it."""

    turn: Turn


@dataclass(frozen=True, slots=True)
class DispatchFailed(Event):
    """A dispatch ended before any token reached the client: the turn needs a decision again."""

    turn: Turn
    attempt: int
    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class LegFinished(Event):
    """The prefill leg of a two-leg route ended; the decode leg starts without a new decision."""

    session: str
    turn_id: str
    attempt: int
    replica: str


@dataclass(frozen=True, slots=True)
class FirstToken(Event):
    session: str
    turn_id: str
    attempt: int
    replica: str


@dataclass(frozen=True, slots=True)
class TurnFinished(Event):
    """A turn ended well. If tools follow, a ToolStarted event comes right after."""

    session: str
    turn_id: str
    attempt: int
    replica: str
    usage: Usage


@dataclass(frozen=True, slots=True)
class TurnFailed(Event):
    """A turn ended badly after tokens had been delivered, or for good; it is not retried."""

    session: str
    turn_id: str
    attempt: int
    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class ClientGone(Event):
    """The client left. `attempt` and `replica` are None if the turn was still waiting."""

    session: str
    turn_id: str
    attempt: int | None
    replica: str | None


@dataclass(frozen=True, slots=True)
class ToolStarted(Event):
    """The session's tools began (one signal per call of the turn, in order)."""

    session: str
    tools: tuple[ToolSignal, ...]


@dataclass(frozen=True, slots=True)
class ToolHint(Event):
    """Progress from outside: the session's tools will end in about `eta_s` seconds."""

    session: str
    eta_s: float


@dataclass(frozen=True, slots=True)
class SessionClosed(Event):
    """The session released its place; it has no turn in flight or waiting. Last event of it."""

    session: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaSampled(Event):
    replica: str
    sample: ReplicaSample


@dataclass(frozen=True, slots=True)
class ReplicaLost(Event):
    """The replica is gone with its KV. Its turns in flight fail one by one right after."""

    replica: str
    reason: str


@dataclass(frozen=True, slots=True)
class ReplicaRecovered(Event):
    """The replica is back, empty."""

    replica: str


@dataclass(frozen=True, slots=True)
class KvEvents(Event):
    """The engine told of stored or removed blocks; `cleared` means its cache is empty."""

    replica: str
    cleared: bool


@dataclass(frozen=True, slots=True)
class PlanReady(Event):
    """The answer to a Solve command with the same `solve_id`."""

    solve_id: int
    plan: Any


@dataclass(frozen=True, slots=True)
class Timer(Event):
    """The time asked for by a WakeAt command has come."""
