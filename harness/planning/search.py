"""The search: for each direction the fewest replicas that meet the objectives, by simulation.

The number of replicas is bisected, which takes more replicas never to make it worse. What costs at
least as much as a plan that was found is not tried. Every probe plays the whole workload once for
each seed, and its figures are means over seeds.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any

from agentsched import UsageError
from harness.cells import Arrivals, CellFailure, CellJob
from harness.experiment import why_invalid
from harness.models import Model
from harness.planning.candidates import SPLITS, TENSOR_PARALLEL, Line
from harness.pool import cores, run_cells
from harness.saturation import Goal
from harness.scratch import Scratch
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.settings import SimSettings
from results.cells import CellId

MAX_FAILED_SHARE = 0.05
"""Of sessions; with more a probe counts as not met. As for runs."""


@dataclass(frozen=True, slots=True)
class Load:
    """What is to be served."""

    workload: str
    """A shipped workload, or the path of a trace."""
    sessions: int | None
    workers: int | None
    """Sessions active at once; None: they arrive by themselves."""
    arrivals: Arrivals | None
    seeds: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Probe:
    """One topology under one scheduler."""

    line: Line
    units: int
    values: Mapping[str, float | None]
    """Of each goal's metric: the mean over seeds."""
    met: bool
    """Every goal, with the margin."""
    why_not: str | None = None

    @property
    def cost(self) -> float:
        return self.line.cost(self.units)


@dataclass(frozen=True, slots=True)
class Found:
    """What a search found."""

    goals: tuple[Goal, ...]
    margin: float
    max_gpus: int
    load: Load
    probes: tuple[Probe, ...]
    refused: tuple[str, ...] = ()
    """What could not be tried, and why."""
    pruned: tuple[Line, ...] = ()
    """Directions whose smallest step costs at least as much as the plan."""

    @property
    def best(self) -> Probe | None:
        """The cheapest that meets all; of equals the one with the most slack."""
        met = [probe for probe in self.probes if probe.met]
        return min(met, key=lambda p: (p.cost, -slack(p, self.goals)), default=None)

    @property
    def frontier(self) -> list[Probe]:
        """Probes that nothing cheaper, or as cheap, beats in the first goal's metric, by cost."""
        goal = self.goals[0]
        sign = 1 if goal.most else -1
        found: list[Probe] = []
        known = [(p, v) for p in self.probes if (v := p.values[goal.tag]) is not None]
        for probe, value in sorted(known, key=lambda pair: (pair[0].cost, sign * pair[1])):
            last = found[-1].values[goal.tag] if found else None
            if last is None or sign * value < sign * last:
                found.append(probe)
        return found

    def not_covered(self) -> list[str]:
        """What the search did not look at, in words."""
        said = [
            "clusters of more than one GPU kind, and prices that depend on the machine or the term",
            f"tensor parallelism other than {', '.join(map(str, TENSOR_PARALLEL))}; data and "
            "expert parallelism",
            "prefill to decode ratios other than "
            + ", ".join(f"{a}:{b}" for a, b in SPLITS)
            + ", each GPU kind in both pools",
            f"more than {self.max_gpus} GPUs",
            "settings of engines and schedulers other than their defaults; power caps",
            "machines' own prices and sizes: a replica may need a whole machine",
            "engines on your hardware: figures are simulated, with the step times that ship",
        ]
        if len(self.load.seeds) < 5:
            said.append(f"chance: {len(self.load.seeds)} seed(s); five or more show its size")
        if self.pruned:
            said.append(
                f"{len(self.pruned)} direction(s) that cost at least as much from the start"
            )
        return said + [f"cannot be had: {why}" for why in self.refused]


def slack(probe: Probe, goals: Sequence[Goal]) -> float:
    """How far the tightest goal is kept, as a share of its bound; negative if missed."""
    parts = []
    for goal in goals:
        value = probe.values[goal.tag]
        if value is None or goal.bound == 0:
            return -1.0
        parts.append((goal.bound - value if goal.most else value - goal.bound) / abs(goal.bound))
    return min(parts)


def met(goal: Goal, value: float | None, margin: float) -> bool:
    """Whether a value keeps a goal by the margin, a share of the bound."""
    room = abs(goal.bound) * margin
    return replace(goal, bound=goal.bound - room if goal.most else goal.bound + room).met(value)


Measure = Callable[[Sequence[tuple[Line, int]]], list[Probe]]


