"""TAO's plan by parts: feasible, never above the optimum, close to it on recorded snapshots."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.short_first import BUFFER_TOKENS
from schedulers.tao_decomposed import PricedPlan, TaoDecomposedConfig, make_plan_by_parts
from schedulers.tao_plan import Candidate, PlanSettings, Snapshot, make_plan
from schedulers.tao_prices import credits_by_replica, fractional, price
from scripts.tao_snapshots import from_row, read


def snapshot(rooms: list[int], candidates: list[tuple[int, tuple[int, ...], int]]) -> Snapshot:
    return Snapshot(
        now=0,
        replicas=tuple(f"r{n}" for n in range(len(rooms))),
        room=tuple(rooms),
        candidates=tuple(
            Candidate(f"s{i}", tokens, credits, ready, tokens, 0, tokens)
            for i, (tokens, credits, ready) in enumerate(candidates)
        ),
        settings=PlanSettings(quantum_tokens=1),
    )


def test_who_finds_no_place_tries_another_cluster() -> None:
    # Both want r0 (credit 2), which has room for one; s1 then goes to r1, in the other cluster.
    need = 1000 + BUFFER_TOKENS
    frozen = snapshot([need, need], [(1000, (2, 0), 1), (1000, (2, 0), 0)])
    plan = make_plan_by_parts(frozen, cluster_replicas=1, rounds=2)
    assert plan.placements == (("s0", "r0"), ("s1", "r1"))
    assert plan.value == (2, 1, 2000)


def test_one_cluster_is_taos_own_plan() -> None:
    for row in read()[::200]:
        frozen = from_row(row, PlanSettings())
        assert make_plan_by_parts(frozen, cluster_replicas=4, rounds=3) == make_plan(frozen)


PLACES = st.integers(2, 5).flatmap(
    lambda count: st.tuples(
        st.lists(st.integers(0, 6000), min_size=count, max_size=count),
        st.lists(
            st.tuples(
                st.integers(1, 2500),
                st.lists(st.integers(0, 2), min_size=count, max_size=count).map(tuple),
                st.integers(0, 1),
            ),
            max_size=7,
        ),
    )
)


@given(PLACES, st.integers(1, 3), st.integers(1, 3), st.lists(st.integers(0, 3), min_size=7))
@settings(max_examples=60, deadline=None)
def test_plans_fit_and_are_within_the_bounds(
    case: tuple[list[int], list[tuple[int, tuple[int, ...], int]]],
    size: int,
    rounds: int,
    start: list[int],
) -> None:
    frozen = snapshot(*case)
    plan = make_plan_by_parts(frozen, cluster_replicas=size, rounds=rounds)
    need = {one.session: one.need for one in frozen.candidates}
    assert len({session for session, _ in plan.placements}) == len(plan.placements)
    for replica, room in zip(frozen.replicas, frozen.room, strict=True):
        used = sum(need[s] for s, where in plan.placements if where == replica)
        assert used <= max(room, 0)
    joint = make_plan(frozen)
    assert joint.proven
    assert plan.value <= joint.value <= plan.bound  # quanta of one token: rounding loses nothing
    prices = {f"s{i}": paid for i, paid in enumerate(start)}
    found = price(frozen, credits_by_replica(frozen), prices, iterations=start[0])
    assert joint.value <= found.bound, "whatever the prices are"


def test_prices_bound_what_several_replicas_would_pay_for() -> None:
    # Both replicas credit s0 with 5 and have room for it alone: without a price it counts twice.
    need = 1000 + BUFFER_TOKENS
    frozen = snapshot([need, need], [(1000, (5, 5), 0)])
    credits = credits_by_replica(frozen)
    assert price(frozen, credits, {}, iterations=0).bound.credit == 10
    found = price(frozen, credits, {}, iterations=9)
    assert (found.bound.credit, found.prices) == (5, {"s0": 5})
    # Those prices say so at once.
    assert price(frozen, credits, found.prices, iterations=0).bound.credit == 5


def test_a_fractional_knapsack_counts_a_part_of_what_is_cut() -> None:
    # 6/2 first, then half of 4/4: 6 + 2 = 8; the one without value is never looked at.
    assert fractional([(4, 4), (6, 2), (0, 1)], room=4) == (8, [1, 0])
    # Rounded down: 5/3 of room 2 is 3.33.
    assert fractional([(5, 3)], room=2) == (3, [0])
    assert fractional([(5, 3)], room=-1) == (0, [])


def test_the_next_bound_begins_with_the_prices_of_the_plan() -> None:
    need = 1000 + BUFFER_TOKENS
    frozen = snapshot([need, need, need], [(1000, (5, 5, 0), 0), (1000, (4, 0, 0), 0)])
    plan = make_plan_by_parts(frozen, cluster_replicas=1, rounds=3)
    assert isinstance(plan, PricedPlan)
    # Credit of 5 is on r0 and r1 alike; only if s0 leaves r0 to s1 is all credit had.
    assert plan.value.credit == plan.bound.credit == 9
    again = make_plan_by_parts(
        frozen, cluster_replicas=1, rounds=3, iterations=0, prices=plan.prices
    )
    assert again == plan


def test_recorded_snapshots_lose_little() -> None:
    """Two clusters of two replicas against the joint optimum of four."""
    same = total = 0
    for row in read()[::40]:
        frozen = from_row(row, PlanSettings())
        joint = make_plan(frozen)
        parts = make_plan_by_parts(frozen, cluster_replicas=2, rounds=3)
        total += 1
        same += parts.value[:2] == joint.value[:2]
        assert parts.value.credit >= 0.5 * joint.value.credit
    assert same >= 0.7 * total


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="cluster_replicas"):
        replace(TaoDecomposedConfig(), cluster_replicas=0)
