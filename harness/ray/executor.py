"""Cells of a run as tasks of a Ray cluster, one task each.

A task plays its cell in a process of its own, in a temporary folder of its node, exactly as a local
run would; new lines of its logs come back while it runs, the whole folder when it ends. A cell
whose node or worker is lost is played again from its start, and no other cell is.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentsched import AgentschedError, UsageError
from harness.cells import CellFailure, CellJob
from harness.plan import Plan, code_digest
from harness.pool import Outcome
from harness.ray.landing import Landing
from harness.ray.node import Done, play
from harness.ray.session import joined, load_ray
from results.cells import LAYOUT

LOSSES = 5
"""So often may a cell's node be lost before the cell counts as failed. Our choice."""
LOOK_S = 0.5
HEAD = "node:__internal_head__"
"""Resource that Ray gives to the node of a cluster's head."""


def address_of(executor: str) -> str | None:
    """The address in `ray` (None) or `ray://HOST:PORT`.

    Raises:
        UsageError: neither of them.
    """
    if executor == "ray":
        return None
    if executor.startswith("ray://") and ":" in executor.removeprefix("ray://"):
        return executor
    raise UsageError(
        f"no executor `{executor}`", "executors: local, ray, or ray://HOST:PORT (port 10001)"
    )


def check(executor: str, planned: Plan) -> None:
    """Refuse what cannot be done, before a folder is made.

    Raises:
        UsageError: no such executor, Ray is not installed, or cells are timed for real.
    """
    address_of(executor)
    load_ray()
    if planned.live is not None and not planned.live.virtual_clock:
        raise UsageError(
            "cells on live engines run on this machine, where their clients are timed",
            "leave --executor out; to have replicas on Ray, `agentsched up`, then live.urls",
        )


@dataclass(slots=True)
class _Flight:
    """A cell that has been handed to Ray."""

    job: CellJob
    attempt: int
    landing: Landing | None = None


@dataclass(slots=True)
class _Sweep:
    """All state of one call of run_cells."""

    ray: Any
    task: Any
    mailbox: Any
    digest: str
    on_progress: Callable[[CellJob, int, int], None]
    on_end: Callable[[CellJob, Outcome], None]
    files: dict[str, Any] = field(default_factory=dict)
    """Stored content of the user's files, by path."""
    flights: dict[Any, _Flight] = field(default_factory=dict)
    attempts: int = 0
    losses: dict[str, int] = field(default_factory=dict)

    def start(self, job: CellJob) -> None:
        self.attempts += 1
        stored = [(path, self._stored(path)) for path in _inputs(job)]
        ref = self.task.remote(
            job,
            [path for path, _ in stored],
            self.digest,
            self.mailbox,
            self.attempts,
            *(content for _, content in stored),
        )
        self.flights[ref] = _Flight(job, self.attempts)

    def _stored(self, path: str) -> Any:
        if path not in self.files:
            self.files[path] = self.ray.put(Path(path).read_bytes())
        return self.files[path]

    def look(self) -> None:
        """Take in what has come within the next LOOK_S."""
        ready, _ = self.ray.wait(list(self.flights), timeout=LOOK_S)
        by_attempt = {flight.attempt: flight for flight in self.flights.values()}
        for attempt, message in self.ray.get(self.mailbox.take.remote()):
            if attempt in by_attempt:
                self._note(by_attempt[attempt], message)
        for ref in ready:
            self._end(ref)

    def _note(self, flight: _Flight, message: tuple[Any, ...]) -> None:
        match message:
            case ("lines", name, offset, content):
                self._landing(flight).lines(name, offset, content)
            case ("progress", sessions, turns):
                self.on_progress(flight.job, sessions, turns)

    def _end(self, ref: Any) -> None:
        flight = self.flights.pop(ref)
        name = flight.job.cell.name
        try:
            done: Done = self.ray.get(ref)
        except self.ray.exceptions.RayTaskError as error:
            self.on_end(flight.job, _failure(flight.job, error.cause, str(error)))
        except self.ray.exceptions.RayError as error:
            self.losses[name] = self.losses.get(name, 0) + 1
            if self.losses[name] < LOSSES:
                self.start(flight.job)
                return
            why = f"its node or worker was lost {LOSSES} times ({type(error).__name__})"
            remedy = "if workers were killed for memory, use smaller cells or larger nodes"
            self.on_end(flight.job, CellFailure(flight.job.cell, why, remedy, str(error)))
        else:
            self._landing(flight).finish(done.files)
            self.on_end(flight.job, done.outcome)

    def _landing(self, flight: _Flight) -> Landing:
        if flight.landing is None:
            job = flight.job
            label = job.live.label if job.live is not None else "simulated"
            head = {"layout": LAYOUT, "label": label, **job.cell.as_dict()}
            flight.landing = Landing(job.run / "cells" / job.cell.name, head)
        return flight.landing

    def cancel(self) -> None:
        for ref in self.flights:
            self.ray.cancel(ref, force=True)


