"""Collocated serving: every replica prefills and decodes, sessions stick or spread by load."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import by_id, least_in_flight, serving
from schedulers.types import Turn
from schedulers.views import ClusterView


@dataclass(frozen=True, slots=True)
class CollocatedConfig:
    placement: Literal["sticky", "least-loaded"] = "sticky"
    "Whether later turns follow their session. The papers do not say (our choice)."

    def __post_init__(self) -> None:
        if self.placement not in ("sticky", "least-loaded"):
            raise ValueError(f"placement is {self.placement!r}, not sticky or least-loaded")


class Collocated(RoutingScheduler):
    name = "collocated"
    info = SchedulerInfo(
        family="disaggregation",
        observes="session id, turns in flight",
        holds=False,
        fidelity="inferred",
        reference="baseline of ConServe, arXiv 2606.01839",
    )
    Config = CollocatedConfig
    config: CollocatedConfig

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replicas = serving(cluster)
        home = by_id(replicas, cluster.sessions[turn.session].last_replica)
        if home is not None and self.config.placement == "sticky":
            return Route(turn.id, home.id, why="stays")
        return Route(turn.id, least_in_flight(replicas).id, why="least loaded")
