"""MARS, its admission part: a window of active sessions that grows slowly and halves at trouble.

Sessions inside the window keep their replica and are never held; new ones wait outside, first
come first. Every interval:
trouble   (turns wait in an engine, or an engine preempted, or the prefix hit rate fell, or more
          tools run than the tool side can take): window = window / 2
otherwise, if the window was full: window + 1 per replica

Within the engine MARS orders by remaining prefill (up to 2,048, 8,192, 32,768 tokens): that level
is passed as the request's priority. Its keeping of KV and its ageing need the engine and are left
out. This is 2604.26963, not the earlier MARS for calls augmented by an API.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Route, WakeAt
from schedulers.events import (
    DispatchFailed,
    Event,
    ReplicaRecovered,
    SessionClosed,
    Timer,
    TurnArrived,
)
from schedulers.pools import by_id, least_in_flight, serving, uncached_tokens
from schedulers.types import NS, ReplicaSample, Turn
from schedulers.views import ClusterView, ReplicaView

OPENING = (TurnArrived, DispatchFailed, SessionClosed, ReplicaRecovered, Timer)
"""Events after which somebody may be let in."""


@dataclass(frozen=True, slots=True)
class MarsConfig:
    start_window: int = 16
    "Sessions let in at first, per replica (our choice)."
    min_window: int = 1
    "Sessions always let in, per replica (our choice)."
    increase: float = 1.0
    "Added per interval and replica. The summary names AIMD; the step is our choice."
    decrease: float = 0.5
    "Factor at trouble. As above."
    interval_s: float = 5.0
    "Time between two looks at the gauges (our choice)."
    max_engine_waiting: int = 8
    "Waiting turns in an engine that are no trouble yet (our choice)."
    hit_rate_drop: float = 0.1
    "Fall of an engine's prefix hit rate between two looks that is trouble (our choice)."
    tool_slots: int = 0
    "Sessions in tools that the tool side can take; 0: not watched."
    level_tokens: tuple[int, ...] = (2048, 8192, 32768)
    "Limits of the prefill levels. A public fork."

    def __post_init__(self) -> None:
        if self.min_window < 1 or self.start_window < self.min_window:
            raise ValueError("needs 1 <= min_window <= start_window")
        if not 0 < self.decrease < 1 or self.interval_s <= 0:
            raise ValueError("decrease must lie between 0 and 1, interval_s above 0")


@dataclass(slots=True)
class Seen:
    """An engine's counters at the last look, and its hit rate between the two before."""

    sample: ReplicaSample | None = None
    hit_rate: float | None = None


class Mars(AdmissionScheduler):
    name = "mars"
    info = SchedulerInfo(
        family="admission",
        observes="engine queue, preemptions and hit rate, running tools",
        holds=True,
        fidelity="summary only",
        reference="MARS, arXiv 2604.26963 (abstract), external admission only",
    )
    Config = MarsConfig
    config: MarsConfig

    def __init__(self, config: MarsConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.window: float | None = None
        self._inside: dict[str, None] = {}
        self._seen: dict[str, Seen] = {}
        self._wake: int | None = None
        self._cuts = 0

    def counters(self) -> dict[str, float]:
        return {"window": self.window or 0.0, "window_cuts": float(self._cuts)}

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        if self.window is None:
            self.window = float(self.config.start_window * len(cluster.replicas))
        if isinstance(event, SessionClosed):
            self._inside.pop(event.session, None)
        if isinstance(event, Timer) and self._wake is not None and event.now >= self._wake:
            self._wake = None
            self.window = self._adjusted(self.window, cluster)
        if isinstance(event, OPENING):
            yield from self._admit(int(self.window), cluster)
        if isinstance(event, (TurnArrived, DispatchFailed)) and event.turn.id in cluster.waiting:
            yield Hold(event.turn.id, why=f"outside a window of {int(self.window)} sessions")
        if self._wake is None and cluster.sessions:
            self._wake = event.now + round(self.config.interval_s * NS)
            yield WakeAt(self._wake)

    def _admit(self, window: int, cluster: ClusterView) -> Iterator[Command]:
        if not serving(cluster):
            return
        for turn in list(cluster.waiting.values()):
            if turn.session not in self._inside:
                if len(self._inside) >= window:
                    continue
                self._inside[turn.session] = None
            yield self._route(turn, cluster)

    def _route(self, turn: Turn, cluster: ClusterView) -> Route:
        replicas = serving(cluster)
        home = by_id(replicas, cluster.sessions[turn.session].last_replica)
        replica = home or least_in_flight(replicas)
        left = uncached_tokens(cluster, turn, replica)
        level = sum(left > limit for limit in self.config.level_tokens)
        why = "stays" if home else "let in"
        return Route(turn.id, replica.id, annotations={"priority": level}, why=why)

    def _adjusted(self, window: float, cluster: ClusterView) -> float:
        # Every replica is looked at, so that the next look compares with this one.
        troubled = [self._in_trouble(replica) for replica in cluster.replicas]
        acting = sum(s.phase == "acting" for s in cluster.sessions.values())
        replicas = len(cluster.replicas)
        if any(troubled) or (self.config.tool_slots and acting > self.config.tool_slots):
            self._cuts += 1
            return max(float(self.config.min_window * replicas), window * self.config.decrease)
        full = len(self._inside) >= int(window)
        return window + self.config.increase * replicas if full else window

    def _in_trouble(self, replica: ReplicaView) -> bool:
        new, seen = replica.sample, self._seen.setdefault(replica.id, Seen())
        old, seen.sample = seen.sample, new
        if new is None:
            return False
        waits = (new.waiting or 0) > self.config.max_engine_waiting
        if old is None:
            return waits
        preempted = (new.preemptions or 0) > (old.preemptions or 0)
        queries = (new.prefix_queries or 0) - (old.prefix_queries or 0)
        if queries <= 0:
            return waits or preempted
        rate = ((new.prefix_hits or 0) - (old.prefix_hits or 0)) / queries
        fell = seen.hit_rate is not None and rate < seen.hit_rate - self.config.hit_rate_drop
        seen.hit_rate = rate
        return waits or preempted or fell
