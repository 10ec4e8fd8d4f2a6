"""How fast the simulator is: against Dynamo's replay, and on a fixed profile.

    python scripts/bench_sim.py [--install] [--repeats 3] [-o results.json] [--page PAGE.md]

All figures are CPU time (user and system) of one core. Ratios are taken within one run, both sides
alternating, medians of the repeats. Dynamo's time of starting is measured and subtracted; ours is
the simulation alone.
"""

from __future__ import annotations

import argparse
import json
import platform
import tempfile
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from harness.capacity import resolve_cluster
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from harness.validation.dynamo_replay import (
    HOW_TO,
    DynamoReplay,
    LinearTiming,
    find_python,
    install,
)
from harness.validation.multi_turn import Shape, arriving, generate, write_mooncake
from harness.validation.ours import play
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from schedulers.registry import create
from workloads.catalog import load_workload
from workloads.model import Session

MODEL, TOPOLOGY, WORKLOAD = "qwen3-32b", "4x2xh100", "swe-bench-mini"
SESSIONS, WORKERS = 500, 160
REPLICAS = 4
GOALS = {"smetric": 1000.0, "tao": 500.0}
RATIO_GOAL = 20.0


@dataclass(frozen=True, slots=True)
class Trace:
    """One trace for both simulators, and the KV blocks of 16 tokens that a replica has."""

    name: str
    sessions: list[Session]
    kv_blocks: int

    @property
    def turns(self) -> int:
        return sum(len(session.turns) for session in self.sessions)


@dataclass(frozen=True, slots=True)
class Duel:
    """Both simulators on one trace: medians of CPU seconds, and simulated seconds over them."""

    trace: str
    turns: int
    tokens: int
    routing: str
    makespan_s: float
    their_makespan_s: float
    cpu_s: float
    their_cpu_s: float
    ratios: tuple[float, ...]

    @property
    def ratio(self) -> float:
        return median(self.ratios)


@dataclass(frozen=True, slots=True)
class Speed:
    """One scheduler on the fixed profile; medians."""

    scheduler: str
    turns: int
    steps: int
    prompt_tokens: int
    output_tokens: int
    makespan_s: float
    cpu_s: float
    planner_s: float

    @property
    def real_time(self) -> float:
        """Simulated seconds a CPU second, planner left out."""
        return self.makespan_s / (self.cpu_s - self.planner_s)


class Totals:
    """A recorder that counts."""

    def __init__(self) -> None:
        self.turns = self.prompt_tokens = self.output_tokens = 0

    def turn(self, record: TurnRecord) -> None:
        self.turns += 1
        self.prompt_tokens += record.prompt_tokens
        self.output_tokens += record.output_tokens

    def session(self, record: SessionRecord) -> None: ...
    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


def traces(sessions: int) -> list[Trace]:
    """An agent workload that ships, and a generated one of short turns."""
    agents = load_workload(WORKLOAD, sessions=sessions, seed=0)
    short = Shape(128, 20, 60.0, 1000, (1000, 1000), (200, 200), (1.0, 1.0))
    cluster = resolve_cluster(MODEL, TOPOLOGY)
    return [
        Trace(WORKLOAD, arriving(agents, 2.0 * sessions), cluster.replicas[0].kv_blocks),
        Trace("short turns", generate(short, 1), 30_000),
    ]


def duels(python: Path, repeats: int, sessions: int) -> list[Duel]:
    """Both simulators on each trace, alternating."""
    timing = LinearTiming()
    found = []
    with tempfile.TemporaryDirectory() as folder:
        theirs = DynamoReplay(python, Path(folder), timing)
        one = Path(folder) / "one.jsonl"
        write_mooncake(generate(Shape(1, 1, 0.0), 1), one)
        for trace in traces(sessions):
            file = Path(folder) / "trace.jsonl"
            write_mooncake(trace.sessions, file)
            blocks = trace.kv_blocks
            runs = []
            for _ in range(repeats):
                start = theirs.replay(one, replicas=REPLICAS, kv_blocks=blocks).cpu_s
                ours, _ = play(trace.sessions, timing, replicas=REPLICAS, kv_blocks=blocks)
                other = theirs.replay(file, replicas=REPLICAS, kv_blocks=blocks)
                runs.append((ours, other, other.cpu_s - start))
            ours, other, _ = runs[0]
            found.append(
                Duel(
                    trace=trace.name,
                    turns=ours.requests,
                    tokens=sum(t.prompt_tokens for s in trace.sessions for t in s.turns),
                    routing="round robin",
                    makespan_s=ours.makespan_s,
                    their_makespan_s=other.makespan_s,
                    cpu_s=median(mine.cpu_s for mine, _, _ in runs),
                    their_cpu_s=median(cpu for _, _, cpu in runs),
                    ratios=tuple(
                        (mine.makespan_s / mine.cpu_s) / (their.makespan_s / cpu)
                        for mine, their, cpu in runs
                    ),
                )
            )
    return found


