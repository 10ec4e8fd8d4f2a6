"""TAO's planner: from a frozen snapshot to an ordered plan. Pure, so that it can run elsewhere.

A snapshot is discretised (costs rounded up to whole quanta, room rounded down), solved exactly,
and what rounding left unused is filled. The plan also says what the short-first heuristic would
have been worth on the same snapshot.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from schedulers.short_first import BUFFER_TOKENS, Queued, short_first_plan
from schedulers.tao_milp import solve_milp
from schedulers.tao_solver import MAX_BITS, SKIP, Packing, Problem, Solution, Value, solve

UNLIMITED = 1 << 40
"""Room of a replica whose capacity is not known, in tokens."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A session without a place. `credits[n]` is its quantised cache credit on replica n of the
    snapshot; `footprint` is its context in tokens with the sign that the settings give it."""

    session: str
    tokens: int
    credits: tuple[int, ...]
    ready: int
    footprint: int
    queue_class: int
    queued_tokens: int
    signature: tuple[Any, ...] = ()

    @property
    def need(self) -> int:
        """Tokens of room that it takes."""
        return self.tokens + BUFFER_TOKENS

    def value(self, replica: int) -> Value:
        return Value(self.credits[replica], self.ready, self.footprint)


@dataclass(frozen=True, slots=True)
class PlanSettings:
    """How a snapshot is discretised and searched; see TaoConfig for the meaning of each."""

    quantum_tokens: int = 0
    quantum_min_tokens: int = 16
    quanta_max: int = 8192
    max_states: int = 300_000
    milp: bool = False
    milp_time_limit_s: float = 10.0
    milp_max_nodes: int = 2000
    fill: bool = True
    spread: bool = True


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What the planner sees: replicas with their remaining tokens, candidates in queue order."""

    now: int
    replicas: tuple[str, ...]
    room: tuple[int, ...]
    candidates: tuple[Candidate, ...]
    settings: PlanSettings = field(default_factory=PlanSettings)


@dataclass(frozen=True, slots=True)
class Plan:
    """Placements in the order in which they are to be applied: most valuable first.

    `value` is that of `placements`; `optimum` that of the discretised problem, and `bound` what
    is proven about it (equal: proven optimal). `short_first` is what the short-first plan is
    worth on the same snapshot. `filled` placements were added to what rounding left over.
    """

    placements: tuple[tuple[str, str], ...]
    value: Value
    optimum: Value
    bound: Value
    short_first: Value
    quantum: int
    states: int
    filled: int
    method: str

    @property
    def proven(self) -> bool:
        return self.optimum == self.bound


def make_plan(snapshot: Snapshot) -> Plan:
    """Solve the snapshot."""
    choice = _everyone(snapshot)
    if choice is not None:
        optimum = bound = _total(snapshot, choice)
        quantum, states, method, filled = 1, 0, "everyone fits", 0
    else:
        quantum = choose_quantum(snapshot)
        solution = _solve(discretise(snapshot, quantum), snapshot.settings)
        choice = list(solution.choice)
        optimum, bound = solution.value, solution.bound
        states, method = solution.states, solution.method
        filled = _fill(snapshot, choice) if snapshot.settings.fill else 0
        if snapshot.settings.spread:
            _spread(snapshot, choice)
    placed = [(i, n) for i, n in enumerate(choice) if n != SKIP]
    placed.sort(key=lambda pair: snapshot.candidates[pair[0]].value(pair[1]), reverse=True)
    return Plan(
        placements=tuple((snapshot.candidates[i].session, snapshot.replicas[n]) for i, n in placed),
        value=_total(snapshot, choice),
        optimum=optimum,
        bound=bound,
        short_first=short_first_value(snapshot),
        quantum=quantum,
        states=states,
        filled=filled,
        method=method,
    )


