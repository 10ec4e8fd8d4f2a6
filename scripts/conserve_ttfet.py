"""ConServe against AMPD and the pure forms: time to first effective token, and SLO violations, over
a range of request rates.

    python -m scripts.conserve_ttfet

Sessions arrive by themselves (Poisson). A40 step times are a roofline: no table of that GPU is
public, so levels are estimates, and differences between schedulers are what counts.
"""

from __future__ import annotations

from collections.abc import Sequence

from results.groups import Group, groups_of
from results.metrics import BY_TAG
from results.published import Ours
from results.statistics import Estimate, values_of
from scripts._conserve import RATES, play, rate_of, run_of
from scripts._figures import lines
from scripts._reproduce import Scale, Study, gain, level_rows, main, mean

RESERVE = 12_000
"""About what a session grows by: its peak context is 13.8k at the median."""
TAGS = ("ttfet_p95", "ttfet_net_p95", "ttft_p95", "tpot_p95", "slo_violations", "pause_wait_mean")


def study(scale: Scale) -> None:
    report = Study("conserve_ttfet", "ConServe: TTFET and SLO violations by request rate", scale)
    groups = play(report, "homogeneous")
    rows = []
    for group in groups:
        rows += level_rows(group, f"{rate_of(group):g} sessions/s", TAGS)
    report.table("Levels, mean over seeds with 95 % interval", rows)
    _judge(report, groups)
    _with_reserve(report, groups[-1])
    panels = []
    for tag, title in (
        ("ttfet_p95", "p95 TTFET (s)"),
        ("ttfet_net_p95", "p95 TTFET without tools (s)"),
        ("slo_violations", "SLO violations (%)"),
    ):
        panels.append((title, {name: _curve(groups, tag, name) for name in groups[0].schedulers}))
    report.finish(
        ("conserve_ttfet", lines(panels, "sessions arriving a second", (False, True, False)))
    )


def _with_reserve(report: Study, plain: Group) -> None:
    """How much of the outcome is the free choice of ConServe's reserve for growth."""
    (group,) = groups_of(
        run_of(
            report,
            "homogeneous",
            "reserve",
            [
                f"scheduler_settings.conserve.reserve_tokens={RESERVE}",
                f"workloads.0.arrivals.rate_per_s=[{RATES[-1]:g}]",
            ],
            ["conserve"],
        )
    )
    tags = (("ttfet_p95", "p95 TTFET"), ("slo_violations", "SLO violations"), ("cache_hit", "hits"))
    levels = [
        f"{title} {mean(group, tag, 'conserve'):.1f} (without {mean(plain, tag, 'conserve'):.1f}, "
        f"AMPD {mean(plain, tag, 'ampd'):.1f})"
        for tag, title in tags
    ]
    report.notes.append(
        f"A reserve of {RESERVE:,} tokens for the growth of each admitted conversation (default 0: "
        f"admission counts the first prompt alone), at {RATES[-1]:g}/s: {'; '.join(levels)}."
    )


def _curve(groups: Sequence[Group], tag: str, name: str) -> list[tuple[float, Estimate]]:
    return [
        (rate_of(group), found)
        for group in groups
        if (found := group.figures(tag)[name].estimate) is not None
    ]


def _gaps(groups: Sequence[Group], tag: str) -> list[Ours]:
    found = [
        gain(values_of(group.cells, BY_TAG[tag]), "conserve", ["ampd"], "lower") for group in groups
    ]
    return [one for one in found if one is not None]


def _judge(report: Study, groups: Sequence[Group]) -> None:
    saturated = groups[-1]
    net = ", ".join(f"{one.value:+.1f} %" for one in _gaps(groups, "ttfet_net_p95"))
    setting = f"1 prefiller and 3 decoders; {rate_of(saturated):g} sessions/s, the highest of "
    setting += f"{', '.join(f'{rate:g}' for rate in RATES)}"
    why = (
        f"Most of TTFET is tool time: at {rate_of(groups[0]):g}/s p95 TTFET is "
        f"{mean(groups[0], 'ttfet_p95', 'conserve'):.0f} s, of which "
        f"{mean(groups[0], 'ttfet_net_p95', 'conserve'):.0f} s are not tools. At the highest rate "
        "ConServe holds first turns for want of decoder KV and AMPD lets all in: mean pause over "
        f"all turns {mean(saturated, 'pause_wait_mean', 'conserve'):.2f} s, cache hit "
        f"{mean(saturated, 'cache_hit', 'conserve'):.1f} % against AMPD's "
        f"{mean(saturated, 'cache_hit', 'ampd'):.1f} %. Without tools, by rate: {net}. AMPD's "
        "rule is a stand-in of ours."
    )
    report.judge("conserve.ttfet.p95", _gaps([saturated], "ttfet_p95"), setting, why)
    claim_setting = f"objectives of 2 s to the first token and 100 ms a token; {setting}"
    worst = max(groups, key=lambda group: mean(group, "slo_violations", "conserve"))
    report.judge_groups(
        "conserve.slo",
        [worst],
        claim_setting,
        f"Violations at the worst rate ({rate_of(worst):g}/s): "
        + ", ".join(
            f"{name} {mean(worst, 'slo_violations', name):.1f} %" for name in worst.schedulers
        )
        + ". A turn that ConServe's own admission holds misses the objective too; ours counts it.",
    )


if __name__ == "__main__":
    main(study, __doc__)
