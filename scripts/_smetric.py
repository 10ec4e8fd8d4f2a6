"""What the scripts on SMetric share: its runs, and prompt throughput."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

import pandas as pd

from results.groups import Group, groups_of
from results.run import Run
from scripts._reproduce import Study

PRESETS = {
    "colocated, agents": ("smetric/colocated-agent", 200, 96),
    "colocated, chat": ("smetric/colocated-chat", 1500, 512),
    "disaggregated, agents": ("smetric/disaggregated-agent", 160, 64),
    "disaggregated, chat": ("smetric/disaggregated-chat", 1500, 512),
}
"""Setting -> preset, sessions, workers."""
BASELINES = ("round-robin", "least-loaded", "cache-aware", "dynamo", "lmetric")
PD_BASELINES = ("disaggregated", "dynamo", "llm-d")


def run_of(report: Study, setting: str) -> Run:
    """The cells of a setting."""
    preset, sessions, workers = PRESETS[setting]
    return report.play(preset.replace("/", "-"), preset, sessions=sessions, workers=[workers])


def group_of(run_: Run) -> Group:
    (group,) = groups_of(run_)
    return group


def baselines(setting: str) -> tuple[str, ...]:
    return BASELINES if setting.startswith("colocated") else PD_BASELINES


def prompt_tps(run_: Run) -> Mapping[str, Mapping[int, float]]:
    """Scheduler -> seed -> prompt tokens of served turns a second, cached ones included: what a
    prefill pool gets through."""
    turns: pd.DataFrame = run_.turns
    served = turns[turns["status"] == "ok"].groupby(["scheduler", "seed"])["prompt_tokens"].sum()
    makespans = run_.cells.set_index(["scheduler", "seed"])["makespan_s"].to_dict()
    found: dict[str, dict[int, float]] = {}
    for key, tokens in served.to_dict().items():
        scheduler, seed = cast(tuple[str, int], key)
        found.setdefault(str(scheduler), {})[int(seed)] = float(tokens / makespans[key])
    return found
