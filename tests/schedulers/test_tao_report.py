"""The lines of TAO's own report, from counters made up by hand."""

from __future__ import annotations

from schedulers.readiness import ReadinessPredictor
from schedulers.tao_outcomes import Outcomes
from schedulers.types import NS, ToolSignal
from scripts.tao_report import outcomes, predictions


def test_predictions_by_source() -> None:
    predictor = ReadinessPredictor()
    for name, seconds in (("a", 2.25), ("b", 6.0)):
        predictor.started(name, [ToolSignal("bash", "sleep 2")], 0)
        predictor.completed(name, round(seconds * NS))
    head, stated, everything = predictions(Outcomes().report(predictor.log))
    assert head.split()[:2] == ["source", "calls"]
    # Errors of 0.25 and 4 s: mean 2.125, half of them within 0.5 s. A plain mean says 5, then
    # 2.25: errors 2.75 and 3.75.
    assert stated.split()[:6] == ["stated", "2", "2.125", "50.0%", "3.250", "0.0%"]
    assert everything.split()[0] == "all"


def test_outcomes_and_overhead() -> None:
    counters = {"solves": 4.0, "timeouts": 0.0, "paused": 2.0}
    text = outcomes(counters, 200.0, {"planner_cpu_s": 0.5})
    assert text == "  solves 4, paused 2\n  planner: 0.50 s of CPU, 0.250 % of the makespan"
