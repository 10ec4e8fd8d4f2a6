"""Several gateways before one cluster, in simulation.

Each gateway is a control plane with a policy of its own; it knows its own sessions only, and of
the others' what the engines' gauges tell. Sessions are given to gateways by rendezvous hashing
(Thaler and Ravishankar, 1998), sub-agents with the session that started them. Capacity is divided
in one of two ways: `shares`, each gateway has an equal share of every replica; `replicas`, each has
every G-th replica of each role to itself.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Literal

from agentsched import UsageError
from harness.control.ledger import ReplicaConfig
from harness.control.operations import Cancel, Dispatch, Operation
from harness.control.plane import ControlPlane
from results.records import DecisionRecord
from schedulers import events as ev
from schedulers.base import Scheduler
from schedulers.commands import Solve, WakeAt
from schedulers.types import Turn

Split = Literal["shares", "replicas"]

_OF_REPLICAS = (ev.ReplicaSampled, ev.ReplicaLost, ev.ReplicaRecovered, ev.KvEvents)


def rendezvous(key: str, nodes: Sequence[str]) -> int:
    """Position of the node that a key belongs to: the one with the largest hash of both.

    A node that goes away moves its own keys only.
    """
    return max(range(len(nodes)), key=lambda i: (_hash(nodes[i], key), -i))


def _hash(node: str, key: str) -> int:
    digest = blake2b(f"{node}\0{key}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def divide(
    replicas: Sequence[ReplicaConfig], gateways: int, split: Split
) -> list[list[ReplicaConfig]]:
    """What each gateway has.

    Raises:
        UsageError: a role has fewer replicas than there are gateways to share them.
    """
    if split == "shares":
        return [
            [
                replace(r, capacity=replace(r.capacity, share=r.capacity.share / gateways))
                for r in replicas
            ]
            for _ in range(gateways)
        ]
    parts: list[list[ReplicaConfig]] = [[] for _ in range(gateways)]
    seen: dict[str, int] = {}
    for one in replicas:
        number = seen.get(one.role, 0)
        seen[one.role] = number + 1
        parts[number % gateways].append(one)
    for role, count in seen.items():
        if count < gateways:
            raise UsageError(
                f"{gateways} gateways cannot have a {role} replica each: there are {count}",
                "lower sim.gateways, or set sim.gateway_split=shares",
            )
    return parts


class _Waiting(Mapping[str, Turn]):
    """Turns that wait at any gateway."""

    def __init__(self, planes: Sequence[ControlPlane]) -> None:
        self._planes = planes

    def __getitem__(self, turn: str) -> Turn:
        for plane in self._planes:
            if turn in plane.ledger.waiting:
                return plane.ledger.waiting[turn]
        raise KeyError(turn)

    def __iter__(self) -> Iterator[str]:
        for plane in self._planes:
            yield from plane.ledger.waiting

    def __len__(self) -> int:
        return sum(len(plane.ledger.waiting) for plane in self._planes)


class _Sessions(Mapping[str, Any]):
    """Open sessions of all gateways."""

    def __init__(self, planes: Sequence[ControlPlane]) -> None:
        self._planes = planes

    def __getitem__(self, session: str) -> Any:
        for plane in self._planes:
            if session in plane.ledger.sessions:
                return plane.ledger.sessions[session]
        raise KeyError(session)

    def __iter__(self) -> Iterator[str]:
        for plane in self._planes:
            yield from plane.ledger.sessions

    def __len__(self) -> int:
        return sum(len(plane.ledger.sessions) for plane in self._planes)


class _Books:
    """What a driver asks of the ledger of all gateways."""

    def __init__(self, planes: Sequence[ControlPlane]) -> None:
        self.sessions: Mapping[str, Any] = _Sessions(planes)
        self.waiting: Mapping[str, Turn] = _Waiting(planes)


class PartitionedPlane:
    """Several control planes that a driver sees as one.

    Numbers of attempts and solves carry the gateway they belong to: `number * G + gateway`.

    Args:
        schedulers: one for each gateway.
        progress, log, max_wait_s: as of `ControlPlane`.
    """

    def __init__(
        self,
        schedulers: Sequence[Scheduler],
        replicas: Sequence[ReplicaConfig],
        progress: Callable[[int, int], int],
        log: Callable[[DecisionRecord], None] | None = None,
        split: Split = "shares",
        *,
        max_wait_s: float | None = None,
    ) -> None:
        count = len(schedulers)
        self._names = [f"gateway-{i}" for i in range(count)]
        self._replicas = divide(replicas, count, split)

        def progress_of(gateway: int) -> Callable[[int, int], int]:
            return lambda attempt, now: progress(attempt * count + gateway, now)

        self.planes = [
            ControlPlane(scheduler, part, progress_of(i), log, max_wait_s=max_wait_s)
            for i, (scheduler, part) in enumerate(zip(schedulers, self._replicas, strict=True))
        ]
        self._has = [{r.id for r in part} for part in self._replicas]
        self._gateway_of: dict[str, int] = {}
        self._alarms: dict[int, set[int]] = {}
        """Gateways that asked to be woken, by time."""
        self.scheduler = schedulers[0]
        """Its name stands for all in messages."""
        self.ledger = _Books(self.planes)

    def handle(self, event: ev.Event) -> list[Operation]:
        """As `ControlPlane.handle`, by the gateways that the event concerns.

        Raises:
            SchedulerError: a policy raised or broke the contract.
        """
        if isinstance(event, _OF_REPLICAS):
            found: list[Operation] = []
            for gateway, plane in enumerate(self.planes):
                if event.replica in self._has[gateway]:
                    found += self._outward(gateway, plane.handle(event))
            return found
        if isinstance(event, ev.Timer):
            found = []
            for gateway in sorted(self._alarms.pop(event.now, ())):
                found += self._outward(gateway, self.planes[gateway].handle(event))
            return found
        if isinstance(event, ev.PlanReady):
            number, gateway = divmod(event.solve_id, len(self.planes))
            inward: ev.Event = replace(event, solve_id=number)
        else:
            gateway = self._gateway(event)
            inward = self._inward(event)
        operations = self._outward(gateway, self.planes[gateway].handle(inward))
        if isinstance(event, ev.SessionClosed):
            del self._gateway_of[event.session]
        return operations

    def gateway(self, session: str, parent: str | None = None) -> int:
        """The gateway of a session; of its parent's, where that is open."""
        if parent is not None and parent in self._gateway_of:
            return self._gateway_of[parent]
        return rendezvous(session, self._names)

    def _gateway(self, event: Any) -> int:
        turn: Turn | None = getattr(event, "turn", None)
        session = turn.session if turn is not None else event.session
        found = self._gateway_of.get(session)
        if found is None:
            found = self.gateway(session, turn.parent if turn is not None else None)
            self._gateway_of[session] = found
        return found

    def _inward(self, event: Any) -> ev.Event:
        attempt = getattr(event, "attempt", None)
        if attempt is None:
            inward: ev.Event = event
        else:
            inward = replace(event, attempt=attempt // len(self.planes))
        return inward

    def _outward(self, gateway: int, operations: Sequence[Operation]) -> list[Operation]:
        count = len(self.planes)
        found: list[Operation] = []
        for operation in operations:
            if isinstance(operation, (Dispatch, Cancel)):
                found.append(replace(operation, attempt=operation.attempt * count + gateway))
            elif isinstance(operation, Solve):
                found.append(replace(operation, solve_id=operation.solve_id * count + gateway))
            else:
                if isinstance(operation, WakeAt):
                    self._alarms.setdefault(operation.time, set()).add(gateway)
                found.append(operation)
        return found
