"""Room on replicas as Headroom counts it: what fits, what will grow, whose KV is still there."""

from __future__ import annotations

from collections import OrderedDict, defaultdict, deque
from collections.abc import Mapping
from dataclasses import dataclass

from schedulers import events as ev
from schedulers.types import NS, PromptRef, Turn
from schedulers.views import ClusterView, ReplicaView

_WINDOW = 600 * NS
_LEAST_USAGE = 0.2
"""Below this share of KV in use, block rounding and prompts on their way weigh too much."""
_FADE = 0.1
_WITHIN = 4.0


class Recent:
    """Sum over the last ten minutes."""

    def __init__(self) -> None:
        self._entries: deque[tuple[int, int]] = deque()
        self._sum = 0

    def add(self, tokens: int, now: int) -> None:
        self._entries.append((now, tokens))
        self._sum += tokens

    def sum(self, now: int) -> int:
        while self._entries and self._entries[0][0] < now - _WINDOW:
            self._sum -= self._entries.popleft()[1]
        return self._sum


class Union:
    """Tokens of several contexts on one replica: text that they share is there once."""

    def __init__(self, prompts: Mapping[str, PromptRef]) -> None:
        self._prompts = prompts
        self._segments: dict[str, int] = {}
        self.total = 0.0

    def add(self, session: str, tokens: float) -> None:
        self.total += self.adds(session, tokens)
        prompt = self._prompts.get(session)
        for segment, reach, _ in prompt.runs if prompt else ():
            if self._segments.get(segment, 0) < reach:
                self._segments[segment] = reach

    def adds(self, session: str, tokens: float) -> float:
        """Tokens by which it would grow."""
        prompt = self._prompts.get(session)
        for segment, reach, _ in prompt.runs if prompt else ():
            tokens -= min(reach, self._segments.get(segment, 0))
        return tokens


@dataclass(frozen=True, slots=True)
class Kept:
    """Room kept free on a replica: from the queue, and for an aged turn from sessions there too."""

    session: str
    tokens: float
    aged: bool


class Room:
    """Tokens that fit on each replica, growth to expect, and a model of the engine's eviction."""

    def __init__(self, measure: bool = True, share: bool = True) -> None:
        self._measure, self._share = measure, share
        self._scale: dict[str, float] = {}
        self._prompts: dict[str, PromptRef] = {}
        self._used: dict[str, OrderedDict[str, int]] = {}
        self._ended: defaultdict[str, Recent] = defaultdict(Recent)

    # What fits.

    def capacity(self, replica: ReplicaView) -> float:
        """Tokens, as the gateway counts them, that fill the replica's KV; inf if not known."""
        if replica.capacity_tokens is None:
            return float("inf")
        return self.reported(replica) * self._scale.get(replica.id, 1.0)

    def reported(self, replica: ReplicaView) -> float:
        """Tokens, as the engine said at its start."""
        return float(replica.capacity_tokens or 0)

    def sampled(self, event: ev.ReplicaSampled, cluster: ClusterView) -> None:
        """Compare tokens counted for running turns with the share of KV that the engine says they
        hold: one ratio corrects a wrong capacity and wrong estimates of tokens.
        """
        sample, replica = event.sample, cluster.replica(event.replica)
        usage = sample.kv_usage
        if not self._measure or usage is None or usage < _LEAST_USAGE or sample.waiting:
            return
        if not replica.capacity_tokens or sample.running != replica.in_flight:
            return
        running = self.union()
        for name in replica.sessions:
            if cluster.sessions[name].in_flight:
                running.add(name, cluster.tokens(name))
        if replica.queued_prefill_tokens > 0.02 * running.total:
            return
        scale = running.total / usage / self.reported(replica)
        scale = min(_WITHIN, max(1 / _WITHIN, scale))
        before = self._scale.get(replica.id, 1.0)
        self._scale[replica.id] = before + _FADE * (scale - before)

    def prompted(self, turn: Turn) -> None:
        if self._share:
            self._prompts[turn.session] = turn.prompt

    def union(self) -> Union:
        return Union(self._prompts)

    # What ends.

    def ended(self, session: str, replica: str | None, tokens: int, now: int) -> None:
        self._prompts.pop(session, None)
        if replica is not None and tokens:
            self._ended[replica].add(tokens, now)

    def freed_per_s(self, replica: str, now: int) -> float:
        """Tokens a second that ended sessions gave back in the last ten minutes."""
        return self._ended[replica].sum(now) / (min(_WINDOW, max(now, NS)) / NS)

    # Eviction.

    def touched(self, session: str, replica: str, tokens: int) -> None:
        """A turn of the session ran there just now, with so many tokens of context."""
        order = self._used.setdefault(replica, OrderedDict())
        order[session] = tokens
        order.move_to_end(session)

    def ran(self, session: str, replica: str) -> bool:
        """Whether a turn of the session, or its prefill, is on record there."""
        return session in self._used.get(replica, ())

    def alive(self, session: str, replica: ReplicaView, cluster: ClusterView) -> bool:
        """Whether least-recently-used eviction has spared the session's KV: contexts that run
        there, those used there since, of ended sessions too, and its own fit together."""
        order, since = self._used.get(replica.id), self.union()
        if order is None or session not in order:
            return False
        capacity = self.capacity(replica)
        running = {name for name in replica.sessions if cluster.sessions[name].in_flight}
        for name in running:
            since.add(name, cluster.tokens(name))
        if since.total > capacity:
            return session in running
        for name in reversed(order):
            if name not in running:
                since.add(name, order[name])
            if since.total > capacity:
                break
            if name == session:
                return True
        self._forget_before(order, capacity)
        return False

    @staticmethod
    def _forget_before(order: OrderedDict[str, int], capacity: float) -> None:
        """Drop what is certainly evicted."""
        total = sum(order.values())
        while order and total - next(iter(order.values())) > 2 * capacity:
            total -= order.popitem(last=False)[1]

    def lost(self, replica: str) -> None:
        """The replica's KV is gone."""
        self._used.pop(replica, None)
