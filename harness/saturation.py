"""Saturation: the most workers under which a scheduler still meets an objective.

The number is found by bisection between the smallest and the largest that the specification
names, so it takes the objective to be met up to some number and missed above it. Each probe is a
run folder of its own; the same search again continues where it stopped.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING

from agentsched import UsageError
from harness.experiment import Watcher, execute
from harness.plan import plan
from harness.spec import RunSpec, load_spec
from results.store import load_run

if TYPE_CHECKING:
    from harness.overrides import Flags

_GOAL = re.compile(r"\s*([a-z0-9_.-]+)\s*(<=|>=)\s*([0-9.eE+-]+)\s*")


@dataclass(frozen=True, slots=True)
class Goal:
    """An objective: a metric (by tag, in its own unit) and its bound."""

    tag: str
    most: bool
    """The metric must not be above the bound, else not below."""
    bound: float
    unit: str

    def met(self, value: float | None) -> bool:
        """Whether a value meets it; one that is not known does not."""
        return value is not None and (value <= self.bound if self.most else value >= self.bound)

    def __str__(self) -> str:
        return f"{self.tag} {'<=' if self.most else '>='} {self.bound:g} {self.unit}"


def parse_goal(text: str, units: Mapping[str, str]) -> Goal:
    """The goal in `ttft.p95<=2` (or `ttft_p95<=2`).

    Args:
        units: every metric's unit by its tag.

    Raises:
        UsageError: not of that form, or no such metric.
    """
    found = _GOAL.fullmatch(text)
    if found is None:
        raise UsageError(f"`{text}` is no objective", "write it as ttft.p95<=2 or decode_tps>=900")
    tag, sign, bound = found.groups()
    tag = tag.replace(".", "_").replace("-", "_")
    if tag not in units:
        near = ", ".join(t for t in units if t.startswith(tag.split("_")[0])) or "ttft_p95"
        raise UsageError(f"no metric `{tag}`", f"for example: {near}")
    try:
        return Goal(tag, sign == "<=", float(bound), units[tag])
    except ValueError:
        raise UsageError(f"`{bound}` is no number", "write it as ttft.p95<=2") from None


@dataclass(frozen=True, slots=True)
class Probe:
    """One load that was tried: the metric's mean over seeds."""

    workers: int
    value: float | None
    met: bool
    why_not: str | None = None


@dataclass(frozen=True, slots=True)
class Saturation:
    """What was found for a scheduler; `workers` is None where the smallest load is too much."""

    scheduler: str
    workers: int | None
    probes: tuple[Probe, ...]
    """In the order tried."""


def bisect(low: int, high: int, probe: Callable[[int], Probe]) -> tuple[int | None, list[Probe]]:
    """The largest number in low..high whose probe meets its goal, and all probes made."""
    made = [probe(high)]
    if made[0].met:
        return high, made
    if low < high:
        made.append(probe(low))
    if not made[-1].met:
        return None, made
    while high - low > 1:
        middle = (low + high) // 2
        made.append(probe(middle))
        if made[-1].met:
            low = middle
        else:
            high = middle
    return low, made


def saturate(
    preset_or_path: str | Path | None,
    flags: Flags,
    goal: Goal,
    folder: Path,
    *,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    done: Callable[[Saturation], None] = lambda found: None,
) -> list[Saturation]:
    """Search for every scheduler of a specification with one workload.

    Args:
        folder: gets a run folder SCHEDULER/wN for each probe.
        done: told each scheduler's result as it is found.

    Raises:
        UsageError: the specification is wrong, or has several workloads.
        AgentschedError: a cell failed.
    """
    spec = load_spec(preset_or_path, flags)
    if len(spec.workloads) != 1 or spec.workloads[0].arrivals is not None:
        raise UsageError(
            "a saturation search needs one workload that workers take up",
            "pick one with --workload, and give its smallest and largest load with --workers",
        )
    loads = spec.workloads[0].workers
    low, high = (1, loads[0]) if len(loads) == 1 else (min(loads), max(loads))
    found = []
    for target in spec.schedulers:

        def probe(workers: int, target: str = target) -> Probe:
            wanted = replace(flags, schedulers=[target], workers=[workers])
            one = load_spec(preset_or_path, wanted)
            return _probe(one, workers, goal, folder, jobs, watcher)

        workers, probes = bisect(low, high, probe)
        name = target.rpartition(":")[2]
        found.append(Saturation(name, workers, tuple(probes)))
        done(found[-1])
    return found


def _probe(
    spec: RunSpec,
    workers: int,
    goal: Goal,
    folder: Path,
    jobs: int | None,
    watcher: Watcher | None,
) -> Probe:
    planned = plan(spec)
    result = execute(
        planned, folder / planned.arms[0].name / f"w{workers}", jobs=jobs, watcher=watcher
    )
    if result.failures:
        result.check()
    if result.invalid:
        return Probe(workers, None, met=False, why_not=next(iter(result.invalid.values())))
    known = [
        float(value)
        for summary in load_run(result.path).summaries.values()
        if (value := summary["metrics"][goal.tag]["value"]) is not None
    ]
    value = fmean(known) if known else None
    return Probe(workers, value, goal.met(value))
