"""What a report shows of one workload and worker count."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import pandas as pd

from results import plots
from results.groups import Group, groups_of
from results.metrics import MAIN
from results.run import Run
from results.tables import MetricTable, table_of
from results.verdicts import Judged, judge

if TYPE_CHECKING:
    from matplotlib.figure import Figure


SIMILAR = " (and similar)"


@dataclass(frozen=True)
class Picture:
    """A figure with the words that go with it."""

    name: str
    """For the file name."""
    caption: str
    figure: Figure


@dataclass
class Section:
    """One table's worth of cells with all that is shown of them."""

    run: Run
    group: Group
    id: str
    """Unique in the report; for anchors and file names."""
    table: MetricTable
    siblings: Sequence[Group]
    """The groups of the same workload at all worker counts."""

    @cached_property
    def judged(self) -> list[Judged]:
        return judge(self.group)

    @cached_property
    def figures(self) -> list[Picture]:
        """Drawn once, whatever formats they are written in."""
        return list(self._pictures())

    @cached_property
    def errors(self) -> list[tuple[str, str, str, int]]:
        """Scheduler, status, message and how often, of turns that were not served.

        Messages that differ in their numbers alone are counted together, under the first of them.
        """
        turns = self.turns
        bad = turns[turns["status"] != "ok"].fillna({"error": ""})
        alike: dict[tuple[str, str, str], list[str]] = {}
        for scheduler, status, error in zip(
            bad["scheduler"], bad["status"], bad["error"], strict=True
        ):
            alike.setdefault((scheduler, status, re.sub(r"\d+", "#", error)), []).append(error)
        return [
            (scheduler, status, errors[0] + (SIMILAR if len(set(errors)) > 1 else ""), len(errors))
            for (scheduler, status, _), errors in alike.items()
        ]

    @cached_property
    def turns(self) -> pd.DataFrame:
        return self._records("turns")

    @cached_property
    def sessions(self) -> pd.DataFrame:
        return self._records("sessions")

    def _records(self, kind: str) -> pd.DataFrame:
        return self.run.records(kind, set(self.group.cells["cell"]))

    def release(self) -> None:
        """Forgets the records, which for a large run are far larger than what is made of them."""
        self.__dict__.pop("turns", None)
        self.__dict__.pop("sessions", None)

    def _pictures(self) -> Iterator[Picture]:
        group, label = self.group, self.group.kind
        most = max(group.seeds.values())
        seeds = f"{label}; n = {most} seed{'s' if most > 1 else ''}"
        bars = "Bars: mean over seeds" + (
            "; whiskers: 95 % bootstrap interval." if most > 1 else "."
        )
        yield Picture(
            "metrics",
            f"Main metrics ({seeds}). {bars}",
            plots.main_metrics(group, [metric.tag for metric in self.table.metrics]),
        )
        yield Picture(
            "distributions",
            f"Distribution of task latency over finished tasks and of TTFT over served turns, all "
            f"seeds together ({label}).",
            plots.distributions(group, self.turns, self.sessions),
        )
        yield Picture(
            "pareto",
            f"Decode throughput against p95 TTFT ({seeds}); up and to the left is better.",
            plots.pareto(group),
        )
        yield Picture(
            "prompt-size",
            f"Fairness: mean TTFT by size of the prompt ({label}).",
            plots.by_prompt_size(group, self.turns),
        )
        yield Picture(
            "pauses",
            f"Pauses and moves ({seeds}).",
            plots.main_metrics(group, ["pause_wait_mean", "held_share", "moves_per_session"]),
        )
        for root in group.roots():
            yield Picture(
                f"ablation-{root}",
                f"Variants of {root} against it, in percent, positive is better ({seeds}). {bars}",
                plots.ablation(group, root),
            )
        yield from self._over_time()
        if len(self.siblings) > 1 and group is self.siblings[-1]:
            yield Picture(
                "workers",
                f"{group.workload}: cache hit, task latency and decode throughput against workers "
                f"({label}).",
                plots.against_workers(self.siblings, ["cache_hit", "latency_mean", "decode_tps"]),
            )

    def _over_time(self) -> Iterator[Picture]:
        replicas = self._records("replicas")
        if replicas.empty:
            return
        seed = int(replicas["seed"].min())
        yield Picture(
            "replicas",
            f"Requests (running and waiting) and KV occupancy of each replica over time, seed "
            f"{seed} ({self.group.kind}); long runs as means over equal spans.",
            plots.replicas_over_time(self.group, replicas[replicas["seed"] == seed], seed),
        )


def sections(
    runs: Sequence[Run], tags: Sequence[str] = MAIN, baselines: Sequence[str] | None = None
) -> list[Section]:
    """The finished cells of all runs, one section a workload and worker count."""
    found: list[Section] = []
    for run in runs:
        groups = groups_of(run, baselines)
        for group in groups:
            siblings = [other for other in groups if other.workload == group.workload]
            name = f"t{len(found) + 1}"
            table = table_of(group, tags, named=len(runs) > 1)
            found.append(Section(run, group, name, table, siblings))
    return found
