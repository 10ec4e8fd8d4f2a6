"""Random: any healthy replica with equal chance, by the run's own generator."""

from __future__ import annotations

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import serving
from schedulers.types import Turn
from schedulers.views import ClusterView


class RandomChoice(RoutingScheduler):
    name = "random"
    info = SchedulerInfo(
        family="load",
        observes="health",
        holds=False,
        fidelity="documentation",
        reference="vLLM router and SGLang gateway, policy random",
    )

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        return Route(turn.id, self.rng.choice(serving(cluster)).id)
