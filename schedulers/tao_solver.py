"""TAO's joint selection and placement: an exact dynamic program with bounds.

Maximise, over the candidates that are placed, the sum of (credit, readiness, footprint), compared
left to right; each candidate on at most one replica, no replica over its capacity. Comparing
left to right is preserved when the same vector is added to both sides, so keeping the best partial
sum per state (free capacity of every replica) loses nothing.

The triple is packed into one int64 whose fields are as wide as this problem needs. States are
kept only while an upper bound says that they can still beat the best plan found, first with few
states per candidate (which usually finds the optimum, proven by the bound), then with more.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

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


class _Packing:
    """Packs value triples into integers that compare and add like them."""

    def __init__(self, problem: Problem) -> None:
        self.footprint_bits = sum(abs(one) for one in problem.footprints).bit_length() + 1
        self.ready_bits = sum(problem.ready).bit_length()
        credit_bits = sum(max(row, default=0) for row in problem.credits).bit_length()
        self.bits = self.footprint_bits + self.ready_bits + credit_bits
        self.credit_shift = self.footprint_bits + self.ready_bits

    def pack(self, credit: int, ready: int, footprint: int) -> int:
        return (credit << self.credit_shift) + (ready << self.footprint_bits) + footprint

    def unpack(self, packed: int) -> Value:
        # Footprints may be negative: their field is read as a signed one.
        half = 1 << (self.footprint_bits - 1)
        footprint = (packed + half) % (2 * half) - half
        rest = (packed - footprint) >> self.footprint_bits
        return Value(rest >> self.ready_bits, rest & ((1 << self.ready_bits) - 1), footprint)


def solve(problem: Problem, max_states: int = 2_000_000) -> Solution:
    """The best plan; proven best unless the search was cut off after `max_states` states.

    Raises:
        OverflowError: credits and footprints are too large to be packed into 62 bits.
    """
    packing = _Packing(problem)
    if packing.bits > 62:
        raise OverflowError(f"the value triple needs {packing.bits} bits, more than 62")
    search = _Search(problem, packing)
    search.run(max_states)
    choice = search.best_choice
    return Solution(
        choice,
        value_of(problem, choice),
        packing.unpack(search.bound),
        search.states,
        "dynamic program",
    )


_WIDTHS = (48, 1_000, 16_000, 200_000)


class _Search:
    """States are rows of `free` (quanta left per replica) with the packed value so far."""

    def __init__(self, problem: Problem, packing: _Packing) -> None:
        self.problem, self.packing = problem, packing
        self.states = 0
        self.best = 0
        self.best_choice: tuple[int, ...] = (SKIP,) * len(problem.costs)
        self.values = self._packed_values()
        credits = np.array(problem.credits, dtype=np.int64).reshape(self.values.shape)
        self.credits: Ints = np.where(self.values > 0, credits, 0)
        self.items = self._order()
        useful = self.values[self.items].max(axis=0, initial=-1) > 0
        self.replicas = [n for n, used in enumerate(useful) if used]
        self.costs: Ints = np.array([problem.costs[i] for i in self.items], dtype=np.int64)
        capacities = np.array([problem.capacities[n] for n in self.replicas], dtype=np.int64)
        self.capacities: Ints = np.minimum(capacities, self.costs.sum())
        self.bound = 0

    def _packed_values(self) -> Ints:
        """(candidates, replicas); -1 where a placement is impossible or worth nothing."""
        p, pack = self.problem, self.packing.pack
        rows = [
            [
                pack(p.credits[i][n], p.ready[i], p.footprints[i]) if cost <= capacity else -1
                for n, capacity in enumerate(p.capacities)
            ]
            for i, cost in enumerate(p.costs)
        ]
        values = np.array(rows, dtype=np.int64).reshape(len(p.costs), len(p.capacities))
        return np.where(values > 0, values, -1)

    def _order(self) -> list[int]:
        """Candidates worth looking at: those with credit first, larger values and costs first."""
        p = self.problem
        credit = self.credits.max(axis=1, initial=0)
        useful = np.flatnonzero(self.values.max(axis=1, initial=-1) > 0).tolist()
        return sorted(
            useful, key=lambda i: (-credit[i], -p.ready[i], -p.costs[i], -p.footprints[i])
        )

    def run(self, max_states: int) -> None:
        if not self.items:
            return
        self._make_bounds()
        root = int(self._upper(0, self.capacities[None, :])[0])
        self.bound = root
        for width in _WIDTHS:
            missed = self._sweep(width, max_states)
            self.bound = max(self.best, min(self.bound, missed))
            if self.bound == self.best or self.states >= max_states:
                return

    def _make_bounds(self) -> None:
        """Tables over (next candidate, capacity): the most that the rest can add if all
        capacity were one replica (`pooled`), and the most credit on each replica alone."""
        values = self.values[self.items][:, self.replicas]
        credits = self.credits[self.items][:, self.replicas] << self.packing.credit_shift
        self.pooled = _suffix_knapsacks(values.max(axis=1), self.costs, int(self.capacities.sum()))
        rest = (values - credits).max(axis=1)
        self.uncredited = _suffix_knapsacks(rest, self.costs, int(self.capacities.sum()))
        limit = int(self.capacities.max())
        tables = [
            _suffix_knapsacks(credits[:, n], self.costs, limit) for n in range(len(self.replicas))
        ]
        self.credit = np.stack(tables, axis=1)
        self.credited = int((credits.max(axis=1) > 0).sum())
        self.reachable = _suffix_sums(self.costs, limit)

    def _upper(self, item: int, free: Ints) -> Ints:
        """No completion from candidate `item` on adds more, for each row of `free`."""
        pool = free.sum(axis=1)
        upper: Ints = self.pooled[item][pool]
        if item < self.credited:
            alone = self.credit[item][np.arange(free.shape[1]), free].sum(axis=1)
            upper = np.minimum(upper, alone + self.uncredited[item][pool])
        return upper

    def _sweep(self, width: int, max_states: int) -> int:
        """One pass over the candidates with at most `width` states kept after each.

        Returns the largest bound of a state that was dropped (0: none that matters).
        """
        values = self.values[self.items][:, self.replicas]
        count = len(self.replicas)
        free, total = self.capacities[None, :].copy(), np.zeros(1, dtype=np.int64)
        trail: list[tuple[Ints, Ints]] = []
        missed = 0
        steps = np.vstack([np.zeros((1, count), dtype=np.int64), np.eye(count, dtype=np.int64)])
        for item, cost in enumerate(self.costs):
            gains = np.concatenate(([0], values[item]))
            options = np.flatnonzero(gains >= 0)
            after = free[:, None, :] - (steps[options] * cost)[None, :, :]
            fits = (after >= 0).all(axis=2)
            parent, option = np.nonzero(fits)
            free = self.reachable[item + 1][after[parent, option]]
            total = total[parent] + gains[options][option]
            self.states += len(total)
            upper = total + self._upper(item + 1, free)
            keep = np.flatnonzero(upper > self.best)
            if not len(keep):
                return missed
            symmetric = item + 1 >= self.credited
            keep = keep[
                _best_of_equal(free[keep], total[keep], int(self.capacities.max()), symmetric)
            ]
            if len(keep) > width:
                ranked = keep[np.argsort(-upper[keep], kind="stable")]
                missed = max(missed, int(upper[ranked[width]]))
                keep = ranked[:width]
            trail.append((parent[keep], options[option[keep]]))
            free, total = free[keep], total[keep]
            if self.states >= max_states:
                break
        winner = int(np.argmax(total))
        if total[winner] > self.best and len(trail) == len(self.costs):
            self.best = int(total[winner])
            self.best_choice = self._choice(trail, winner)
        if len(trail) < len(self.costs):
            missed = max(missed, int((total + self._upper(len(trail), free)).max()))
        return missed

    def _choice(self, trail: list[tuple[Ints, Ints]], state: int) -> tuple[int, ...]:
        choice = [SKIP] * len(self.problem.costs)
        for item in reversed(range(len(trail))):
            parents, options = trail[item]
            option = int(options[state])
            if option:
                choice[self.items[item]] = self.replicas[option - 1]
            state = int(parents[state])
        return tuple(choice)


def _best_of_equal(free: Ints, total: Ints, limit: int, symmetric: bool) -> Ints:
    """Rows that are the best of all with the same free capacity (in any order if `symmetric`)."""
    canonical = np.sort(free, axis=1) if symmetric else free
    if (limit + 1) ** canonical.shape[1] < 2**62:
        key = canonical @ np.array([(limit + 1) ** n for n in range(canonical.shape[1])])
        order = np.lexsort((-total, key))
        first = np.concatenate(([True], np.diff(key[order]) != 0))
    else:
        order = np.lexsort((-total, *canonical.T))
        first = np.concatenate(([True], (np.diff(canonical[order], axis=0) != 0).any(axis=1)))
    return np.sort(order[first])


def _suffix_knapsacks(values: Ints, costs: Ints, capacity: int) -> Ints:
    """(candidates + 1, capacity + 1): the most that candidates i, i+1, ... can add."""
    table = np.zeros((len(costs) + 1, capacity + 1), dtype=np.int64)
    for item in range(len(costs) - 1, -1, -1):
        cost = int(costs[item])
        table[item] = table[item + 1]
        if values[item] > 0 and cost <= capacity:
            with_it = table[item + 1, : capacity + 1 - cost] + values[item]
            np.maximum(table[item, cost:], with_it, out=table[item, cost:])
    return table


def _suffix_sums(costs: Ints, capacity: int) -> Ints:
    """(candidates + 1, capacity + 1): the largest sum of costs of candidates i, i+1, ... that is
    at most c. What is free beyond it can never be used, so states that differ in it are equal."""
    table = np.zeros((len(costs) + 1, capacity + 1), dtype=np.int64)
    reachable = np.zeros(capacity + 1, dtype=bool)
    reachable[0] = True
    positions = np.arange(capacity + 1)
    for item in range(len(costs) - 1, -1, -1):
        cost = int(costs[item])
        if cost <= capacity:
            reachable[cost:] |= reachable[: capacity + 1 - cost].copy()
        table[item] = np.maximum.accumulate(np.where(reachable, positions, 0))
    return table
