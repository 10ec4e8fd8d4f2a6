"""Headroom against the others on the papers' cells, its ablations, and wrong signals.

    python -m scripts.beyond matrix        # cells of the papers' matrices
    python -m scripts.beyond traces        # sessions that no rule was found on
    python -m scripts.beyond ablations     # one part of headroom off at a time
    python -m scripts.beyond signals       # each signal wrong by 10, 50 and 100 %
    python -m scripts.beyond page          # plays nothing, writes the tables of docs/headroom.md

Headroom was designed on seeds 100 to 105; seeds 400 and up are held out and are what is played.
Each cell is a row of scripts/data/beyond.csv as soon as it is done, with a digest of the code that
played it; the same command goes on where it stopped, and plays again what other code has played.
All studies end by writing the page.
"""

from __future__ import annotations

import argparse
import csv
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from harness.advice.levels import Levels, play, with_kv
from harness.advice.place import TurnCost
from harness.plan import code_digest, plan
from harness.spec import load_spec
from scripts._beyond_page import BOUND, write_page
from scripts.regimes import Point, cluster, made_cell
from workloads.arrivals import place as place_arrivals
from workloads.catalog import load_workload

WRONG = f"{Path(__file__).with_name('_wrong_signals.py')}:WrongHeadroom"
ROWS = Path(__file__).parent / "data" / "beyond.csv"
HELD_OUT = 400
"""First of the held-out seeds."""
OTHERS = ("cache-aware", "smetric", "thunderagent", "tao")
UNLIMITED_KV = 5_000_000
"""Tokens on each replica: more than all contexts of any cell here together."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One setting of the papers' matrices."""

    title: str
    preset: str
    workload: str
    sessions: int
    workers: int | None
    """None: sessions arrive by themselves, `rate` a second."""
    others: tuple[str, ...] = OTHERS
    rate: float | None = None
    bound: bool = True
    """Whether it is played with KV for everyone too."""
    recorded: bool = False