def run_cells(
    jobs: Sequence[CellJob],
    *,
    address: str | None,
    parallel: int | None,
    on_progress: Callable[[CellJob, int, int], None],
    on_end: Callable[[CellJob, Outcome], None],
) -> None:
    """Run all cells on a Ray cluster; as `harness.pool.run_cells` does on this machine.

    Args:
        address: as `harness.ray.session.joined` takes it.
        parallel: tasks at the same time; None: as many as the cluster has CPUs.

    Raises:
        UsageError: Ray is not installed.
        AgentschedError: no cluster, or the run folder cannot be written.
    """
    if not jobs:
        return
    queue = deque(jobs)
    with joined(address) as ray:
        sweep = _Sweep(
            ray,
            _task(ray),
            _mailbox(ray),
            code_digest(live=jobs[0].live is not None),
            on_progress,
            on_end,
        )
        try:
            while queue or sweep.flights:
                while queue and (parallel is None or len(sweep.flights) < parallel):
                    sweep.start(queue.popleft())
                sweep.look()
        finally:
            sweep.cancel()
            ray.kill(sweep.mailbox)


def _inputs(job: CellJob) -> list[str]:
    """The user's files that a job names: a trace, a scheduler."""
    file, colon, _ = job.target.rpartition(":")
    named = [job.workload, *([file] if colon else [])]
    return [path for path in named if Path(path).is_file()]


def _failure(job: CellJob, cause: BaseException, text: str) -> CellFailure:
    if isinstance(cause, AgentschedError):
        return CellFailure(job.cell, cause.message, cause.remedy, text)
    return CellFailure(
        job.cell,
        f"unexpected {type(cause).__name__} on its node: {cause}",
        "the same command with --debug, and report what it shows",
        text,
    )


def _task(ray: Any) -> Any:
    """What is lost, we start again ourselves. A worker may play several cells after each other,
    since each has a process of its own."""
    return ray.remote(num_cpus=1, max_retries=0)(_play)


def _play(
    job: CellJob, paths: list[str], digest: str, mailbox: Any, attempt: int, *contents: bytes
) -> Done:
    inputs = dict(zip(paths, contents, strict=True))
    return play(job, inputs, digest, lambda message: mailbox.put.remote(attempt, message))


class _Mailbox:
    """Messages from tasks to the run, kept until they are fetched."""

    def __init__(self) -> None:
        self._messages: list[tuple[int, tuple[Any, ...]]] = []

    def put(self, attempt: int, message: tuple[Any, ...]) -> None:
        self._messages.append((attempt, message))

    def take(self) -> list[tuple[int, tuple[Any, ...]]]:
        messages, self._messages = self._messages, []
        return messages


def _mailbox(ray: Any) -> Any:
    """On the head's node: where that is lost, the whole cluster is."""
    resources = {HEAD: 0.001} if HEAD in ray.cluster_resources() else {}
    return ray.remote(num_cpus=0, resources=resources)(_Mailbox).remote()
