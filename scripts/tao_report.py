"""TAO's own figures of a finished run: predictions by source, planner outcomes, overhead.

    python -m scripts.tao_report runs/quickstart

The paper: mean absolute error 0.410 s and 82.9 % within 0.5 s over 10,967 completed tools;
scheduler work (preparation and completed solves) under 0.12 % of run time in the four-replica
sweep. Overhead here is the planner's CPU time on the machine of the run over the simulated
makespan, without the preparation.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from results.store import load_run
from schedulers.readiness import PREDICTORS, SOURCES
from schedulers.tao_outcomes import COUNTERS


def predictions(counters: Mapping[str, float]) -> Iterator[str]:
    """One line a source that occurred: calls, then error and share for each predictor."""
    yield f"  {'source':<10}{'calls':>8}" + "".join(
        f"{name + ' MAE s':>16}{'within 0.5 s':>14}" for name in PREDICTORS
    )
    for source in (*SOURCES, "all"):
        calls = counters.get(f"predicted_calls_tao_{source}")
        if calls:
            errors = [counters[f"prediction_mae_s_{p}_{source}"] for p in PREDICTORS]
            shares = [counters.get(f"prediction_within_0.5s_{p}_{source}", 0) for p in PREDICTORS]
            yield f"  {source:<10}{calls:8.0f}" + "".join(
                f"{error:16.3f}{100 * share:13.1f}%"
                for error, share in zip(errors, shares, strict=True)
            )


def outcomes(counters: Mapping[str, float], makespan_s: float, timing: Mapping[str, Any]) -> str:
    """The planner's counters that are not zero, and its overhead."""
    found = {name: counters[name] for name in COUNTERS if counters.get(name)}
    parts = [f"{name.replace('_', ' ')} {count:.0f}" for name, count in found.items()]
    spent = float(timing.get("planner_cpu_s", 0.0))
    share = 100 * spent / makespan_s if makespan_s else 0.0
    return f"  {', '.join(parts)}\n  planner: {spent:.2f} s of CPU, {share:.3f} % of the makespan"


def lines(path: Path) -> Iterator[str]:
    """The report of every TAO cell of a run."""
    run = load_run(path)
    for cell, summary in run.summaries.items():
        counters = summary["counters"]
        if "opportunities" not in counters:
            continue
        folder = next(state.path for state in run.states if state.cell == cell)
        timing = json.loads((folder / "timing.json").read_text())
        where = f"{cell.workload}, {cell.scheduler}, {cell.workers} workers, seed {cell.seed}"
        yield f"{where} ({run.label})"
        yield outcomes(counters, summary["makespan_s"], timing)
        yield from predictions(counters)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("run", type=Path)
    print("\n".join(lines(parser.parse_args().run)) or "no TAO cell has finished in this run")


if __name__ == "__main__":
    main()
