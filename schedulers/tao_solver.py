"""TAO's joint selection and placement as an optimisation problem, and its exact solution.

Maximise, over the candidates that are placed, the sum of (credit, readiness, footprint), compared
left to right; each candidate on at most one replica, no replica over its capacity. Comparing
left to right is preserved when the same vector is added to both sides, so a dynamic program that
keeps the best partial sum per state (free capacity of every replica) loses nothing.

Here are the problem, what can be left out of it without loss, and the packing of the triple into
one integer; the dynamic program is in tao_search.py, a solver for larger clusters in tao_milp.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from schedulers.tao_search import Ints, Search

SKIP = -1


class Value(NamedTuple):
    """Compared left to right; larger is better."""

    credit: int
    ready: int
    footprint: int


@dataclass(frozen=True, slots=True)
class Problem:
    """Capacities and costs in quanta.

    `credits[i][n]` is what candidate i earns on replica n; footprints may be negative.
    """

    capacities: tuple[int, ...]
    costs: tuple[int, ...]
    credits: tuple[tuple[int, ...], ...]
    ready: tuple[int, ...]
    footprints: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Solution:
    """`choice[i]` is the replica of candidate i, or SKIP. `bound` is proven: no plan exceeds it;
    equal to `value` when the plan is proven optimal."""

    choice: tuple[int, ...]
    value: Value
    bound: Value
    states: int
    method: str

    @property
    def proven(self) -> bool:
        return self.value == self.bound


def value_of(problem: Problem, choice: Sequence[int]) -> Value:
    """What a plan is worth."""
    placed = [(item, replica) for item, replica in enumerate(choice) if replica != SKIP]
    return Value(
        sum(problem.credits[item][replica] for item, replica in placed),
        sum(problem.ready[item] for item, _ in placed),
        sum(problem.footprints[item] for item, _ in placed),
    )


class Packing:
    """Packs value triples into integers that compare and add like them.

    Fields are as wide as the sums of this problem need; `bits` is the width of all three.
    """

    def __init__(self, problem: Problem) -> None:
        self.footprint_bits = sum(abs(one) for one in problem.footprints).bit_length() + 1
        self.ready_bits = sum(problem.ready).bit_length()
        credit_bits = sum(max(row, default=0) for row in problem.credits).bit_length()
        self.credit_shift = self.footprint_bits + self.ready_bits
        self.bits = self.credit_shift + credit_bits

    def pack(self, credit: int, ready: int, footprint: int) -> int:
        return (credit << self.credit_shift) + (ready << self.footprint_bits) + footprint

    def unpack(self, packed: int) -> Value:
        # Footprints may be negative: their field is read as a signed one.
        half = 1 << (self.footprint_bits - 1)
        footprint = (packed + half) % (2 * half) - half
        rest = (packed - footprint) >> self.footprint_bits
        return Value(rest >> self.ready_bits, rest & ((1 << self.ready_bits) - 1), footprint)


MAX_BITS = 62
"""Packed sums must fit a signed 64-bit integer."""


def solve(problem: Problem, max_states: int = 300_000) -> Solution:
    """The best plan; proven best unless the search was cut off after `max_states` states.

    Raises:
        OverflowError: the value triple needs more than MAX_BITS bits.
    """
    packing = Packing(problem)
    if packing.bits > MAX_BITS:
        raise OverflowError(f"the value triple needs {packing.bits} bits, more than {MAX_BITS}")
    values, credits = _packed(problem, packing)
    items = _worth_a_look(problem, values, credits)
    replicas = [n for n in range(len(problem.capacities)) if (values[items, n] > 0).any()]
    choice = [SKIP] * len(problem.costs)
    if not items:
        return Solution(tuple(choice), Value(0, 0, 0), Value(0, 0, 0), 0, "nothing fits")
    search = Search(
        np.array([problem.costs[i] for i in items], dtype=np.int64),
        np.array([problem.capacities[n] for n in replicas], dtype=np.int64),
        values[np.ix_(items, replicas)],
        credits[np.ix_(items, replicas)],
    )
    for item, replica in enumerate(search.run(max_states)):
        if replica >= 0:
            choice[items[item]] = replicas[replica]
    return Solution(
        tuple(choice),
        value_of(problem, choice),
        packing.unpack(search.bound),
        search.states,
        "dynamic program",
    )


def _packed(problem: Problem, packing: Packing) -> tuple[Ints, Ints]:
    """(candidates, replicas): packed values, -1 where a placement is impossible or worth
    nothing; and the part of them that is credit."""
    shape = (len(problem.costs), len(problem.capacities))
    credits = np.array(problem.credits, dtype=np.int64).reshape(shape) << packing.credit_shift
    rest = [packing.pack(0, *pair) for pair in zip(problem.ready, problem.footprints, strict=True)]
    values = credits + np.array(rest, dtype=np.int64)[:, None]
    costs = np.array(problem.costs, dtype=np.int64)[:, None]
    fits = costs <= np.array(problem.capacities, dtype=np.int64)[None, :]
    possible = fits & (values > 0)
    return np.where(possible, values, -1), np.where(possible, credits, 0)


def _worth_a_look(problem: Problem, values: Ints, credits: Ints) -> list[int]:
    """Candidates that some optimal plan may place: most credit, then readiness and cost first.

    One without credit is left out if those that cost no more and are worth no less fill all
    replicas together with it: where it is placed, one of them is not, and can take its place.
    """
    credit = credits.max(axis=1, initial=0)
    best = values.max(axis=1, initial=-1)
    items = np.flatnonzero(best > 0)
    costs = np.array(problem.costs, dtype=np.int64)[items]
    rest = (values - credits).max(axis=1, initial=-1)[items]
    rank = np.lexsort((np.arange(len(items)), costs, -rest))
    items, costs, rest = items[rank], costs[rank], rest[rank]
    # In this order every candidate comes after all that are worth more, or as much at less cost.
    better = np.tril(costs[None, :] <= costs[:, None], k=-1)
    crowd = better @ costs + costs
    needed = (credit[items] > 0) | (crowd <= sum(problem.capacities))
    return sorted(
        items[needed].tolist(),
        key=lambda i: (-credit[i], -problem.ready[i], -problem.costs[i], -problem.footprints[i], i),
    )
