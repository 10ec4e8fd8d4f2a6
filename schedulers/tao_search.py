"""The dynamic program behind TAO's plans, with bounds, on plain arrays.

States are kept only while an upper bound says that they can still beat the best plan found. The
candidates are gone through once with few states kept after each, which usually finds an optimum
whose value equals the bound; if not, again with more, until nothing that mattered was dropped.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

_WIDTHS = (48, 1_000, 16_000, 200_000)
"""States kept after each candidate, sweep by sweep. They change the time taken, not the result."""


class Search:
    """Args:
    costs: (candidates,) in quanta.
    capacities: (replicas,) in quanta.
    values: (candidates, replicas), larger is better, -1: not possible.
    credits: the part of `values` that differs between replicas; candidates that have any must
        come first.
    """

    def __init__(self, costs: Ints, capacities: Ints, values: Ints, credits: Ints) -> None:
        self.costs, self.values = costs, values
        self.capacities: Ints = np.minimum(capacities, costs.sum())
        self.states = 0
        self.best = 0
        """Value of the best plan found."""
        self.bound = 0
        """No plan is worth more."""
        self._choice: list[int] = [-1] * len(costs)
        self._credited = int((credits.max(axis=1) > 0).sum())
        self._make_tables(credits)

    def run(self, max_states: int) -> list[int]:
        """The replica of each candidate, or -1."""
        if len(self.capacities) == 1:
            self._walk()
            return self._choice
        self.bound = int(self._upper(0, self.capacities[None, :])[0])
        for width in _WIDTHS:
            missed = self._sweep(width, max_states)
            self.bound = max(self.best, min(self.bound, missed))
            if self.bound == self.best or self.states >= max_states:
                break
        return self._choice

    def _make_tables(self, credits: Ints) -> None:
        """Tables over (next candidate, capacity). `pooled`: the most that the rest can add if all
        capacity were one replica; `uncredited`: the same without credit; `alone`: the most
        credit of the rest on each replica by itself; `reachable`: see _suffix_sums."""
        total, largest = int(self.capacities.sum()), int(self.capacities.max())
        self._pooled = _suffix_knapsacks(self.values.max(axis=1), self.costs, total)
        if len(self.capacities) == 1:
            return
        self._reachable = _suffix_sums(self.costs, largest)
        if self._credited:
            rest = (self.values - credits).max(axis=1)
            self._uncredited = _suffix_knapsacks(rest, self.costs, total)
            first = slice(0, self._credited)
            tables = [_suffix_knapsacks(c, self.costs[first], largest) for c in credits[first].T]
            self._alone = np.stack(tables, axis=1)
            self._columns = np.arange(len(self.capacities))

    def _walk(self) -> None:
        """One replica: the pooled table is the dynamic program itself."""
        free = int(self.capacities[0])
        self.best = self.bound = int(self._pooled[0, free])
        self.states = self._pooled.size
        for item, cost in enumerate(self.costs.tolist()):
            if self._pooled[item, free] != self._pooled[item + 1, free]:
                self._choice[item] = 0
                free -= cost

    def _upper(self, item: int, free: Ints) -> Ints:
        """No completion from candidate `item` on adds more, for each row of `free`.

        Two relaxations: all replicas pooled; and the credit of each replica alone plus the rest
        pooled, which is sharper where more credit belongs to one replica than it can hold.
        """
        pool = free.sum(axis=1)
        upper: Ints = self._pooled[item][pool]
        if item < self._credited:
            alone = self._alone[item][self._columns, free].sum(axis=1)
            upper = np.minimum(upper, alone + self._uncredited[item][pool])
        return upper

    def _sweep(self, width: int, max_states: int) -> int:
        """Go through the candidates once, with at most `width` states kept after each.

        Returns the largest bound of a state that was dropped (0: none that matters).
        """
        count, limit = len(self.capacities), int(self.capacities.max())
        steps = np.vstack([np.zeros((1, count), dtype=np.int64), np.eye(count, dtype=np.int64)])
        free, total = self.capacities[None, :], np.zeros(1, dtype=np.int64)
        trail: list[tuple[Ints, Ints]] = []
        missed = 0
        for item, cost in enumerate(self.costs):
            if self.states >= max_states:
                return max(missed, int((total + self._upper(item, free)).max()))
            gains = np.concatenate(([0], self.values[item]))
            options = np.flatnonzero(gains >= 0)
            after = free[:, None, :] - (steps[options] * cost)[None, :, :]
            parent, option = np.nonzero((after >= 0).all(axis=2))
            free = self._reachable[item + 1][after[parent, option]]
            total = total[parent] + gains[options][option]
            self.states += len(total)
            upper = total + self._upper(item + 1, free)
            keep = np.flatnonzero(upper > self.best)
            if not len(keep):
                return missed
            symmetric = item + 1 >= self._credited
            keep = keep[_best_of_equal(free[keep], total[keep], limit, symmetric)]
            if len(keep) > width:
                keep = keep[np.argsort(-upper[keep], kind="stable")]
                missed = max(missed, int(upper[keep[width]]))
                keep = keep[:width]
            trail.append((parent[keep], options[option[keep]]))
            free, total = free[keep], total[keep]
        winner = int(np.argmax(total))
        self.best = int(total[winner])
        for item in reversed(range(len(trail))):
            parents, chosen = trail[item]
            self._choice[item] = int(chosen[winner]) - 1
            winner = int(parents[winner])
        return missed


def _best_of_equal(free: Ints, total: Ints, limit: int, symmetric: bool) -> Ints:
    """Rows that are the best of all with the same free capacity (in any order if `symmetric`:
    replicas without credit to come are interchangeable)."""
    canonical = np.sort(free, axis=1) if symmetric else free
    count = canonical.shape[1]
    if (limit + 1) ** count < 2**62:
        key = canonical @ np.array([(limit + 1) ** n for n in range(count)])
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
        cost, value, row, after = int(costs[item]), int(values[item]), table[item], table[item + 1]
        if value > 0 and cost <= capacity:
            row[:cost] = after[:cost]
            np.maximum(after[cost:], after[: capacity + 1 - cost] + value, out=row[cost:])
        else:
            row[:] = after
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
        np.maximum.accumulate(positions * reachable, out=table[item])
    return table
