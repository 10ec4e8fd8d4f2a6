"""How much of the prompt tokens could be reused: agent and chat traffic, with a cache that never
evicts, and what schedulers reached of it.

    python -m scripts.smetric_reuse

The generated profiles were shaped on the published shares, so this shows that they have them; it is
no independent test of the claim.
"""

from __future__ import annotations

from results.published import Ours
from results.statistics import Estimate
from scripts._figures import bars
from scripts._reproduce import Scale, Study, level_text, main, mean_of
from scripts._smetric import PRESETS, group_of, run_of
from workloads.catalog import load_workload
from workloads.stats import trace_stats

SESSIONS = {"bailian-agent": 1000, "bailian-chat": 4000}


def study(scale: Scale) -> None:
    report = Study("smetric_reuse", "SMetric: share of prompt tokens that can be reused", scale)
    reuse: dict[str, Estimate] = {}
    for name, sessions in SESSIONS.items():
        shares = [
            100
            * trace_stats(
                load_workload(name, sessions=scale.sessions(sessions), seed=seed)
            ).reuse_share
            for seed in range(scale.seeds)
        ]
        found = mean_of(shares)
        assert found is not None
        reuse[name] = found
    rows = [
        {
            "setting": f"{name}, infinite cache",
            "scheduler": "any",
            "reused (%)": level_text(found),
            "n": found.n,
        }
        for name, found in reuse.items()
    ]
    for setting in PRESETS:
        group = group_of(run_of(report, setting))
        rows += [
            {
                "setting": setting,
                "scheduler": name,
                "reused (%)": level_text(group.figures("cache_hit")[name].estimate),
                "n": group.seeds[name],
            }
            for name in group.schedulers
        ]
    report.table("Share of prompt tokens reused", rows)
    note = "The profile was shaped on this figure; the traces themselves are not public."
    for claim, name in (
        ("smetric.reuse.agent", "bailian-agent"),
        ("smetric.reuse.chat", "bailian-chat"),
    ):
        found = reuse[name]
        report.judge(
            claim, [Ours(found.mean, found.interval, found.n)], f"{name}, infinite cache", note
        )
    report.finish(
        (
            "smetric_reuse",
            bars([("reusable, infinite cache (%)", dict(reuse), {"bailian-chat": 58.0})]),
        )
    )


if __name__ == "__main__":
    main(study, __doc__)
