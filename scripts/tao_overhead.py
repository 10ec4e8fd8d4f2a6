"""TAO's planner as a share of run time, over a four-replica sweep.

    python -m scripts.tao_overhead

Planner time is CPU time of the machine that runs this, so it changes from machine to machine; run
time is simulated. The paper counts preparation and completed solves; here the planner's solves
alone are timed.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from results.published import Ours
from results.run import Run
from results.statistics import Estimate
from scripts._figures import lines
from scripts._reproduce import TAO_BASELINES, Scale, Study, level_text, main, mean_of
from scripts.tao_table_latency import LONG, STRONG

LOADS = {"swe-bench-mini-short": (96, 128, 160), "swe-bench-mini": (96, 160)}
"""Workers by session profile, as in the main table."""


def study(scale: Scale) -> None:
    report = Study("tao_overhead", "TAO: planner time as a share of run time", scale)
    rows, curves, worst = [], {}, []
    for profile, loads in LOADS.items():
        # The same cells as in the main table; here they only add their timing.
        run_ = report.play(
            f"tao-qwen3-32b-swe-bench-verified-{profile}",
            "tao/qwen3-32b-swe-bench-verified",
            sessions=192,
            workers=loads,
            workload=profile,
            schedulers=STRONG if profile == LONG else (*TAO_BASELINES, "tao"),
        )
        points: list[tuple[float, Estimate]] = []
        for workers in report.scale.workers(loads):
            shares = _shares(run_, workers)
            found = mean_of(shares)
            assert found is not None
            points.append((workers, found))
            worst.append(Ours(max(shares), None, len(shares)))
            rows.append(
                {
                    "profile": profile,
                    "workers": workers,
                    "planner time (% of run time)": level_text(found),
                    "largest seed": max(shares),
                    "n": len(shares),
                }
            )
        curves[profile] = points
    report.table("Planner CPU time over makespan, four replicas", rows)
    largest = max(worst, key=lambda one: one.value)
    report.judge(
        "tao.overhead",
        [largest],
        "Qwen3-32B, 4 x 2xH100, both profiles; CPU time of this machine",
        "The largest of all cells; a bound, shown and not counted.",
        text=f"{largest.value:.3f} % at most",
    )
    report.finish(("tao_overhead", lines([("planner time (% of run time)", curves)], "workers")))


def _shares(run_: Run, workers: int) -> Sequence[float]:
    shares = []
    for state in run_.states:
        if state.cell.scheduler != "tao" or state.cell.workers != workers:
            continue
        timing = json.loads((state.path / "timing.json").read_text("utf-8"))
        spent = float(timing.get("planner_cpu_s", 0.0))
        shares.append(100 * spent / run_.summaries[state.cell]["makespan_s"])
    return shares


if __name__ == "__main__":
    main(study, __doc__)
