"""Where a replay's records go: a cell of a run directory, or nowhere."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import agentsched
from harness.live.replay import ReplaySettings
from harness.live.replay_run import ReplaySummary
from harness.sim.driver import Recorder
from results.cells import CellId
from results.records import (
    DecisionRecord,
    Label,
    ReplicaRecord,
    SessionRecord,
    TurnRecord,
)
from results.store import RunStore
from results.writer import CellWriter


class _Nowhere:
    def turn(self, record: TurnRecord) -> None: ...
    def session(self, record: SessionRecord) -> None: ...
    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


@dataclass(frozen=True, slots=True)
class Kept:
    """A recorder, and what closes its cell."""

    recorder: Recorder
    writer: CellWriter | None = None

    def finish(self, summary: ReplaySummary) -> None:
        """The replay ended well."""
        if self.writer is None:
            return
        counters = {
            "client.peak_in_flight": float(summary.peak_in_flight),
            "client.wrong_length": float(summary.wrong_length),
        }
        facts: dict[str, Any] = {"cache_source": "engine usage"}
        self.writer.finish(summary.makespan_ns, counters, facts, summary.timing)


@contextmanager
def unstored() -> Iterator[Kept]:
    yield Kept(_Nowhere())


@contextmanager
def stored(
    out: Path,
    workload: str,
    arm: str,
    workers: int,
    seed: int,
    label: str,
    settings: ReplaySettings,
) -> Iterator[Kept]:
    """A cell in the run directory `out`; arms of one setting may share a directory.

    Raises:
        RunDirectoryError: the folder cannot be used, or is another run's.
    """
    cell = CellId(Path(workload).name, arm, workers, seed)
    spec = {"replay": workload, "workers": workers, "gaps": settings.gaps}
    manifest = {
        "label": label,
        "spec": {**spec, "gap_scale": settings.gap_scale, "agentsched": agentsched.__version__},
        "replay": asdict(settings),
        "host": {"system": platform.system(), "machine": platform.machine()},
    }
    with (
        RunStore.open(out, f"replay: {workload}\n", manifest) as store,
        CellWriter(store.path, cell, cast(Label, label)) as writer,
    ):
        yield Kept(writer, writer)
