"""What the live driver keeps of turns and sessions, and who it deals with."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Protocol

from harness.control.operations import Dispatch
from schedulers.commands import Solve
from schedulers.types import ToolSignal, Turn, Usage


@dataclass(frozen=True, slots=True)
class DriverSettings:
    """How the gateway treats sessions and failures."""

    idle_expiry_s: float = 600.0
    """A session with no turn for this long is closed (ThunderAgent's fixed mode, our default)."""
    max_attempts: int = 3
    """Dispatches of one turn before its client is told of the failure. Our choice."""
    turn_idle_s: float | None = 600.0
    """An engine that sends nothing for this long has fallen silent: the turn goes elsewhere, or
    fails if its client has seen tokens. None: it is waited for. Our choice: longer than a full
    engine lets a prompt queue."""
    turn_total_s: float | None = None
    """A turn is given up this long after its arrival, waiting included; None: never."""


class TurnClient(Protocol):
    """The waiting end of a turn: the gateway's side of one request."""

    def dispatch(self, operation: Dispatch) -> None:
        """Send the request to the replica."""
        ...

    def refuse(self, reason: str, retry_after_s: float | None) -> None: ...
    def fail(self, reason: str) -> None:
        """Nobody could serve it."""
        ...

    def withdraw(self) -> None:
        """Cancel the request at its replica; it will be dispatched again."""
        ...

    def streamed(self) -> int:
        """Output tokens that have come by now."""
        ...

    def heard(self) -> int:
        """Grows with whatever comes from the replica."""
        ...

    def fell_silent(self, reason: str) -> None:
        """The replica is not waited for any longer."""
        ...


class _Nobody:
    """Stands in for the client of a turn that has ended; nothing is asked of it."""

    def dispatch(self, operation: Dispatch) -> None: ...
    def refuse(self, reason: str, retry_after_s: float | None) -> None: ...
    def fail(self, reason: str) -> None: ...
    def withdraw(self) -> None: ...
    def fell_silent(self, reason: str) -> None: ...
    def streamed(self) -> int:
        return 0

    def heard(self) -> int:
        return 0


NOBODY: TurnClient = _Nobody()


class Planner(Protocol):
    """Runs a solver somewhere and hands its result over later."""

    def solve(self, command: Solve, ready: Callable[[Any], None]) -> None: ...


@dataclass(slots=True)
class LiveTurn:
    """A turn from its arrival to its end."""

    turn: Turn
    client: TurnClient
    arrived: int
    final: bool = False
    """The session ends with it, unless it fails (then it may be sent again)."""
    attempt: int | None = None
    replica: str | None = None
    """The one that works on it: the prefill replica until its leg ends, then `decode`."""
    decode: str | None = None
    """Of the last dispatch, as `prefill`."""
    prefill: str | None = None
    leg_ended: int | None = None
    """When the prefill leg of the last dispatch ended."""
    dispatched: int | None = None
    attempts: int = 0
    first_token: int | None = None
    ended: bool = False


@dataclass(slots=True)
class LiveSession:
    """What the gateway keeps of a session."""

    id: str
    parent: str | None
    last_seen: int
    finished: int = 0
    """Turns that ended well: the index of the next."""
    last_index: int = -1
    repeats: int = 0
    """How often a turn of the last index was sent again."""
    open: dict[str, LiveTurn] = field(default_factory=dict)
    closing: str | None = None
    """It is to be closed, for this reason, when its open turns have ended."""
    one_off: bool = False
    """Nobody named it: it is closed after a turn that starts no tools."""

    def next_turn(self) -> tuple[int, str]:
        """Index and id of the turn that arrives now. One that failed is counted again."""
        index = self.finished + len(self.open)
        self.repeats = self.repeats + 1 if index == self.last_index else 0
        self.last_index = index
        name = f"{self.id}/{index}.{self.repeats}" if self.repeats else f"{self.id}/{index}"
        while name in self.open:
            self.repeats += 1
            name = f"{self.id}/{index}.{self.repeats}"
        return index, name


@dataclass(slots=True)
class LegTimes:
    """Totals of turns in two legs, as the gateway sees them; nanoseconds."""

    prefill_legs: int = 0
    prefill_ns: int = 0
    """From dispatch to the end of the prefill leg."""
    handovers: int = 0
    handover_ns: int = 0
    """From there to the decoder's first token: its queue, the transfer, one step."""

    def prefilled(self, spent_ns: int) -> None:
        self.prefill_legs += 1
        self.prefill_ns += spent_ns

    def handed_over(self, spent_ns: int) -> None:
        self.handovers += 1
        self.handover_ns += spent_ns


class Watcher(Protocol):
    """Is told what becomes of turns and sessions (recording, live view)."""

    def turn_ended(self, turn: LiveTurn, usage: Usage | None, status: str, now: int) -> None: ...
    def tools_started(self, session: str, tools: tuple[ToolSignal, ...], now: int) -> None: ...
    def session_closed(self, session: str, reason: str, now: int) -> None: ...
