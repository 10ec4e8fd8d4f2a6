"""What a report shows of one workload and worker count."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
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


@dataclass(frozen=True)
class Picture:
    """A figure with the words that go with it."""

    name: str
    """For the file name."""
    caption: str
    draw: Callable[[], Figure]


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
    def figures(self) -> list[tuple[Picture, Figure]]:
        """Drawn once, whatever formats they are written in."""
        return [(picture, picture.draw()) for picture in self._pictures()]

    @cached_property
    def errors(self) -> list[tuple[str, str, str, int]]:
        """Scheduler, status, message and how often, of turns that were not served."""
        turns = self.rows("turns")
        bad = turns[turns["status"] != "ok"].fillna({"error": ""})
        counts = Counter(zip(bad["scheduler"], bad["status"], bad["error"], strict=True))
        return [(*key, n) for key, n in sorted(counts.items())]

    def rows(self, kind: str) -> pd.DataFrame:
        frame: pd.DataFrame = getattr(self.run, kind)
        return frame[frame["cell"].isin(self.group.cells["cell"])]

    def _pictures(self) -> Iterator[Picture]:
        group, label = self.group, self.group.label
        seeds = f"{label}; n = {max(group.seeds.values())} seeds"
        yield Picture(
            "metrics",
            f"Main metrics ({seeds}). Bars: mean over seeds; whiskers: 95 % bootstrap interval.",
            partial(plots.main_metrics, group, [m.tag for m in self.table.metrics]),
        )
        turns = self.rows("turns")
        yield Picture(
            "distributions",
            f"Distribution of task latency over finished tasks and of TTFT over served turns, all "
            f"seeds together ({label}).",
            partial(plots.distributions, group, turns, self.rows("sessions")),
        )
        yield Picture(
            "pareto",
            f"Decode throughput against p95 TTFT ({seeds}); up and to the left is better.",
            partial(plots.pareto, group),
        )
        yield Picture(
            "prompt-size",
            f"Fairness: mean TTFT by size of the prompt ({label}).",
            partial(plots.by_prompt_size, group, turns),
        )
        waits = ["pause_wait_mean", "held_share", "moves_per_session"]
        yield Picture(
            "pauses",
            f"Pauses and moves ({seeds}).",
            partial(plots.main_metrics, group, waits),
        )
        replicas = self.rows("replicas")
        if len(replicas):
            seed = int(replicas["seed"].min())
            yield Picture(
                "replicas",
                f"Requests (running and waiting) and KV occupancy of each replica over time, seed "
                f"{seed} ({label}).",
                partial(plots.replicas_over_time, group, replicas[replicas["seed"] == seed], seed),
            )
        if len(self.siblings) > 1 and group is self.siblings[-1]:
            yield Picture(
                "workers",
                f"{group.workload}: cache hit, task latency and decode throughput against workers "
                f"({label}).",
                partial(
                    plots.against_workers,
                    self.siblings,
                    ["cache_hit", "latency_mean", "decode_tps"],
                ),
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
            found.append(Section(run, group, name, table_of(group, tags), siblings))
    return found