COLOCATED = ("cache-aware", "lmetric", "smetric", "tao")
PD = ("disaggregated", "llm-d", "smetric")
CONSERVE = ("conserve", "ampd", "collocated", "disaggregated")
AUTOMATIONBENCH = Cell(
    "Qwen3-32B, AutomationBench, 128", "beyond/qwen3-32b", "automationbench", 256, 128
)
CELLS = (
    *(
        Cell(f"DeepSeek-V4 Flash, SWE-bench, {workers}", "tao/deepseek-v4-flash-swe-bench-lite",
             "swe-bench-mini-short", 96, workers)
        for workers in (16, 32, 64)
    ),
    *(
        Cell(f"DeepSeek-V4 Flash, Terminal-Bench, {workers}",
             "tao/deepseek-v4-flash-terminal-bench-2", "tb2-claude-code", 96, workers)
        for workers in (16, 32, 64)
    ),
    Cell("GLM-4.7, SWE-bench, 160", "beyond/glm-4.7", "swe-bench-mini-short", 176, 160,
         ("cache-aware", "thunderagent", "tao")),
    AUTOMATIONBENCH,
    Cell("Qwen3-32B, mixed, 128", "beyond/qwen3-32b", "mixed", 192, 128),
    Cell("Qwen3-32B, SWE-bench, 96", "beyond/qwen3-32b", "swe-bench-mini-short", 192, 96),
    Cell("Qwen3-32B, SWE-bench, 128", "beyond/qwen3-32b", "swe-bench-mini-short", 192, 128),
    Cell("Qwen3-32B, SWE-bench, 160", "beyond/qwen3-32b", "swe-bench-mini-short", 192, 160),
    Cell("Qwen3-32B, SWE-bench long, 160", "beyond/qwen3-32b", "swe-bench-mini", 192, 160),
    Cell("SMetric, colocated, agents", "smetric/colocated-agent", "bailian-agent", 200, 96,
         COLOCATED, bound=False),
    Cell("SMetric, colocated, chat", "smetric/colocated-chat", "bailian-chat", 1500, 512,
         COLOCATED, bound=False),
    Cell("SMetric, disaggregated, agents", "smetric/disaggregated-agent", "bailian-agent", 160, 64,
         PD, bound=False),
    Cell("SMetric, disaggregated, chat", "smetric/disaggregated-chat", "bailian-chat", 1500, 512,
         PD, bound=False),
    *(
        Cell(f"ConServe, {kind}, {rate}/s", f"conserve/{kind}", "swe-bench-mini-short", 200, None,
             CONSERVE, rate, bound=False)
        for kind in ("homogeneous", "heterogeneous")
        for rate in (0.1, 0.3, 0.9)
    ),
)  # fmt: skip
TRACES = (
    Cell("SWE-bench by Claude Code, 128", "beyond/qwen3-32b", "swe-bench-cc", 192, 128),
    Cell("Terminal-Bench by Terminus 2, 128", "beyond/qwen3-32b", "tb2-terminus2", 178, 128),
    Cell("Claude Code beside people, 96", "beyond/qwen3-32b", "cc-interactive", 144, 96),
    Cell("Chat (Mooncake), 256", "beyond/qwen3-32b", "mooncake-chat", 400, 256),
    Cell("Claude Code, recorded, 64", "beyond/qwen3-32b", "weka-claude-code", 120, 64,
         recorded=True),
    Cell("mini-swe-agent and Magentic-One, recorded, 28", "beyond/qwen3-32b", "lmcache-agents", 28,
         28, recorded=True),
)  # fmt: skip
"""On Qwen3-32B. The recorded ones are the same under every seed, and played once."""
REGIMES = (Point(2.0, 0.3, 24, 0.6), Point(1.0, 3.0, 24, 0.2))
"""Of the map, where ablations and wrong signals are played: KV very scarce with short tools, and
just scarce with long ones."""
ABLATIONS: Mapping[str, Mapping[str, Any]] = {
    "headroom": {},
    "shared text counts for each": {"share_text": False},
    "capacity as reported": {"measure_capacity": False},
    "acting sessions always keep their room": {"long_tools": False},
    "fewest turns done first, not least work left": {"rank": "turns"},
    "queue by arrival": {"rank": "arrival"},
    "KV that is there does not go on": {"keep_while_there": False},
    "KV that is there not first in the queue": {"there_first": False},
    "no costs: moves where it fits": {"use_costs": False},
    "no moves while it fits": {"rebalance": False},
    "prefill replicas at any gain": {"prefill_gain": 0.0},
    "a shared store saves no room": {"use_store": False},
}
ABLATED = (
    "GLM-4.7, SWE-bench, 160",
    "Qwen3-32B, SWE-bench long, 160",
    "SMetric, colocated, agents",
    "SMetric, disaggregated, agents",
    "ConServe, homogeneous, 0.3/s",
)
"""Cells beside the regimes and AutomationBench, so that each rule matters somewhere."""
ERRORS = (0.1, 0.5, 1.0)
SIGNALS = ("capacity", "context", "cached", "rate", "output", "turns")


@dataclass(frozen=True, slots=True)
class Job:
    """One cell to play."""

    study: str
    cell: str
    label: str
    seed: int
    place: Cell | Point
    scheduler: str
    settings: Mapping[str, Any]

    @property
    def key(self) -> tuple[str, str, str, str]:
        return self.study, self.cell, self.label, str(self.seed)


def matrix_jobs(seeds: Sequence[int]) -> Iterator[Job]:
    return _compared("matrix", CELLS, seeds)


def trace_jobs(seeds: Sequence[int]) -> Iterator[Job]:
    return _compared("traces", TRACES, seeds)


def _compared(study: str, cells: Sequence[Cell], seeds: Sequence[int]) -> Iterator[Job]:
    """Seed by seed, so that what there is after a while says something of every cell."""
    for seed in seeds:
        for cell in cells:
            if cell.recorded and seed != seeds[0]:
                continue
            for name in ("headroom", *cell.others, *((BOUND,) if cell.bound else ())):
                scheduler = "thunderagent" if name == BOUND else name
                yield Job(study, cell.title, name, seed, cell, scheduler, {})


