"""Consistent hash of the session id: the owner on a ring of 160 points a replica."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.hash_ring import VIRTUAL_NODES, HashRing
from schedulers.pools import by_id, serving
from schedulers.types import Turn
from schedulers.views import ClusterView


@dataclass(frozen=True, slots=True)
class ConsistentHashConfig:
    virtual_nodes: int = VIRTUAL_NODES
    "vLLM router, SGLang gateway."
    when_lost: Literal["first", "walk"] = "first"
    """If the owner is lost: the first healthy replica (vLLM router), or the next one on the ring
    (SGLang gateway)."""

    def __post_init__(self) -> None:
        if self.when_lost not in ("first", "walk"):
            raise ValueError(f"when_lost is {self.when_lost!r}, not first or walk")
        if self.virtual_nodes < 1:
            raise ValueError("virtual_nodes must be at least 1")


class ConsistentHash(RoutingScheduler):
    name = "consistent-hash"
    info = SchedulerInfo(
        family="affinity",
        observes="session id, health",
        holds=False,
        fidelity="source code read",
        reference="vLLM router, policy consistent_hash",
    )
    Config = ConsistentHashConfig
    config: ConsistentHashConfig

    def __init__(
        self, config: ConsistentHashConfig | None = None, rng: Random | None = None
    ) -> None:
        super().__init__(config, rng)
        self._ring: HashRing | None = None

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        if self._ring is None:
            members = [r.id for r in cluster.replicas if r.role != "prefill"]
            self._ring = HashRing(
                members or [r.id for r in cluster.replicas], self.config.virtual_nodes
            )
        replicas = serving(cluster)
        for count, owner in enumerate(self._ring.walk(turn.session)):
            if by_id(replicas, owner) is not None:
                return Route(turn.id, owner, why="owner" if count == 0 else "next on the ring")
            if self.config.when_lost == "first":
                break
        return Route(turn.id, replicas[0].id, why="owner lost, first healthy")
