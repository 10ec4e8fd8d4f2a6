"""AIBrix's prefix-cache routing: the best match that is not overloaded.

max - min running > 16:  least running
else the replicas that match, best match first, then fewest running; the first of them with
running <= mean + 2 * std;  none: least running
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random
from statistics import fmean, pstdev

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import Event, ReplicaLost
from schedulers.pools import serving
from schedulers.prefix_tree import PrefixTree
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class AIBrixConfig:
    imbalance: int = 16
    "Spread of running requests beyond which the cache is ignored. AIBrix gateway."
    std_factor: float = 2.0
    "A match with more running requests than mean + this many deviations is passed over. AIBrix."
    block_bytes: int = 128
    "AIBrix gateway."
    blocks_per_replica: int = 200_000
    "AIBrix gateway (one table of this size; here for each replica, our choice)."

    def __post_init__(self) -> None:
        if self.block_bytes < 1:
            raise ValueError("block_bytes must be at least 1")


class AIBrix(RoutingScheduler):
    name = "aibrix"
    info = SchedulerInfo(
        family="cache filter",
        observes="prompt text, turns in flight",
        holds=False,
        fidelity="source code read",
        reference="AIBrix gateway, prefix-cache routing",
    )
    Config = AIBrixConfig
    config: AIBrixConfig

    def __init__(self, config: AIBrixConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._tree = PrefixTree()
        self._now = 0

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if isinstance(event, ReplicaLost):
            self._tree.forget(event.replica)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replica, why = self._pick(turn, serving(cluster))
        self._tree.insert(turn.prompt, replica.id, self._now)
        limit = self.config.blocks_per_replica * self.config.block_bytes
        if self._tree.size(replica.id) > limit:
            self._tree.evict_to(limit)
        return Route(turn.id, replica.id, why=why)

    def _pick(self, turn: Turn, replicas: Sequence[ReplicaView]) -> tuple[ReplicaView, str]:
        loads = [replica.in_flight for replica in replicas]
        if max(loads) - min(loads) > self.config.imbalance:
            return self._least(replicas), "load is uneven"
        bound = fmean(loads) + self.config.std_factor * pstdev(loads)
        found = self._tree.match(turn.prompt)
        matched = {r.id: found.get(r.id, 0) // self.config.block_bytes for r in replicas}
        candidates = [r for r in replicas if matched[r.id] > 0]
        self.rng.shuffle(candidates)
        candidates.sort(key=lambda r: (-matched[r.id], r.in_flight))
        for replica in candidates:
            if replica.in_flight <= bound:
                return replica, f"{matched[replica.id]} blocks match"
        return self._least(replicas), "no match that is not overloaded"

    def _least(self, replicas: Sequence[ReplicaView]) -> ReplicaView:
        least = min(replica.in_flight for replica in replicas)
        tied = [replica for replica in replicas if replica.in_flight == least]
        return tied[0] if len(tied) == 1 else self.rng.choice(tied)
