"""Which replicas a policy may choose from, by role, and the choices many policies share."""

from __future__ import annotations

from collections.abc import Sequence
from operator import attrgetter

import numpy as np
from numpy.typing import NDArray

from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView

IN_FLIGHT = attrgetter("in_flight")


class Pool:
    """Replicas to choose from, in configured order, and how many turns each has in flight.

    A ledger keeps one up to date as turns come and go, so that a choice among a thousand replicas
    looks at none of them. It is good as long as all its members are healthy; then comes another.
    """

    __slots__ = ("_in_flight", "in_flight", "members", "position")

    def __init__(self, members: Sequence[ReplicaView]) -> None:
        self.members = tuple(members)
        self.position = {replica.id: i for i, replica in enumerate(self.members)}
        self._in_flight = np.array([r.in_flight for r in self.members], dtype=np.int64)
        self.in_flight: NDArray[np.int64] = self._in_flight.view()
        """(members,), read-only."""
        self.in_flight.flags.writeable = False

    def __len__(self) -> int:
        return len(self.members)

    def get(self, replica_id: str | None) -> ReplicaView | None:
        """The member of that id."""
        position = self.position.get(replica_id) if replica_id is not None else None
        return None if position is None else self.members[position]

    def least_in_flight(self) -> ReplicaView:
        """Fewest turns in flight from this gateway, the first of equals."""
        return self.members[int(self.in_flight.argmin())]

    def changed(self, replica_id: str, by: int) -> None:
        """For who keeps the pool: the replica has so many turns more in flight."""
        position = self.position.get(replica_id)
        if position is not None:
            self._in_flight[position] += by


def serving_pool(cluster: ClusterView) -> Pool:
    """As `serving`, ready to be asked; may be empty."""
    kept = _kept(cluster)
    return kept[0] if kept is not None else Pool(serving_of(cluster.replicas))


def prefill_pool(cluster: ClusterView) -> Pool:
    """As `prefillers`, ready to be asked; may be empty."""
    kept = _kept(cluster)
    return kept[1] if kept is not None else Pool(prefillers_of(cluster.replicas))


def serving(cluster: ClusterView) -> list[ReplicaView]:
    """Healthy replicas that can answer a turn on their own, in configured order.

    Those of role `mixed` or `decode`; prefill replicas only if nothing else is left (an engine
    that exports KV can also decode).
    """
    kept = _kept(cluster)
    if kept is not None:
        return list(kept[0].members)
    return serving_of(cluster.replicas)


def prefillers(cluster: ClusterView) -> list[ReplicaView]:
    """Healthy replicas of role `prefill`, in configured order.

    Empty in a colocated cluster, and where nothing else is healthy: then they serve whole turns.
    """
    kept = _kept(cluster)
    if kept is not None:
        return list(kept[1].members)
    return prefillers_of(cluster.replicas)


def _kept(cluster: ClusterView) -> tuple[Pool, Pool] | None:
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
        return equals[self.next_of(len(equals))]

    def next_of(self, count: int) -> int:
        """Which of so many equals; one alone does not advance the rotation."""
        if count == 1:
            return 0
        self._ties += 1
        return (self._ties - 1) % count
