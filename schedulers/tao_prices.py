"""A proven bound on TAO's plans for many replicas, by prices, where the joint optimum is unknown.

Credit comes first in a value. It is bounded with Lagrange multipliers on "a session is placed
once": with a price u_i for each session, no plan has more credit than

    sum u_i + sum over replicas n of the fractional knapsack of (credit_in - u_i, need_i) in room_n

Prices of sessions that several replicas want rise, those of sessions that none wants fall, and only
replicas whose sessions' prices changed are packed again. Who takes whom in the end tells where a
session with credit on several replicas leaves room for those that have it on one. Readiness and
footprint, which are the same everywhere, are bounded by one fractional knapsack over all room
together, and readiness by how many sessions each replica can hold. All is computed in whole
numbers, so that the bounds hold exactly.

Everett (1963) for the multipliers, Dantzig (1957) for the knapsack.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from schedulers.tao_plan import Snapshot
from schedulers.tao_solver import Value

Credits = Mapping[int, int]
"""Of one candidate: what it earns, by position of the replica; those without credit left out."""


@dataclass(frozen=True, slots=True)
class Priced:
    """What prices say about a snapshot."""

    bound: Value
    """No plan is worth more."""
    prices: Mapping[str, int]
    """By session; of those whose price is not 0."""
    taken_by: Sequence[frozenset[int]]
    """For each candidate, replicas that would take it at these prices, for its credit."""


def credits_by_replica(snapshot: Snapshot) -> list[dict[int, int]]:
    """For each candidate, its credit on replicas where it has any and would fit alone."""
    found = []
    for one in snapshot.candidates:
        mine: dict[int, int] = {}
        if any(one.credits):
            need, room = one.need, snapshot.room
            mine = {n: c for n, c in enumerate(one.credits) if c > 0 and need <= room[n]}
        found.append(mine)
    return found


def price(
    snapshot: Snapshot, credits: Sequence[Credits], start: Mapping[str, int], iterations: int
) -> Priced:
    """The least bound that so many changes of prices find.

    Args:
        credits: as `credits_by_replica` gives them.
        start: prices to begin with, such as those of the plan before; others begin at 0.
        iterations: how often prices may change.
    """
    names = [one.session for one in snapshot.candidates]
    prices = [start.get(name, 0) if credits[i] else 0 for i, name in enumerate(names)]
    credit, best, taken_by = _iterate(snapshot, credits, prices, iterations)
    return Priced(
        Value(credit, *_rest(snapshot)),
        {name: paid for name, paid in zip(names, best, strict=True) if paid},
        taken_by,
    )


def _iterate(
    snapshot: Snapshot, credits: Sequence[Credits], prices: list[int], iterations: int
) -> tuple[int, list[int], list[frozenset[int]]]:
    """The least bound on credit that was seen, its prices, and who takes whom at them."""
    wanted_on: dict[int, list[int]] = {}
    for i, mine in enumerate(credits):
        for n in mine:
            wanted_on.setdefault(n, []).append(i)
    worth: dict[int, int] = {}
    takes: dict[int, frozenset[int]] = {}
    stale = set(wanted_on)
    best: tuple[int, list[int], list[frozenset[int]]] | None = None
    for turn in range(iterations + 1):
        for n in stale:
            items = [(credits[i][n] - prices[i], snapshot.candidates[i].need) for i in wanted_on[n]]
            worth[n], picked = fractional(items, snapshot.room[n])
            takes[n] = frozenset(wanted_on[n][k] for k in picked)
        total = sum(prices) + sum(worth.values())
        if best is None or total < best[0]:
            taken_by = [
                frozenset(n for n in mine if i in takes[n]) for i, mine in enumerate(credits)
            ]
            best = total, list(prices), taken_by
        changed = _adjust(credits, prices, takes, turn)
        if not changed:
            break
        stale = {n for i in changed for n in credits[i]}
    assert best is not None
    return best


def _adjust(
    credits: Sequence[Credits], prices: list[int], takes: Mapping[int, frozenset[int]], turn: int
) -> list[int]:
    """Move prices towards each session being wanted once; returns whose price changed."""
    changed = []
    for i, mine in enumerate(credits):
        if not mine:
            continue
        wanted = sum(i in takes[n] for n in mine)
        most = max(mine.values())
        step = max(1, most // (2 + turn))
        paid = prices[i]
        if wanted > 1:
            paid = min(paid + step, most)
        elif wanted == 0:
            paid = max(paid - step, 0)
        if paid != prices[i]:
            prices[i] = paid
            changed.append(i)
    return changed


def fractional(items: Sequence[tuple[int, int]], room: int) -> tuple[int, list[int]]:
    """Fractional knapsack: (its value rounded down, positions of the items that it touches).

    Args:
        items: (value, need) of each, need at least 1; without positive value it is left out.
    """
    order = sorted(
        (k for k, (value, _) in enumerate(items) if value > 0),
        key=lambda k: items[k][0] / items[k][1],
        reverse=True,
    )
    free, picked = max(room, 0), []
    cut: tuple[int, int] | None = None
    for k in order:
        if free > 0:
            picked.append(k)
        if items[k][1] > free:
            cut = items[k]
            break
        free -= items[k][1]
    if cut is None:
        return sum(items[k][0] for k in order), picked
    # The dual at the density of the item that was cut: it bounds whatever order rounding gave.
    value, need = cut
    surplus = sum(max(0, v * need - value * w) for v, w in (items[k] for k in order))
    return (value * max(room, 0) + surplus) // need, picked


def _rest(snapshot: Snapshot) -> tuple[int, int]:
    """Readiness and footprint that all room together would hold, each session divisible; and no
    more ready ones than the smallest of them that each replica alone would hold."""
    most = max(snapshot.room, default=0)
    fitting = [one for one in snapshot.candidates if one.need <= most]
    least = min((one.need for one in fitting), default=0)
    rooms = [room for room in snapshot.room if room >= least]
    bits = sum(abs(one.footprint) for one in fitting).bit_length() + 1
    items = [((one.ready << bits) + one.footprint, one.need) for one in fitting]
    packed, _ = fractional(items, sum(rooms) if fitting else 0)
    ready = (packed + (1 << (bits - 1))) >> bits
    footprint = packed - (ready << bits)
    most_footprint = sum(max(0, one.footprint) for one in fitting)
    if footprint < sum(min(0, one.footprint) for one in fitting):
        # So little beside that much readiness no sessions have: a part of one was counted.
        ready, footprint = ready - 1, most_footprint
    smallest = list(accumulate(sorted(one.need for one in fitting if one.ready)))
    whole = sum(bisect_right(smallest, room) for room in rooms)
    if whole < ready:
        return whole, most_footprint
    return ready, min(footprint, most_footprint)
