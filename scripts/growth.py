"""How time and memory of a simulation grow with sessions and replicas.

    python scripts/growth.py [-o results.json] [--plot docs/img/growth]

Sessions go up tenfold twice on 4 replicas, and replicas tenfold twice with the workers they need.
Every point runs in a process of its own and writes its records to disk as any run does. Time is
the CPU time of the simulation, memory what the process holds in the end over what it held with the
sessions loaded.
"""

from __future__ import annotations

import argparse
import gc
import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from harness.capacity import Cluster, resolve_cluster
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from results.cells import CellId
from results.writer import CellWriter
from schedulers.registry import create
from workloads.catalog import load_workload

WORKLOAD = "swe-bench-mini-short"
TIME_LIMIT = 2.0
"""A turn must take less than so many times as long at ten times the size."""
MEMORY_LIMIT_KB = 2.0
"""For each finished turn."""
WORKERS_PER_REPLICA = 12

SECTION = "## Growth"

Axis = Literal["sessions", "replicas"]


@dataclass(frozen=True, slots=True)
class Job:
    """One simulation."""

    axis: Axis
    scheduler: str
    replicas: int
    sessions: int
    workers: int

    @property
    def size(self) -> int:
        return self.sessions if self.axis == "sessions" else self.replicas


@dataclass(frozen=True, slots=True)
class Point:
    """What it took."""

    job: Job
    turns: int
    cpu_s: float
    kb_per_turn: float

    @property
    def us_per_turn(self) -> float:
        return 1e6 * self.cpu_s / self.turns


def jobs(schedulers: Sequence[str], base: int, top: int) -> list[Job]:
    """`base` sessions x 1, 10, 100 on 4 replicas; 4, 40, 400 replicas, up to `top`."""
    found: list[Job] = []
    for name in schedulers:
        for factor in (1, 10, 100):
            workers = 4 * WORKERS_PER_REPLICA
            if factor <= top:
                found.append(Job("sessions", name, 4, factor * base, min(workers, base)))
        for factor in (1, 10, 100):
            workers = 4 * factor * WORKERS_PER_REPLICA
            if factor <= top:
                found.append(Job("replicas", name, 4 * factor, workers, workers))
    return found


def cluster_of(replicas: int) -> Cluster:
    """So many replicas of Qwen3-32B on 2xH100."""
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    first = cluster.replicas[0]
    return replace(
        cluster,
        replicas=tuple(replace(first, id=f"r{i}", index=i) for i in range(replicas)),
    )


