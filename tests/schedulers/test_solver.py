"""The dynamic program against brute force, against hand-made cases, and against HiGHS."""

from __future__ import annotations

import random
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import UsageError
from schedulers.tao_milp import solve_milp
from schedulers.tao_solver import SKIP, Packing, Problem, Value, solve, value_of
from tests.oracles.knapsack import best_value, fits


def check(problem: Problem) -> None:
    solution = solve(problem)
    assert fits(solution.choice, problem.capacities, problem.costs)
    assert solution.value == value_of(problem, solution.choice)
    assert solution.value == best_value(
        problem.capacities, problem.costs, problem.credits, problem.ready, problem.footprints
    )
    assert solution.proven


def random_problem(rng: random.Random, candidates: int, replicas: int, sign: int) -> Problem:
    return Problem(
        capacities=tuple(rng.randint(0, 12) for _ in range(replicas)),
        costs=tuple(rng.randint(1, 8) for _ in range(candidates)),
        credits=tuple(
            tuple(rng.choice((0, 0, rng.randint(0, 5))) for _ in range(replicas))
            for _ in range(candidates)
        ),
        ready=tuple(rng.randint(0, 1) for _ in range(candidates)),
        footprints=tuple(sign * rng.choice((7, rng.randint(0, 900))) for _ in range(candidates)),
    )


