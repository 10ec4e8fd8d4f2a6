"""One simulated cell: sessions, a scheduler and a cluster in, records and a makespan out."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

from agentsched import SchedulerError
from harness.capacity import Cluster
from harness.control.ledger import ReplicaConfig
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from harness.partition import PartitionedPlane, Split
from harness.sim.bound import throughput_bound
from harness.sim.clock import Clock
from harness.sim.content import ContentIndex
from harness.sim.cpu_offload import tiers_of
from harness.sim.driver import Plane, Recorder, SimDriver
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineParams, StepTime
from harness.sim.faults import check_faults
from harness.sim.links import LinkSpec
from harness.sim.metering import MeteredSteps, energy_facts
from harness.sim.replicas import check_engine, engines_of, replica_step_time
from harness.sim.service import Listener, Service
from harness.sim.settings import SimSettings
from schedulers.base import Scheduler
from schedulers.views import Role
from workloads.model import Session

_ROLES: dict[str, Role] = {"mixed": "mixed", "prefill": "prefill", "decode": "decode"}


class SourcedStepTime(StepTime, Protocol):
    """Step times that say where they come from."""

    @property
    def source(self) -> str: ...


@dataclass(frozen=True, slots=True)
class SimOutcome:
    """What a simulated cell leaves beside its records.

    `facts` describe the simulation (where step times come from, energy); `timing` is wall and CPU
    time of this machine in seconds and is kept apart from results.
    """

    makespan_ns: int
    counters: dict[str, float]
    facts: dict[str, Any]
    timing: dict[str, float]


def simulate(
    sessions: Sequence[Session],
    *,
    workers: int | None,
    scheduler: Scheduler,
    cluster: Cluster,
    settings: SimSettings,
    engine: EngineParams,
    recorder: Recorder,
    capacity_share: float = 1.0,
    progress: Callable[[int, int], None] | None = None,
    step_times: Mapping[str, SourcedStepTime] | None = None,
    more_gateways: Sequence[Scheduler] = (),
) -> SimOutcome:
    """Play the sessions under the scheduler; records go to `recorder`.

    Args:
        workers: sessions active at once; None starts each at its recorded arrival.
        capacity_share: part of each replica's KV that this gateway may use (0 to 1].
        step_times: by replica id; None: those that ship for the model on the hardware.
        more_gateways: schedulers of gateways beside the first, which share sessions and capacity
            with it as `settings.gateway_split` says.

    Raises:
        UsageError: a fault names a replica that is not there, or the engine cannot do it.
        SchedulerError: the policy broke its contract.
        PerformanceDataError: no step times for the model on this hardware.
    """
    wall, cpu = time.perf_counter(), time.process_time()
    contents = ContentIndex(engine.text_block)
    check_engine(engine, cluster, settings)
    check_faults(settings.faults, [r.id for r in cluster.replicas])
    steps: Mapping[str, SourcedStepTime] = step_times or {
        r.id: replica_step_time(cluster.model, r, settings, engine) for r in cluster.replicas
    }
    meters = {name: MeteredSteps(step) for name, step in steps.items()}
    first = cluster.replicas[0].gpu
    link = settings.kv_link or LinkSpec(first.network_gbs, latency_us=first.link_latency_us)
    engines = engines_of(cluster, engine, meters, contents)
    reported = settings.reported_kv_tokens
    replicas = [
        ReplicaConfig(
            r.id,
            _ROLES[r.role],
            Capacity(reported or r.kv_tokens, r.kv_tokens, capacity_share),
        )
        for r in cluster.replicas
    ]
    log = recorder.decision if settings.record_decisions else None
    plane: Plane

    def progress_of(attempt: int, now: int) -> int:
        return driver.streamed(attempt, now)

    if more_gateways:
        split: Split = "replicas" if settings.gateway_split == "replicas" else "shares"
        schedulers = [scheduler, *more_gateways]
        limit_s = settings.max_wait_s
        plane = PartitionedPlane(schedulers, replicas, progress_of, log, split, max_wait_s=limit_s)
    else:
        plane = ControlPlane(scheduler, replicas, progress_of, log, max_wait_s=settings.max_wait_s)
    limit = settings.context_limit or cluster.model.context_limit
    sizes = {r.id: r.kv_bytes_per_token for r in cluster.replicas}

    def serve(clock: Clock, listener: Listener) -> Service:
        return Service(
            clock,
            engines,
            contents,
            listener,
            bytes_per_token=sizes,
            link=link,
            store=settings.kv_store,
            tiers=tiers_of(settings.cpu_offload, cluster) if settings.cpu_offload else None,
        )

    driver = SimDriver(
        sessions,
        workers=workers,
        plane=plane,
        serve=serve,
        context_limit=limit,
        settings=replace(
            settings,
            context_limit=limit,
            true_tool_hints=settings.true_tool_hints or scheduler.wants_true_tool_ends,
        ),
        recorder=recorder,
        progress=progress,
    )
    makespan = driver.run()
    return SimOutcome(
        makespan,
        _policy_counters([scheduler, *more_gateways], makespan)
        | _engine_counters(engines)
        | driver.service_counters()
        | _forced(plane),
        {"simulated_engine": engine.engine}
        | {f"step_time.{name}": step.source for name, step in steps.items()}
        | energy_facts(cluster.replicas, engines, meters, makespan)
        | _bound_facts(sessions, cluster, steps[cluster.replicas[0].id], workers, limit, engine),
        {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            "planner_cpu_s": sum(driver.planner_wall_s),
            "plans": len(driver.planner_wall_s),
        },
    )


def _forced(plane: Plane) -> dict[str, float]:
    """Admissions forced by the bound on waiting, where there is one."""
    if isinstance(plane, ControlPlane) and plane.bounded:
        return {"forced_admissions": plane.forced_admissions}
    return {}


def _policy_counters(schedulers: Sequence[Scheduler], now: int) -> dict[str, float]:
    """Totals of all gateways' policies."""
    totals: dict[str, float] = {}
    for scheduler in schedulers:
        for name, value in _counters(scheduler, now).items():
            totals[name] = totals[name] + value if name in totals else value
    return totals


