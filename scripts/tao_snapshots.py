"""Planning snapshots of TAO: recorded from simulated runs, kept as JSON lines, read back.

    python -m scripts.tao_snapshots record

plays the settings in which TAO was evaluated (Qwen3-32B on 4 replicas of 2xH100) and keeps an even
sample of what its planner was asked. `scripts/tao_solver_study.py` studies them.

One snapshot a line: `workload`, `workers`, `now` (ns), `room` (tokens left on each replica) and
`candidates`, each [tokens, credits per replica, ready, footprint, queue class, queued tokens].
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from schedulers.commands import Command, Solve
from schedulers.events import Event
from schedulers.tao import Tao
from schedulers.tao_config import TaoConfig
from schedulers.tao_plan import Candidate, PlanSettings, Snapshot
from schedulers.views import ClusterView

DATA = Path(__file__).parent / "data" / "tao_snapshots.jsonl.gz"
LOADS = (
    ("swe-bench-mini", "96,128,160", 240),
    ("swe-bench-mini-short", "128,160", 240),
    ("automationbench", "128", 300),
)
"""(workload, workers, sessions)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingConfig(TaoConfig):
    into: str = "."
    """Folder to write the snapshots to."""


class RecordingTao(Tao):
    """TAO that keeps what it asks its planner, and writes it down when the run ends."""

    name = "tao-recording"
    Config = RecordingConfig
    config: RecordingConfig

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._asked: list[Snapshot] = []

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        for command in super().on_event(event, cluster):
            if isinstance(command, Solve):
                self._asked.append(command.snapshot)
            yield command

    def counters(self) -> dict[str, float]:
        path = Path(self.config.into) / f"{os.getpid()}-{id(self)}.jsonl"
        path.write_text("".join(json.dumps(as_row(one)) + "\n" for one in self._asked))
        return super().counters()


def as_row(snapshot: Snapshot) -> dict[str, Any]:
    """A snapshot without names and settings."""
    return {
        "now": snapshot.now,
        "room": list(snapshot.room),
        "candidates": [
            [c.tokens, list(c.credits), c.ready, c.footprint, c.queue_class, c.queued_tokens]
            for c in snapshot.candidates
        ],
    }


def from_row(row: dict[str, Any], settings: PlanSettings) -> Snapshot:
    """The snapshot of a row, under other settings."""
    return Snapshot(
        now=row["now"],
        replicas=tuple(f"r{n}" for n in range(len(row["room"]))),
        room=tuple(row["room"]),
        candidates=tuple(
            Candidate(f"s{i}", tokens, tuple(credits), ready, footprint, cls, queued)
            for i, (tokens, credits, ready, footprint, cls, queued) in enumerate(row["candidates"])
        ),
        settings=settings,
    )


def read(path: Path = DATA) -> list[dict[str, Any]]:
    """All rows of a file."""
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def record(loads: Iterable[tuple[str, str, int]], per_cell: int) -> Iterator[dict[str, Any]]:
    """Simulate each load under TAO; at most `per_cell` snapshots of each, evenly spaced."""
    from harness.experiment import run
    from harness.overrides import Flags
    from harness.spec import load_spec

    for workload, workers, sessions in loads:
        for one in workers.split(","):
            with tempfile.TemporaryDirectory() as folder:
                flags = Flags(
                    schedulers=[f"{Path(__file__)}:RecordingTao"],
                    workloads=[workload],
                    workers=[int(one)],
                    seeds=1,
                    assignments=[
                        f"workloads.0.sessions={sessions}",
                        f"scheduler_settings.tao-recording.into={folder}",
                    ],
                )
                run(load_spec("quickstart", flags), out=Path(folder) / "run", jobs=1).check()
                rows = [
                    json.loads(line)
                    for path in sorted(Path(folder).glob("*.jsonl"))
                    for line in path.read_text().splitlines()
                ]
            step = max(1, -(-len(rows) // per_cell))
            for row in rows[::step]:
                yield {"workload": workload, "workers": int(one), **row}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("action", choices=["record"])
    parser.add_argument("--into", type=Path, default=DATA)
    parser.add_argument("--per-cell", type=int, default=300)
    options = parser.parse_args()
    rows = list(record(LOADS, options.per_cell))
    options.into.parent.mkdir(parents=True, exist_ok=True)
    # A fixed time in the header: the same snapshots give the same file.
    with gzip.GzipFile(options.into, "wb", mtime=0) as out:
        for row in rows:
            out.write((json.dumps(row, separators=(",", ":")) + "\n").encode())
    print(f"{len(rows)} snapshots in {options.into}")


if __name__ == "__main__":
    main()
