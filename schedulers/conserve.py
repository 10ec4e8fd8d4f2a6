"""ConServe: a conversation is prefilled remotely once, and then lives on one decoder.

turn 1   prefiller = argmin (queued tokens + input) / throughput
         decoder   = argmin occupancy / capacity, among those where input + reserve fits
         the KV is sent over once, and the conversation pinned to the decoder
turn 2+  all of it on the pinned decoder: appended prefill and decode, no transfer
admit turn 1 if the arrival rate of input tokens < prefillers' throughput and, over all decoders,
         occupancy + input <= capacity; otherwise wait, first come first served

Occupancy is the last known context of every pinned open conversation: engines' gauges leave idle
KV out. A lost decoder's conversations start again as in turn 1; without a prefiller the decoder
prefills. Throughput is measured: tokens of a leg over the time the prefiller worked on it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import exp, inf
from random import Random

from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Route, WakeAt
from schedulers.events import (
    ClientGone,
    DispatchFailed,
    Event,
    FirstToken,
    LegFinished,
    ReplicaLost,
    SessionClosed,
    Timer,
    TurnArrived,
    TurnFailed,
    TurnFinished,
)
from schedulers.pools import by_id, prefillers, serving, uncached_tokens
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class ConServeConfig:
    reserve_tokens: int = 0
    "Kept for a conversation's growth when it is placed. Not in the paper's summary (our choice)."
    rate_window_s: float = 10.0
    "Time constant of the arrival rate. As above."
    prefill_tokens_per_s: float = 8000.0
    "Throughput of a prefiller before any was measured. As above."
    throughput_weight: float = 0.2
    "Weight of a new measurement of it. As above."
    idle_ttl_s: float = 600.0
    "A conversation unseen for this long is unpinned; 0: never. As above."
    retry_s: float = 1.0
    "How often waiting conversations are looked at, beside every event that makes room. As above."

    def __post_init__(self) -> None:
        if min(self.rate_window_s, self.prefill_tokens_per_s, self.retry_s) <= 0:
            raise ValueError("rate_window_s, prefill_tokens_per_s and retry_s must be positive")


@dataclass(slots=True)
class Pin:
    decoder: str
    last_seen: int


@dataclass(frozen=True, slots=True)
class Leg:
    """A remote prefill on its way."""

    tokens: int
    sent_at: int


class ArrivalRate:
    """Input tokens a second, older ones fading exponentially."""

    def __init__(self, window_s: float) -> None:
        self._window = window_s * NS
        self._rate = 0.0
        self._at = 0

    def add(self, tokens: int, now: int) -> None:
        self._rate, self._at = self.at(now) + tokens / (self._window / NS), now

    def at(self, now: int) -> float:
        return self._rate * exp(-(now - self._at) / self._window)


class ConServe(AdmissionScheduler):
    name = "conserve"
    info = SchedulerInfo(
        family="disaggregation",
        observes="queued prefill tokens, prefill throughput, pinned contexts, capacity",
        holds=True,
        fidelity="summary only",
        reference="ConServe, arXiv 2606.01839",
    )
    Config = ConServeConfig
    config: ConServeConfig

    def __init__(self, config: ConServeConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.pins: dict[str, Pin] = {}
        self.arrivals = ArrivalRate(self.config.rate_window_s)
        self._throughput: dict[str, float] = {}
        self._legs: dict[str, Leg] = {}
        self._worked_until: dict[str, int] = {}
        self._queue: deque[str] = deque()
        self._retry_at: int | None = None
        self._counts = dict.fromkeys(("pinned", "kv_transfers", "waited"), 0)

    def counters(self) -> dict[str, float]:
        return {name: float(count) for name, count in self._counts.items()}

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        match event:
            case TurnArrived(now, turn):
                if turn.session not in self.pins:
                    self.arrivals.add(turn.prompt.tokens, now)
                yield from self._serve(turn, now, cluster)
            case DispatchFailed(now, turn):
                self._legs.pop(turn.id, None)
                yield from self._serve(turn, now, cluster)
            case LegFinished(now, _, turn_id, _, replica):
                self._measure(turn_id, replica, now)
            case TurnFinished(now, session) | TurnFailed(now, session) | ClientGone(now, session):
                self._legs.pop(event.turn_id, None)
                if session in self.pins:
                    self.pins[session].last_seen = now
            case SessionClosed(_, session):
                self.pins.pop(session, None)
            case ReplicaLost(_, replica):
                self.pins = {s: pin for s, pin in self.pins.items() if pin.decoder != replica}
            case Timer(now) if self._retry_at is not None and now >= self._retry_at:
                self._retry_at = None
        if not isinstance(event, FirstToken):
            yield from self._admit(event.now, cluster)

    def _serve(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        pin = self.pins.get(turn.session)
        decoder = by_id(serving(cluster), pin.decoder) if pin else None
        if pin is not None and decoder is not None:
            pin.last_seen = now
            yield Route(turn.id, decoder.id, why="pinned")
            return
        self.pins.pop(turn.session, None)
        self._queue.append(turn.id)
        if len(self._queue) > 1 or self._decide(turn, now, cluster) is None:
            self._counts["waited"] += 1
            yield Hold(turn.id, why="no room, or prefillers are saturated")

    def _admit(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        self._expire(now)
        while self._queue:
            turn = cluster.waiting.get(self._queue[0])
            if turn is None:
                self._queue.popleft()
                continue
            route = self._decide(turn, now, cluster)
            if route is None:
                break
            self._queue.popleft()
            self.pins[turn.session] = Pin(route.decode, now)
            self._counts["pinned"] += 1
            if route.prefill is not None:
                self._counts["kv_transfers"] += 1
                prefiller = cluster.replica(route.prefill)
                self._legs[turn.id] = Leg(uncached_tokens(cluster, turn, prefiller), now)
            yield route
        if self._queue and self._retry_at is None:
            self._retry_at = now + round(self.config.retry_s * NS)
            yield WakeAt(self._retry_at)

    def _decide(self, turn: Turn, now: int, cluster: ClusterView) -> Route | None:
        """Where turn 1 goes, or None if it must wait."""
        pool, decoders = prefillers(cluster), serving(cluster)
        tokens = turn.prompt.tokens
        if pool and self.arrivals.at(now) >= sum(self.throughput(p.id) for p in pool):
            return None
        used = self.occupancy(cluster)
        total = sum(used.get(r.id, 0) for r in decoders)
        if total and total + tokens > sum(_capacity(r) for r in decoders):
            return None
        needed = tokens + self.config.reserve_tokens
        # What is larger than a whole decoder fits an empty one; the engine has the last word.
        fitting = [
            r
            for r in decoders
            if used.get(r.id, 0) + needed <= _capacity(r) or used.get(r.id, 0) == 0
        ]
        if not fitting:
            return None
        decoder = min(fitting, key=lambda r: used.get(r.id, 0) / (r.capacity_tokens or 1))
        prefiller = self._prefiller(tokens, pool)
        why = f"first turn, decoder holds {used.get(decoder.id, 0)} tokens"
        return Route(turn.id, decoder.id, prefill=prefiller.id if prefiller else None, why=why)

    def _prefiller(self, tokens: int, pool: Sequence[ReplicaView]) -> ReplicaView | None:
        def seconds(replica: ReplicaView) -> float:
            return (replica.queued_prefill_tokens + tokens) / self.throughput(replica.id)

        return min(pool, key=seconds, default=None)

    # What is known of decoders and prefillers.

    def occupancy(self, cluster: ClusterView) -> dict[str, int]:
        """Context tokens pinned to each decoder, with room reserved for growth."""
        used: dict[str, int] = {}
        for session, pin in self.pins.items():
            tokens = cluster.tokens(session) + self.config.reserve_tokens
            used[pin.decoder] = used.get(pin.decoder, 0) + tokens
        return used

    def throughput(self, prefiller: str) -> float:
        """Prefill tokens a second."""
        return self._throughput.get(prefiller, self.config.prefill_tokens_per_s)

    def _measure(self, turn_id: str, prefiller: str, now: int) -> None:
        leg = self._legs.pop(turn_id, None)
        begun = max(leg.sent_at, self._worked_until.get(prefiller, 0)) if leg else now
        self._worked_until[prefiller] = now
        if leg is None or leg.tokens <= 0 or now <= begun:
            return
        sample = leg.tokens / ((now - begun) / NS)
        known = self._throughput.get(prefiller)
        weight = self.config.throughput_weight
        self._throughput[prefiller] = (
            sample if known is None else weight * sample + (1 - weight) * known
        )

    def _expire(self, now: int) -> None:
        if self.config.idle_ttl_s > 0:
            limit = now - round(self.config.idle_ttl_s * NS)
            self.pins = {s: pin for s, pin in self.pins.items() if pin.last_seen > limit}


def _capacity(decoder: ReplicaView) -> float:
    return inf if decoder.capacity_tokens is None else decoder.capacity_tokens
