"""TAO's planner on frozen snapshots: time, proof, quanta, and what it gains over heuristics.

    python -m scripts.tao_solver_study                 the shipped snapshots
    python -m scripts.tao_solver_study --limit 300     fewer of them
    python -m scripts.tao_solver_study --milp          HiGHS on the same problems (extra `solver`)

The paper's study: on 6 of 23 snapshots with several candidates (6 of 35 in all) the dynamic
program's objective is better than the short-first heuristic's, on the others the same. Times are
CPU time of one core of the machine that runs this, so they change from machine to machine.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from schedulers.tao_milp import solve_milp
from schedulers.tao_plan import Plan, PlanSettings, Snapshot, discretise, make_plan
from schedulers.tao_solver import Value, solve
from scripts.tao_snapshots import DATA, from_row, read


def _demand(snapshot: Snapshot) -> int:
    return sum(candidate.need for candidate in snapshot.candidates)


SETTINGS: dict[str, Callable[[Snapshot], PlanSettings]] = {
    "default (16-token blocks)": lambda snapshot: PlanSettings(),
    "256 tokens": lambda snapshot: PlanSettings(quantum_tokens=256),
    "1,024 tokens": lambda snapshot: PlanSettings(quantum_tokens=1024),
    "4,096 tokens": lambda snapshot: PlanSettings(quantum_tokens=4096),
    "14 quanta a replica": lambda snapshot: PlanSettings(
        quantum_tokens=max(16, -(-min(max(snapshot.room), _demand(snapshot)) // 14))
    ),
}


@dataclass(slots=True)
class Tally:
    """What one way of counting quanta gave."""

    seconds: list[float] = field(default_factory=list)
    states: list[int] = field(default_factory=list)
    quanta: list[int] = field(default_factory=list)
    plans: list[Plan] = field(default_factory=list)

    def add(self, snapshot: Snapshot) -> None:
        began = time.process_time()
        plan = make_plan(snapshot)
        self.seconds.append(time.process_time() - began)
        self.states.append(plan.states)
        self.quanta.append(plan.quantum)
        self.plans.append(plan)


def best_fit_decreasing(snapshot: Snapshot) -> Value:
    """Textbook best-fit decreasing: largest first, each where it leaves least room."""
    room = list(snapshot.room)
    total = (0, 0, 0)
    for candidate in sorted(snapshot.candidates, key=lambda c: -c.need):
        fits = [n for n, tokens in enumerate(room) if candidate.need <= tokens]
        if fits:
            target = min(fits, key=lambda n: room[n])
            room[target] -= candidate.need
            value = candidate.value(target)
            total = (total[0] + value[0], total[1] + value[1], total[2] + value[2])
    return Value(*total)


def compare(plans: Sequence[Plan], others: Sequence[Value]) -> str:
    """How often the exact plan is better than the other, by what, as good, and worse."""
    pairs = [(plan.value, other) for plan, other in zip(plans, others, strict=True)]
    better = [(plan, other) for plan, other in pairs if plan > other]
    worse = sum(plan < other for plan, other in pairs)
    by = [next(k for k in range(3) if plan[k] != other[k]) for plan, other in better]
    share = 100 * len(better) / len(pairs) if pairs else 0.0
    return (
        f"better in {len(better)} of {len(pairs)} ({share:.1f} %: {by.count(0)} by credit, "
        f"{by.count(1)} by readiness, {by.count(2)} by footprint), "
        f"same in {len(pairs) - len(better) - worse}, worse in {worse}"
    )


def study(rows: Sequence[dict[str, Any]]) -> list[str]:
    """The study's lines of text."""
    tallies = {name: Tally() for name in SETTINGS}
    snapshots = [from_row(row, PlanSettings()) for row in rows]
    for row, snapshot in zip(rows, snapshots, strict=True):
        for name, settings in SETTINGS.items():
            tallies[name].add(from_row(row, settings(snapshot)))
    finest = tallies["default (16-token blocks)"]
    lines = [*_describe(snapshots), "", "Exact planner by quantum (CPU ms of a whole plan):"]
    for name, tally in tallies.items():
        lines.append(_timing(name, tally, finest))
    several = [i for i, one in enumerate(snapshots) if len(one.candidates) > 1]
    heuristics = {
        "short-first": [plan.short_first for plan in finest.plans],
        "best-fit decreasing": [best_fit_decreasing(one) for one in snapshots],
    }
    lines += [
        "",
        "Objective of the exact plan against heuristics (paper: better in 6 of 23, 6 of 35):",
    ]
    for name, values in heuristics.items():
        lines.append(f"  {name}, all snapshots: {compare(finest.plans, values)}")
        part = compare([finest.plans[i] for i in several], [values[i] for i in several])
        lines.append(f"  {name}, several candidates: {part}")
    return lines


def _describe(snapshots: Sequence[Snapshot]) -> list[str]:
    counts = [len(one.candidates) for one in snapshots]
    in_play = [sum(r >= min(c.need for c in one.candidates) for r in one.room) for one in snapshots]
    spread = ", ".join(f"{in_play.count(n)} with {n}" for n in sorted(set(in_play)))
    return [
        f"{len(snapshots)} snapshots from simulated runs; candidates: median "
        f"{np.median(counts):.0f}, largest {max(counts)}; replicas with room: {spread}"
    ]


def _timing(name: str, tally: Tally, finest: Tally) -> str:
    p50, p99, most = np.percentile(np.array(tally.seconds) * 1e3, [50, 99, 100])
    proven = sum(plan.proven for plan in tally.plans)
    losing = sum(a.value < b.value for a, b in zip(tally.plans, finest.plans, strict=True))
    moved = sum(
        a.placements != b.placements for a, b in zip(tally.plans, finest.plans, strict=True)
    )
    return (
        f"  {name:<26} p50 {p50:6.2f}  p99 {p99:6.2f}  most {most:6.1f}; states: median "
        f"{np.median(tally.states):.0f}, most {max(tally.states)}; quantum: median "
        f"{np.median(tally.quanta):.0f}; proven {proven} of {len(tally.plans)}; finer quanta "
        f"would be worth more in {losing}, differ in {moved}"
    )


def study_milp(rows: Sequence[dict[str, Any]]) -> list[str]:
    """HiGHS against the dynamic program at 1,024 tokens."""
    seconds, equal, proven = [], 0, 0
    for row in rows:
        problem = discretise(from_row(row, PlanSettings()), 1024)
        exact = solve(problem)
        began = time.process_time()
        highs = solve_milp(problem)
        seconds.append(time.process_time() - began)
        both = exact.proven and highs.proven
        proven += both
        equal += both and exact.value == highs.value
    p50, p99, most = np.percentile(np.array(seconds) * 1e3, [50, 99, 100])
    return [
        f"HiGHS at 1,024 tokens: same optimum in {equal} of {proven} snapshots that both proved; "
        f"CPU ms: p50 {p50:.1f}, p99 {p99:.1f}, most {most:.1f}"
    ]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("snapshots", nargs="?", type=Path, default=DATA)
    parser.add_argument("--limit", type=int, help="an even sample of so many")
    parser.add_argument("--milp", action="store_true", help="compare with HiGHS instead")
    options = parser.parse_args()
    rows = read(options.snapshots)
    if options.limit:
        rows = rows[:: max(1, -(-len(rows) // options.limit))]
    print("\n".join(study_milp(rows) if options.milp else study(rows)))


if __name__ == "__main__":
    main()
