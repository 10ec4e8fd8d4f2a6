"""Round robin: the next healthy replica in configured order."""

from __future__ import annotations

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import serving
from schedulers.types import Turn
from schedulers.views import ClusterView


class RoundRobin(RoutingScheduler):
    name = "round-robin"
    info = SchedulerInfo(
        family="load",
        observes="health",
        holds=False,
        fidelity="documentation",
        reference="vLLM router, policy round_robin",
    )

    _count = 0

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replicas = serving(cluster)
        replica = replicas[self._count % len(replicas)]
        self._count += 1
        return Route(turn.id, replica.id)
