"""TAO's plan by parts, for clusters whose joint optimum is out of reach.

    replicas are divided into clusters of `cluster_replicas`, neighbours in configured order
    candidates with cache credit go to the cluster where their credit is largest, each cluster is
    solved exactly, and who found no place tries the next best, in up to `rounds` rounds
    all others go, most valuable first, to the cluster with most room left: together with those, or
    after them, whichever plan is worth more

Exact inside clusters, a heuristic between them: no more than one cluster is a plan of TAO's own.
Its value is at most the joint optimum's; `scripts/fleet_tao.py` measures the gap where that is
known. The decomposition is our choice: the paper's summary has none.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from schedulers.base import SchedulerInfo
from schedulers.commands import Command, Solve
from schedulers.events import Event
from schedulers.tao import Tao
from schedulers.tao_config import TaoConfig
from schedulers.tao_plan import Candidate, Plan, Snapshot, make_plan, short_first_value
from schedulers.tao_solver import Value
from schedulers.views import ClusterView

_NOTHING = Value(0, 0, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaoDecomposedConfig(TaoConfig):
    cluster_replicas: int = 4
    """Replicas that are planned for together. Our choice: what the dynamic program solves within
    TAO's budget, and the size of the clusters in its evaluation."""
    rounds: int = 3
    """How often candidates that found no place may try another cluster. Our choice."""

    def __post_init__(self) -> None:
        TaoConfig.__post_init__(self)
        for name in ("cluster_replicas", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class TaoDecomposed(Tao):
    name = "tao-decomposed"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, cache evidence, tool timing, capacity",
        holds=True,
        fidelity="inferred",
        reference="TAO, planned by clusters of replicas (ours), for large clusters",
    )
    Config = TaoDecomposedConfig
    config: TaoDecomposedConfig

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        solver = partial(
            make_plan_by_parts,
            cluster_replicas=self.config.cluster_replicas,
            rounds=self.config.rounds,
        )
        for command in super().on_event(event, cluster):
            if isinstance(command, Solve):
                yield replace(command, solver=solver)
            else:
                yield command


def make_plan_by_parts(snapshot: Snapshot, *, cluster_replicas: int, rounds: int) -> Plan:
    """A plan of all clusters; as `make_plan` where there is one cluster only.

    `bound` is what everybody would be worth where their credit is largest, which no plan exceeds.
    """
    if len(snapshot.replicas) <= cluster_replicas:
        return make_plan(snapshot)
    count = len(snapshot.replicas)
    parts = [range(i, min(i + cluster_replicas, count)) for i in range(0, count, cluster_replicas)]
    plans = [_by_parts(snapshot, parts, phases) for phases in _phases(rounds)]
    return max(plans, key=lambda plan: plan.value)


def _phases(rounds: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two ways through the rounds. Credit outranks all else, which speaks for placing those first
    that have any; but where little room is left, all together find better company."""
    return ("together",) * rounds, ("credit",) * rounds + ("rest",) * rounds


def _by_parts(snapshot: Snapshot, parts: Sequence[range], phases: Sequence[str]) -> Plan:
    room = list(snapshot.room)
    left = list(range(len(snapshot.candidates)))
    tried: dict[int, set[int]] = {i: set() for i in left}
    where: dict[int, int] = {}
    quantum, states, filled = 1, 0, 0
    for phase in phases:
        given = _share_out(snapshot, parts, room, left, tried, phase)
        for number, (part, members) in enumerate(zip(parts, given, strict=True)):
            if not members:
                continue
            plan = make_plan(_of(snapshot, part, members, room))
            index = {snapshot.candidates[i].session: i for i in members}
            replica_of = {snapshot.replicas[n]: n for n in part}
            for session, replica in plan.placements:
                where[index[session]] = replica_of[replica]
                room[replica_of[replica]] -= snapshot.candidates[index[session]].need
            for i in members:
                tried[i].add(number)
            quantum, states = max(quantum, plan.quantum), states + plan.states
            filled += plan.filled
        left = [i for i in left if i not in where]
    ranked = sorted(where, key=lambda i: (snapshot.candidates[i].value(where[i]), -i), reverse=True)
    value = _sum(snapshot.candidates[i].value(where[i]) for i in ranked)
    return Plan(
        placements=tuple(
            (snapshot.candidates[i].session, snapshot.replicas[where[i]]) for i in ranked
        ),
        value=value,
        optimum=value,
        bound=_sum(max(_best(one), _NOTHING) for one in snapshot.candidates),
        short_first=short_first_value(snapshot),
        quantum=quantum,
        states=states,
        filled=filled,
        method=f"{len(parts)} clusters of replicas",
    )


def _share_out(
    snapshot: Snapshot,
    parts: Sequence[range],
    room: Sequence[int],
    candidates: Sequence[int],
    tried: Mapping[int, set[int]],
    phase: str,
) -> list[list[int]]:
    """Candidates of each cluster, in queue order.

    Args:
        tried: clusters that a candidate has been planned for already.
        phase: `credit`: to where the credit is largest, those without any nowhere; `rest`: to most
            room; `together`: to either.
    """
    given: list[list[int]] = [[] for _ in parts]
    part_of = [number for number, part in enumerate(parts) for _ in part]
    free = [sum(max(0, room[n]) for n in part) for part in parts]
    widest = [max(room[n] for n in part) for part in parts]
    ranked = sorted(candidates, key=lambda i: (_best(snapshot.candidates[i]), -i), reverse=True)
    for i in ranked:
        one = snapshot.candidates[i]
        credit: dict[int, int] = {}
        for n, value in enumerate(one.credits):
            if value > 0 and one.need <= room[n] and part_of[n] not in tried[i]:
                credit[part_of[n]] = max(credit.get(part_of[n], 0), value)
        target: int | None = None
        if phase != "rest":
            target = max(credit, key=lambda c: (credit[c], free[c], -c), default=None)
        if target is None and phase != "credit":
            fitting = [c for c in range(len(parts)) if one.need <= widest[c]]
            target = max(fitting, key=lambda c: (free[c], -c), default=None)
        if target is None:
            continue
        given[target].append(i)
        free[target] -= one.need
    for members in given:
        members.sort()
    return given


def _of(snapshot: Snapshot, part: range, members: Sequence[int], room: Sequence[int]) -> Snapshot:
    """One cluster's part of a snapshot."""
    return Snapshot(
        now=snapshot.now,
        replicas=tuple(snapshot.replicas[n] for n in part),
        room=tuple(room[n] for n in part),
        candidates=tuple(_credits_of(snapshot.candidates[i], part) for i in members),
        settings=snapshot.settings,
    )


def _credits_of(candidate: Candidate, part: range) -> Candidate:
    return replace(candidate, credits=candidate.credits[part.start : part.stop])


def _best(candidate: Candidate) -> Value:
    return Value(max(candidate.credits, default=0), candidate.ready, candidate.footprint)


def _sum(values: Any) -> Value:
    total = _NOTHING
    for value in values:
        total = Value(
            total.credit + value.credit,
            total.ready + value.ready,
            total.footprint + value.footprint,
        )
    return total
