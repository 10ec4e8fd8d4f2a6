"""SMetric against its baselines: tokens per second, colocated with a global store, and over a
prefill pool; agent and chat traffic.

    python -m scripts.smetric_tps

Bailian's traces are not public: sessions are shaped on published aggregates. Which baselines the
paper used is not given in its summary; here they are the vLLM router's, Dynamo's and LMetric.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from results.formatting import interval as interval_text
from results.formatting import signed
from results.groups import Group
from results.metrics import BY_TAG
from results.published import Claim, Ours
from results.run import Run
from results.statistics import values_of
from scripts._figures import forest
from scripts._reproduce import (
    Scale,
    Study,
    claim_named,
    gain,
    level_rows,
    level_text,
    main,
    mean,
    mean_of,
)
from scripts._smetric import PRESETS, baselines, group_of, prompt_tps, run_of

TAGS = ("tps", "decode_tps_steady", "tpot_mean", "ttft_mean", "cache_hit", "load_imbalance")
CLAIMS = {
    "colocated, agents": "smetric.tps.colocated",
    "disaggregated, agents": "smetric.tps.disaggregated",
}


def study(scale: Scale) -> None:
    report = Study("smetric_tps", "SMetric: tokens per second", scale)
    levels: list[dict[str, Any]] = []
    drawn: list[tuple[str, Claim | None, Ours | None]] = []
    for setting in PRESETS:
        run_ = run_of(report, setting)
        group = group_of(run_)
        prompts = prompt_tps(run_)
        for row in level_rows(group, setting, TAGS):
            row["prompt tok/s"] = level_text(mean_of(prompts[row["scheduler"]]))
            levels.append(row)
        drawn += _drawn(report, setting, group, run_, prompts)
    report.table("Levels, mean over seeds with 95 % interval", levels)
    report.finish(("smetric_tps", forest(drawn, "improvement on the best baseline (%)")))


def _drawn(
    report: Study,
    setting: str,
    group: Group,
    run_: Run,
    prompts: Mapping[str, Mapping[int, float]],
) -> list[tuple[str, Claim | None, Ours | None]]:
    against = baselines(setting)
    colocated = setting.startswith("colocated")
    values = values_of(group.cells, BY_TAG["tps"]) if colocated else prompts
    tag = "tokens/s" if colocated else "prompt tokens/s"
    rows: list[tuple[str, Claim | None, Ours | None]] = []
    claim = CLAIMS.get(setting)
    for arm in ("smetric", "smetric-slo"):
        found = gain(values, arm, against, "higher")
        known = claim_named(claim) if claim and arm == "smetric" else None
        rows.append((f"{setting}, {arm}: {tag}", known, found))
    tpot = gain(values_of(group.cells, BY_TAG["tpot_mean"]), "smetric", against, "lower")
    rows.append((f"{setting}, smetric: TPOT", None, tpot))
    steady = gain(values_of(group.cells, BY_TAG["decode_tps_steady"]), "smetric", against, "higher")
    rows.append((f"{setting}, smetric: decode, steady window", None, steady))
    if claim is not None:
        ours = rows[0][2]
        report.judge(
            claim, [] if ours is None else [ours], setting, _why(group, against, tpot, steady)
        )
    return rows


def _why(group: Group, against: Sequence[str], tpot: Ours | None, steady: Ours | None) -> str:
    best = max(against, key=lambda name: mean(group, "tps", name))
    parts = [
        f"{name}: cache hit {mean(group, 'cache_hit', name):.1f} %, imbalance "
        f"{mean(group, 'load_imbalance', name):.2f}, {mean(group, 'tps', name) / 1e3:.1f}k tok/s"
        for name in ("smetric", *against)
    ]
    trimmed = mean(group, "steady_trimmed", "smetric")
    gap = mean(group, "cache_hit", "smetric") - mean(group, "cache_hit", best)
    even, evenest = (mean(group, "load_imbalance", name) for name in ("smetric", best))
    cause = f"{best} hits the cache {abs(gap):.1f} points {'less' if gap > 0 else 'more'} often"
    if abs(gap) < 1.0:
        cause = f"{best} hits the cache as often, so that balance decides"
    cause += f"; it is {'more' if evenest < even else 'less'} even than smetric"
    return (
        f"Best baseline {best}: {cause}. {'; '.join(parts)}. Against the best: TPOT {_gap(tpot)}; "
        f"decode over the steady window {_gap(steady)}, which leaves out {trimmed:.0f} % of the "
        "makespan, its start and the tail in which the last long sessions run alone."
    )


def _gap(ours: Ours | None) -> str:
    if ours is None:
        return "unknown"
    span = "" if ours.interval is None else f" {interval_text(ours.interval)}"
    return f"{signed(ours.value)}{span}"


if __name__ == "__main__":
    main(study, __doc__)
