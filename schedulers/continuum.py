"""Continuum at a gateway: a session keeps its place through a tool call for a time worth waiting.

tau* = argmax over tau of F(tau) * B - tau,   B = eta * mean evicted wait + reload(context)

F is the distribution of the tool's durations, B what is lost if the place is given away. The
candidates are 0 and the observed durations, the smaller of equals. Until more than 100 durations
are known, F is exponential with mean 1 s and eta 1, so tau* = ln B if B > 1, else 0; until more
than 100 of the tool are known, F is that of all tools. eta = -corr(k, N - k) over the turns k of
finished sessions of N turns: near 1 if a session's progress tells how much is left.

A turn within its session's time passes at once. All others wait in order of their session's first
arrival, and the first is let in when its prompt fits on a replica beside the places held. If
nothing runs and it still does not fit, held places go, latest session first.

In the engine Continuum pins KV; here the place is a reservation in the gateway's accounts. The
policy's own ordering of preempted requests needs the engine and is left out.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from heapq import heappop, heappush
from math import log, sqrt
from random import Random

from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Pause, Resume, Route, WakeAt
from schedulers.events import (
    DispatchFailed,
    Event,
    FirstToken,
    ReplicaSampled,
    SessionClosed,
    Timer,
    ToolHint,
    ToolStarted,
    TurnArrived,
    TurnFinished,
)
from schedulers.pools import by_id, serving
from schedulers.types import NS
from schedulers.views import ClusterView, ReplicaView, SessionView

UNRELATED = (FirstToken, ReplicaSampled, ToolHint, ToolStarted)
"""Events that make no room and bring no turn."""


@dataclass(frozen=True, slots=True)
class ContinuumConfig:
    cold_samples: int = 100
    "Durations needed beyond which their distribution is used. A re-implementation of v6, 4.2."
    cold_mean_s: float = 1.0
    "Mean of the exponential used before. As above."
    window: int = 512
    "Latest durations kept per tool and in all (our choice; it bounds the cost of a decision)."
    reload_base_s: float = 0.066
    "Reload = base + linear k + square k^2, k thousand tokens. vLLM router, program scheduling."
    reload_per_1k_s: float = 0.0570
    "As above."
    reload_per_1k_squared_s: float = 0.00441
    "As above."

    def __post_init__(self) -> None:
        if self.window < 1 or self.cold_samples < 0 or self.cold_mean_s <= 0:
            raise ValueError("window and cold_mean_s must be positive, cold_samples not negative")


@dataclass(slots=True)
class Durations:
    """The latest durations, ascending as well as in order of arrival."""

    window: int
    seen: int = 0
    ascending: list[float] = field(default_factory=list)
    _latest: deque[float] = field(default_factory=deque)

    def add(self, seconds: float) -> None:
        self.seen += 1
        insort(self.ascending, seconds)
        self._latest.append(seconds)
        if len(self._latest) > self.window:
            self.ascending.remove(self._latest.popleft())

    def best_wait(self, benefit: float) -> float:
        """The tau of highest F(tau) * benefit - tau among 0 and the durations."""
        count = len(self.ascending)
        best, value = 0.0, benefit * bisect_right(self.ascending, 0.0) / count
        for index, tau in enumerate(self.ascending):
            gain = benefit * (index + 1) / count - tau
            if gain > value and (index + 1 == count or self.ascending[index + 1] > tau):
                best, value = tau, gain
        return best


@dataclass(slots=True)
class TurnCorrelation:
    """-corr(k, N - k) over all turns k of finished sessions with N turns."""

    n: int = 0
    sum_k: int = 0
    sum_left: int = 0
    sum_kk: int = 0
    sum_left_left: int = 0
    sum_k_left: int = 0

    def add(self, turns: int) -> None:
        squares = turns * (turns + 1) * (2 * turns + 1) // 6
        k, left = turns * (turns + 1) // 2, turns * (turns - 1) // 2
        self.n += turns
        self.sum_k += k
        self.sum_left += left
        self.sum_kk += squares
        self.sum_left_left += squares - turns * turns
        self.sum_k_left += turns * k - squares

    def eta(self) -> float:
        """Between 0 and 1; 1 while nothing can be said."""
        var_k = self.n * self.sum_kk - self.sum_k**2
        var_left = self.n * self.sum_left_left - self.sum_left**2
        if var_k <= 0 or var_left <= 0:
            return 1.0
        covariance = self.n * self.sum_k_left - self.sum_k * self.sum_left
        return min(1.0, max(0.0, -covariance / sqrt(var_k * var_left)))


class Continuum(AdmissionScheduler):
    name = "continuum"
    info = SchedulerInfo(
        family="admission",
        observes="tool names and durations, context tokens, capacity",
        holds=True,
        fidelity="inferred",
        reference="Continuum, arXiv 2511.02230, gateway form of a public re-implementation",
    )
    Config = ContinuumConfig
    config: ContinuumConfig

    def __init__(self, config: ContinuumConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.all_tools = Durations(self.config.window)
        self.by_tool: dict[str, Durations] = {}
        self.correlation = TurnCorrelation()
        self._tool: dict[str, tuple[str, int]] = {}
        """Session to its running tool and the start of it."""
        self._until: dict[str, int] = {}
        """Acting session to the end of its reservation."""
        self._timers: list[tuple[int, str]] = []
        self._evicted_wait_s = 0.0
        self._evicted = 0
        self._expired = 0

    def counters(self) -> dict[str, float]:
        return {"expired": float(self._expired), "evicted_turns": float(self._evicted)}

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        if isinstance(event, (TurnArrived, DispatchFailed)):
            turn = event.turn
            self._until.pop(turn.session, None)
            self._note_duration(turn.session, event.now)
            home = by_id(serving(cluster), cluster.sessions[turn.session].home)
            if home is not None:
                yield Route(turn.id, home.id, why="within its reservation")
            else:
                yield Hold(turn.id, why="waits in order of its session's arrival")
        elif isinstance(event, TurnFinished):
            yield from self._reserve(event.session, None, event.now, cluster)
        elif isinstance(event, ToolStarted):
            name = event.tools[0].name if event.tools else ""
            self._tool[event.session] = (name, event.now)
            yield from self._reserve(event.session, name, event.now, cluster)
        elif isinstance(event, SessionClosed):
            self.correlation.add(cluster.sessions[event.session].turns_finished)
            self._until.pop(event.session, None)
            self._tool.pop(event.session, None)
        elif isinstance(event, Timer):
            yield from self._expire(event.now, cluster)
        if not isinstance(event, UNRELATED):
            yield from self._admit(event.now, cluster)

    # How long a place is kept.

    def _note_duration(self, session: str, now: int) -> None:
        name, started = self._tool.pop(session, (None, 0))
        if name is not None:
            seconds = (now - started) / NS
            self.all_tools.add(seconds)
            self.by_tool.setdefault(name, Durations(self.config.window)).add(seconds)

    def _reserve(
        self, session_id: str, tool: str | None, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        session = cluster.sessions[session_id]
        if session.phase == "reasoning" or session.home is None:
            return
        until = now + round(self.reservation_s(tool, session.tokens) * NS)
        self._until[session_id] = until
        heappush(self._timers, (until, session_id))
        # Even a reservation of no time ends with a timer: the tool that starts right after the
        # turn may deserve more.
        yield WakeAt(until)

    def reservation_s(self, tool: str | None, tokens: int) -> float:
        """tau* in seconds."""
        k = tokens / 1000
        config = self.config
        reload = config.reload_base_s + config.reload_per_1k_s * k
        reload += config.reload_per_1k_squared_s * k * k
        wait = self._evicted_wait_s / self._evicted if self._evicted else 0.0
        if self.all_tools.seen <= config.cold_samples:
            benefit = (wait + reload) / config.cold_mean_s
            return config.cold_mean_s * log(benefit) if benefit > 1 else 0.0
        own = self.by_tool.get(tool) if tool is not None else None
        known = own if own is not None and own.seen > config.cold_samples else self.all_tools
        return known.best_wait(self.correlation.eta() * wait + reload)

    def _expire(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        while self._timers and self._timers[0][0] <= now:
            until, session_id = heappop(self._timers)
            if self._until.get(session_id) != until:
                continue
            del self._until[session_id]
            if cluster.sessions[session_id].home is not None:
                self._expired += 1
                yield Pause(session_id, why="its reservation ended")

    # Who is let in.

    def _admit(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        waiting = [
            cluster.sessions[s]
            for s in dict.fromkeys(turn.session for turn in cluster.waiting.values())
        ]
        waiting.sort(key=lambda session: session.arrived_at)
        replicas = serving(cluster)
        for session in waiting:
            if not replicas:
                return
            replica = self._place(session, replicas, cluster)
            if replica is None and not any(r.in_flight for r in replicas):
                yield from self._drop_places(session, replicas, cluster)
                replica = self._place(session, replicas, cluster) or max(
                    replicas, key=lambda r: _room(r, cluster)
                )
            if replica is None:
                return
            if session.turns_finished and session.waiting_since is not None:
                self._evicted += 1
                self._evicted_wait_s += (now - session.waiting_since) / NS
            yield Resume(session.id, replica.id, why="its turn in the order, and it fits")

    def _place(
        self, session: SessionView, replicas: list[ReplicaView], cluster: ClusterView
    ) -> ReplicaView | None:
        """Where it was if it fits, else the roomiest replica if that is enough."""
        origin = by_id(replicas, session.last_replica)
        if origin is not None and _room(origin, cluster) >= session.tokens:
            return origin
        roomiest = max(replicas, key=lambda r: _room(r, cluster))
        return roomiest if _room(roomiest, cluster) >= session.tokens else None

    def _drop_places(
        self, head: SessionView, replicas: list[ReplicaView], cluster: ClusterView
    ) -> Iterator[Command]:
        holders = sorted((cluster.sessions[s] for s in self._until), key=lambda s: -s.arrived_at)
        for holder in holders:
            if self._place(head, replicas, cluster) is not None:
                return
            del self._until[holder.id]
            if holder.home is not None:
                self._expired += 1
                yield Pause(holder.id, why="nothing runs and the first in order does not fit")


def _room(replica: ReplicaView, cluster: ClusterView) -> float:
    if replica.capacity_tokens is None:
        return float("inf")
    return replica.capacity_tokens - sum(cluster.tokens(s) for s in replica.sessions)
