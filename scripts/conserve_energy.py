"""Tokens per joule of ConServe against AMPD, and with capped decoders against uncapped ones.

    python -m scripts.conserve_energy

Energy hangs on assumed power draws (no measurement of an A40 under this load is public), so every
figure has the band that they leave, and no verdict is better than `direction only`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from harness.capacity import Cluster, resolve_cluster
from harness.sim.energy import Estimate as Band
from harness.sim.energy import PhaseSeconds, tokens_per_joule_ratio
from results.published import Ours
from results.run import Run
from results.statistics import Estimate
from scripts._conserve import RATES, run_of
from scripts._figures import lines
from scripts._reproduce import Scale, Study, gain, level_text, main, mean_of

MODEL = "qwen3-0.6b"
JUDGED = 0.3
"""Sessions a second: the decoders' KV is nearly full, and nobody waits for long."""


def study(scale: Scale) -> None:
    report = Study("conserve_energy", "ConServe: tokens per joule", scale)
    plain, capped = run_of(report, "homogeneous"), run_of(report, "heterogeneous")
    clusters = {
        "homogeneous": resolve_cluster(MODEL, "1p3d-a40"),
        "heterogeneous": resolve_cluster(MODEL, "1p3d-a40-300w-200w"),
    }
    rows = []
    for rate in RATES:
        rows += [
            _row(rate, "ConServe on AMPD, no caps", (plain, "conserve"), (plain, "ampd"), clusters),
            _row(
                rate,
                "ConServe capped on uncapped",
                (capped, "conserve"),
                (plain, "conserve"),
                clusters,
            ),
        ]
    report.table(
        "Gain in tokens per joule (%), 95 % interval over seeds, band of constants",
        [{key: value for key, value in row.items() if key != "ours"} for row in rows],
    )
    for claim, name in (
        ("conserve.energy.homogeneous", "ConServe on AMPD, no caps"),
        ("conserve.energy.heterogeneous", "ConServe capped on uncapped"),
    ):
        row = next(r for r in rows if r["comparison"] == name and r["rate (1/s)"] == JUDGED)
        report.judge(
            claim,
            [row["ours"]] if row["ours"] is not None else [],
            f"{JUDGED:g} sessions/s",
            f"Band over the assumed draws: {row['band of constants (%)']}; at all rates: "
            + ", ".join(
                f"{r['rate (1/s)']:g}/s {r['gain (%)']}" for r in rows if r["comparison"] == name
            )
            + f". Replicas are idle {_idle(plain, 'conserve', JUDGED):.0f} % of the time under "
            "ConServe at this rate; caps do not touch idle draw.",
        )
    report.finish(("conserve_energy", _figure(plain, capped)))


def _values(run_: Run, arm: str, rate: float) -> dict[int, float]:
    cells = run_.cells
    own = cells[
        (cells["scheduler"] == arm) & cells["cell_workload"].str.endswith(f"-{rate:g}-per-s")
    ]
    return {int(s): float(v) for s, v in zip(own["seed"], own["tokens_per_joule"], strict=True)}


def _row(
    rate: float,
    name: str,
    own: tuple[Run, str],
    other: tuple[Run, str],
    clusters: Mapping[str, Cluster],
) -> dict[str, Any]:
    values = {"own": _values(*own, rate), "other": _values(*other, rate)}
    found = gain(values, "own", ["other"], "higher")
    bands = [
        _band(_facts(*own, rate, seed), _facts(*other, rate, seed), clusters)
        for seed in sorted(values["own"].keys() & values["other"].keys())
    ]
    low, high = min(b.low for b in bands), max(b.high for b in bands)
    gain_text = "n/a"
    if found is not None:
        span = found.interval
        gain_text = f"{found.value:+.1f}" + (
            f" [{span.low:+.1f}, {span.high:+.1f}]" if span else ""
        )
    return {
        "rate (1/s)": rate,
        "comparison": name,
        "tokens/J": level_text(mean_of(values["own"])),
        "against": level_text(mean_of(values["other"])),
        "gain (%)": gain_text,
        "band of constants (%)": f"{100 * (low - 1):+.1f} to {100 * (high - 1):+.1f}",
        "ours": None if found is None else Ours(found.value, found.interval, found.n),
    }


def _facts(run_: Run, arm: str, rate: float, seed: int) -> Mapping[str, Any]:
    return next(
        summary
        for cell, summary in run_.summaries.items()
        if cell.scheduler == arm
        and cell.seed == seed
        and cell.workload.endswith(f"-{rate:g}-per-s")
    )


def _idle(run_: Run, arm: str, rate: float) -> float:
    """Percent of replica time without a step, mean over seeds."""
    shares = []
    for seed in _values(run_, arm, rate):
        phases = _facts(run_, arm, rate, seed)["facts"]["phase_seconds"].values()
        shares.append(sum(p["idle"] for p in phases) / sum(sum(p.values()) for p in phases))
    return float(100 * sum(shares) / len(shares))


def _band(
    own: Mapping[str, Any], other: Mapping[str, Any], clusters: Mapping[str, Cluster]
) -> Band:
    return tokens_per_joule_ratio(
        _tokens(own), _phases(own, clusters), _tokens(other), _phases(other, clusters)
    )


def _tokens(summary: Mapping[str, Any]) -> float:
    return float(summary["metrics"]["decode_tps"]["value"]) * float(summary["makespan_s"])


def _phases(summary: Mapping[str, Any], clusters: Mapping[str, Cluster]) -> Sequence[PhaseSeconds]:
    facts = summary["facts"]
    cluster = next(c for c in clusters.values() if c.topology.name == facts["topology"])
    return [
        PhaseSeconds(r.gpu, r.gpus, r.power_cap_w, **facts["phase_seconds"][r.id])
        for r in cluster.replicas
    ]


def _figure(plain: Run, capped: Run) -> Any:
    def curve(run_: Run, arm: str) -> list[tuple[float, Estimate]]:
        points = [(rate, mean_of(_values(run_, arm, rate))) for rate in RATES]
        return [(rate, found) for rate, found in points if found is not None]

    arms = {
        name: curve(plain, name) for name in ("conserve", "ampd", "collocated", "disaggregated")
    }
    arms["conserve, decoders at 200 W"] = curve(capped, "conserve")
    return lines([("output tokens per joule", arms)], "sessions arriving a second")


if __name__ == "__main__":
    main(study, __doc__)
