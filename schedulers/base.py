"""The two kinds of scheduler. A user's own subclasses one of them, in one file.

class Mine(RoutingScheduler):
    name = "mine"
    info = SchedulerInfo(family="routing", observes="load", holds=False,
                         fidelity="inferred", reference="my notebook")

    def choose(self, turn, cluster):
        best = min(self.healthy(cluster), key=lambda replica: replica.in_flight)
        return Route(turn.id, best.id)
"""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from schedulers.commands import Command, Hold, Reject, Route
from schedulers.events import (
    DispatchFailed,
    Event,
    ReplicaRecovered,
    TurnArrived,
)
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView

Fidelity = Literal["paper text", "source code read", "documentation", "summary only", "inferred"]


@dataclass(frozen=True, slots=True)
class SchedulerInfo:
    """What `agentsched list schedulers` shows."""

    family: str
    observes: str
    holds: bool
    """Whether it can make a turn wait at the gateway."""
    fidelity: Fidelity
    reference: str


@dataclass(frozen=True, slots=True)
class NoConfig:
    """For policies without settings."""


class Scheduler(ABC):
    """A policy: pure and deterministic. Time comes from events, randomness from `rng`.

    `Config` is a frozen dataclass of settings; each field states the source of its default in a
    string literal below it.
    """

    name: ClassVar[str]
    info: ClassVar[SchedulerInfo]
    Config: ClassVar[type[Any]] = NoConfig
    wants_true_tool_ends: ClassVar[bool] = False
    """A bound, not a policy for real use: a simulation tells it the true end of every tool call,
    by a ToolHint right after its ToolStarted."""

    def __init__(self, config: Any = None, rng: random.Random | None = None) -> None:
        self.config = config if config is not None else self.Config()
        self.rng = rng if rng is not None else random.Random(0)

    @abstractmethod
    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        """Decide. Every TurnArrived and DispatchFailed must leave its turn routed, held or
        rejected, now or (if held) later.

        Commands are carried out one by one as they are yielded: after `yield Resume(...)` the
        view already shows the session on its replica and its turns dispatched.
        """

    def counters(self) -> dict[str, float]:
        """Totals worth reporting with the run (forced admissions, plans discarded, ...)."""
        return {}

    @staticmethod
    def healthy(cluster: ClusterView, *roles: str) -> list[ReplicaView]:
        """Replicas that can be used, in configured order; all roles unless some are named."""
        return [r for r in cluster.replicas if r.healthy and (not roles or r.role in roles)]


class AdmissionScheduler(Scheduler):
    """A policy that may hold turns and pause sessions: implement `on_event`."""


class RoutingScheduler(Scheduler):
    """A policy that sends every turn on at once: implement `choose`.

    `observe` may be overridden to keep books (queued work, observed rates). With no healthy
    replica the turn is held until one returns.
    """

    @abstractmethod
    def choose(self, turn: Turn, cluster: ClusterView) -> Route | Reject:
        """Pick a replica for the turn; called with at least one healthy replica."""

    def observe(self, event: Event, cluster: ClusterView) -> None:
        """See every event before any decision on it."""

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        self.observe(event, cluster)
        if isinstance(event, (TurnArrived, DispatchFailed)):
            if any(replica.healthy for replica in cluster.replicas):
                yield self.choose(event.turn, cluster)
            else:
                yield Hold(event.turn.id, why="no healthy replica")
        elif isinstance(event, ReplicaRecovered):
            for turn in list(cluster.waiting.values()):
                yield self.choose(turn, cluster)