def profile(scheduler: str, repeats: int) -> Speed:
    """The fixed profile: Qwen3-32B on 4x2xh100, 160 workers, 500 generated SWE-bench agents."""
    cluster = resolve_cluster(MODEL, TOPOLOGY)
    defaults: dict[str, Any] = {**engine_defaults(cluster)}
    runs = []
    for _ in range(repeats):
        totals = Totals()
        outcome = simulate(
            load_workload(WORKLOAD, sessions=SESSIONS, seed=0),
            workers=WORKERS,
            scheduler=create(scheduler),
            cluster=cluster,
            settings=SimSettings(),
            engine=EngineParams(**defaults),
            recorder=totals,
        )
        runs.append(outcome)
    steps = outcome.counters["engine.steps"]
    return Speed(
        scheduler=scheduler,
        turns=totals.turns,
        steps=round(steps),
        prompt_tokens=totals.prompt_tokens,
        output_tokens=totals.output_tokens,
        makespan_s=outcome.makespan_ns / 1e9,
        cpu_s=median(run.timing["cpu_s"] for run in runs),
        planner_s=median(run.timing["planner_cpu_s"] for run in runs),
    )


def duel_lines(found: Sequence[Duel]) -> list[str]:
    lines = [
        "| trace | turns | prompt tokens | simulated s (ours, theirs) | CPU s (ours, theirs) "
        "| simulated s a CPU s (ours, theirs) | ratio |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    for duel in found:
        spread = f"{min(duel.ratios):.0f} to {max(duel.ratios):.0f}"
        lines.append(
            f"| {duel.trace} | {duel.turns:,} | {duel.tokens:,} "
            f"| {duel.makespan_s:,.0f}, {duel.their_makespan_s:,.0f} "
            f"| {duel.cpu_s:.2f}, {duel.their_cpu_s:.2f} "
            f"| {duel.makespan_s / duel.cpu_s:,.0f}, "
            f"{duel.their_makespan_s / duel.their_cpu_s:,.0f} "
            f"| **{duel.ratio:.0f}** ({spread}) |"
        )
    return lines


def profile_lines(found: Sequence[Speed]) -> list[str]:
    lines = [
        "| scheduler | simulated s | CPU s | planner s | x real time, planner apart | goal "
        "| turns a CPU s | engine steps a CPU s |",
        "|---|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for speed in found:
        own = speed.cpu_s - speed.planner_s
        goal = GOALS.get(speed.scheduler)
        lines.append(
            f"| {speed.scheduler} | {speed.makespan_s:,.0f} | {speed.cpu_s:.2f} "
            f"| {speed.planner_s:.2f} | {speed.real_time:,.0f} | {goal or '-'} "
            f"| {speed.turns / own:,.0f} | {speed.steps / own:,.0f} |"
        )
    return lines


def page(duelled: Sequence[Duel], skipped: str | None, speeds: Sequence[Speed]) -> str:
    """The report, as it is printed and written."""
    first = speeds[0]
    lines = [
        "# Speed of the simulator",
        "",
        "Made by `make bench-sim`; do not edit. CPU time of one core, medians; figures of one "
        f"machine ({platform.machine()}, Python {platform.python_version()}), which others may "
        "have been using: ratios hold, absolute figures are low rather than high.",
        "",
        "## Against NVIDIA's Dynamo replay",
        "",
        "`ai-dynamo` 1.3.1, offline, logging off, round-robin routing, against our simulator under "
        "`round-robin`: the same multi-turn traces, block size 16, 4 replicas, the same linear "
        "step times. Its start (measured each time) is subtracted. Goal: "
        f"{RATIO_GOAL:.0f} times its simulated seconds a CPU second.",
        "",
        *(duel_lines(duelled) if skipped is None else [f"Not done: {skipped}"]),
        "",
        "## Fixed profile",
        "",
        f"{MODEL} on {TOPOLOGY}, {WORKERS} workers, {SESSIONS} sessions of `{WORKLOAD}` "
        f"({first.turns:,} turns, {first.prompt_tokens:,} prompt and {first.output_tokens:,} "
        "output tokens), prefix cache to the block, step times from tables, control plane and "
        "policy included. How many seconds are simulated depends on the scheduler: turns and "
        "engine steps a CPU second do not.",
        "",
        *profile_lines(speeds),
    ]
    return "\n".join(lines) + "\n"


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--install", action="store_true", help="make .venv-dynamo if needed")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--sessions", type=int, default=30, help="of the trace for Dynamo")
    parser.add_argument("--schedulers", nargs="*", default=["round-robin", "smetric", "tao"])
    parser.add_argument("-o", "--out", type=Path, help="figures as JSON")
    parser.add_argument("--page", type=Path, help="page of the documentation")
    given = parser.parse_args(arguments)
    python = find_python()
    if python is None and given.install:
        python = install()
    skipped = None
    duelled: list[Duel] = []
    if python is None:
        skipped = f"ai-dynamo is not installed; use --install, or `{HOW_TO}`"
    else:
        duelled = duels(python, given.repeats, given.sessions)
    speeds = [profile(name, given.repeats) for name in given.schedulers]
    text = page(duelled, skipped, speeds)
    print(text)
    if given.page is not None:
        # The section on growth is scripts/growth.py's.
        before = given.page.read_text("utf-8") if given.page.is_file() else ""
        _, found, growth = before.partition("\n## Growth\n")
        given.page.write_text(text + found + growth, "utf-8")
    if given.out is not None:
        figures: dict[str, Any] = {
            "dynamo": [asdict(duel) for duel in duelled],
            "profile": [asdict(speed) for speed in speeds],
        }
        given.out.parent.mkdir(parents=True, exist_ok=True)
        given.out.write_text(json.dumps(figures, indent=1) + "\n", "utf-8")


if __name__ == "__main__":
    main()
