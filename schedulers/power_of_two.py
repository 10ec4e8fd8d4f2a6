"""Power of two choices: the less loaded of two replicas drawn at random."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import serving
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class PowerOfTwoConfig:
    load: Literal["in-flight", "token-usage"] = "in-flight"
    """Turns in flight (vLLM router), or the engines' KV usage if both of the two report it
    (SGLang gateway)."""

    def __post_init__(self) -> None:
        if self.load not in ("in-flight", "token-usage"):
            raise ValueError(f"load is {self.load!r}, not in-flight or token-usage")


class PowerOfTwo(RoutingScheduler):
    name = "power-of-two"
    info = SchedulerInfo(
        family="load",
        observes="turns in flight, or KV usage",
        holds=False,
        fidelity="source code read",
        reference="vLLM router and SGLang gateway, power_of_two",
    )
    Config = PowerOfTwoConfig
    config: PowerOfTwoConfig

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replicas = serving(cluster)
        if len(replicas) == 1:
            return Route(turn.id, replicas[0].id)
        first, second = self.rng.sample(replicas, 2)
        chosen = second if self._load(second, first) < self._load(first, second) else first
        return Route(turn.id, chosen.id, why=f"{first.id} against {second.id}")

    def _load(self, replica: ReplicaView, other: ReplicaView) -> float:
        if self.config.load == "token-usage":
            mine = replica.sample.kv_usage if replica.sample else None
            theirs = other.sample.kv_usage if other.sample else None
            if mine is not None and theirs is not None:
                return mine
        return replica.in_flight