def ablation_jobs(seeds: Sequence[int]) -> Iterator[Job]:
    cells = [(cell.title, cell) for cell in CELLS if cell.title in ABLATED]
    for seed in seeds:
        for title, place in (*_study_places(), *cells):
            for label, settings in ABLATIONS.items():
                yield Job("ablations", title, label, seed, place, "headroom", settings)


def signal_jobs(seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        for title, place in _study_places():
            yield Job("signals", title, "right", seed, place, "headroom", {})
            for signal in SIGNALS:
                for error in ERRORS:
                    settings = {"signal": signal, "error": error}
                    label = f"{signal} {error:.0%}"
                    yield Job("signals", title, label, seed, place, WRONG, settings)


def _study_places() -> Iterator[tuple[str, Cell | Point]]:
    for point in REGIMES:
        tools = "short tools" if point.tool_model < 1 else "long tools"
        share = f"{point.prefill_share:.0%} prefill"
        yield f"working set {point.working_set_kv:g}, {tools}, {share}", point
    yield AUTOMATIONBENCH.title, AUTOMATIONBENCH


def played(job: Job) -> Levels:
    """Play one cell."""
    if isinstance(job.place, Point):
        base = cluster()
        made = made_cell(job.place, job.seed, base, TurnCost(base))
        workers: int | None = made.workers
        sessions, where, sim = made.sessions, made.cluster, None
    else:
        planned = plan(load_spec(job.place.preset))
        sessions = load_workload(job.place.workload, sessions=job.place.sessions, seed=job.seed)
        where, workers, sim = planned.cluster, job.place.workers, planned.sim
        if job.place.rate is not None:
            sessions = place_arrivals(sessions, "poisson", job.place.rate, job.seed)
    if job.label == BOUND:
        where = with_kv(where, UNLIMITED_KV)
    found, _ = play(
        sessions, where, job.scheduler, workers=workers, seed=job.seed, sim=sim,
        settings=job.settings,
    )  # fmt: skip
    return found


def load_rows(path: Path = ROWS) -> list[dict[str, str]]:
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def save_rows(rows: Sequence[Mapping[str, str]], path: Path = ROWS) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)


def play_missing(jobs: Iterable[Job], workers: int, path: Path = ROWS) -> None:
    """Play what this code has not played, and save each cell when it is done."""
    code = code_digest()
    rows = {_key(row): row for row in load_rows(path)}
    todo = [job for job in jobs if rows.get(job.key, {}).get("code") != code]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        under_way = {pool.submit(played, job): job for job in todo}
        for number, future in enumerate(as_completed(under_way), 1):
            job = under_way[future]
            values = {k: f"{v:.6g}" for k, v in asdict(future.result()).items()}
            row = dict(zip(("study", "cell", "label", "seed"), job.key, strict=True))
            rows[job.key] = row | {"code": code} | values
            save_rows([rows[key] for key in sorted(rows)], path)
            print(f"  {number}/{len(todo)} {' '.join(job.key)}", file=sys.stderr, flush=True)


def _key(row: Mapping[str, str]) -> tuple[str, str, str, str]:
    return row["study"], row["cell"], row["label"], row["seed"]


STUDIES = {
    "matrix": matrix_jobs,
    "traces": trace_jobs,
    "ablations": ablation_jobs,
    "signals": signal_jobs,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", choices=[*STUDIES, "page"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=HELD_OUT)
    parser.add_argument("--jobs", type=int, default=2, help="cells played at once")
    given = parser.parse_args()
    if given.study in STUDIES:
        seeds = range(given.first_seed, given.first_seed + given.seeds)
        play_missing(STUDIES[given.study](seeds), given.jobs)
    write_page(load_rows(), others_of(CELLS), others_of(TRACES))


def others_of(cells: Sequence[Cell]) -> dict[str, tuple[str, ...]]:
    return {cell.title: cell.others for cell in cells}


if __name__ == "__main__":
    main()
