"""Least loaded: the replica with the least work, by one of two measures.

in-flight     turns in flight from this gateway
queue-time    (queued uncached tokens + this prompt) / throughput + 0.15 k / (1 - k),
              k the share of KV in use, at most 0.999 (SGLang gateway, least_load)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import serving, serving_pool
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView

MAX_KV_USAGE = 0.999


@dataclass(frozen=True, slots=True)
class LeastLoadedConfig:
    load: Literal["in-flight", "queue-time"] = "in-flight"
    "Plain least request by default (our choice); `queue-time` is the SGLang gateway's least_load."
    prefill_tokens_per_s: float = 2000.0
    "Throughput assumed for queued tokens. SGLang gateway."
    kv_weight: float = 0.15
    "SGLang gateway."

    def __post_init__(self) -> None:
        if self.load not in ("in-flight", "queue-time"):
            raise ValueError(f"load is {self.load!r}, not in-flight or queue-time")


class LeastLoaded(RoutingScheduler):
    name = "least-loaded"
    info = SchedulerInfo(
        family="load",
        observes="turns in flight; for queue-time queued prefill tokens and KV usage",
        holds=False,
        fidelity="source code read",
        reference="SGLang gateway, policies least_load",
    )
    Config = LeastLoadedConfig
    config: LeastLoadedConfig

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        if self.config.load == "in-flight":
            best = serving_pool(cluster).least_in_flight()
        else:
            best = min(serving(cluster), key=self._load)
        return Route(turn.id, best.id, why=f"load {self._load(best):.3f}")

    def _load(self, replica: ReplicaView) -> float:
        if self.config.load == "in-flight":
            return replica.in_flight
        # This prompt adds the same time everywhere, so it is left out.
        usage = replica.sample.kv_usage if replica.sample else None
        k = min(usage or 0.0, MAX_KV_USAGE)
        queued = replica.queued_prefill_tokens / self.config.prefill_tokens_per_s
        return queued + self.config.kv_weight * k / (1 - k)
