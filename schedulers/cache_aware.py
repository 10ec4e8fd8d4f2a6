"""The vLLM router's cache-aware policy: follow the longest prefix match unless load is uneven.

imbalanced = (max - min) > abs  and  max > rel * min        (turns in flight from this gateway)
imbalanced:                   least load
else m = matched / total:     m > threshold: the replica with the longest match
                              otherwise:     the fallback replica
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import Event
from schedulers.pools import by_id, least_in_flight, serving
from schedulers.prefix_tree import PrefixTree
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class CacheAwareConfig:
    threshold: float = 0.5
    "Share of the prompt that must match to follow the cache. vLLM router, cache_threshold."
    balance_abs: int = 32
    "Turns in flight by which loads must differ to count as uneven. vLLM router."
    balance_rel: float = 1.1
    "Factor by which loads must differ as well. vLLM router."
    imbalance_gate: Literal["fleet", "request"] = "fleet"
    """`fleet`, as shipped: one busy replica switches affinity off for every turn. `request`:
    only a turn whose matched replica is itself too busy goes elsewhere (our reading of the
    router's pull request 238)."""
    fallback: Literal["smallest-tree", "least-load"] = "smallest-tree"
    "Without a match. vLLM router documentation: smallest tree; SGLang gateway code: least load."
    max_tree_bytes: int = 2**26
    """Text remembered per replica. The router's documentation says 10,000 without a unit; this is
    the default of its smetric policy (our choice)."""
    evict_every_s: float = 30.0
    "vLLM router, eviction_interval_secs."

    def __post_init__(self) -> None:
        if self.imbalance_gate not in ("fleet", "request"):
            raise ValueError(f"imbalance_gate is {self.imbalance_gate!r}, not fleet or request")
        if self.fallback not in ("smallest-tree", "least-load"):
            raise ValueError(f"fallback is {self.fallback!r}, not smallest-tree or least-load")


class CacheAware(RoutingScheduler):
    name = "cache-aware"
    info = SchedulerInfo(
        family="cache filter",
        observes="prompt text, turns in flight",
        holds=False,
        fidelity="source code read",
        reference="vLLM router, src/policies/cache_aware.rs",
    )
    Config = CacheAwareConfig
    config: CacheAwareConfig

    def __init__(self, config: CacheAwareConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._tree = PrefixTree()
        self._now = self._evict_at = 0

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if event.now >= self._evict_at:
            self._tree.evict_to(self.config.max_tree_bytes)
            self._evict_at = event.now + round(self.config.evict_every_s * NS)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replica, why = self._pick(turn, cluster)
        self._tree.insert(turn.prompt, replica.id, self._now)
        return Route(turn.id, replica.id, why=why)

    def _pick(self, turn: Turn, cluster: ClusterView) -> tuple[ReplicaView, str]:
        replicas = serving(cluster)
        least = least_in_flight(replicas)
        most = max(replica.in_flight for replica in replicas)
        if self.config.imbalance_gate == "fleet" and self._uneven(most, least):
            return least, "load is uneven"
        matched = self._tree.match(turn.prompt)
        best = max(matched.values(), default=0)
        if best <= self.config.threshold * turn.prompt.bytes:
            return self._fallback(replicas, least), "no prefix match"
        # The router keeps one owner per text; with several, the first configured stands in.
        owner = next(r for r in cluster.replicas if matched.get(r.id) == best)
        target = by_id(replicas, owner.id)
        if target is None:
            return replicas[0], "the matched replica is lost"
        if self.config.imbalance_gate == "request" and self._uneven(target.in_flight, least):
            return least, "the matched replica is too busy"
        return target, f"prefix match {best / turn.prompt.bytes:.0%}"

    def _uneven(self, load: int, least: ReplicaView) -> bool:
        return (
            load - least.in_flight > self.config.balance_abs
            and load > self.config.balance_rel * least.in_flight
        )

    def _fallback(self, replicas: list[ReplicaView], least: ReplicaView) -> ReplicaView:
        if self.config.fallback == "least-load":
            return least
        return min(replicas, key=lambda replica: self._tree.size(replica.id))
