"""LMetric: argmin P_i * BS_i, with no settings to tune.

P_i  = prefill tokens queued on replica i + tokens of this prompt that i would compute
BS_i = turns in flight on replica i

An idle replica scores 0 whatever it caches, so several idle ones tie: smaller P_i first, then
round robin. `batch_offset=1` removes that. `objective=prefill` is a follow-on proposed by the
authors of an independent implementation, "least prefill work left": argmin P_i.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import Rotation, serving, uncached_tokens
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class LMetricConfig:
    objective: Literal["product", "prefill"] = "product"
    "`product`: the paper's abstract. `prefill`: P_i alone, ties by turns in flight."
    batch_offset: int = 0
    "Added to BS_i. 0 is the paper's formula; 1 lets idle replicas differ by cache (our choice)."

    def __post_init__(self) -> None:
        if self.objective not in ("product", "prefill"):
            raise ValueError(f"objective is {self.objective!r}, not product or prefill")


class LMetric(RoutingScheduler):
    name = "lmetric"
    info = SchedulerInfo(
        family="cache and load",
        observes="cached prefix, queued prefill tokens, turns in flight",
        holds=False,
        fidelity="summary only",
        reference="LMetric, arXiv 2603.15202 (abstract); ties as in a public implementation",
    )
    Config = LMetricConfig
    config: LMetricConfig

    def __init__(self, config: LMetricConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._rotation = Rotation()

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        scored = [(self._score(turn, cluster, r), r) for r in serving(cluster)]
        best = min(score for score, _ in scored)
        replica = self._rotation.pick([r for score, r in scored if score == best])
        return Route(turn.id, replica.id, why=f"score {best[0]}")

    def _score(self, turn: Turn, cluster: ClusterView, replica: ReplicaView) -> tuple[int, int]:
        prefill = replica.queued_prefill_tokens + uncached_tokens(cluster, turn, replica)
        if self.config.objective == "prefill":
            return prefill, replica.in_flight
        return prefill * (replica.in_flight + self.config.batch_offset), prefill
