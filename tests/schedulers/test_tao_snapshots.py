"""The recorded planning snapshots: readable, solved to proven optima, agreed on by HiGHS."""

from __future__ import annotations

import pytest

from schedulers.tao_milp import solve_milp
from schedulers.tao_plan import PlanSettings, discretise, make_plan
from schedulers.tao_solver import solve
from scripts.tao_snapshots import as_row, from_row, read
from scripts.tao_solver_study import best_fit_decreasing, compare, study

ROWS = read()


def test_rows_survive_a_round_trip() -> None:
    assert len(ROWS) > 1000
    for row in ROWS[::50]:
        back = as_row(from_row(row, PlanSettings()))
        assert {**back, "workload": row["workload"], "workers": row["workers"]} == row


def test_plans_are_proven_and_fit_at_every_quantum() -> None:
    for row in ROWS[::25]:
        values = []
        for quantum in (4096, 1024, 0):
            frozen = from_row(row, PlanSettings(quantum_tokens=quantum))
            plan = make_plan(frozen)
            assert plan.proven
            need = {c.session: c.need for c in frozen.candidates}
            for replica, room in zip(frozen.replicas, frozen.room, strict=True):
                used = sum(need[s] for s, where in plan.placements if where == replica)
                assert used <= max(room, 0)
            values.append(plan.optimum)
        assert max(values) == values[-1]  # blocks of 16 divide the coarser quanta


def test_highs_agrees() -> None:
    pytest.importorskip("highspy", reason="the extra `solver` is not installed")
    for row in ROWS[::60]:
        problem = discretise(from_row(row, PlanSettings()), 1024)
        exact, highs = solve(problem), solve_milp(problem)
        assert exact.proven
        assert highs.proven
        assert exact.value == highs.value


def test_best_fit_decreasing_by_hand() -> None:
    row = {
        "now": 0,
        "room": [1000, 700],
        "candidates": [[500, [0, 2], 1, 500, 0, 500], [600, [0, 0], 0, 600, 0, 600]],
    }
    # 600 + 100 leaves nothing on r1, where there is least; 500 + 100 then goes to r0: no credit.
    assert best_fit_decreasing(from_row(row, PlanSettings())) == (0, 1, 1100)


def test_comparison_names_what_decided() -> None:
    plan = make_plan(from_row(ROWS[0], PlanSettings()))
    worse = plan.value._replace(ready=plan.value.ready - 1)
    text = compare([plan, plan], [worse, plan.value])
    assert text.startswith("better in 1 of 2 (50.0 %: 0 by credit, 1 by readiness, 0 by footprint)")
    assert text.endswith("same in 1, worse in 0")


def test_study_reports_every_setting() -> None:
    lines = "\n".join(study(ROWS[::200]))
    for words in ("default (16-token blocks)", "14 quanta a replica", "short-first, several"):
        assert words in lines
