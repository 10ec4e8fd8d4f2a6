"""The cells of one workload and worker count, compared scheduler by scheduler."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import pandas as pd

from agentsched import UsageError
from results import published
from results.cells import load_words
from results.metrics import BY_TAG, Metric
from results.records import Label
from results.run import Run
from results.statistics import (
    Difference,
    Estimate,
    best_of,
    bootstrap_generator,
    difference,
    estimate,
    rivals,
    values_of,
)


@dataclass(frozen=True, slots=True)
class Figure:
    """What a table shows of one scheduler and metric; None where it is unknown."""

    estimate: Estimate | None
    difference: Difference | None
    best: bool


NOTHING = Figure(None, None, False)


@dataclass
class Group:
    """One table's worth of cells.

    Args:
        cells: finished cells, as `Run.cells`.
        schedulers: those with a finished cell, in the order of the plan.
        unfinished: what is missing, one line a cell.
        facts: of the first finished cell.
        setting: what the manifest says of the workload.
        labels: of the arms whose figures are not `label`, such as external routers.
        invalid: cells whose figures must not be used, and why, one line each.
        baselines: compared against these alone; None: against all others but own variants.
    """

    run: str
    label: Label
    workload: str
    workers: int
    cells: pd.DataFrame
    schedulers: tuple[str, ...]
    unfinished: tuple[str, ...]
    facts: Mapping[str, Any]
    setting: Mapping[str, Any]
    baselines: tuple[str, ...] | None = None
    labels: Mapping[str, Label] = field(default_factory=dict)
    invalid: tuple[str, ...] = ()
    _figures: dict[str, dict[str, Figure]] = field(default_factory=dict)

    def figures(self, tag: str) -> Mapping[str, Figure]:
        """Scheduler -> figure of one metric.

        Raises:
            UsageError: no such metric.
        """
        if tag not in self._figures:
            self._figures[tag] = self._compare(metric_named(tag))
        return self._figures[tag]

    def _compare(self, metric: Metric) -> dict[str, Figure]:
        values = values_of(self.cells, metric)
        # A new generator for each, so that a figure does not depend on which others are asked for.
        estimates = {
            name: estimate(list(seeds.values()), bootstrap_generator())
            for name, seeds in values.items()
        }
        best = best_of(estimates, metric.better)
        return {
            name: Figure(
                estimates.get(name),
                difference(values, name, self.rivals(name), metric.better, bootstrap_generator()),
                name in best,
            )
            for name in self.schedulers
        }

    def label_of(self, scheduler: str) -> Label:
        return self.labels.get(scheduler, self.label)

    def invalid_of(self, scheduler: str) -> list[str]:
        return [why for why in self.invalid if why.startswith(f"{scheduler}, seed ")]

    @property
    def kind(self) -> str:
        """What the figures are, in words: `measured`, `measured; vllm-router external`."""
        others: dict[str, list[str]] = {}
        for name in self.schedulers:
            if self.label_of(name) != self.label:
                others.setdefault(self.label_of(name), []).append(name)
        parts = [f"{', '.join(names)} {label}" for label, names in others.items()]
        return "; ".join([self.label, *parts])

    @property
    def title(self) -> str:
        """Workload and load: `swe-bench-mini, 96 workers`."""
        return f"{self.workload}, {load_words(self.workers)}"

    def roots(self) -> list[str]:
        """Schedulers that stand beside variants of their own, such as `tao` and `tao-no-cache`."""
        return [name for name in self.schedulers if self.variants(name)]

    def variants(self, root: str) -> list[str]:
        return [name for name in self.schedulers if name.startswith(f"{root}-")]

    def rivals(self, scheduler: str) -> list[str]:
        if self.baselines is not None:
            return [name for name in self.baselines if name != scheduler]
        return rivals(scheduler, self.schedulers) or self._whole(scheduler)

    def _whole(self, scheduler: str) -> list[str]:
        """What a variant is held against where there is nothing but variants of one scheduler."""
        return [root for root in self.roots() if scheduler in self.variants(root)]

    @property
    def against(self) -> str:
        """What the differences are against, in words."""
        if self.baselines is not None:
            return f"the best of {', '.join(self.baselines)}"
        if any(rivals(name, self.schedulers) for name in self.schedulers):
            return "the best of the other schedulers (own variants aside)"
        return ", ".join(self.roots())

    @cached_property
    def seeds(self) -> Mapping[str, int]:
        """Finished seeds of each scheduler."""
        counts = self.cells["scheduler"].value_counts()
        return {name: int(counts[name]) for name in self.schedulers}

    @cached_property
    def claims(self) -> Sequence[published.Claim]:
        """Published figures that belong beside this table."""
        return published.beside(
            model=str(self.facts.get("model", "")),
            topology=str(self.facts.get("topology", "")),
            workload=self.setting.get("published_as") or self.workload,
            workers=self.workers,
            schedulers=self.schedulers,
        )


def metric_named(tag: str) -> Metric:
    """Raises UsageError if there is none of this name."""
    if tag not in BY_TAG:
        raise UsageError(f"no metric is called `{tag}`", "docs/metrics.md lists them all")
    return BY_TAG[tag]


def groups_of(run: Run, baselines: Sequence[str] | None = None) -> list[Group]:
    """One group a workload and worker count, in the order of the plan; empty ones left out.

    Raises:
        UsageError: a baseline that the run does not hold.
    """
    cells = run.cells
    known = [] if cells.empty else list(dict.fromkeys(cells["scheduler"]))
    for name in baselines or ():
        if name not in known:
            raise UsageError(
                f"the run has no scheduler `{name}` to compare with", f"it has: {', '.join(known)}"
            )
    groups = []
    for key in dict.fromkeys((s.cell.workload, s.cell.workers) for s in run.states):
        states = [s for s in run.states if (s.cell.workload, s.cell.workers) == key]
        done = [s.cell for s in states if s.status == "done"]
        if not done:
            continue
        names = {cell.name for cell in done}
        summaries = {cell: run.summaries[cell] for cell in done}
        groups.append(
            Group(
                run=run.name,
                label=run.label,
                workload=key[0],
                workers=key[1],
                cells=cells[cells["cell"].isin(names)],
                schedulers=tuple(dict.fromkeys(cell.scheduler for cell in done)),
                unfinished=tuple(
                    _missing(s.cell.scheduler, s.cell.seed, s.status, s.error)
                    for s in states
                    if s.status != "done"
                ),
                facts=run.summaries[done[0]]["facts"],
                setting=run.manifest.get("workloads", {}).get(key[0], {}),
                baselines=None if baselines is None else tuple(baselines),
                labels={
                    cell.scheduler: label
                    for cell, summary in summaries.items()
                    if (label := summary.get("label", run.label)) != run.label
                },
                invalid=tuple(
                    f"{cell.scheduler}, seed {cell.seed}: {summary['facts']['invalid']}"
                    for cell, summary in summaries.items()
                    if summary["facts"].get("invalid")
                ),
            )
        )
    return groups


def _missing(scheduler: str, seed: int, status: str, error: str | None) -> str:
    return f"{scheduler}, seed {seed}: {status}" + (f" ({error})" if error else "")
