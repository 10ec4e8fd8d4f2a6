"""From snapshot to plan: quanta, rounding, ties, order; by hand."""

from __future__ import annotations

import random
from dataclasses import replace
from typing import Any

import pytest

from schedulers.tao_plan import (
    UNLIMITED,
    Candidate,
    PlanSettings,
    Snapshot,
    choose_quantum,
    discretise,
    make_plan,
    short_first_value,
)
from schedulers.tao_solver import solve


def candidate(name: str, tokens: int, *credits: int, ready: int = 1) -> Candidate:
    """Its need is tokens + 100; footprint as with sign 1."""
    return Candidate(name, tokens, credits, ready, tokens, 0, tokens)


def snapshot(room: tuple[int, ...], *candidates: Candidate, **settings: Any) -> Snapshot:
    names = tuple(f"r{n}" for n in range(len(room)))
    return Snapshot(0, names, room, candidates, PlanSettings(**settings))


# Quanta.


def test_quantum_comes_from_the_room_in_play() -> None:
    a, b = candidate("a", 2900, 0, 0), candidate("b", 3900, 0, 0)  # need 3,000 and 4,000
    # r0's 2,900 fits nobody: out of play. r1 has 6,000 for 7,000: 6,000 / 100 quanta = 60.
    assert choose_quantum(snapshot((2900, 6000), a, b, quanta_max=100)) == 60
    # Of r1's 312,352 only the 7,000 that all together need are in play: 70, not 3,124.
    assert choose_quantum(snapshot((2900, 312_352), a, b, quanta_max=100)) == 70
    # Both in play: (3,000 + 7,000) / 100; rounded up.
    assert choose_quantum(snapshot((3000, 7000), a, b, quanta_max=100)) == 100
    assert choose_quantum(snapshot((3000, 7000), a, b, quanta_max=99)) == 102


def test_quantum_is_never_finer_than_a_block_unless_set() -> None:
    a = candidate("a", 2900, 0)
    assert choose_quantum(snapshot((3000,), a)) == 16
    assert choose_quantum(snapshot((3000,), a, quantum_tokens=5)) == 5
    assert choose_quantum(snapshot((2000,), a)) == 16  # nothing in play
    assert choose_quantum(snapshot((), quanta_max=3)) == 16


def test_costs_round_up_and_room_rounds_down() -> None:
    problem = discretise(
        snapshot((2999, 3000, -50), candidate("a", 900, 0, 0, 0), candidate("b", 901, 0, 0, 0)),
        1000,
    )
    # Needs 1,000 and 1,001. Room beyond all needs plus rounding, 2,001 + 2 x 1,000, is no use.
    assert problem.costs == (1, 2)
    assert problem.capacities == (2, 3, 0)
    assert discretise(snapshot((UNLIMITED,), candidate("a", 900, 0)), 1000).capacities == (2,)


def test_values_too_wide_for_the_solver_lose_low_bits_of_the_footprint() -> None:
    wide = snapshot((10**9,), *(candidate(f"s{i}", 2**20 + i, 2**40) for i in range(4)))
    problem = discretise(wide, 16)
    # Credits need 43 bits, readiness 3, footprints 23 + 1: 70; eight bits go.
    assert problem.footprints == (4096, 4096, 4096, 4096)
    assert solve(problem).proven


# Everyone fits.


def test_everyone_goes_where_their_credit_is_largest() -> None:
    plan = make_plan(snapshot((9000, 9000), candidate("a", 3000, 0, 2), candidate("b", 3000, 1, 0)))
    assert plan.placements == (("a", "r1"), ("b", "r0"))
    assert (plan.method, plan.quantum, plan.proven) == ("everyone fits", 1, True)
    assert plan.value == plan.optimum == (3, 2, 6000)


def test_everyone_fits_to_the_token() -> None:
    # 3,000 + 100 twice: exactly 6,200, which quanta of 16 would round to 6,208.
    both = (candidate("a", 3000, 0), candidate("b", 3000, 0))
    assert len(make_plan(snapshot((6200,), *both)).placements) == 2
    assert len(make_plan(snapshot((6199,), *both)).placements) == 1


def test_without_credit_the_largest_goes_where_most_room_is() -> None:
    a, b, c = candidate("a", 1000, 0, 0), candidate("b", 4000, 0, 0), candidate("c", 3000, 0, 0)
    # b (4,100) to r1 (9,000 -> 4,900); c (3,100) to r0 (8,000 -> 4,900); a to r0: first of ties.
    plan = make_plan(snapshot((8000, 9000), a, b, c))
    assert dict(plan.placements) == {"b": "r1", "c": "r0", "a": "r0"}


# What the program decides, and its ties.


def test_sessions_worth_the_same_anywhere_are_spread_after_the_optimum() -> None:
    many = [candidate(f"s{i}", 900, 0, 0) for i in range(7)]  # need 1,000 each, room for 6
    room = (3000, 3000)
    plan = make_plan(snapshot(room, *many, quantum_tokens=1000))
    spread = [replica for _, replica in plan.placements]
    assert (spread.count("r0"), spread.count("r1")) == (3, 3)
    big = candidate("big", 4900, 0, 0)
    two = make_plan(snapshot((2000, 5000), *many[:3], big, quantum_tokens=1000))
    # The optimum is big, which fits r1 alone, and two of the small ones.
    assert two.value == (0, 3, 6700)
    assert dict(two.placements)["big"] == "r1"


