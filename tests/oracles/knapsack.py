"""Brute force for TAO's planning problem: every assignment is tried. Slow, obviously right."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

Value = tuple[int, int, int]


def value_of(
    choice: Sequence[int],
    credits: Sequence[Sequence[int]],
    ready: Sequence[int],
    footprints: Sequence[int],
) -> Value:
    """Sum of (credit, ready, footprint) over the items placed; -1 places nothing."""
    placed = [(item, bin_) for item, bin_ in enumerate(choice) if bin_ >= 0]
    return (
        sum(credits[item][bin_] for item, bin_ in placed),
        sum(ready[item] for item, _ in placed),
        sum(footprints[item] for item, _ in placed),
    )


def fits(choice: Sequence[int], capacities: Sequence[int], costs: Sequence[int]) -> bool:
    for bin_, capacity in enumerate(capacities):
        if sum(cost for cost, where in zip(costs, choice, strict=True) if where == bin_) > capacity:
            return False
    return True


def best_value(
    capacities: Sequence[int],
    costs: Sequence[int],
    credits: Sequence[Sequence[int]],
    ready: Sequence[int],
    footprints: Sequence[int],
) -> Value:
    """The largest sum vector, compared left to right."""
    return max(
        value_of(choice, credits, ready, footprints)
        for choice in product(range(-1, len(capacities)), repeat=len(costs))
        if fits(choice, capacities, costs)
    )
