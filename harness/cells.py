"""Runs one cell: loads its sessions, plays them, writes its folder."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsched import AgentschedError

if TYPE_CHECKING:
    from harness.sim.engine_types import EngineParams
    from harness.sim.settings import SimSettings
    from harness.topology import Cluster
    from results.cells import CellId

Progress = Callable[[int, int], None]
"""Told (sessions ended, turns ended) of a cell."""


@dataclass(frozen=True, slots=True)
class CellJob:
    """Everything a cell needs; goes to the process that runs it."""

    cell: CellId
    run: Path
    workload: str
    """A shipped workload, or the path of a trace."""
    sessions: int | None
    workload_settings: Mapping[str, Any]
    rate_per_s: float | None
    """Sessions arriving a second; None: workers take them up."""
    target: str
    """The scheduler as `schedulers.registry` finds it: a name or file.py:Class."""
    settings: Mapping[str, Any]
    cluster: Cluster
    engine: EngineParams
    sim: SimSettings
    gateway_share: float
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CellFailure:
    """Why a cell failed."""

    cell: CellId
    message: str
    remedy: str
    trace: str = ""
    """The traceback, shown with --debug only."""


def run_cell(job: CellJob, progress: Progress) -> dict[str, Any] | CellFailure:
    """Run a cell to its end; its folder then holds a summary, or says why it failed.

    Returns:
        The summary, as results.writer.CellWriter.finish gives it, or the failure.
    """
    from harness.sim.run import simulate
    from results.writer import CellWriter
    from schedulers.registry import create
    from workloads.arrivals import poisson
    from workloads.catalog import load_workload

    with CellWriter(job.run, job.cell, "simulated") as writer:
        try:
            sessions = load_workload(
                job.workload,
                sessions=job.sessions,
                seed=job.cell.seed,
                settings=job.workload_settings,
            )
            if job.rate_per_s is not None:
                sessions = poisson(sessions, job.rate_per_s, job.cell.seed)
            outcome = simulate(
                sessions,
                workers=job.cell.workers if job.rate_per_s is None else None,
                scheduler=create(job.target, job.settings, job.cell.seed),
                cluster=job.cluster,
                settings=job.sim,
                engine=job.engine,
                recorder=writer,
                capacity_share=job.gateway_share,
                progress=progress,
            )
            facts = {**job.facts, **outcome.facts}
            return writer.finish(outcome.makespan_ns, outcome.counters, facts, outcome.timing)
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
