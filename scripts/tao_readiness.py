"""What readiness is worth to TAO: paired runs with and without, on both session profiles.

python -m scripts.tao_readiness
"""

from __future__ import annotations

from results.formatting import interval as interval_text
from results.formatting import signed
from results.groups import Group
from results.metrics import BY_TAG
from results.published import Ours
from results.run import Run
from results.statistics import Estimate, values_of
from scripts._figures import bars
from scripts._reproduce import Scale, Study, by_workers, gain, level_rows, main, mean

TAGS = (
    "decode_tps",
    "tool_end_to_first_token_mean",
    "pause_wait_mean",
    "latency_mean",
    "held_share",
)
ARMS = ("tao", "tao-no-readiness")
SETTING = "Qwen3-32B, 128 workers, swe-bench-mini-short"


def study(scale: Scale) -> None:
    report = Study("tao_readiness", "TAO: readiness", scale)
    runs = {
        profile: report.play(
            f"tao-readiness-{profile}",
            "tao/qwen3-32b-swe-bench-lite",
            sessions=192,
            workers=[128],
            schedulers=ARMS,
            workload=profile,
        )
        for profile in ("swe-bench-mini-short", "swe-bench-mini")
    }
    groups = {profile: by_workers(run_)[0] for profile, run_ in runs.items()}
    short, long_ = groups.values()
    why = f"{_why(short, runs['swe-bench-mini-short'])} On swe-bench-mini: {_long(long_)}"
    _judge(report, short, why)
    rows = []
    for profile, group in groups.items():
        rows += level_rows(group, profile, TAGS)
    report.table("Levels, mean over seeds with 95 % interval", rows)
    panels: list[tuple[str, dict[str, Estimate | None], dict[str, float]]] = [
        (
            f"{'short' if profile.endswith('short') else 'long'}: {what}",
            {name: group.figures(tag)[name].estimate for name in ARMS},
            {},
        )
        for profile, group in groups.items()
        for tag, what in (
            ("decode_tps", "decode (tok/s)"),
            ("tool_end_to_first_token_mean", "tool to token (s)"),
        )
    ]
    report.finish(("tao_readiness", bars(panels)))


def _judge(report: Study, group: Group, why: str) -> None:
    report.judge_groups("tao.component.readiness.decode", [group], SETTING, why)
    gap = _renamed(group)
    report.judge("tao.component.readiness.tool_end_to_first_token", gap, SETTING, why)
    report.judge_groups("tao.component.readiness.pause_on", [group], SETTING, why)
    report.judge_groups("tao.component.readiness.pause_off", [group], SETTING, why)


def _renamed(group: Group) -> list[Ours]:
    """The published tag stands for the mean."""
    values = values_of(group.cells, BY_TAG["tool_end_to_first_token_mean"])
    found = gain(values, "tao", ["tao-no-readiness"], "lower")
    return [] if found is None else [found]


def _why(group: Group, run_: Run) -> str:
    differing = sum(
        abs(a - b) > 1e-9
        for a, b in zip(_seeds(run_, "tao"), _seeds(run_, "tao-no-readiness"), strict=True)
    )
    return (
        f"{mean(group, 'held_share', 'tao'):.2f} % of turns are held (mean pause "
        f"{mean(group, 'pause_wait_mean', 'tao'):.4f} s over all turns); "
        f"the two arms differ in {differing} of {len(_seeds(run_, 'tao'))} seeds. "
        "Readiness orders the turns that wait, so it can change no more than these."
    )


def _seeds(run_: Run, arm: str) -> list[float]:
    cells = run_.cells[run_.cells["scheduler"] == arm].sort_values("seed")
    return [float(x) for x in cells["makespan_s"]]


def _long(group: Group) -> str:
    parts = []
    for tag, better in (("decode_tps", "higher"), ("tool_end_to_first_token_mean", "lower")):
        found = gain(values_of(group.cells, BY_TAG[tag]), "tao", ["tao-no-readiness"], better)
        if found is not None:
            tail = f" {interval_text(found.interval)}" if found.interval else ""
            parts.append(f"{BY_TAG[tag].title} {signed(found.value)}{tail}")
    held = mean(group, "held_share", "tao")
    pause = mean(group, "pause_wait_mean", "tao")
    return f"{', '.join(parts)} with {held:.1f} % of turns held, mean pause {pause:.1f} s."


if __name__ == "__main__":
    main(study, __doc__)
