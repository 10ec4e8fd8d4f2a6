"""How much TAO's result hangs on the six choices that its paper's summary leaves open.

    python -m scripts.tao_open_choices

One run a variant, all else as by default, where KV is scarce (Qwen3-32B, the longer sessions); the
variants are those of `scripts/tao_sensitivity.py`, which plays them on loads of one's own.
"""

from __future__ import annotations

from collections.abc import Mapping

from results.metrics import BY_TAG
from results.published import Ours
from results.statistics import values_of
from scripts._figures import forest
from scripts._reproduce import Scale, Study, gain, main, ours_text
from scripts._reproduce import claim_named as claim_of
from scripts.tao_sensitivity import CHOICES

TAGS = ("latency_mean", "ttft_mean", "decode_tps", "cache_hit", "pause_wait_mean")
SEEDS = 2
"""Differences of a percent are within the noise at this many; it is the large ones that count."""


def study(scale: Scale) -> None:
    report = Study("tao_open_choices", "TAO: sensitivity to its open choices", scale)
    found: dict[str, dict[str, Mapping[int, float]]] = {}
    for choice, variants in CHOICES.items():
        for settings in variants:
            name = settings.replace(" ", "+") or "defaults"
            run_ = report.play(
                f"tao-open-choices/{name}",
                "tao/qwen3-32b-swe-bench-lite",
                sessions=144,
                workers=[128],
                schedulers=["tao"],
                workload="swe-bench-mini",
                settings=[f"scheduler_settings.tao.{one}" for one in settings.split()],
                seeds=SEEDS,
            )
            label = f"{choice}: {settings}" if settings else "defaults"
            found[label] = {tag: values_of(run_.cells, BY_TAG[tag])["tao"] for tag in TAGS}
    rows, drawn = [], []
    like = claim_of("tao.component.readiness.decode")  # an improvement in percent
    for label, values in found.items():
        row: dict[str, object] = {"setting": label}
        for tag in TAGS:
            better = str(BY_TAG[tag].better)
            arms = {"variant": values[tag], "defaults": found["defaults"][tag]}
            ours = gain(arms, "variant", ["defaults"], better)
            row[f"{BY_TAG[tag].title} (improvement)"] = (
                "n/a" if ours is None else ours_text(like, ours)
            )
            if tag == "decode_tps" and label != "defaults" and ours is not None:
                drawn.append((label, None, Ours(ours.value, ours.interval, ours.n)))
        rows.append(row)
    report.table(
        "Change against the defaults (positive is better), Qwen3-32B, 128 workers, swe-bench-mini, "
        f"n = {min(SEEDS, scale.seeds)} seeds",
        rows,
    )
    report.finish(("tao_open_choices", forest(drawn, "decode throughput against the defaults (%)")))


if __name__ == "__main__":
    main(study, __doc__)