def measure(job: Job) -> Point:
    """Run it in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (job,))


def _measure(job: Job) -> Point:
    cluster = cluster_of(job.replicas)
    sessions = load_workload(WORKLOAD, sessions=job.sessions, seed=0)
    settings = SimSettings()
    defaults: dict[str, Any] = {**engine_defaults(cluster)}
    with tempfile.TemporaryDirectory() as folder:
        cell = CellId(WORKLOAD, job.scheduler, job.workers, 0)
        with CellWriter(Path(folder), cell, "simulated") as writer:
            gc.collect()
            before = _resident_kb()
            outcome = simulate(
                sessions,
                workers=job.workers,
                scheduler=create(job.scheduler),
                cluster=cluster,
                settings=settings,
                engine=EngineParams(**defaults),
                recorder=writer,
            )
            after = _resident_kb()
    turns = sum(len(session.turns) for session in sessions)
    return Point(job, turns, outcome.timing["cpu_s"], (after - before) / turns)


def _resident_kb() -> float:
    """Memory of this process (Linux)."""
    for line in Path("/proc/self/status").read_text("ascii").splitlines():
        if line.startswith("VmRSS:"):
            return float(line.split()[1])
    raise SystemExit("growth.py needs /proc/self/status")


def verdicts(points: Sequence[Point]) -> list[str]:
    """What is outside the limits."""
    missed = []
    for before, after in pairwise(points):
        a, b = before.job, after.job
        if (a.axis, a.scheduler) != (b.axis, b.scheduler):
            continue
        growth = after.us_per_turn / before.us_per_turn
        if growth >= TIME_LIMIT:
            missed.append(
                f"{b.scheduler}: a turn takes {growth:.2f} times as long with {b.size:,} {b.axis}"
            )
    return missed + [
        f"{point.job.scheduler}: {point.kb_per_turn:.2f} KB a turn with "
        f"{point.job.size:,} {point.job.axis}"
        for point in points
        if point.kb_per_turn >= MEMORY_LIMIT_KB
    ]


def table(points: Sequence[Point]) -> list[str]:
    lines = [
        "| grows | scheduler | replicas | sessions | workers | turns | CPU s | us a turn "
        "| x before | KB a turn |",
        "|---|---|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    last: Point | None = None
    for point in points:
        job = point.job
        alike = last is not None and (last.job.axis, last.job.scheduler) == (
            job.axis,
            job.scheduler,
        )
        growth = f"{point.us_per_turn / last.us_per_turn:.2f}" if last and alike else "-"
        lines.append(
            f"| {job.axis} | {job.scheduler} | {job.replicas} | {job.sessions:,} "
            f"| {job.workers:,} | {point.turns:,} | {point.cpu_s:.1f} | {point.us_per_turn:.0f} "
            f"| {growth} | {point.kb_per_turn:.2f} |"
        )
        last = point
    return lines


def plot(points: Sequence[Point], path: Path) -> None:
    """Time and memory of a turn over size, as .png and .svg."""
    import matplotlib as mpl

    mpl.use("Agg")
    import matplotlib.pyplot as plt
    import pandas as pd
    import seaborn as sns

    frame = pd.DataFrame(
        {
            "scheduler": point.job.scheduler,
            "axis": point.job.axis,
            "size": point.job.size,
            "us": point.us_per_turn,
            "kb": point.kb_per_turn,
        }
        for point in points
    )
    sns.set_theme(context="paper", style="whitegrid", font_scale=1.1)
    figure, axes = plt.subplots(2, 2, figsize=(8, 5.6), sharey="row", layout="constrained")
    for column, axis in enumerate(("sessions", "replicas")):
        part = frame[frame["axis"] == axis]
        for row, (value, label) in enumerate(
            (("us", "CPU time of a turn (us)"), ("kb", "memory of a turn (KB)"))
        ):
            ax = axes[row, column]
            sns.lineplot(
                part, x="size", y=value, hue="scheduler", style="scheduler", markers=True,
                dashes=False, ax=ax, legend=row == 0 and column == 0,
            )  # fmt: skip
            ax.set(xscale="log", xlabel=axis if row else "", ylabel=label if column == 0 else "")
            top = max(frame[value].max(), MEMORY_LIMIT_KB if value == "kb" else 0.0)
            ax.set_ylim(0, 1.12 * top)
            if value == "kb":
                ax.axhline(MEMORY_LIMIT_KB, color="0.5", linestyle="--", linewidth=1)
                ax.text(
                    0.98, MEMORY_LIMIT_KB, "limit", transform=ax.get_yaxis_transform(),
                    color="0.4", ha="right", va="bottom",
                )  # fmt: skip
            sizes = sorted(part["size"].unique())
            ax.set_xticks(sizes, [f"{size:,}" for size in sizes])
            ax.minorticks_off()
    figure.suptitle("Cost of a turn as the simulation grows")
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)
    plt.close(figure)


def read(path: Path) -> list[Point]:
    """Points that `--out` wrote."""
    rows = json.loads(path.read_text("utf-8"))
    return [Point(Job(**row.pop("job")), **row) for row in rows]


def add_to(page: Path, points: Sequence[Point], missed: Sequence[str], figure: Path | None) -> None:
    """Put the section on growth at the end of the page, in place of the one that is there."""
    text = page.read_text("utf-8") if page.is_file() else "# Speed of the simulator\n"
    lines = [
        text.split(f"\n{SECTION}\n")[0].rstrip(),
        "",
        SECTION,
        "",
        f"Generated sessions of `{WORKLOAD}` on Qwen3-32B replicas of 2xH100, records written to "
        "disk. Goal: over a tenfold step a turn takes less than "
        f"{TIME_LIMIT:g} times as long, and no turn leaves {MEMORY_LIMIT_KB:g} KB of memory.",
        "",
        *table(points),
        "",
        *(missed or ["All within the limits."]),
    ]
    if figure is not None:
        lines += ["", f"![Cost of a turn as the simulation grows](img/{figure.name}.svg)"]
    page.write_text("\n".join(lines) + "\n", "utf-8")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedulers", nargs="*", default=["round-robin", "smetric"])
    parser.add_argument("--base", type=int, default=50, help="sessions of the smallest run")
    parser.add_argument("--top", type=int, default=100, help="largest factor: 1, 10 or 100")
    parser.add_argument("-o", "--out", type=Path, help="figures as JSON")
    parser.add_argument("--plot", type=Path, help="path of the figure, without its ending")
    parser.add_argument("--page", type=Path, help="page of the documentation; adds to it")
    parser.add_argument("--figures", type=Path, help="show these (JSON of --out), measure nothing")
    given = parser.parse_args(arguments)
    points = read(given.figures) if given.figures is not None else []
    if not points:
        for job in jobs(given.schedulers, given.base, given.top):
            points.append(measure(job))
            print(table(points[-1:])[-1], flush=True)
    print("\n".join(table(points)))
    missed = verdicts(points)
    print("\n".join(missed) if missed else "all within the limits")
    if given.plot is not None:
        plot(points, given.plot)
    if given.page is not None:
        add_to(given.page, points, missed, given.plot)
    if given.out is not None:
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps([asdict(p) for p in points], indent=1) + "\n", "utf-8")
    raise SystemExit(3 if missed else 0)


if __name__ == "__main__":
    main()
