"""How well TAO predicts tool durations, by source, beside a plain mean and median.

    python -m scripts.tao_predictor

Durations are generated (lognormal laws by kind of command, or the published marks of an agent
study); the paper's are those of real tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from results.published import Ours
from results.run import Run
from schedulers.readiness import PREDICTORS, SOURCES
from scripts._figures import bars
from scripts._reproduce import Scale, Study, level_text, main, mean_of, seed_values

WORKLOADS = ("swe-bench-mini-short", "tb2-terminus2", "tb2-claude-code")
JUDGED = WORKLOADS[0]


def study(scale: Scale) -> None:
    report = Study("tao_predictor", "TAO: prediction of tool durations", scale)
    runs = {
        name: report.play(
            f"tao-predictor-{name}",
            "tao/qwen3-32b-swe-bench-lite",
            sessions=100,
            workers=[96],
            schedulers=["tao"],
            workload=name,
        )
        for name in WORKLOADS
    }
    report.table(
        "Error of the final prediction (s) and share within 0.5 s; durations generated",
        [row for name, run_ in runs.items() for row in _rows(name, run_)],
    )
    _judge(report, runs)
    report.finish(("tao_predictor", bars([_panel(name, run_) for name, run_ in runs.items()][:3])))


def _value(key: str) -> Any:
    return lambda summary: float(summary["counters"].get(key, float("nan")))


def _clean(values: Mapping[int, float]) -> dict[int, float]:
    return {seed: value for seed, value in values.items() if value == value}


def _rows(name: str, run_: Run) -> list[dict[str, Any]]:
    rows = []
    for source in (*SOURCES, "all"):
        calls = _clean(seed_values(run_, "tao", _value(f"predicted_calls_tao_{source}")))
        if not calls:
            continue
        row: dict[str, Any] = {
            "workload": name,
            "source": source,
            "calls a seed": round(sum(calls.values()) / len(calls)),
        }
        for predictor in PREDICTORS:
            key = f"{predictor}_{source}"
            mae = _clean(seed_values(run_, "tao", _value(f"prediction_mae_s_{key}")))
            near = _clean(seed_values(run_, "tao", _value(f"prediction_within_0.5s_{key}")))
            row[f"{predictor}: MAE (s)"] = level_text(mean_of(mae))
            row[f"{predictor}: within 0.5 s (%)"] = level_text(
                mean_of({seed: 100 * share for seed, share in near.items()})
            )
        rows.append(row)
    return rows


def _judge(report: Study, runs: Mapping[str, Run]) -> None:
    best = {}
    for name, run_ in runs.items():
        mae = mean_of(seed_values(run_, "tao", _value("prediction_mae_s_tao_all")))
        median = mean_of(seed_values(run_, "tao", _value("prediction_mae_s_median_all")))
        assert mae is not None
        assert median is not None
        best[name] = f"{name} {mae.mean:.2f} s (median predictor {median.mean:.2f} s)"
    why = (
        "The error is that of the durations: "
        + ", ".join(best.values())
        + ". Commands drawn independently from laws this wide cannot be predicted to half a second "
        "by any history; the published 0.41 s needs tools that are short or state their time."
    )
    for claim, key, factor in (
        ("tao.predictor.mae", "prediction_mae_s_tao_all", 1.0),
        ("tao.predictor.within_half_second", "prediction_within_0.5s_tao_all", 100.0),
    ):
        found = mean_of(
            {s: factor * v for s, v in seed_values(runs[JUDGED], "tao", _value(key)).items()}
        )
        ours = [] if found is None else [Ours(found.mean, found.interval, found.n)]
        report.judge(claim, ours, f"{JUDGED}, generated durations", why)
    report.judge(
        "tao.predictor.tools",
        [],
        "generated sessions",
        "The number of tools is that of the paper's own runs; ours play as many as asked for.",
    )


def _panel(name: str, run_: Run) -> tuple[str, dict[str, Any], dict[str, float]]:
    levels = {
        predictor: mean_of(
            _clean(seed_values(run_, "tao", _value(f"prediction_mae_s_{predictor}_all")))
        )
        for predictor in PREDICTORS
    }
    return f"{name}: MAE (s)", levels, {"tao": 0.41}


if __name__ == "__main__":
    main(study, __doc__)
