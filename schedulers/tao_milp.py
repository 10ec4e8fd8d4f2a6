"""TAO's planning problem as a mixed-integer program for HiGHS, for clusters beyond the reach of the
dynamic program. Needs the extra `solver` (highspy).

Three programs one after the other: most credit; with that credit, most readiness; with both, most
footprint. Each is solved to a gap below one unit, or to its limits; then its dual bound says how
far from the optimum the plan can be.
"""

from __future__ import annotations

from importlib import import_module
from math import floor
from typing import Any

import numpy as np

from agentsched import UsageError
from schedulers.tao_search import Ints
from schedulers.tao_solver import SKIP, Problem, Solution, Value, value_of


def solve_milp(
    problem: Problem,
    *,
    start: Solution | None = None,
    time_limit_s: float = 10.0,
    max_nodes: int = 2000,
) -> Solution:
    """The best plan found within the limits, and a proven bound.

    Args:
        start: a plan to begin with; the result is never worse.
        time_limit_s: for each of the three programs. A result cut off by time depends on the
            machine; one cut off by nodes does not.
        max_nodes: of the search tree, for each of the three programs.

    Raises:
        UsageError: highspy is not installed.
    """
    try:
        highspy = import_module("highspy")
    except ImportError:
        raise UsageError(
            "the mixed-integer solver needs highspy", "pip install 'agentsched[solver]'"
        ) from None
    program = _Program(highspy, problem, time_limit_s, max_nodes)
    if not program.pairs:
        nothing = Value(0, 0, 0)
        return Solution((SKIP,) * len(problem.costs), nothing, nothing, 0, "nothing fits")
    best = list(start.choice) if start is not None else [SKIP] * len(problem.costs)
    bound: list[int] = []
    for stage in range(3):
        found, reached, limit = program.maximise(stage)
        if found is not None and value_of(problem, found) >= value_of(problem, best):
            best = found
        bound.append(limit)
        if limit > reached:  # what comes after is only bounded by taking everything
            bound += [program.total_of(later) for later in range(stage + 1, 3)]
            break
        program.keep(stage, reached)
    value = value_of(problem, best)
    proven = Value(*bound)
    if start is not None:
        proven = min(proven, start.bound)
    return Solution(tuple(best), value, max(value, proven), program.nodes, "HiGHS")


class _Program:
    """Columns: one binary per possible (candidate, replica). Rows: candidates, then replicas,
    then one for each earlier objective that must be kept."""

    def __init__(self, highspy: Any, problem: Problem, time_limit_s: float, max_nodes: int) -> None:
        self.problem = problem
        self.nodes = 0
        self.pairs = [
            (i, n)
            for i, cost in enumerate(problem.costs)
            for n, capacity in enumerate(problem.capacities)
            if cost <= capacity
        ]
        self._highspy = highspy
        self._options: tuple[tuple[str, bool | int | float], ...] = (
            ("output_flag", False),
            ("threads", 1),
            ("time_limit", float(time_limit_s)),
            ("mip_max_nodes", max_nodes),
            ("mip_rel_gap", 0.0),
            ("mip_abs_gap", 0.99),
        )
        self._kept: list[tuple[int, int]] = []
        """(objective, least sum of it) of earlier stages."""
        self._gains: list[Ints] = [
            np.array([problem.credits[i][n] for i, n in self.pairs], dtype=np.int64),
            np.array([problem.ready[i] for i, _ in self.pairs], dtype=np.int64),
            np.array([problem.footprints[i] for i, _ in self.pairs], dtype=np.int64),
        ]

    def _model(self, stage: int) -> Any:
        """A new solver with objective `stage`: changing a solved one gave wrong optima."""
        inf, items = self._highspy.kHighsInf, len(self.problem.costs)
        highs, lp = self._highspy.Highs(), self._highspy.HighsLp()
        for option, value in self._options:
            highs.setOptionValue(option, value)
        count = len(self.pairs)
        lp.num_col_, lp.num_row_ = count, items + len(self.problem.capacities)
        lp.col_cost_ = self._gains[stage].astype(np.float64)
        lp.col_lower_, lp.col_upper_ = np.zeros(count), np.ones(count)
        lp.row_lower_ = np.full(lp.num_row_, -inf)
        lp.row_upper_ = np.array([1.0] * items + [float(c) for c in self.problem.capacities])
        lp.integrality_ = [self._highspy.HighsVarType.kInteger] * count
        lp.sense_ = self._highspy.ObjSense.kMaximize
        lp.a_matrix_.format_ = self._highspy.MatrixFormat.kColwise
        lp.a_matrix_.start_ = np.arange(0, 2 * count + 1, 2, dtype=np.int32)
        rows = [row for i, n in self.pairs for row in (i, items + n)]
        lp.a_matrix_.index_ = np.array(rows, dtype=np.int32)
        entries = [entry for i, _ in self.pairs for entry in (1.0, float(self.problem.costs[i]))]
        lp.a_matrix_.value_ = np.array(entries)
        highs.passModel(lp)
        for earlier, at_least in self._kept:
            columns = np.flatnonzero(self._gains[earlier]).astype(np.int32)
            weights = self._gains[earlier][columns].astype(np.float64)
            highs.addRow(float(at_least), inf, len(columns), columns, weights)
        return highs

    def maximise(self, stage: int) -> tuple[list[int] | None, int, int]:
        """(plan or None, its sum, proven bound on the sum) for objective `stage`.

        HiGHS is given no plan to start from: with one, its presolve has returned wrong optima.
        """
        gains, highs = self._gains[stage], self._model(stage)
        highs.run()
        info = highs.getInfo()
        self.nodes += max(0, int(info.mip_node_count))
        everything = self.total_of(stage)
        values = highs.getSolution().col_value
        if len(values) != len(self.pairs):
            return None, 0, everything
        plan = [SKIP] * len(self.problem.costs)
        for (i, n), value in zip(self.pairs, values, strict=True):
            if value > 0.5:
                plan[i] = n
        reached = int(sum(gains[k] for k, (i, n) in enumerate(self.pairs) if plan[i] == n))
        if abs(reached - info.objective_function_value) > 0.5:
            return plan, reached, everything  # an answer that contradicts itself proves nothing
        return plan, reached, max(reached, min(everything, floor(info.mip_dual_bound + 1e-6)))

    def keep(self, stage: int, at_least: int) -> None:
        """Later stages must not give up what this one reached."""
        self._kept.append((stage, at_least))

    def total_of(self, stage: int) -> int:
        """What all candidates together would bring."""
        best: dict[int, int] = {}
        for (i, _), gain in zip(self.pairs, self._gains[stage].tolist(), strict=True):
            best[i] = max(best.get(i, 0), gain)
        return sum(best.values())