@dataclass(slots=True)
class _Bisection:
    """One direction: `low` units do not meet (0: not known to), `high` do, if `high` was tried."""

    line: Line
    low: int
    high: int
    high_met: bool = False

    def next(self, below: float | None) -> int | None:
        """Units to try next; None: nothing is left that is cheaper than `below`."""
        limit = self.high - 1 if self.high_met else self.high
        while below is not None and limit > self.low and self.line.cost(limit) >= below:
            limit -= 1
        if limit <= self.low:
            return None
        # The smallest first, then twice as many: large ones may never be needed.
        reach = (self.low + self.high) // 2 if self.high_met else max(2 * self.low, 1)
        return min(max(reach, self.low + 1), limit)

    def take(self, probe: Probe) -> None:
        if probe.met:
            self.high, self.high_met = probe.units, True
        else:
            self.low = probe.units


def search(
    lines: Sequence[Line],
    goals: Sequence[Goal],
    load: Load,
    measure: Measure,
    *,
    max_gpus: int,
    margin: float,
    refused: Sequence[str] = (),
    tell: Callable[[Probe], None] = lambda probe: None,
) -> Found:
    """Search all directions side by side.

    Args:
        measure: plays (line, units) pairs; see `Simulated`.
        tell: told each probe as it is made.

    Raises:
        UsageError: nothing can be tried.
    """
    if not lines:
        raise UsageError(
            "the model fits none of the GPUs: " + ("; ".join(refused) or "too few GPUs"),
            "offer larger GPUs, or raise --max-gpus",
        )
    open_ones = [_Bisection(line, 0, max_gpus // line.gpus(1)) for line in lines]
    probes: list[Probe] = []
    tried: set[Line] = set()
    best: float | None = None
    while True:
        wanted = [(one, units) for one in open_ones if (units := one.next(best)) is not None]
        if not wanted:
            break
        # The cheapest first; one batch at a time, so that what it finds spares later ones.
        wanted.sort(key=lambda pair: pair[0].line.cost(pair[1]))
        batch = wanted[: max(1, cores())]
        made = measure([(one.line, units) for one, units in batch])
        for (one, _), probe in zip(batch, made, strict=True):
            one.take(probe)
            tried.add(one.line)
            probes.append(probe)
            tell(probe)
            if probe.met and (best is None or probe.cost < best):
                best = probe.cost
    pruned = tuple(line for line in lines if line not in tried)
    return Found(tuple(goals), margin, max_gpus, load, tuple(probes), tuple(refused), pruned)


@dataclass(slots=True)
class Simulated:
    """Measures by simulation, each cell in a process of its own."""

    model: Model
    goals: Sequence[Goal]
    load: Load
    margin: float
    sim: SimSettings = field(default_factory=lambda: SimSettings(record_decisions=False))

    def __call__(self, wanted: Sequence[tuple[Line, int]]) -> list[Probe]:
        with Scratch("plan") as folder:
            jobs = {
                (index, seed): self._job(line, units, seed, folder / str(index))
                for index, (line, units) in enumerate(wanted)
                for seed in self.load.seeds
            }
            places = {(job.run, job.cell): key for key, job in jobs.items()}
            outcomes: dict[tuple[int, int], dict[str, Any] | CellFailure] = {}
            run_cells(
                list(jobs.values()),
                parallel=cores(),
                on_progress=lambda job, sessions, turns: None,
                on_end=lambda job, outcome: outcomes.update({places[job.run, job.cell]: outcome}),
            )
        return [
            self._probe(line, units, [outcomes[index, seed] for seed in self.load.seeds])
            for index, (line, units) in enumerate(wanted)
        ]

    def _job(self, line: Line, units: int, seed: int, run: Path) -> CellJob:
        cluster = line.cluster(self.model, units)
        load = self.load
        defaults: dict[str, Any] = {**engine_defaults(cluster)}
        return CellJob(
            cell=CellId(Path(load.workload).stem, line.scheduler, load.workers or 0, seed),
            run=run,
            workload=load.workload,
            sessions=load.sessions,
            workload_settings={},
            arrivals=load.arrivals,
            target=line.scheduler,
            settings={},
            cluster=cluster,
            engine=EngineParams(**defaults),
            sim=self.sim,
            gateway_share=1.0,
        )

    def _probe(
        self, line: Line, units: int, outcomes: Sequence[dict[str, Any] | CellFailure]
    ) -> Probe:
        nothing: dict[str, float | None] = dict.fromkeys(goal.tag for goal in self.goals)
        values: dict[str, list[float]] = {tag: [] for tag in nothing}
        for outcome in outcomes:
            if isinstance(outcome, CellFailure):
                return Probe(line, units, nothing, met=False, why_not=outcome.message)
            why = why_invalid(outcome, MAX_FAILED_SHARE)
            if why is not None:
                return Probe(line, units, nothing, met=False, why_not=why)
            for tag, known in values.items():
                value = outcome["metrics"][tag]["value"]
                if value is not None:
                    known.append(float(value))
        means = {tag: fmean(known) if known else None for tag, known in values.items()}
        ok = all(met(goal, means[goal.tag], self.margin) for goal in self.goals)
        return Probe(line, units, means, met=ok)
