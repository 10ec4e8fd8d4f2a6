"""What several gateways lose against one, in simulation.

    python -m scripts.fleet_gateways -o runs/gateways [--plot docs/img/gateways]

The same sessions on the same replicas, before which 1, 2, 4 and 8 gateways stand. Sessions go to
gateways by rendezvous hashing; capacity is divided into shares of every replica, and also into
replicas of each gateway's own (`sim.gateway_split`). `--memory` takes KV away from the replicas,
so that the sessions' contexts do not fit together. Changes against one gateway are those of the
same seed; shown are their mean, least and greatest.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean

from harness.experiment import run
from harness.overrides import Flags
from results.store import load_run

GATEWAYS = (1, 2, 4, 8)
SPLITS = ("shares", "replicas")
METRICS = ("decode_tps", "latency_mean", "ttft_mean", "cache_hit", "working_set_kv")
DEFAULT = ["least-loaded", "smetric", "thunderagent", "tao"]


@dataclass(frozen=True, slots=True)
class Row:
    """Means over seeds of one scheduler with so many gateways."""

    split: str
    scheduler: str
    gateways: int
    values: dict[str, float | None]
    by_seed: dict[int, float]
    """Decode throughput."""


def measure(
    folder: Path,
    schedulers: Sequence[str],
    workload: str,
    sessions: int,
    workers: int,
    seeds: int,
    memory: float | None,
) -> list[Row]:
    """Run all; what is in the folder is not run again."""
    rows: list[Row] = []
    for split in SPLITS:
        for gateways in GATEWAYS:
            if gateways == 1 and split != SPLITS[0]:
                continue
            flags = Flags(
                schedulers=list(schedulers),
                workloads=[workload],
                topology="8x1xh100",
                model="qwen3-8b",
                workers=[workers],
                seeds=seeds,
                assignments=[
                    f"workloads.0.sessions={sessions}",
                    f"sim.gateways={gateways}",
                    f"sim.gateway_split={split}",
                    *([f"memory.gpu_memory_utilization={memory}"] if memory is not None else []),
                ],
            )
            result = run("quickstart", out=folder / f"{split}-{gateways}", flags=flags)
            result.check()
            summaries = load_run(result.path).summaries
            for name in schedulers:
                mine = {
                    cell.seed: s["metrics"]
                    for cell, s in summaries.items()
                    if cell.scheduler == name
                }
                means = {m: _mean(list(mine.values()), m) for m in METRICS}
                by_seed = {seed: m["decode_tps"]["value"] for seed, m in mine.items()}
                rows.append(Row(split, name, gateways, means, by_seed))
                print(table(rows[-1:], rows)[-1], flush=True)
    return rows


def _mean(metrics: Sequence[dict[str, dict[str, float | None]]], tag: str) -> float | None:
    known = [value for one in metrics if (value := one[tag]["value"]) is not None]
    return fmean(known) if known else None


def table(rows: Sequence[Row], all_rows: Sequence[Row] | None = None) -> list[str]:
    """Figures, and the change of throughput against one gateway."""
    base = {r.scheduler: r.by_seed for r in all_rows or rows if r.gateways == 1}
    lines = [
        "| division | scheduler | gateways | " + " | ".join(METRICS) + " | decode_tps vs one |",
        "|---|---|---:|" + "---:|" * (len(METRICS) + 1),
    ]
    for row in rows:
        values = ["-" if (v := row.values[m]) is None else f"{v:.4g}" for m in METRICS]
        one = base.get(row.scheduler, {})
        changes = [100 * (tps / one[seed] - 1) for seed, tps in row.by_seed.items() if seed in one]
        change = "-"
        if changes:
            change = f"{fmean(changes):+.1f} % ({min(changes):+.1f} to {max(changes):+.1f})"
        lines.append(
            f"| {row.split if row.gateways > 1 else '-'} | {row.scheduler} | {row.gateways} | "
            + " | ".join(values)
            + f" | {change} |"
        )
    return lines


def plot(rows: Sequence[Row], path: Path) -> None:
    """Throughput and cache hits over gateways, as .png and .svg."""
    from results.drawing import legend_below, looks, new_axes

    names = list(dict.fromkeys(row.scheduler for row in rows))
    styles = looks(names)
    figure, axes = new_axes(1, 2, 3.4)
    for axis, metric in zip(axes[0], ("decode_tps", "cache_hit"), strict=True):
        for split, dash in zip(SPLITS, ("-", ":"), strict=True):
            for name in names:
                points = [
                    (row.gateways, value)
                    for row in rows
                    if row.scheduler == name
                    and (row.split == split or row.gateways == 1)
                    and (value := row.values[metric]) is not None
                ]
                if points:
                    counts, heights = zip(*points, strict=True)
                    axis.plot(
                        counts, heights, dash, marker="o", ms=3.5, color=styles[name].colour,
                        label=f"{name}, {split}",
                    )  # fmt: skip
        axis.set(xscale="log", xlabel="gateways", title=metric)
        axis.set_xticks(GATEWAYS, [str(count) for count in GATEWAYS])
        axis.minorticks_off()
    legend_below(figure, axes[0, 0], 4)
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("-o", "--out", type=Path, default=Path("runs/gateways"))
    parser.add_argument("--schedulers", nargs="*", default=DEFAULT)
    parser.add_argument("--workload", default="swe-bench-mini-short")
    parser.add_argument("--sessions", type=int, default=200)
    parser.add_argument("--workers", type=int, default=160)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--memory", type=float, help="share of each GPU that a replica may use")
    parser.add_argument("--plot", type=Path, help="path of the figure, without its ending")
    given = parser.parse_args(arguments)
    rows = measure(
        given.out,
        given.schedulers,
        given.workload,
        given.sessions,
        given.workers,
        given.seeds,
        given.memory,
    )
    print("\n".join(table(rows)))
    if given.plot is not None:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