def _counters(scheduler: Scheduler, now: int) -> dict[str, float]:
    try:
        counters = dict(scheduler.counters())
    except Exception as error:  # a policy may raise anything
        problem = f"counters() raised {type(error).__name__}: {error}"
        raise SchedulerError(scheduler.name, "the end of the run", now, problem) from error
    for name, value in counters.items():
        if not isinstance(name, str) or not isinstance(value, (int, float)):
            problem = f"counters() gave {name!r}: {value!r}, not a name and a number"
            raise SchedulerError(scheduler.name, "the end of the run", now, problem)
    return counters


def _bound_facts(
    sessions: Sequence[Session],
    cluster: Cluster,
    step: StepTime,
    workers: int | None,
    limit: int,
    engine: EngineParams,
) -> dict[str, str]:
    """What no scheduler could pass, as a fact of the cell; nothing if replicas differ in speed."""
    kinds = {(r.gpu.name, r.tensor_parallel, r.power_cap_w) for r in cluster.replicas}
    if len(kinds) > 1:
        return {}
    bound = throughput_bound(
        sessions,
        step,
        replicas=len(cluster.replicas),
        workers=workers,
        context_limit=limit,
        chunk_tokens=engine.step_tokens * cluster.replicas[0].data_parallel,
    )
    if bound is None:
        return {}
    return {"decode_tps_bound": f"{bound.tokens_per_s:.1f}", "decode_tps_bound_by": bound.limit}


def _engine_counters(engines: dict[str, Engine]) -> dict[str, float]:
    states = [engine.state() for engine in engines.values()]
    return {
        "engine.preemptions": sum(s.preemptions for s in states),
        "engine.prefill_tokens": sum(s.prefill_tokens for s in states),
        "engine.decode_tokens": sum(s.decode_tokens for s in states),
        "engine.steps": sum(s.steps for s in states),
    }
