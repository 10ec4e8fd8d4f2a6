"""Schedulers at fleet size: what a decision and a simulation cost with up to 1,000 replicas.

    python -m scripts.fleet_size [-o results.json] [--plot docs/img/fleet_size]

Sessions are copies of generated ones, a hundred open to a replica, started within seconds and cut
to their first turns, so that a point takes minutes. Every point runs in a process of its own. A
decision is the CPU time that the policy takes for a turn's arrival, control plane left out; memory
is the most that the process had.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from results.cells import CellId
from results.writer import CellWriter
from schedulers.base import Scheduler
from schedulers.commands import Command
from schedulers.events import Event, TurnArrived
from schedulers.registry import find
from schedulers.views import ClusterView
from scripts.growth import WORKLOAD, cluster_of
from workloads.catalog import load_workload
from workloads.model import Session

STARTED_PER_REPLICA = 105
"""The first end before the last have started: a hundred are open at once."""
SAMPLING_S = 60.0
"""Between two looks at the gauges: with 1,000 replicas each look has 1,000 records."""
SPREAD_S = 10.0
"""All sessions start within this, so that nearly all are open at once."""
GOAL_US = 100.0
GOAL_GB = 8.0
DEFAULT = ["round-robin", "least-loaded", "cache-aware", "smetric"]
SEEDS = 200
"""Different sessions; the others are copies of them."""


@dataclass(frozen=True, slots=True)
class Point:
    """One simulation."""

    scheduler: str
    replicas: int
    sessions: int
    """The most that were open at once."""
    turns: int
    decisions: int
    decision_us: float
    """Mean."""
    cpu_s: float
    peak_gb: float


class Watch:
    """CPU time of decisions, and the sessions that were open at them."""

    def __init__(self) -> None:
        self.count = 0
        self.ns = 0
        self.most_open = 0


def timed(cls: type[Scheduler], watch: Watch) -> type[Scheduler]:
    """The policy, with the time of its decisions taken."""

    def on_event(self: Scheduler, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if not isinstance(event, TurnArrived):
            return cls.on_event(self, event, cluster)
        watch.most_open = max(watch.most_open, len(cluster.sessions))
        return _timed(cls.on_event(self, event, cluster), watch)

    return type("Timed", (cls,), {"on_event": on_event})


def _timed(commands: Iterable[Command], watch: Watch) -> Iterator[Command]:
    source = iter(commands)
    watch.count += 1
    while True:
        began = time.thread_time_ns()
        command = next(source, None)
        watch.ns += time.thread_time_ns() - began
        if command is None:
            return
        yield command


def crowd(count: int, turns: int) -> list[Session]:
    """So many sessions of `turns` turns each."""
    seeds = [s for s in load_workload(WORKLOAD, sessions=SEEDS, seed=0) if s.parent is None]
    return [
        replace(seeds[i % len(seeds)], id=f"s{i}", turns=seeds[i % len(seeds)].turns[:turns])
        for i in range(count)
    ]


def measure(scheduler: str, replicas: int, turns: int) -> Point:
    """Run it in a fresh process."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(_measure, (scheduler, replicas, turns))


def _measure(scheduler: str, replicas: int, turns: int) -> Point:
    cluster = cluster_of(replicas)
    started = STARTED_PER_REPLICA * replicas
    sessions = crowd(started, turns)
    defaults: dict[str, Any] = {**engine_defaults(cluster)}
    watch = Watch()
    with tempfile.TemporaryDirectory() as folder:
        cell = CellId(WORKLOAD, scheduler, started, 0)
        with CellWriter(Path(folder), cell, "simulated") as writer:
            outcome = simulate(
                sessions,
                workers=started,
                scheduler=timed(find(scheduler), watch)(),
                cluster=cluster,
                settings=SimSettings(
                    sampling_interval_s=SAMPLING_S,
                    start_spread_s=SPREAD_S,
                    record_decisions=False,
                ),
                engine=EngineParams(**defaults),
                recorder=writer,
            )
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
    return Point(
        scheduler,
        replicas,
        watch.most_open,
        sum(len(session.turns) for session in sessions),
        watch.count,
        watch.ns / watch.count / 1e3,
        outcome.timing["cpu_s"],
        peak,
    )


def table(points: Sequence[Point]) -> list[str]:
    lines = [
        "| scheduler | replicas | live sessions | turns | us a decision | CPU s | us a turn | GB |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    lines += [
        f"| {p.scheduler} | {p.replicas:,} | {p.sessions:,} | {p.turns:,} | {p.decision_us:.1f} "
        f"| {p.cpu_s:.0f} | {1e6 * p.cpu_s / p.turns:.0f} | {p.peak_gb:.2f} |"
        for p in points
    ]
    return lines


def missed(points: Sequence[Point]) -> list[str]:
    """What is outside the goals."""
    return [
        f"{p.scheduler}: {p.decision_us:.0f} us a decision with {p.replicas:,} replicas"
        for p in points
        if p.decision_us >= GOAL_US
    ] + [
        f"{p.scheduler}: {p.peak_gb:.1f} GB with {p.replicas:,} replicas"
        for p in points
        if p.peak_gb >= GOAL_GB
    ]


def plot(points: Sequence[Point], path: Path) -> None:
    """Time of a decision and of a turn, and memory, over replicas."""
    from results.drawing import legend_below, looks, new_axes

    names = list(dict.fromkeys(p.scheduler for p in points))
    figure, axes = new_axes(1, 3, 3.2)
    styles = looks(names)
    panels = (
        ("CPU time of a decision (us)", [p.decision_us for p in points], GOAL_US),
        ("CPU time of a turn (us)", [1e6 * p.cpu_s / p.turns for p in points], None),
        ("memory (GB)", [p.peak_gb for p in points], GOAL_GB),
    )
    for axis, (title, values, goal) in zip(axes[0], panels, strict=True):
        for name in names:
            mine = [
                (p.replicas, v) for p, v in zip(points, values, strict=True) if name == p.scheduler
            ]
            axis.plot(
                *zip(*mine, strict=True), marker="o", ms=3.5, color=styles[name].colour, label=name
            )
        axis.set(xscale="log", yscale="log", xlabel="replicas", title=title)
        if goal is not None:
            axis.axhline(goal, color="0.5", ls="--", lw=1)
    legend_below(figure, axes[0, 0], min(len(names), 5))
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedulers", nargs="*", default=DEFAULT)
    parser.add_argument("--replicas", nargs="*", type=int, default=[10, 100, 1000])
    parser.add_argument("--turns", type=int, default=4, help="first turns of each session")
    parser.add_argument("-o", "--out", type=Path, help="figures as JSON; adds to what is there")
    parser.add_argument("--plot", type=Path, help="path of the figure, without its ending")
    given = parser.parse_args(arguments)
    known = given.out is not None and given.out.exists()
    points = [Point(**row) for row in json.loads(given.out.read_text("utf-8"))] if known else []
    have = {(p.scheduler, p.replicas) for p in points}
    for name in given.schedulers:
        for replicas in given.replicas:
            if (name, replicas) in have:
                continue
            points.append(measure(name, replicas, given.turns))
            print(table(points[-1:])[-1], flush=True)
            if given.out is not None:
                given.out.write_text(json.dumps([asdict(p) for p in points], indent=1) + "\n")
    print("\n".join(table(points)))
    print("\n".join(missed(points) or ["all within the goals"]))
    if given.plot is not None:
        plot(points, given.plot)
    raise SystemExit(3 if missed(points) else 0)


if __name__ == "__main__":
    main()
