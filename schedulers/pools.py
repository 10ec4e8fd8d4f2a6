"""Which replicas a policy may choose from, by role, and the choices many policies share."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView

IN_FLIGHT = attrgetter("in_flight")


def serving(cluster: ClusterView) -> list[ReplicaView]:
    """Healthy replicas that can answer a turn on their own, in configured order.

    Those of role `mixed` or `decode`; prefill replicas only if nothing else is left (an engine
    that exports KV can also decode).
    """
    kept = _kept(cluster)
    if kept is not None:
        return list(kept[0])
    return serving_of(cluster.replicas)


def prefillers(cluster: ClusterView) -> list[ReplicaView]:
    """Healthy replicas of role `prefill`, in configured order.

    Empty in a colocated cluster, and where nothing else is healthy: then they serve whole turns.
    """
    kept = _kept(cluster)
    if kept is not None:
        return list(kept[1])
    return prefillers_of(cluster.replicas)


def _kept(cluster: ClusterView) -> tuple[Sequence[ReplicaView], Sequence[ReplicaView]] | None:
    """Both pools where the cluster keeps them: in large ones a scan takes longer than a choice."""
    pools = getattr(cluster, "pools", None)
    return pools() if pools is not None else None


def serving_of(everyone: Sequence[ReplicaView]) -> list[ReplicaView]:
    """`serving`, by looking at each."""
    pool = [replica for replica in everyone if replica.healthy and replica.role != "prefill"]
    return pool or [replica for replica in everyone if replica.healthy]


def prefillers_of(everyone: Sequence[ReplicaView]) -> list[ReplicaView]:
    """`prefillers`, by looking at each."""
    pool = [replica for replica in everyone if replica.role == "prefill" and replica.healthy]
    others = pool and any(replica.healthy and replica.role != "prefill" for replica in everyone)
    return pool if others else []


def least_in_flight(replicas: Sequence[ReplicaView]) -> ReplicaView:
    """Fewest turns in flight from this gateway, the first of equals."""
    return min(replicas, key=IN_FLIGHT)


def by_id(replicas: Sequence[ReplicaView], replica_id: str | None) -> ReplicaView | None:
    """The replica of that id, if it is one of them."""
    return next((replica for replica in replicas if replica.id == replica_id), None)


def uncached_tokens(cluster: ClusterView, turn: Turn, replica: ReplicaView) -> int:
    """Prompt tokens the replica would have to compute, if it evicted nothing."""
    return turn.prompt.tokens - cluster.cached_tokens(turn.prompt, replica.id)


class Rotation:
    """Breaks exact ties in turn: first of the first tie, second of the second, ..."""

    def __init__(self) -> None:
        self._ties = 0

    def pick(self, equals: Sequence[ReplicaView]) -> ReplicaView:
        """One of the tied replicas (at least one); a single one does not advance the rotation."""
        if len(equals) == 1:
            return equals[0]
        self._ties += 1
        return equals[(self._ties - 1) % len(equals)]
