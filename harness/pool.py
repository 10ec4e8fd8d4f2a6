"""Runs cells side by side, each in a process of its own.

A cell that crashes its process, or is killed, fails alone; no state passes from one cell to the
next, so results do not depend on how many run at a time.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import sys
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.context import BaseContext
from multiprocessing.process import BaseProcess
from time import monotonic
from types import ModuleType
from typing import Any

from agentsched import AgentschedError
from harness.cells import CellFailure, CellJob, run_cell
from harness.parent import die_with_parent

PRELOADED = (
    "harness.sim.run",
    "pyarrow.parquet",
    "results.frames",
    "results.metrics",
    "schedulers.registry",
    "workloads.catalog",
)
"""Imported once in the server that cells are forked from."""

DRAIN_S = 40.0
"""Longer than a live cell waits for its turns (`harness.live.cell.DRAIN_S`), with its teardown."""

Outcome = dict[str, Any] | CellFailure
"""The summary of a cell that is done, or why it failed."""


@dataclass(frozen=True, slots=True)
class _Running:
    job: CellJob
    process: BaseProcess
    pipe: Connection


def cores() -> int:
    """Cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def run_cells(
    jobs: Sequence[CellJob],
    *,
    parallel: int,
    prepare: Callable[[CellJob], CellJob] = lambda job: job,
    on_progress: Callable[[CellJob, int, int], None],
    on_end: Callable[[CellJob, Outcome], None],
    on_drain: Callable[[int], None] = lambda cells: None,
) -> None:
    """Run all cells, at most `parallel` at a time, starting in order.

    Args:
        prepare: called with each job just before it starts; what it returns is run.
        on_progress: told (job, sessions ended, turns ended).
        on_end: told each cell's outcome as it ends.

        on_drain: told how many cells are given time to let their turns end.

    On KeyboardInterrupt no further cell starts, simulated cells are stopped, and live ones let the
    turns end that are running (`DRAIN_S` at most); a second one stops these too. Cells that ended
    stay done, the others partial.
    """
    context = _context()
    queue, running = deque(jobs), list[_Running]()

    def receive(timeout_s: float | None = None) -> None:
        ready = set(wait([cell.pipe for cell in running], timeout_s))
        for cell in [cell for cell in running if cell.pipe in ready]:
            outcome = _receive(cell, on_progress)
            if outcome is not None:
                running.remove(cell)
                if not (draining and isinstance(outcome, CellFailure)):
                    on_end(cell.job, outcome)

    draining = False
    try:
        while queue or running:
            while queue and len(running) < parallel:
                running.append(_start(context, prepare(queue.popleft())))
            receive()
    except KeyboardInterrupt:
        draining = True
        for cell in [cell for cell in running if cell.job.live is None]:
            _stop(cell)
            running.remove(cell)
        if running:
            on_drain(len(running))
        for cell in running:
            cell.process.terminate()
        until = monotonic() + DRAIN_S
        while running and (left := until - monotonic()) > 0:
            receive(left)
        raise
    finally:
        for cell in running:
            _stop(cell)


def _stop(cell: _Running) -> None:
    cell.process.kill()
    cell.process.join()
    cell.pipe.close()


def _context() -> BaseContext:
    if "forkserver" not in multiprocessing.get_all_start_methods():
        return multiprocessing.get_context("spawn")
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(list(PRELOADED))
    return context


def _start(context: BaseContext, job: CellJob) -> _Running:
    receiver, sender = context.Pipe(duplex=False)
    process: BaseProcess = context.Process(  # type: ignore[attr-defined]
        target=_work,
        args=(job, sender),
        name=f"cell {job.cell.name}",
        daemon=job.live is None,  # live cells have processes of their own
    )
    with _clean_start():
        process.start()
    sender.close()
    return _Running(job, process, receiver)


@contextmanager
def _clean_start() -> Iterator[None]:
    """Start processes that do not run the caller's main script again, one thread each.

    multiprocessing would import the script that called us, which without a `__main__` guard would
    start the whole run anew; cells need nothing of it. The numeric libraries' own threads would
    only compete with the other cells. Sets of names are to have the same order in every run, for
    policies that go through one against the contract.
    """
    main, before = sys.modules["__main__"], dict(os.environ)
    sys.modules["__main__"] = ModuleType("__main__")
    os.environ |= {"OMP_NUM_THREADS": "1", "PYTHONHASHSEED": "0"}
    try:
        yield
    finally:
        sys.modules["__main__"] = main
        for name in ("OMP_NUM_THREADS", "PYTHONHASHSEED"):
            del os.environ[name]
            if name in before:
                os.environ[name] = before[name]


def _receive(cell: _Running, on_progress: Callable[[CellJob, int, int], None]) -> Outcome | None:
    """Take one message; the cell's outcome if that was the last."""
    try:
        message = cell.pipe.recv()
    except (EOFError, ConnectionResetError):
        message = None
    if isinstance(message, tuple):
        on_progress(cell.job, *message)
        return None
    cell.pipe.close()
    cell.process.join()
    if message is not None:
        outcome: Outcome = message
        return outcome
    return CellFailure(
        cell.job.cell,
        f"the process of the cell died ({_death(cell.process.exitcode)})",
        "if it was killed for memory, use fewer --jobs or sessions; then run the command again",
    )


def _death(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {signal.Signals(-code).name}"
    return f"exit status {code}"


def _work(job: CellJob, pipe: Connection) -> None:
    """What the process of a cell does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    die_with_parent()  # a killed run must not leave cells behind that go on writing
    _seed_global_generators()

    def report(sessions: int, turns: int) -> None:
        try:
            pipe.send((sessions, turns))
        except OSError:  # the parent has gone
            os._exit(1)

    try:
        pipe.send(run_cell(job, report))
    except AgentschedError as error:  # the folder of the cell cannot be written
        pipe.send(CellFailure(job.cell, error.message, error.remedy, traceback.format_exc()))
    pipe.close()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # whatever threads a policy has left running


def _seed_global_generators() -> None:
    """A policy that uses them, against the contract, shall at least draw the same every time."""
    import numpy

    random.seed(0)
    numpy.random.seed(0)
