"""Session affinity: a session stays where its first turn went, until that replica is lost."""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import by_id, least_in_flight, serving
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class SessionAffinityConfig:
    first_turn: Literal["least-load", "rendezvous", "random"] = "least-load"
    """Where a session without a replica goes. Gateways differ: llm-d leaves it to its other
    scorers, AIBrix hashes the session (rendezvous), else picks at random (our choice)."""

    def __post_init__(self) -> None:
        if self.first_turn not in ("least-load", "rendezvous", "random"):
            raise ValueError(
                f"first_turn is {self.first_turn!r}, not least-load, rendezvous or random"
            )


class SessionAffinity(RoutingScheduler):
    name = "session-affinity"
    info = SchedulerInfo(
        family="affinity",
        observes="session id, turns in flight",
        holds=False,
        fidelity="documentation",
        reference="llm-d session-affinity scorer; AIBrix gateway, session-affinity",
    )
    Config = SessionAffinityConfig
    config: SessionAffinityConfig

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        replicas = serving(cluster)
        home = by_id(replicas, cluster.sessions[turn.session].last_replica)
        if home is not None:
            return Route(turn.id, home.id, why="stays")
        return Route(turn.id, self._first(turn, replicas).id, why="first turn, or replica lost")

    def _first(self, turn: Turn, replicas: list[ReplicaView]) -> ReplicaView:
        if self.config.first_turn == "least-load":
            return least_in_flight(replicas)
        if self.config.first_turn == "random":
            return self.rng.choice(replicas)
        return max(replicas, key=lambda r: sha256(f"{turn.session}/{r.id}".encode()).digest())