def generated(rng: random.Random, replicas: int, candidates: int, quanta: int) -> Problem:
    """A snapshot as they look under contention: one replica of credit, varied contexts."""
    tokens = [min(40_000, max(1500, int(rng.lognormvariate(9.4, 0.6)))) for _ in range(candidates)]
    shares = [rng.uniform(0.2, 1) for _ in range(replicas)]
    total = sum(tokens) / rng.choice((1.3, 2, 5))
    room = [int(total * share / sum(shares)) for share in shares]
    quantum = max(64, -(-max(room) // quanta))
    credits = []
    for one in tokens:
        row = [0] * replicas
        if rng.random() < 0.3:
            row[rng.randrange(replicas)] = int(one * 2 ** -rng.uniform(0, 6)) // 1024
        credits.append(tuple(row))
    return Problem(
        capacities=tuple(r // quantum for r in room),
        costs=tuple(-(-(t + 100) // quantum) for t in tokens),
        credits=tuple(credits),
        ready=tuple(int(rng.random() < 0.6) for _ in tokens),
        footprints=tuple(tokens),
    )


def test_equals_brute_force_on_thousands_of_instances() -> None:
    rng = random.Random(1)
    for _ in range(2500):
        check(random_problem(rng, rng.randint(0, 6), rng.randint(1, 3), rng.choice((1, -1))))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_equals_brute_force_on_whatever_hypothesis_finds(data: st.DataObject) -> None:
    replicas = data.draw(st.integers(1, 3))
    candidates = data.draw(st.integers(1, 5))

    def each(element: st.SearchStrategy[int]) -> tuple[int, ...]:
        return tuple(data.draw(st.lists(element, min_size=candidates, max_size=candidates)))

    rows = [data.draw(st.tuples(*[st.integers(0, 3)] * replicas)) for _ in range(candidates)]
    check(
        Problem(
            capacities=tuple(data.draw(st.tuples(*[st.integers(0, 9)] * replicas))),
            costs=each(st.integers(1, 6)),
            credits=tuple(rows),
            ready=each(st.integers(0, 1)),
            footprints=each(st.integers(-50, 50)),
        )
    )


def test_left_to_right() -> None:
    """One place of 3: most credit wins over two ready ones, readiness over footprint."""
    one_place = Problem((3,), (3, 3, 3), ((1,), (0,), (0,)), (0, 1, 0), (5, 10, 999))
    assert solve(one_place).choice == (0, SKIP, SKIP)
    without = Problem((3,), (3, 3, 3), ((0,), (0,), (0,)), (0, 1, 0), (5, 10, 999))
    assert solve(without).choice == (SKIP, 0, SKIP)
    unready = Problem((3,), (3, 3, 3), ((0,), (0,), (0,)), (0, 0, 0), (5, 10, 999))
    assert solve(unready).choice == (SKIP, SKIP, 0)


def test_the_sum_decides_not_the_best_single_one() -> None:
    """Capacity 4: one candidate of credit 3 and cost 4, or two of credit 2 and cost 2: 4 > 3."""
    problem = Problem((4,), (4, 2, 2), ((3,), (2,), (2,)), (0, 0, 0), (1, 1, 1))
    assert solve(problem).choice == (SKIP, 0, 0)
    assert solve(problem).value == (4, 0, 2)


def test_joint_placement_beats_best_first() -> None:
    """a: 4 on r0, 3 on r1; b: 2 on r0 only; one place each. Best first gives 4, jointly 5."""
    problem = Problem((1, 1), (1, 1), ((4, 3), (2, 0)), (0, 0), (1, 1))
    assert solve(problem).choice == (1, 0)


def test_negative_footprints_are_placed_only_for_credit_or_readiness() -> None:
    problem = Problem((9,), (1, 1, 1), ((0,), (0,), (1,)), (0, 1, 0), (-5, -5, -5))
    assert solve(problem).choice == (SKIP, 0, 0)
    assert solve(problem).value == (1, 1, -10)


def test_nothing_to_place() -> None:
    assert solve(Problem((), (), (), (), ())).choice == ()
    assert solve(Problem((5,), (), (), (), ())).proven
    assert solve(Problem((2,), (3,), ((9,),), (1,), (9,))).choice == (SKIP,)
    assert solve(Problem((), (3,), ((),), (1,), (9,))).choice == (SKIP,)


def test_same_problem_same_plan() -> None:
    problem = generated(random.Random(3), 4, 40, 40)
    assert solve(problem) == solve(problem)


def test_cut_off_search_keeps_an_honest_bound() -> None:
    rng = random.Random(11)
    cut = 0
    for _ in range(60):
        problem = generated(rng, 3, 30, 60)
        full, short = solve(problem, 10_000_000), solve(problem, 300)
        assert full.proven
        assert fits(short.choice, problem.capacities, problem.costs)
        assert short.value <= full.value <= short.bound
        cut += not short.proven
    assert cut  # else this test shows nothing


def test_packing_is_exact_and_refuses_what_does_not_fit() -> None:
    problem = Problem((9,), (1, 1), ((5,), (6,)), (1, 1), (-300, 200))
    packing = Packing(problem)
    for value in (Value(11, 2, -100), Value(5, 1, -300), Value(0, 0, 0), Value(6, 1, 200)):
        assert packing.unpack(packing.pack(*value)) == value
    huge = Problem((1,), (1, 1), ((2**40,), (0,)), (1, 1), (2**30, 1))
    with pytest.raises(OverflowError, match="bits"):
        solve(huge)


def test_equals_highs_at_sizes_brute_force_cannot_reach() -> None:
    pytest.importorskip("highspy", reason="the extra `solver` is not installed")
    rng = random.Random(4)
    for _ in range(25):
        problem = generated(rng, rng.randint(1, 4), rng.randint(8, 40), rng.randint(8, 60))
        exact, highs = solve(problem, 5_000_000), solve_milp(problem)
        assert exact.proven
        assert highs.proven
        assert highs.value == exact.value
        assert fits(highs.choice, problem.capacities, problem.costs)


def test_highs_answers_where_a_start_once_misled_its_presolve() -> None:
    """With a start plan HiGHS 1.16 calls a plan of -35,684 optimal here; -27,927 is."""
    pytest.importorskip("highspy", reason="the extra `solver` is not installed")
    contexts = [15477, 8572, 7604, 4209, 19126, 7720, 21524, 8016, 9911, 11354, 11077, 40000, 8394]
    credits = [(0, 0)] * 13
    credits[2], credits[3] = (0, 1), (1, 0)
    problem = Problem(
        capacities=(12, 18),
        costs=(12, 7, 6, 4, 15, 6, 16, 6, 8, 9, 9, 30, 7),
        credits=tuple(credits),
        ready=(1, 1, 0, 1, 1, 1, 0, 0, 0, 0, 1, 1, 1),
        footprints=tuple(-tokens for tokens in contexts),
    )
    exact = solve(problem)
    assert exact.value == (2, 3, -27927)
    assert solve_milp(problem, start=exact).value == exact.value
    assert solve_milp(problem).value == exact.value


def test_highs_cut_off_keeps_the_start_and_an_honest_bound() -> None:
    pytest.importorskip("highspy", reason="the extra `solver` is not installed")
    problem = generated(random.Random(5), 4, 40, 40)
    exact = solve(problem)
    cut = solve_milp(problem, start=exact, time_limit_s=0.0)
    assert cut.value == exact.value
    assert cut.bound >= exact.value


def test_without_highspy_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "highspy", None)
    with pytest.raises(UsageError) as raised:
        solve_milp(Problem((1,), (1,), ((1,),), (1,), (1,)))
    assert "agentsched[solver]" in raised.value.remedy
