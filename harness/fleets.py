"""The running replicas of a run on real engines: started once, made as new before each cell."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from agentsched import UsageError
from results.cells import canonical_json, disk

if TYPE_CHECKING:
    from collections.abc import Sequence

    from harness.cells import CellJob
    from harness.live.parts import Fleet, ReplicaAddress
    from harness.plan import Plan

FOLDER = "engines"
"""Below the run folder: the engines' logs and `fleet.json`, which says what ran."""


@dataclass(frozen=True, slots=True)
class RunningFleet:
    """Started replicas, as the cells of a run need them."""

    fleet: Fleet
    replicas: Sequence[ReplicaAddress]

    def prepare(self, job: CellJob) -> CellJob:
        """The job with the replicas, after these were made as new for it."""
        assert job.live is not None
        done = self.fleet.reset(job.cell.name)
        live = replace(
            job.live,
            replicas=tuple(self.replicas),
            reset=done,
            served_model=job.live.settings.served_model or self.fleet.model,
            gpus=tuple(self.fleet.gpus),
        )
        return replace(job, live=live)


@contextmanager
def fleet_of(plan: Plan, folder: Path) -> Iterator[Fleet | None]:
    """The replicas of a run, not started yet, and closed at the end; None where cells bring their
    own. Says what is missing before a run folder is made.

    Raises:
        UsageError: the engine is not installed, or does not go with topology and machine.
    """
    if plan.live is None or (plan.spec.engine == "emulator" and not plan.on_ray):
        yield None
        return
    fleet = _fleet(plan, folder / FOLDER)
    try:
        yield fleet
    finally:
        fleet.close()


def started(fleet: Fleet, folder: Path) -> RunningFleet:
    """Start the replicas, and keep what was started.

    Raises:
        AgentschedError: an engine did not come up, with the end of its log.
    """
    with disk(folder, "write what was started"):
        (folder / FOLDER).mkdir(exist_ok=True)
    replicas = fleet.start()
    with disk(folder, "write what was started"):
        (folder / FOLDER / "fleet.json").write_bytes(canonical_json(dict(fleet.facts())))
    return RunningFleet(fleet, replicas)


def _fleet(plan: Plan, logs: Path) -> Fleet:
    assert plan.live is not None
    if plan.live.urls:
        from harness.live.given_fleet import GivenFleet

        return GivenFleet(plan.live.urls, [(r.id, r.role) for r in plan.cluster.replicas])
    if plan.on_ray:
        return _on_ray(plan, logs)
    from harness.live.engines.fleet import engine_fleet

    if plan.spec.engine == "sim":
        raise UsageError("simulated replicas are not started", "use another engine")
    return engine_fleet(plan.spec.engine, plan.cluster, plan.launch, logs)


def _on_ray(plan: Plan, logs: Path) -> Fleet:
    assert plan.live is not None
    from harness.ray.deployment import RayFleet, Wanted

    wanted = Wanted(
        plan.cluster,
        plan.spec.engine,
        plan.spec.memory.model_dump(),
        launch=plan.launch if plan.spec.engine != "emulator" else None,
        speed=plan.live.time_scale,
    )
    return RayFleet(wanted, plan.launch.ray, logs)
