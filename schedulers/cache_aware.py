"""The vLLM router's cache-aware policy: follow the longest prefix match unless load is uneven.

imbalanced = (max - min) > abs  and  max > rel * min        (turns in flight from this gateway)
imbalanced:                   least load
else m = matched / total:     m > threshold: the replica with the longest match
                              otherwise:     the fallback replica

Defaults are those of the released program; docs/routers.md compares its choices with these. With
`imbalance_gate=average least_load_tie=fewest-chosen owner=least-load` it is SMG's policy.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from math import sqrt
from random import Random
from typing import Literal

import numpy as np

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import Event
from schedulers.pools import Pool, serving_pool
from schedulers.prefix_tree import PrefixTree, Step
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class CacheAwareConfig:
    threshold: float = 0.3
    "Share of the prompt that must match to follow it. vllm-router 0.1.17, --cache-threshold."
    balance_abs: int = 64
    """Turns in flight by which loads must differ to count as uneven. vllm-router 0.1.17,
    --balance-abs-threshold."""
    balance_rel: float = 1.5
    "Factor by which loads must differ as well. vllm-router 0.1.17, --balance-rel-threshold."
    imbalance_gate: Literal["fleet", "request", "average"] = "fleet"
    """`fleet`, as shipped: one busy replica switches affinity off for every turn. `request`:
    only a turn whose matched replica is itself too busy goes elsewhere (our reading of the
    router's pull request 238). `average`: only if it has more than the mean load, by
    `balance_rel` and by the lesser of `balance_abs` and two standard deviations of a Poisson load,
    at least 4 (smg 1.13.0, by its help text)."""
    fallback: Literal["smallest-tree", "least-load"] = "least-load"
    """Without a match. The code of vLLM router and SMG: least load; their documentation and the
    code of SGLang's router that they come from: smallest tree."""
    least_load_tie: Literal["first", "fewest-chosen"] = "first"
    """Among equal loads: the first one (vLLM router), or that chosen least often so far (SMG)."""
    owner: Literal["least-load", "random-least-load", "first-holder"] = "least-load"
    """Where several replicas had all of the matched text: the least loaded of them, the first of
    equals (vllm-router 0.1.17, by its choices) or one drawn among equals (SMG); or the one that
    had it first (vLLM router's code before that)."""
    max_tree_bytes: int = 2**25
    "Text remembered per replica. vllm-router 0.1.17, --max-tree-size, in characters."
    evict_every_s: float = 120.0
    "vllm-router 0.1.17, --eviction-interval-secs."

    def __post_init__(self) -> None:
        for name, choices in _CHOICES.items():
            if getattr(self, name) not in choices:
                raise ValueError(f"{name} is {getattr(self, name)!r}, not {' or '.join(choices)}")


_CHOICES = {
    "imbalance_gate": ("fleet", "request", "average"),
    "fallback": ("smallest-tree", "least-load"),
    "least_load_tie": ("first", "fewest-chosen"),
    "owner": ("least-load", "random-least-load", "first-holder"),
}


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
        self._chosen: Counter[str] = Counter()
        self._now = self._evict_at = 0

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if event.now >= self._evict_at:
            self._tree.evict_to(self.config.max_tree_bytes)
            self._evict_at = event.now + round(self.config.evict_every_s * NS)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replica, why = self._pick(turn, cluster)
        self._tree.insert(turn.prompt, replica.id, self._now)
        self._chosen[replica.id] += 1
        return Route(turn.id, replica.id, why=why)

    def _pick(self, turn: Turn, cluster: ClusterView) -> tuple[ReplicaView, str]:
        pool = serving_pool(cluster)
        least = self._least(pool)
        if self.config.imbalance_gate == "fleet" and self._uneven(int(pool.in_flight.max()), least):
            return least, "load is uneven"
        match = self._tree.longest(turn.prompt)
        best = match.matched
        if best <= self.config.threshold * turn.prompt.bytes:
            return self._fallback(pool, least), "no prefix match"
        target = self._owner(pool, match)
        if target is None:
            return pool.members[0], "the matched replica is lost"
        if self._too_busy(target, pool, least):
            return least, "the matched replica is too busy"
        return target, f"prefix match {best / turn.prompt.bytes:.0%}"

    def _least(self, pool: Pool) -> ReplicaView:
        if self.config.least_load_tie == "first":
            return pool.least_in_flight()
        fewest = np.flatnonzero(pool.in_flight == pool.in_flight.min())
        return min((pool.members[i] for i in fewest), key=lambda r: self._chosen[r.id])

    def _owner(self, pool: Pool, match: Step) -> ReplicaView | None:
        """Which of those that have the matched text gets the turn; None: it is not healthy."""
        if self.config.owner == "first-holder":
            return pool.get(next(iter(match.node.holders)))
        healthy = match.node.positions(pool)
        if not len(healthy):
            return None
        loads = pool.in_flight[healthy]
        if self.config.owner == "least-load":
            return pool.members[int(healthy[loads.argmin()])]
        fewest = healthy[loads == loads.min()]
        return pool.members[int(self.rng.choice(fewest.tolist()))]

    def _too_busy(self, target: ReplicaView, pool: Pool, least: ReplicaView) -> bool:
        if self.config.imbalance_gate == "request":
            return self._uneven(target.in_flight, least)
        if self.config.imbalance_gate == "average":
            mean = int(pool.in_flight.sum()) / len(pool)
            margin = min(self.config.balance_abs, max(4.0, 2 * sqrt(mean)))
            return target.in_flight > max(mean + margin, mean * self.config.balance_rel)
        return False

    def _uneven(self, load: int, least: ReplicaView) -> bool:
        return (
            load - least.in_flight > self.config.balance_abs
            and load > self.config.balance_rel * least.in_flight
        )

    def _fallback(self, pool: Pool, least: ReplicaView) -> ReplicaView:
        if self.config.fallback == "least-load":
            return least
        return min(pool.members, key=lambda replica: self._tree.size(replica.id))
