"""The SGLang gateway's manual (sticky) routing: a table from session to at most two replicas.

A session uses the first healthy replica of its entry. Only if none is healthy does it get
another, which joins the entry (in place of the older one if there are two). Entries idle for four
hours are dropped, looked for every minute.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import Event
from schedulers.pools import by_id, least_in_flight, serving
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class StickyConfig:
    assignment: Literal["random", "min-load", "min-group"] = "random"
    """How a replica is assigned: at random, fewest turns in flight, or fewest sessions in the
    table. SGLang gateway."""
    replicas_per_session: int = 2
    "SGLang gateway."
    idle_ttl_s: float = 4 * 3600.0
    "SGLang gateway."
    sweep_every_s: float = 60.0
    "SGLang gateway."

    def __post_init__(self) -> None:
        if self.assignment not in ("random", "min-load", "min-group"):
            raise ValueError(
                f"assignment is {self.assignment!r}, not random, min-load or min-group"
            )
        if self.replicas_per_session < 1:
            raise ValueError("replicas_per_session must be at least 1")


@dataclass(slots=True)
class Entry:
    replicas: list[str] = field(default_factory=list)
    last_used: int = 0


class Sticky(RoutingScheduler):
    name = "sticky"
    info = SchedulerInfo(
        family="affinity",
        observes="session id, health; turns in flight for min-load",
        holds=False,
        fidelity="source code read",
        reference="SGLang gateway, manual policy",
    )
    Config = StickyConfig
    config: StickyConfig

    def __init__(self, config: StickyConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._table: dict[str, Entry] = {}
        self._now = self._sweep_at = 0

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if event.now >= self._sweep_at:
            oldest = event.now - round(self.config.idle_ttl_s * NS)
            self._table = {k: e for k, e in self._table.items() if e.last_used >= oldest}
            self._sweep_at = event.now + round(self.config.sweep_every_s * NS)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replicas = serving(cluster)
        entry = self._table.setdefault(turn.session, Entry())
        entry.last_used = self._now
        for known in entry.replicas:
            if by_id(replicas, known) is not None:
                return Route(turn.id, known, why="stays")
        replica = self._assign(replicas)
        if len(entry.replicas) >= self.config.replicas_per_session:
            entry.replicas.pop(0)
        entry.replicas.append(replica.id)
        return Route(turn.id, replica.id, why="assigned")

    def _assign(self, replicas: list[ReplicaView]) -> ReplicaView:
        if self.config.assignment == "random":
            return self.rng.choice(replicas)
        if self.config.assignment == "min-load":
            return least_in_flight(replicas)
        groups = Counter(e.replicas[-1] for e in self._table.values() if e.replicas)
        return min(replicas, key=lambda replica: groups[replica.id])
