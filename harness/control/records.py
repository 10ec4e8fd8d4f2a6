"""The control plane's records. They are what policies see, through the view protocols."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import InitVar, dataclass, field

from schedulers.types import Evidence, ReplicaSample, ToolSignal, Turn
from schedulers.views import Lifecycle, Phase, Role


@dataclass(frozen=True, slots=True)
class Capacity:
    """KV capacity of one replica in tokens.

    `true` is known in simulation only and never shown to a policy. `share` is the part of what
    the engine reports that this gateway may use.
    """

    reported: int | None
    true: int | None = None
    share: float = 1.0

    @property
    def usable(self) -> int | None:
        return None if self.reported is None else int(self.reported * self.share)


@dataclass(slots=True)
class ReplicaState:
    """One replica, as the gateway knows it."""

    id: str
    index: int
    role: Role
    capacity: InitVar[Capacity]
    healthy: bool = True
    in_flight: int = 0
    queued_prefill_tokens: int = 0
    homes: dict[str, None] = field(default_factory=dict)
    sample: ReplicaSample | None = None
    sampled_at: int | None = None
    capacity_tokens: int | None = field(init=False)

    def __post_init__(self, capacity: Capacity) -> None:
        self.capacity_tokens = capacity.usable

    @property
    def sessions(self) -> Collection[str]:
        return self.homes.keys()


@dataclass(slots=True)
class SessionState:
    """One open session, as the gateway knows it."""

    id: str
    parent: str | None
    arrived_at: int
    lifecycle: Lifecycle = "active"
    home: str | None = None
    last_replica: str | None = None
    turns_finished: int = 0
    attempts: dict[int, None] = field(default_factory=dict)
    waiting_turns: dict[str, Turn] = field(default_factory=dict)
    waiting_times: dict[str, int] = field(default_factory=dict)
    paused_at: int | None = None
    idle_since: int | None = None
    tools: tuple[ToolSignal, ...] = ()
    tokens: int = 0
    evidence: dict[str, Evidence] = field(default_factory=dict)

    @property
    def in_flight(self) -> int:
        return len(self.attempts)

    @property
    def phase(self) -> Phase:
        return "reasoning" if self.attempts or self.waiting_turns else "acting"

    @property
    def waiting(self) -> Sequence[Turn]:
        return tuple(self.waiting_turns.values()) if self.waiting_turns else ()

    @property
    def waiting_since(self) -> int | None:
        return next(iter(self.waiting_times.values()), None)


@dataclass(slots=True)
class Attempt:
    """One dispatch of a turn that has not ended."""

    number: int
    turn: Turn
    decode: str
    prefill: str | None
    dispatched_at: int
    uncached_tokens: int
    """Estimate at dispatch: prompt tokens that were never sent to the prefilling replica."""
    serving: str
    """The replica that holds it now: the prefill replica until its leg ends, then `decode`."""
    first_token_seen: bool = False
