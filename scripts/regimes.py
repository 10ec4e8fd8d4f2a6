"""Plays the map of regimes: working set over KV x tool time over model time x workers x prefill
share, six schedulers, and draws who wins where and by how much.

    python -m scripts.regimes                # plays what is missing, then draws
    python -m scripts.regimes --draw         # draws what is there

Two replicas of Qwen3-8B on one H100 each, whose KV is set so that the working set is what the grid
says. Cells are small (two sessions a worker); each is a row of harness/data/regimes.csv, which
`agentsched advise` reads. What was played stays; the same command goes on where it stopped.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

from harness.advice.levels import play, with_kv
from harness.advice.place import TurnCost, place_of
from harness.advice.regimes import MAP, load_map
from harness.advice.synthetic import made_for
from harness.capacity import Cluster, resolve_cluster
from harness.topology import find_topology
from workloads.model import Session

SCHEDULERS = ("cache-aware", "dynamo", "smetric", "thunderagent", "tao", "headroom")
WORKING_SETS = (0.5, 1.0, 2.0)
TOOLS = (0.3, 3.0)
PER_REPLICA = (8, 24)
PREFILL = (0.2, 0.6)
SEEDS = (0, 1)
REPLICAS = 2
SESSIONS_A_WORKER = 2


@dataclass(frozen=True, slots=True)
class Point:
    """One cell of the grid, as asked for."""

    working_set_kv: float
    tool_model: float
    per_replica: int
    prefill_share: float


def points() -> list[Point]:
    return [Point(w, t, c, p) for w, t, c, p in product(WORKING_SETS, TOOLS, PER_REPLICA, PREFILL)]


def cluster() -> Cluster:
    """Two replicas of one H100 each."""
    whole = resolve_cluster("qwen3-8b", find_topology("4x1xh100"))
    return type(whole)(whole.model, whole.topology, whole.replicas[:REPLICAS])


@dataclass(frozen=True, slots=True)
class MadeCell:
    """Sessions and a cluster that together lie at a point of the grid."""

    sessions: list[Session]
    cluster: Cluster
    workers: int
    seed: int


def made_cell(point: Point, seed: int, base: Cluster, cost: TurnCost) -> MadeCell:
    """The KV is never smaller than the longest turn."""
    workers = point.per_replica * REPLICAS
    sessions = made_for(
        point.tool_model,
        point.per_replica,
        point.prefill_share,
        cost,
        SESSIONS_A_WORKER * workers,
        seed,
    )
    whole = place_of(sessions, base, workers, cost)
    wanted = base.kv_tokens * whole.working_set_kv / point.working_set_kv
    longest = max(t.prompt_tokens + t.output_tokens for s in sessions for t in s.turns)
    small = with_kv(base, max(round(wanted / REPLICAS), longest + 64))
    return MadeCell(sessions, small, workers, seed)


def play_point(point: Point, seed: int, base: Cluster, cost: TurnCost) -> Iterator[dict[str, str]]:
    """A row a scheduler."""
    cell = made_cell(point, seed, base, cost)
    place = place_of(cell.sessions, cell.cluster, cell.workers, cost)
    for name in SCHEDULERS:
        found, _ = play(cell.sessions, cell.cluster, name, workers=cell.workers, seed=seed)
        row: dict[str, object] = {
            **{f"asked_{key}": value for key, value in asdict(point).items()},
            **asdict(place),
            "scheduler": name,
            "seed": seed,
            **asdict(found),
        }
        yield {k: f"{v:.6g}" if isinstance(v, float) else str(v) for k, v in row.items()}


def play_missing(path: Path, seeds: tuple[int, ...]) -> None:
    done = _done(path)
    base = cluster()
    cost = TurnCost(base)
    for seed in seeds:
        for point in points():
            key = (*(f"{value:.6g}" for value in asdict(point).values()), str(seed))
            if key in done:
                continue
            rows = list(play_point(point, seed, base, cost))
            new = not path.exists()
            with path.open("a", newline="", encoding="utf-8") as file:
                writer = csv.DictWriter(file, list(rows[0]), lineterminator="\n")
                if new:
                    writer.writeheader()
                writer.writerows(rows)
            best = min(rows, key=lambda row: float(row["latency_mean"]))
            print(f"  {point} seed {seed}: {best['scheduler']}", flush=True)


def _done(path: Path) -> set[tuple[str, ...]]:
    if not path.exists():
        return set()
    with path.open(newline="", encoding="utf-8") as file:
        return {
            (*(f"{float(v):.6g}" for k, v in row.items() if k.startswith("asked_")), row["seed"])
            for row in csv.DictReader(file)
        }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--map", type=Path, default=MAP)
    parser.add_argument("--draw", action="store_true", help="play nothing")
    parser.add_argument("-o", "--out", type=Path, default=Path("docs") / "img")
    given = parser.parse_args()
    if not given.draw:
        play_missing(given.map, tuple(range(given.seeds)))
    from scripts._regime_figure import draw

    draw(load_map(given.map), given.out)


if __name__ == "__main__":
    main()
