"""The run matrix: a specification becomes cells, and cells become a run folder."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentsched import AgentschedError, InvalidRunError
from harness.cells import CellFailure, CellJob
from harness.plan import Plan, plan
from harness.spec import RunSpec, load_spec
from results.cells import CellId

if TYPE_CHECKING:
    from harness.overrides import Flags

TURNS_PER_CPU_S = 2_500
CELL_CPU_S = 0.7
"""For the estimate before a run: what `quickstart` took on two cores of a cloud machine."""


class Watcher(Protocol):
    """Told how a run goes on."""

    def started(self, total: int, kept: int) -> None:
        """The run has `total` cells, of which `kept` were done before."""

    def progressed(self, cell: CellId, sessions: int, turns: int) -> None:
        """So many sessions and turns of a running cell have ended."""

    def ended(self, cell: CellId, failure: CellFailure | None) -> None:
        """A cell is done, or failed."""

    def draining(self, cells: int) -> None:
        """The run was interrupted; so many live cells let their running turns end."""


class Silent:
    """A watcher that says nothing."""

    def started(self, total: int, kept: int) -> None:
        pass

    def progressed(self, cell: CellId, sessions: int, turns: int) -> None:
        pass

    def ended(self, cell: CellId, failure: CellFailure | None) -> None:
        pass

    def draining(self, cells: int) -> None:
        pass


@dataclass(frozen=True, slots=True)
class RunResult:
    """How a run ended. Read its figures with `agentsched.load_run(result.path)`."""

    path: Path
    done: tuple[CellId, ...]
    """Cells with a summary, those kept from before included."""
    kept: tuple[CellId, ...]
    """Of these, the ones that were done before."""
    failures: tuple[CellFailure, ...]
    invalid: Mapping[CellId, str] = field(default_factory=dict)
    """Cells that finished but whose figures must not be used, and why."""

    def check(self) -> None:
        """Raise what stands against using the result.

        Raises:
            AgentschedError: a cell failed.
            InvalidRunError: all cells finished, but some are invalid.
        """
        if self.failures:
            first = self.failures[0]
            raise AgentschedError(
                f"{len(self.failures)} of {len(self.failures) + len(self.done)} cells failed; "
                f"first: {first.cell.name}: {first.message}",
                first.remedy,
            )
        if self.invalid:
            cell, why = next(iter(self.invalid.items()))
            raise InvalidRunError(
                f"{len(self.invalid)} of {len(self.done)} cells are invalid; "
                f"first: {cell.name}: {why}",
                "do not use these figures; change the setting that is named",
            )


def run(
    spec: RunSpec | str | Path,
    *,
    out: str | Path | None = None,
    jobs: int | None = None,
    flags: Flags | None = None,
    watcher: Watcher | None = None,
    executor: str = "local",
) -> RunResult:
    """Run a preset, a specification file or a `RunSpec`; continue it if it was begun.

    Args:
        out: the run folder; `runs/NAME` unless given.
        jobs: cells at the same time; as many as cores unless given. Never changes a result.
        flags: laid over a preset or file, as the command line does.
        executor: `local`, `ray` or `ray://HOST:PORT`: where cells run. Never changes a result.

    Raises:
        UsageError: something in the specification is wrong.
        RunDirectoryError: the folder cannot be used.
    """
    if not isinstance(spec, RunSpec):
        spec = load_spec(spec, flags)
    folder = Path(out) if out is not None else Path("runs") / spec.name
    return execute(plan(spec), folder, jobs=jobs, watcher=watcher, executor=executor)


def execute(
    planned: Plan,
    folder: Path,
    *,
    jobs: int | None = None,
    watcher: Watcher | None = None,
    executor: str = "local",
) -> RunResult:
    """Run the cells of a plan that `folder` does not hold yet.

    Raises:
        UsageError: there is no such executor, or it cannot run these cells.
        RunDirectoryError: the folder cannot be used, or is another run's.
    """
    from harness.fleets import fleet_of, started
    from harness.pool import Outcome, cores, run_cells
    from results.store import RunStore

    watch = watcher if watcher is not None else Silent()
    failures: list[CellFailure] = []
    if executor != "local":
        from harness.ray import executor as on_ray

        on_ray.check(executor, planned)
    with ExitStack() as stack:
        fleet = stack.enter_context(fleet_of(planned, folder))
        store = stack.enter_context(
            RunStore.open(folder, planned.spec.text, planned.manifest(planned.label))
        )
        all_jobs = planned.jobs(store.path.resolve())
        kept = tuple(job.cell for job in all_jobs if store.is_done(job.cell))
        to_run = [job for job in all_jobs if job.cell not in set(kept)]
        watch.started(len(all_jobs), len(kept))

        def on_end(job: CellJob, outcome: Outcome) -> None:
            failure = outcome if isinstance(outcome, CellFailure) else None
            if failure is not None:
                failures.append(failure)
            watch.ended(job.cell, failure)

        running = started(fleet, store.path) if fleet is not None and to_run else None

        def on_progress(job: CellJob, sessions: int, turns: int) -> None:
            watch.progressed(job.cell, sessions, turns)

        if executor == "local":
            run_cells(
                to_run,
                # What is timed for real has the machine to itself.
                parallel=(jobs or cores()) if planned.live is None else 1,
                prepare=running.prepare if running is not None else lambda job: job,
                on_progress=on_progress,
                on_end=on_end,
                on_drain=watch.draining,
            )
        else:
            on_ray.run_cells(
                to_run,
                address=on_ray.address_of(executor),
                parallel=jobs,
                on_progress=on_progress,
                on_end=on_end,
            )
        failed = {failure.cell for failure in failures}
        done = tuple(job.cell for job in all_jobs if job.cell not in failed)
        # Chat beside real agents has cells that no plan names.
        planned_cells = {job.cell for job in all_jobs}
        beside = [
            state.cell
            for state in store.states()
            if state.status == "done" and state.cell not in planned_cells
        ]
        invalid = {
            cell: why
            for cell in (*done, *beside)
            if (why := why_invalid(store.summary(cell), planned.spec.max_failed_share))
        }
    order = {job.cell: index for index, job in enumerate(all_jobs)}
    failures.sort(key=lambda failure: order[failure.cell])
    return RunResult(folder, done, kept, tuple(failures), invalid)


def estimate_s(planned: Plan, jobs: int | None = None) -> float:
    """Very roughly, how long all cells will take on this machine, in seconds."""
    from harness.pool import cores

    turns = {workload.name: workload.turns for workload in planned.workloads}
    cpu_s = [CELL_CPU_S + turns[cell.workload] / TURNS_PER_CPU_S for cell in planned.cells]
    return max(sum(cpu_s) / min(jobs or cores(), cores()), max(cpu_s))


def why_invalid(summary: Mapping[str, Any], max_failed_share: float) -> str | None:
    """Why the figures of a finished cell must not be used; None if they may be.

    Args:
        summary: as `summary.json` holds it.
        max_failed_share: largest share of sessions that may have failed or been rejected.
    """
    metrics = summary["metrics"]
    if (why := summary.get("facts", {}).get("invalid")) is not None:
        return str(why)

    def value(tag: str) -> float:
        return float(metrics[tag]["value"] or 0)

    total = metrics["sessions_failed"]["n"]
    failed = value("sessions_failed") + value("sessions_rejected")
    if failed > max_failed_share * total:
        return (
            f"too many failures: {failed:.0f} of {total} sessions failed or were rejected, more "
            f"than the {max_failed_share:.0%} allowed"
        )
    if value("turns_ok") == 0:
        return "no turn was served"
    if summary["cell"]["workers"] > 0 and value("concurrency_share") < 100:
        return (
            f"target concurrency not reached: at most {value('concurrency_max'):.0f} sessions were "
            f"active at once, but {summary['cell']['workers']} workers were asked for; use fewer "
            "workers or more sessions"
        )
    return None
