"""A cell on the emulator: the live gateway in front of emulated engines, sessions replayed.

With a virtual clock the parts call each other in one thread, and everything happens at the times
and in the order of the simulator. In real time they speak HTTP over loopback.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import uvloop

from agentsched import SchedulerError, UsageError
from harness.capacity import Cluster
from harness.control.ledger import ReplicaConfig
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from harness.live.driver import LiveDriver
from harness.live.emulated_fleet import EmulatedFleet
from harness.live.emulator import EmulatedReplica, EmulatorSettings
from harness.live.fleet_server import EngineSpec, emulated_replicas, link_of, specs_of
from harness.live.fronts import (
    NO_EXPIRY_S,
    GatewayFront,
    cell_gateway_settings,
    replica_record,
)
from harness.live.gateway import Gateway, GatewaySettings
from harness.live.gauges import Gauges
from harness.live.latency import room_for_sockets
from harness.live.legs import Bootstrap
from harness.live.parts import Stage
from harness.live.planners import FixedPlanner
from harness.live.polling import Poller, PollSettings
from harness.live.replay import Replayer, ReplaySettings
from harness.live.replay_player import ReplayPlayer
from harness.live.serving import Policy
from harness.live.turns import DriverSettings
from harness.live.wire import Loopback, Sender
from harness.sim.agents import nanoseconds
from harness.sim.clock import Clock, Priority
from harness.sim.driver import Recorder
from harness.sim.engine_types import EngineParams
from harness.sim.links import LinkSpec
from harness.sim.run import SimOutcome
from harness.sim.settings import Fault, SimSettings
from schedulers.base import Scheduler
from workloads.model import Session


@dataclass(frozen=True, slots=True)
class EmulatedCell:
    """What `run_emulated` was given, with engines in place of a cluster."""

    sessions: Sequence[Session]
    workers: int | None
    scheduler: Scheduler
    specs: Sequence[EngineSpec]
    settings: SimSettings
    context_limit: int
    recorder: Recorder
    capacity_share: float = 1.0
    target: str | None = None
    scheduler_settings: Mapping[str, Any] = field(default_factory=dict)
    progress: Callable[[int, int], None] | None = None
    link: LinkSpec | None = None
    """What replicas hand KV over."""
    bootstrap: bool = False
    """Hand it over as SGLang does, not as vLLM."""

    @property
    def emulator(self) -> EmulatorSettings:
        return EmulatorSettings(max_model_len=self.context_limit)

    @property
    def replay(self) -> ReplaySettings:
        s = self.settings
        return ReplaySettings(
            start_spread_s=s.start_spread_s,
            agent_retries=s.agent_retries,
            retry_delay_s=s.retry_delay_s,
            tool_slots=s.tool_slots,
            release=s.release,
            context_limit=self.context_limit,
        )

    def saw_gauges(self, clock: Callable[[], int], replica: str, gauges: Gauges) -> None:
        self.recorder.replica(replica_record(clock(), replica, gauges))


def run_emulated(
    sessions: Sequence[Session],
    *,
    workers: int | None,
    scheduler: Scheduler,
    cluster: Cluster,
    settings: SimSettings,
    engine: EngineParams,
    recorder: Recorder,
    capacity_share: float = 1.0,
    time_scale: float | None = 1.0,
    target: str | None = None,
    scheduler_settings: Mapping[str, Any] | None = None,
    bootstrap: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> SimOutcome:
    """Play the sessions through the gateway on emulated engines; records go to `recorder`.

    Args:
        workers: sessions active at once; None starts each at its recorded arrival.
        capacity_share: part of each replica's KV that this gateway may use (0 to 1].
        time_scale: virtual seconds per real second; None: a virtual clock, as fast as it goes.
        target: the scheduler as `schedulers.registry` finds it, so that plans can be solved in a
            process of their own; None: they are solved in this one.
        bootstrap: hand KV over as SGLang does, not as vLLM (with a virtual clock).

    Raises:
        SchedulerError: the policy broke its contract, or left turns waiting for ever.
        PerformanceDataError: no step times for the model on this hardware.
        UsageError: a KV store is asked for, which emulated engines have not.
    """
    if settings.kv_store is not None:
        raise UsageError(
            "emulated engines have no shared KV store", "leave sim.kv_store out, or `--engine sim`"
        )
    limit = settings.context_limit or cluster.model.context_limit
    cell = EmulatedCell(
        sessions,
        workers,
        scheduler,
        specs_of(cluster, engine),
        settings,
        limit,
        recorder,
        capacity_share,
        target,
        scheduler_settings or {},
        progress,
        link_of(cluster, settings.kv_link),
        bootstrap,
    )
    return run_cell(cell, time_scale)


def run_cell(cell: EmulatedCell, time_scale: float | None) -> SimOutcome:
    """As `run_emulated`."""
    if time_scale is None:
        return VirtualRun(cell).run()
    room_for_sockets()
    return uvloop.run(_run_live(cell, time_scale))


class VirtualRun:
    """Gateway, engines and agents on one virtual clock."""

    def __init__(self, cell: EmulatedCell) -> None:
        self.cell = cell
        self.clock = clock = Clock()
        quiet = EmulatorSettings(max_model_len=cell.context_limit, tick_s=0.0)
        made = emulated_replicas(cell.specs, clock, quiet, link=cell.link)
        self.replicas = {replica.name: replica for replica in made}
        self.wires = {name: Loopback(r.handle) for name, r in self.replicas.items()}
        senders: dict[str, Sender] = dict(self.wires)
        self.planner = FixedPlanner(clock, round(cell.settings.planner_latency_ms * 1e6))
        configs = [
            ReplicaConfig(s.name, s.role, Capacity(tokens, share=cell.capacity_share))
            for s in cell.specs
            for tokens in [s.kv_blocks * s.params.block_size]
        ]
        log = cell.recorder.decision if cell.settings.record_decisions else None
        self.driver = LiveDriver(
            lambda progress: ControlPlane(
                cell.scheduler, configs, progress, log, max_wait_s=cell.settings.max_wait_s
            ),
            clock,
            self.planner,
            DriverSettings(idle_expiry_s=NO_EXPIRY_S),
        )
        self.gateway = Gateway(self.driver, senders, GatewaySettings(learn_ratio=False))
        self.poller = Poller(
            self.driver,
            senders,
            clock,
            PollSettings(interval_s=cell.settings.sampling_interval_s),
            partial(cell.saw_gauges, lambda: clock.now),
        )
        self.gateway.poller = self.poller
        if cell.bootstrap:
            meeting = Bootstrap("127.0.0.1", 8998)
            self.gateway.bootstraps = {s.name: meeting for s in cell.specs if s.role == "prefill"}
        self.done = False
        self.replayer = Replayer(
            cell.sessions,
            workers=cell.workers,
            sender=Loopback(self.gateway.handle),
            clock=clock,
            recorder=cell.recorder,
            settings=cell.replay,
            release=self.driver.release,
            progress=cell.progress,
            done=self._finish,
        )
        self._stalled_since: int | None = None

    def run(self) -> SimOutcome:
        """Play everything.

        Raises:
            SchedulerError: the policy broke its contract, or left turns waiting for ever.
        """
        wall, cpu = time.perf_counter(), time.process_time()
        self.replayer.start()
        for fault in self.cell.settings.faults:
            self.clock.at(nanoseconds(fault.at_s), Priority.FAULT, partial(self._fault, fault))
        self.poller.start()
        while not self.done:
            self.clock.step()
            self._check_progress()
        timing = {"wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}
        counters = self.cell.scheduler.counters() | engine_counters(self.replicas.values())
        counters |= kv_counters(self.replicas.values())
        return SimOutcome(self.clock.now, counters, step_facts(self.cell.specs), timing)

    def _finish(self) -> None:
        self.done = True

    def _fault(self, fault: Fault) -> None:
        name = fault.replica
        if fault.kind == "recovered":
            self.wires[name].listening = True
            self.poller.blind.discard(name)
            self.driver.recovered(name)
        elif fault.kind == "metrics-stop":
            self.poller.blind.add(name)
        elif fault.kind == "metrics-resume":
            self.poller.blind.discard(name)
        elif fault.kind in ("slow", "normal"):
            self.replicas[name].set_slowdown(fault.factor if fault.kind == "slow" else 1.0)
        else:
            self.wires[name].listening = False
            self.driver.lost(name, "fault")
            self.replicas[name].fail()

    def _check_progress(self) -> None:
        """Nothing runs, nothing is to come but timers, and turns wait: for how long already?"""
        facts = self.driver.facts()
        coming = self.clock.pending[Priority.AGENT] or self.planner.pending
        if self.done or not facts["waiting"] or facts["in_flight"] or coming:
            self._stalled_since = None
            return
        if self._stalled_since is None:
            self._stalled_since = self.clock.now
        limit = nanoseconds(self.cell.settings.starvation_limit_s)
        if self.clock.now - self._stalled_since > limit:
            waiting = self.driver.plane.ledger.waiting
            raise SchedulerError(
                self.cell.scheduler.name,
                "no event",
                self.clock.now,
                f"left {len(waiting)} turn(s) waiting with nothing running "
                f"(first: {next(iter(waiting))})",
            )


async def _run_live(cell: EmulatedCell, speed: float) -> SimOutcome:
    wall, cpu = time.perf_counter(), time.process_time()
    fleet = EmulatedFleet(cell.specs, cell.emulator, speed=speed, link=cell.link)
    settings = cell_gateway_settings(
        cell.settings, share=cell.capacity_share, emulated=True, passthrough=True
    )
    policy = Policy(cell.scheduler, cell.target or cell.scheduler.name, cell.scheduler_settings, 0)
    front = GatewayFront(
        policy,
        settings,
        cell.recorder,
        "emulated",
        record_decisions=cell.settings.record_decisions,
        speed=speed,
    )
    player = ReplayPlayer(cell.sessions, cell.workers, cell.replay, speed)
    try:
        await front.start(await fleet.start())
        fleet.schedule_faults(cell.settings.faults, front)
        stage = Stage(
            front,
            cell.recorder,
            front.clock,
            Path(),
            cell.replay.model,
            cell.context_limit,
            cell.progress or (lambda sessions, turns: None),
        )
        played = await player.play(stage)
        counters = front.counters() | engine_counters(fleet.server.replicas)
        counters |= kv_counters(fleet.server.replicas)
        timing = {
            "wall_s": time.perf_counter() - wall,
            "cpu_s": time.process_time() - cpu,
            **played.timing,
        }
        return SimOutcome(played.makespan_ns, counters, step_facts(cell.specs), timing)
    finally:
        await front.close()
        await fleet.close()


def engine_counters(replicas: Iterable[EmulatedReplica]) -> dict[str, float]:
    states = [replica.engine.state() for replica in replicas]
    return {
        "engine.preemptions": sum(s.preemptions for s in states),
        "engine.prefill_tokens": sum(s.prefill_tokens for s in states),
        "engine.decode_tokens": sum(s.decode_tokens for s in states),
    }


def kv_counters(replicas: Iterable[EmulatedReplica]) -> dict[str, float]:
    """Totals of KV handed over between the replicas."""
    for replica in replicas:
        return replica.exchange.counters() if replica.exchange is not None else {}
    return {}


def step_facts(specs: Sequence[EngineSpec]) -> dict[str, str]:
    """Where step times come from."""
    return {f"step_time.{s.name}": getattr(s.step_time, "source", "given") for s in specs}
