"""What a Ray worker does with a cell: plays it as a local run would, and sends what it writes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from agentsched import AgentschedError
from harness.cells import CellFailure, CellJob
from harness.plan import code_digest
from harness.scratch import Scratch
from results.writer import LOGS

SEND_S = 0.5
"""How often new lines are sent, so that they reach the run folder within about a second."""

LOG_NAMES = tuple(name for name, _ in LOGS.values())


@dataclass(frozen=True, slots=True)
class Done:
    """A cell that has ended: its outcome and its whole folder."""

    outcome: dict[str, Any] | CellFailure
    files: Mapping[str, bytes]


def play(
    job: CellJob,
    inputs: Mapping[str, bytes],
    digest: str,
    send: Callable[[tuple[Any, ...]], object],
) -> Done:
    """Play a cell in a process of its own, in a temporary folder of this machine.

    Args:
        inputs: content of the user's files that the job names, by their path.
        digest: of the code that the run was planned with.
        send: is given ("lines", file, offset, bytes) and ("progress", sessions, turns).

    Raises:
        AgentschedError: this machine's code is not that of the run.
    """
    from harness.pool import run_cells

    mine = code_digest(live=job.live is not None)
    if mine != digest:
        raise AgentschedError(
            f"a node of the Ray cluster has other code ({mine}) than this run ({digest})",
            "install the same version of agentsched on every node",
        )
    with Scratch("cell") as root:
        folder = root / "run" / "cells" / job.cell.name

        def on_progress(_: CellJob, sessions: int, turns: int) -> None:
            send(("progress", sessions, turns))

        outcomes: list[dict[str, Any] | CellFailure] = []
        with _Tail(folder, send):
            run_cells(
                [_moved(job, inputs, root)],
                parallel=1,
                on_progress=on_progress,
                on_end=lambda _, outcome: outcomes.append(outcome),
            )
        found = sorted(folder.iterdir()) if folder.is_dir() else []
        return Done(outcomes[0], {f.name: f.read_bytes() for f in found if f.is_file()})


def _moved(job: CellJob, inputs: Mapping[str, bytes], root: Path) -> CellJob:
    """The job with its folder and files on this machine."""
    places: dict[str, str] = {}
    for number, (path, content) in enumerate(inputs.items()):
        place = root / f"input{number}" / Path(path).name
        place.parent.mkdir()
        place.write_bytes(content)
        places[path] = str(place)
    target = job.target
    file, colon, name = target.rpartition(":")
    if colon and file in places:
        target = f"{places[file]}:{name}"
    workload = places.get(job.workload, job.workload)
    (root / "run").mkdir()
    return replace(job, run=root / "run", workload=workload, target=target)


class _Tail:
    """Sends what is appended to the logs of a cell, in a thread."""

    def __init__(self, folder: Path, send: Callable[[tuple[Any, ...]], object]) -> None:
        self._folder, self._send = folder, send
        self._sent = dict.fromkeys(LOG_NAMES, 0)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(SEND_S):
            for name, offset in self._sent.items():
                try:
                    with (self._folder / name).open("rb") as log:
                        log.seek(offset)
                        new = log.read()
                except OSError:  # not there yet, or packed away at the end of the cell
                    continue
                if new:
                    self._send(("lines", name, offset, new))
                    self._sent[name] = offset + len(new)
