"""Counters for every outcome of TAO's planner, and the predictor's accuracy, as flat totals."""

from __future__ import annotations

from schedulers.readiness import PredictorLog
from schedulers.tao_plan import Plan

COUNTERS = (
    "opportunities",
    "opportunities_without_room",
    "solves",
    "plans_applied",
    "plans_in_full",
    "plans_empty",
    "planned",
    "admitted",
    "admitted_by_short_first",
    "routed_directly",
    "timeouts",
    "late_plans_dropped",
    "lost_plans",
    "discarded_changed",
    "discarded_no_room",
    "skipped_changed",
    "plans_not_proven",
    "plans_better_than_short_first",
    "plans_worse_than_short_first",
    "solves_of_several",
    "plans_of_several_better_than_short_first",
    "placements_filled",
    "paused",
    "marked",
    "expired",
    "forced",
)


class Outcomes:
    """Running totals; `counts` is incremented by the policy."""

    def __init__(self) -> None:
        self.counts = dict.fromkeys(COUNTERS, 0)

    def add_plan(self, plan: Plan, candidates: int) -> None:
        """A solved plan, applied or not, for that many candidates."""
        better = plan.value > plan.short_first
        self.counts["plans_not_proven"] += not plan.proven
        self.counts["plans_better_than_short_first"] += better
        self.counts["plans_worse_than_short_first"] += plan.value < plan.short_first
        if candidates > 1:
            self.counts["solves_of_several"] += 1
            self.counts["plans_of_several_better_than_short_first"] += better

    def report(self, log: PredictorLog) -> dict[str, float]:
        """All totals; predictions as `..._PREDICTOR_SOURCE`."""
        report = {name: float(count) for name, count in self.counts.items()}
        for row in log.rows():
            key = f"{row.predictor}_{row.source}"
            report[f"predicted_calls_{key}"] = float(row.calls)
            report[f"prediction_mae_s_{key}"] = row.mean_abs_error_s
            report[f"prediction_within_0.5s_{key}"] = row.within_half_second
        report["probe_windows"] = float(log.probe_windows)
        return report