def choose_quantum(snapshot: Snapshot) -> int:
    """Tokens per quantum: the fixed setting, or the finest that keeps the tables small.

    Only room that candidates can use counts: replicas that none fits are out of play, and none
    has more in play than all candidates together need. From full capacities the quantum would be
    so coarse that hardly a session's rounded cost fitted what is really left.
    """
    settings = snapshot.settings
    if settings.quantum_tokens > 0:
        return settings.quantum_tokens
    needs = [c.need for c in snapshot.candidates]
    in_play = sum(min(r, sum(needs)) for r in snapshot.room if needs and r >= min(needs))
    return max(settings.quantum_min_tokens, -(-in_play // settings.quanta_max))


def discretise(snapshot: Snapshot, quantum: int) -> Problem:
    """Costs rounded up and room rounded down to quanta: a plan that fits here fits in tokens.

    Should the value triple not fit the solver's integers, footprints lose their lowest bits.
    """
    candidates = snapshot.candidates
    usable = sum(c.need for c in candidates) + quantum * len(candidates)
    problem = Problem(
        capacities=tuple(min(max(0, room), usable) // quantum for room in snapshot.room),
        costs=tuple(-(-c.need // quantum) for c in candidates),
        credits=tuple(c.credits for c in candidates),
        ready=tuple(c.ready for c in candidates),
        footprints=tuple(c.footprint for c in candidates),
    )
    excess = Packing(problem).bits - MAX_BITS
    if excess > 0:
        problem = replace(problem, footprints=tuple(f >> excess for f in problem.footprints))
    return problem


def _solve(problem: Problem, settings: PlanSettings) -> Solution:
    solution = solve(problem, settings.max_states)
    if solution.proven or not settings.milp:
        return solution
    return solve_milp(
        problem,
        start=solution,
        time_limit_s=settings.milp_time_limit_s,
        max_nodes=settings.milp_max_nodes,
    )


def short_first_value(snapshot: Snapshot) -> Value:
    """What the short-first plan is worth by TAO's measure."""
    queued = [
        Queued(c.session, c.queue_class, c.queued_tokens, c.tokens) for c in snapshot.candidates
    ]
    plan = short_first_plan(queued, list(zip(snapshot.replicas, snapshot.room, strict=True)))
    position = {replica: n for n, replica in enumerate(snapshot.replicas)}
    where = {session: position[replica] for session, replica in plan}
    return _total(snapshot, [where.get(c.session, SKIP) for c in snapshot.candidates])


def _total(snapshot: Snapshot, choice: Sequence[int]) -> Value:
    values = [c.value(n) for c, n in zip(snapshot.candidates, choice, strict=True) if n != SKIP]
    return Value(
        sum(value.credit for value in values),
        sum(value.ready for value in values),
        sum(value.footprint for value in values),
    )


_NOTHING = Value(0, 0, 0)


def _everyone(snapshot: Snapshot) -> list[int] | None:
    """Everyone on a replica where its credit is largest, if that fits: no plan is worth more."""
    room = list(snapshot.room)
    choice = [SKIP] * len(snapshot.candidates)
    for i in _largest_first(snapshot, range(len(choice))):
        candidate = snapshot.candidates[i]
        most = max(candidate.credits, default=0)
        if Value(most, candidate.ready, candidate.footprint) <= _NOTHING:
            continue
        where = [n for n, credit in enumerate(candidate.credits) if credit == most]
        if not _place(candidate, i, where, room, choice):
            return None
    return choice


def _fill(snapshot: Snapshot, choice: list[int]) -> int:
    """Add candidates that still fit in tokens, most valuable first; returns how many."""
    room = list(snapshot.room)
    for candidate, n in zip(snapshot.candidates, choice, strict=True):
        if n != SKIP:
            room[n] -= candidate.need
    options = [
        (candidate.value(n), -i, -n)
        for i, candidate in enumerate(snapshot.candidates)
        if choice[i] == SKIP
        for n in range(len(room))
        if candidate.need <= room[n] and candidate.value(n) > _NOTHING
    ]
    filled = 0
    for _, minus_i, minus_n in sorted(options, reverse=True):
        candidate = snapshot.candidates[-minus_i]
        if choice[-minus_i] == SKIP and candidate.need <= room[-minus_n]:
            choice[-minus_i] = -minus_n
            room[-minus_n] -= candidate.need
            filled += 1
    return filled


def _spread(snapshot: Snapshot, choice: list[int]) -> None:
    """Re-place those whose credit is the same elsewhere, largest first, where most room is.

    The plan is worth the same before and after. If that packing fails, nothing changes.
    """
    moved, room, movable = list(choice), list(snapshot.room), []
    for i, (candidate, n) in enumerate(zip(snapshot.candidates, choice, strict=True)):
        if n == SKIP:
            continue
        if candidate.credits.count(candidate.credits[n]) > 1:
            movable.append(i)
        else:
            room[n] -= candidate.need
    for i in _largest_first(snapshot, movable):
        candidate = snapshot.candidates[i]
        same = candidate.credits[choice[i]]
        where = [n for n, credit in enumerate(candidate.credits) if credit == same]
        if not _place(candidate, i, where, room, moved):
            return
    choice[:] = moved


def _largest_first(snapshot: Snapshot, indices: Sequence[int]) -> list[int]:
    """Those with one place to go first, then by descending need, then in queue order."""
    candidates = snapshot.candidates
    return sorted(
        indices,
        key=lambda i: (
            candidates[i].credits.count(max(candidates[i].credits, default=0)) > 1,
            -candidates[i].need,
        ),
    )


def _place(
    candidate: Candidate, index: int, where: list[int], room: list[int], choice: list[int]
) -> bool:
    """Put it on the replica of `where` with most room (first on ties), if it fits."""
    target = max(where, key=lambda n: (room[n], -n), default=None)
    if target is None or candidate.need > room[target]:
        return False
    choice[index] = target
    room[target] -= candidate.need
    return True
