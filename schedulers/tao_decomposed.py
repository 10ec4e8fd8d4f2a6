"""TAO's plan by parts, for clusters whose joint optimum is out of reach.

    replicas are divided into clusters of `cluster_replicas`, neighbours in configured order
    candidates with cache credit go to the cluster that takes them at the prices (tao_prices.py),
    else to where their credit is largest; each cluster is solved exactly, and who found no place
    tries the next best, in up to `rounds` rounds
    all others go, most valuable first, to the cluster with most room left: together with those, or
    after them, whichever plan is worth more; the second is left out where the first is proven to
    have all the credit and readiness that can be had

Exact inside clusters, a heuristic between them: no more than one cluster is a plan of TAO's own.
Its value is at most the joint optimum's, and that is at most the plan's `bound`, which the
prices give: they begin with those of the plan before. `scripts/fleet_tao.py` measures both
gaps. The decomposition is our choice: the paper's summary has none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from heapq import heapify, heappop, heappush
from types import MappingProxyType

from schedulers.base import SchedulerInfo
from schedulers.commands import Command, Solve
from schedulers.events import Event, PlanReady
from schedulers.tao import Tao
from schedulers.tao_config import TaoConfig
from schedulers.tao_plan import Candidate, Plan, Snapshot, make_plan, short_first_value
from schedulers.tao_prices import Credits, Priced, credits_by_replica, price
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
    price_iterations: int = 20
    """How often prices may change for the bound on a plan. Our choice."""

    def __post_init__(self) -> None:
        TaoConfig.__post_init__(self)
        for name in ("cluster_replicas", "rounds"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")
        if self.price_iterations < 0:
            raise ValueError("price_iterations must not be negative")


@dataclass(frozen=True, slots=True)
class PricedPlan(Plan):
    """A plan by parts."""

    prices: Mapping[str, int] = field(default_factory=dict)
    """Of sessions whose credit several replicas would pay for: to begin the next bound with."""


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

    _prices: Mapping[str, int] = MappingProxyType({})

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        if isinstance(event, PlanReady) and isinstance(event.plan, PricedPlan):
            self._prices = event.plan.prices
        solver = partial(
            make_plan_by_parts,
            cluster_replicas=self.config.cluster_replicas,
            rounds=self.config.rounds,
            iterations=self.config.price_iterations,
            prices=dict(self._prices),
        )
        for command in super().on_event(event, cluster):
            if isinstance(command, Solve):
                yield replace(command, solver=solver)
            else:
                yield command


def make_plan_by_parts(
    snapshot: Snapshot,
    *,
    cluster_replicas: int,
    rounds: int,
    iterations: int = 20,
    prices: Mapping[str, int] = MappingProxyType({}),
) -> Plan:
    """A plan of all clusters; as `make_plan` where there is one cluster only.

    Args:
        iterations, prices: as `tao_prices.bound_of` takes them.
    """
    if len(snapshot.replicas) <= cluster_replicas:
        return make_plan(snapshot)
    count = len(snapshot.replicas)
    parts = [range(i, min(i + cluster_replicas, count)) for i in range(0, count, cluster_replicas)]
    credits = credits_by_replica(snapshot)
    priced = price(snapshot, credits, prices, iterations)
    bound = priced.bound
    together, apart = _phases(rounds)
    best = _by_parts(snapshot, parts, credits, priced, together)
    if best.value[:2] < bound[:2]:
        other = _by_parts(snapshot, parts, credits, priced, apart)
        best = max(best, other, key=lambda plan: plan.value)
    return replace(best, bound=bound, short_first=short_first_value(snapshot), prices=priced.prices)


def _phases(rounds: int) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Two ways through the rounds. Credit outranks all else, which speaks for placing those first
    that have any; but where little room is left, all together find better company."""
    return ("together",) * rounds, ("credit",) * rounds + ("rest",) * rounds


def _by_parts(
    snapshot: Snapshot,
    parts: Sequence[range],
    credits: Sequence[Credits],
    priced: Priced,
    phases: Sequence[str],
) -> PricedPlan:
    """Without a bound, and what the short-first plan is worth."""
    room = list(snapshot.room)
    most = [_best(one, mine) for one, mine in zip(snapshot.candidates, credits, strict=True)]
    left = sorted(range(len(most)), key=lambda i: (most[i], -i), reverse=True)
    tried: dict[int, set[int]] = {i: set() for i in left}
    where: dict[int, int] = {}
    quantum, states, filled = 1, 0, 0
    for phase in phases:
        given = _share_out(snapshot, parts, credits, priced, room, left, tried, phase)
        for number, members in sorted(given.items()):
            part = parts[number]
            plan = make_plan(_of(snapshot, part, sorted(members), room))
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
    return PricedPlan(
        placements=tuple(
            (snapshot.candidates[i].session, snapshot.replicas[where[i]]) for i in ranked
        ),
        value=value,
        optimum=value,
        bound=value,
        short_first=_NOTHING,
        quantum=quantum,
        states=states,
        filled=filled,
        method=f"{len(parts)} clusters of replicas",
    )


def _share_out(
    snapshot: Snapshot,
    parts: Sequence[range],
    credits: Sequence[Credits],
    priced: Priced,
    room: Sequence[int],
    ranked: Sequence[int],
    tried: Mapping[int, set[int]],
    phase: str,
) -> dict[int, list[int]]:
    """Candidates of each cluster that gets any.

    Args:
        ranked: candidates, the most valuable first.
        tried: clusters that a candidate has been planned for already.
        phase: `credit`: to where they are taken at the prices, else the credit is largest, those
            without any nowhere; `rest`: to most room; `together`: to either.
    """
    given: dict[int, list[int]] = {}
    size = len(parts[0])
    free = [sum(max(0, room[n]) for n in part) for part in parts]
    widest = [max(room[n] for n in part) for part in parts]
    emptiest = [(-tokens, number) for number, tokens in enumerate(free)]
    heapify(emptiest)
    for i in ranked:
        need = snapshot.candidates[i].need
        credit: dict[int, tuple[bool, int]] = {}
        for n, value in credits[i].items():
            number = n // size
            if need <= room[n] and number not in tried[i]:
                offer = (n in priced.taken_by[i], value)
                credit[number] = max(credit.get(number, offer), offer)
        target: int | None = None
        if phase != "rest":
            target = max(credit, key=lambda c: (credit[c], free[c], -c), default=None)
        if target is None and phase != "credit":
            target = _emptiest(emptiest, free, widest, need)
        if target is None:
            continue
        given.setdefault(target, []).append(i)
        free[target] -= need
        heappush(emptiest, (-free[target], target))
    return given


def _emptiest(
    heap: list[tuple[int, int]], free: Sequence[int], widest: Sequence[int], need: int
) -> int | None:
    """The cluster with most room left, the first of equals, that has a replica with room for
    `need`. The heap has (room left, negative; cluster), also of times past."""
    narrow: list[tuple[int, int]] = []
    found: int | None = None
    while heap and found is None:
        tokens, number = heap[0]
        if -tokens != free[number]:
            heappop(heap)  # it has got candidates since
        elif need > widest[number]:
            narrow.append(heappop(heap))
        else:
            found = number
    for one in narrow:
        heappush(heap, one)
    return found


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


def _best(candidate: Candidate, credits: Credits) -> Value:
    return Value(max(credits.values(), default=0), candidate.ready, candidate.footprint)


def _sum(values: Iterable[Value]) -> Value:
    total = _NOTHING
    for value in values:
        total = Value(
            total.credit + value.credit,
            total.ready + value.ready,
            total.footprint + value.footprint,
        )
    return total
