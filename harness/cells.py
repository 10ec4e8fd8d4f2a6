"""Runs one cell: loads its sessions, plays them, writes its folder."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsched import AgentschedError, UsageError

if TYPE_CHECKING:
    from harness.live.cell import LiveJob
    from harness.sim.engine_types import EngineParams
    from harness.sim.settings import SimSettings
    from harness.topology import Cluster
    from results.cells import CellId
    from results.writer import CellWriter
    from workloads.model import Session

GATEWAY_SEEDS = 1_000_003
"""Between the seeds of the policies of two gateways of a cell."""

Progress = Callable[[int, int], None]
"""Told (sessions ended, turns ended) of a cell."""


@dataclass(frozen=True, slots=True)
class Arrivals:
    """Sessions that arrive by themselves, as workloads.arrivals places them."""

    process: str
    rate_per_s: float | None
    """Mean sessions a second; None: recorded arrivals, as fast as recorded."""
    variation: float


@dataclass(frozen=True, slots=True)
class CellJob:
    """Everything a cell needs; goes to the process that runs it."""

    cell: CellId
    run: Path
    workload: str
    """A shipped workload, or the path of a trace."""
    sessions: int | None
    workload_settings: Mapping[str, Any]
    arrivals: Arrivals | None
    """How sessions arrive; None: workers take them up."""
    target: str
    """The scheduler as `schedulers.registry` finds it: a name or file.py:Class."""
    settings: Mapping[str, Any]
    cluster: Cluster
    engine: EngineParams
    sim: SimSettings
    gateway_share: float
    facts: Mapping[str, Any] = field(default_factory=dict)
    live: LiveJob | None = None
    """On emulated or real engines; None: it is simulated."""

    @property
    def workers(self) -> int | None:
        """Sessions active at once; None where they arrive by themselves."""
        return self.cell.workers if self.arrivals is None else None


@dataclass(frozen=True, slots=True)
class CellFailure:
    """Why a cell failed."""

    cell: CellId
    message: str
    remedy: str
    trace: str = ""
    """The traceback, shown with --debug only."""


class CellInterruptedError(AgentschedError):
    """A live cell was told to end; what it recorded so far stays, as partial."""

    exit_code = 130


def run_cell(job: CellJob, progress: Progress) -> dict[str, Any] | CellFailure:
    """Run a cell to its end; its folder then holds a summary, or says why it failed.

    Returns:
        The summary, as results.writer.CellWriter.finish gives it, or the failure.

    Raises:
        CellInterruptedError: it was told to end.
    """
    from results.writer import CellWriter

    label = job.live.label if job.live is not None else "simulated"
    with CellWriter(job.run, job.cell, label) as writer:
        try:
            if job.live is not None:
                return _play_live(job, job.live, writer, progress)
            return _simulate(job, writer, progress)
        except CellInterruptedError:
            raise
        except AgentschedError as error:
            writer.fail(error)
            return CellFailure(job.cell, error.message, error.remedy, traceback.format_exc())
        except (Exception, SystemExit, KeyboardInterrupt) as error:
            # The last line of defence: whatever goes wrong in one cell, the others go on. Ctrl-C is
            # the parent's; an interrupt in here was raised by a policy.
            writer.fail(error)
            return CellFailure(
                job.cell,
                f"unexpected {type(error).__name__}: {error}",
                "the same command with --debug, and report what it shows",
                traceback.format_exc(),
            )


def _simulate(job: CellJob, writer: CellWriter, progress: Progress) -> dict[str, Any]:
    from harness.sim.run import simulate
    from schedulers.registry import create

    outcome = simulate(
        sessions_of(job),
        workers=job.workers,
        scheduler=create(job.target, job.settings, job.cell.seed),
        cluster=job.cluster,
        settings=job.sim,
        engine=job.engine,
        recorder=writer,
        capacity_share=job.gateway_share,
        progress=progress,
        more_gateways=[
            create(job.target, job.settings, job.cell.seed + GATEWAY_SEEDS * number)
            for number in range(1, job.sim.gateways)
        ],
    )
    facts = {**job.facts, **outcome.facts}
    return writer.finish(outcome.makespan_ns, outcome.counters, facts, outcome.timing)


def _play_live(
    job: CellJob, live: LiveJob, writer: CellWriter, progress: Progress
) -> dict[str, Any]:
    from harness.live.cell import play

    if job.sim.gateways > 1:
        raise UsageError("several gateways are simulated only", "leave sim.gateways out")
    played = play(job, live, writer.path, writer, progress)
    facts = {**job.facts, **played.facts}
    if played.invalid is not None:
        facts["invalid"] = played.invalid
    return writer.finish(played.makespan_ns, played.counters, facts, played.timing)


def sessions_of(job: CellJob) -> list[Session]:
    """The sessions of a cell that is simulated or replayed."""
    from workloads.arrivals import place
    from workloads.catalog import load_workload

    sessions = load_workload(
        job.workload,
        sessions=job.sessions,
        seed=job.cell.seed,
        settings=job.workload_settings,
    )
    if job.arrivals is None:
        return sessions
    how = job.arrivals
    return place(sessions, how.process, how.rate_per_s, job.cell.seed, variation=how.variation)
