"""Headroom against the others on the papers' cells, its ablations, and wrong signals.

    python -m scripts.beyond matrix        # cells of the papers' matrices
    python -m scripts.beyond ablations     # one part of headroom off at a time
    python -m scripts.beyond signals       # each signal wrong by 10, 50 and 100 %

Seeds 0 to 4; headroom was designed on seeds 100 and up. Prints Markdown, writes nothing;
`agentsched run beyond/qwen3-32b` and `beyond/glm-4.7` play the same cells into a run folder with a
report.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from harness.advice.levels import Levels, play
from harness.advice.place import TurnCost
from harness.plan import Plan, plan
from harness.spec import load_spec
from results.statistics import bootstrap_generator, difference
from scripts.regimes import MadeCell, Point, cluster, made_cell
from scripts.regressions import show
from workloads.catalog import load_workload

WRONG = f"{Path(__file__).with_name('_wrong_signals.py')}:WrongHeadroom"
OTHERS = ("cache-aware", "smetric", "thunderagent", "tao")


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the papers' matrices."""

    title: str
    preset: str
    workload: str
    sessions: int
    workers: int
    others: tuple[str, ...] = OTHERS


CELLS = (
    Cell("GLM-4.7, SWE-bench, 160", "beyond/glm-4.7", "swe-bench-mini-short", 176, 160,
         ("cache-aware", "thunderagent", "tao")),
    Cell("Qwen3-32B, AutomationBench, 128", "beyond/qwen3-32b", "automationbench", 256, 128),
    Cell("Qwen3-32B, mixed, 128", "beyond/qwen3-32b", "mixed", 192, 128),
    Cell("Qwen3-32B, SWE-bench, 160", "beyond/qwen3-32b", "swe-bench-mini-short", 192, 160),
    Cell("Qwen3-32B, SWE-bench long, 160", "beyond/qwen3-32b", "swe-bench-mini", 192, 160),
    Cell("Qwen3-32B, SWE-bench, 96", "beyond/qwen3-32b", "swe-bench-mini-short", 192, 96),
)  # fmt: skip
REGIMES = (Point(2.0, 0.3, 24, 0.6), Point(1.0, 3.0, 24, 0.2))
"""Of the map, where ablations and wrong signals are played: KV very scarce with short tools, and
just scarce with long ones."""
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "headroom": {},
    "no early turns for young sessions": {"young_turns": 0},
    "old sessions by arrival": {"rank_by_turns": False},
    "no costs: moves where it fits": {"use_costs": False},
    "no moves while it fits": {"rebalance": False},
    "acting sessions by probability": {"use_readiness": True},
    "a tenth of KV kept free for growth": {"fill": 0.9},
}
ERRORS = (0.1, 0.5, 1.0)
SIGNALS = ("context", "cached", "rate", "output", "turns")


def played(
    cell: Cell, planned: Plan, name: str, seed: int, settings: Mapping[str, Any] | None = None
) -> Levels:
    sessions = load_workload(cell.workload, sessions=cell.sessions, seed=seed)
    found, _ = play(
        sessions, planned.cluster, name, workers=cell.workers, seed=seed, sim=planned.sim,
        settings=settings,
    )  # fmt: skip
    return found


def matrix(seeds: Sequence[int], cells: Sequence[Cell] = CELLS) -> None:
    rows = []
    for cell in cells:
        planned = plan(load_spec(cell.preset))
        found = {
            name: {seed: played(cell, planned, name, seed) for seed in seeds}
            for name in (*cell.others, "headroom")
        }
        row = {"cell": cell.title}
        for metric, title in (
            ("latency_mean", "task latency"), ("ttft_mean", "mean TTFT"), ("ttft_p95", "p95 TTFT")
        ):  # fmt: skip
            row[title] = against(found, metric, cell.others)
        row["decode"] = against(found, "decode_tps", cell.others)
        rows.append(row)
        print(f"  {cell.title}: {row}", flush=True)
    show(f"Headroom against the best other scheduler of each metric, seeds {list(seeds)}", rows)


def against(found: Mapping[str, Mapping[int, Levels]], metric: str, others: Sequence[str]) -> str:
    """`+3.1 % [1.0, 5.2] (tao)`: positive is better for headroom."""
    values = {
        name: {seed: float(getattr(one, metric)) for seed, one in by_seed.items()}
        for name, by_seed in found.items()
    }
    better = "higher" if metric == "decode_tps" else "lower"
    gap = difference(values, "headroom", others, better, bootstrap_generator())  # type: ignore[arg-type]
    if gap is None:
        return "n/a"
    interval = f" [{gap.interval.low:+.1f}, {gap.interval.high:+.1f}]" if gap.interval else ""
    return f"{gap.percent:+.1f} %{interval} ({gap.against})"


def ablations(seeds: Sequence[int]) -> None:
    for point in REGIMES:
        base, cost = cluster(), TurnCost(cluster())
        cells = [made_cell(point, seed, base, cost) for seed in seeds]
        found = {
            label: [_on_map(one, "headroom", settings) for one in cells]
            for label, settings in ABLATIONS.items()
        }
        show(f"{point}, seeds {list(seeds)}", _rows(found, "headroom"))


def signals(seeds: Sequence[int]) -> None:
    for point in REGIMES:
        base, cost = cluster(), TurnCost(cluster())
        cells = [made_cell(point, seed, base, cost) for seed in seeds]
        found = {"right": [_on_map(one, "headroom") for one in cells]}
        for signal in SIGNALS:
            for error in ERRORS:
                settings = {"signal": signal, "error": error}
                label = f"{signal} wrong by {error:.0%}"
                found[label] = [_on_map(one, WRONG, settings) for one in cells]
        show(f"{point}, seeds {list(seeds)}", _rows(found, "right"))


def _on_map(cell: MadeCell, name: str, settings: Mapping[str, Any] | None = None) -> Levels:
    found, _ = play(
        cell.sessions,
        cell.cluster,
        name,
        workers=cell.workers,
        seed=cell.seed,
        settings=settings,
    )
    return found


def _rows(found: Mapping[str, Sequence[Levels]], base: str) -> list[dict[str, str]]:
    def mean(label: str, metric: str) -> float:
        return float(sum(getattr(one, metric) for one in found[label]) / len(found[label]))

    def longer(label: str) -> float:
        return mean(label, "latency_mean") / mean(base, "latency_mean") - 1

    return [
        {
            "what": label,
            "task latency (s)": f"{mean(label, 'latency_mean'):.1f}",
            "against it": f"{100 * longer(label):+.1f} %",
            "mean TTFT (s)": f"{mean(label, 'ttft_mean'):.2f}",
            "p95 TTFT (s)": f"{mean(label, 'ttft_p95'):.2f}",
            "cache hit (%)": f"{100 * mean(label, 'cache_hit'):.1f}",
            "held (%)": f"{100 * mean(label, 'held_share'):.1f}",
        }
        for label in found
    ]


STUDIES = {"matrix": matrix, "ablations": ablations, "signals": signals}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", choices=list(STUDIES))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    STUDIES[given.study](range(given.seeds))


if __name__ == "__main__":
    main()