def test_spreading_can_be_switched_off() -> None:
    # Room for one of the two large ones beside the small one.
    small, a, b = candidate("s", 900, 0, 0), candidate("a", 6000, 0, 0), candidate("b", 6000, 0, 0)
    room = (7500, 1500)
    with_it = make_plan(snapshot(room, small, a, b))
    without = make_plan(snapshot(room, small, a, b, spread=False))
    assert with_it.value == without.value == (0, 2, 6900)
    assert dict(with_it.placements)["s"] == "r1"


def test_spreading_never_moves_away_from_credit() -> None:
    warm = candidate("warm", 1900, 0, 3)
    plan = make_plan(snapshot((9000, 2000), warm, candidate("x", 9500, 0, 0)))
    assert plan.placements == (("warm", "r1"),)


def test_what_rounding_left_over_is_filled() -> None:
    # Quantum 1,000: room 2,900 is 2 quanta; a and b (needs 1,001) cost 2 each: one is placed.
    # In tokens both fit, 2,002 of 2,900; c (needs 3,000) does not.
    group = (candidate("a", 901, 0), candidate("b", 901, 0), candidate("c", 2900, 0))
    plan = make_plan(snapshot((2900,), *group, quantum_tokens=1000))
    assert plan.optimum == (0, 1, 901)
    assert plan.filled == 1
    assert plan.value == (0, 2, 1802)
    bare = make_plan(snapshot((2900,), *group, quantum_tokens=1000, fill=False))
    assert (bare.filled, bare.value) == (0, bare.optimum)


def test_plan_order_is_descending_value_then_queue_order() -> None:
    plan = make_plan(
        snapshot(
            (99_000,),
            candidate("small", 1000, 0),
            candidate("unready", 9000, 0, ready=0),
            candidate("twin", 1000, 0),
            candidate("large", 2000, 0),
            candidate("warm", 500, 1, ready=0),
        )
    )
    assert [name for name, _ in plan.placements] == ["warm", "large", "small", "twin", "unready"]


def test_short_first_is_measured_on_the_same_snapshot() -> None:
    # Room for 10,000: short first takes small (2,100) and then large does not fit; the optimum
    # takes large (9,900 needed) for its credit.
    pair = snapshot((10_000,), candidate("large", 9800, 1), candidate("small", 2000, 0))
    assert short_first_value(pair) == (0, 1, 2000)
    plan = make_plan(pair)
    assert plan.short_first == (0, 1, 2000)
    assert plan.value == (1, 1, 9800)


def test_empty_plan() -> None:
    plan = make_plan(snapshot((500,), candidate("a", 1000, 0)))
    assert (plan.placements, plan.value, plan.proven) == ((), (0, 0, 0), True)


def test_random_plans_fit_and_are_worth_what_they_say() -> None:
    rng = random.Random(2)
    for _ in range(300):
        replicas = rng.randint(1, 4)
        group = [
            candidate(
                f"s{i}",
                rng.randint(50, 5000),
                *(rng.choice((0, 0, rng.randint(0, 4))) for _ in range(replicas)),
                ready=rng.randint(0, 1),
            )
            for i in range(rng.randint(0, 12))
        ]
        sign = rng.choice((1, -1))
        group = [replace(one, footprint=sign * one.tokens) for one in group]
        room = tuple(rng.choice((-100, 0, rng.randint(0, 12_000))) for _ in range(replicas))
        frozen = snapshot(room, *group, quantum_tokens=rng.choice((0, 1, 700)))
        plan = make_plan(frozen)
        by_name = {one.session: one for one in group}
        assert len({name for name, _ in plan.placements}) == len(plan.placements)
        for n, tokens in enumerate(room):
            used = sum(by_name[s].need for s, where in plan.placements if where == f"r{n}")
            assert used <= max(0, tokens)
        value = [by_name[s].value(int(where[1:])) for s, where in plan.placements]
        assert plan.value == tuple(sum(column) for column in zip(*value, strict=True)) or not value
        assert plan.value >= plan.optimum
        assert plan.proven
        assert make_plan(frozen) == plan
        if frozen.settings.quantum_tokens == 1 and sign == 1:
            assert plan.value >= plan.short_first


def test_unproven_plans_go_to_highs_if_wanted() -> None:
    pytest.importorskip("highspy", reason="the extra `solver` is not installed")
    rng = random.Random(9)
    group = [candidate(f"s{i}", rng.randint(500, 9000), 0, 0, 0) for i in range(40)]
    hard = snapshot((30_000, 41_000, 37_000), *group, max_states=10)
    assert not make_plan(hard).proven
    helped = make_plan(replace(hard, settings=replace(hard.settings, milp=True)))
    assert helped.method == "HiGHS"
    assert helped.optimum >= make_plan(hard).optimum
