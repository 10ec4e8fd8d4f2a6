"""Plays one cell on live engines: finds its parts, puts them together, collects what they saw."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsched import UsageError
from harness.cells import CellInterruptedError, sessions_of
from harness.live.emulated_fleet import EmulatedFleet
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import link_of, specs_of
from harness.live.fronts import (
    GatewayFront,
    cell_gateway_settings,
    replica_record,
    with_idle_expiry,
)
from harness.live.latency import room_for_sockets
from harness.live.loops import run_bounded
from harness.live.parts import Ending, Front, Played, Player, ReplicaAddress, Stage
from harness.live.replay import ReplaySettings
from harness.live.replay_player import ReplayPlayer
from harness.live.replica_watch import ReplicaWatch, transfer_facts
from harness.live.run import engine_counters, kv_counters, run_emulated, step_facts
from harness.live.serving import find_policy
from harness.live.settings import LiveSettings
from results.cells import disk
from results.records import Label

if TYPE_CHECKING:
    from harness.cells import CellJob
    from harness.live.agents.background import Background
    from harness.sim.driver import Recorder

DRAIN_S = 20.0
"""Turns that run when a cell is told to end have this long for it. Our choice."""
AGENT_EXPIRY_S = 3600.0
"""A session of a real agent without a turn for this long has vanished. Our choice: longer than any
tool of the task sets may run."""


@dataclass(frozen=True, slots=True)
class LiveJob:
    """What a cell on live engines needs beside what every cell does."""

    engine: str
    settings: LiveSettings
    label: Label
    """Of the cell: `emulated`, `measured`, or `external` behind somebody else's router."""
    served_model: str
    driver: str | None = None
    """Workload whose real agents play; None: the workload is replayed."""
    driver_settings: Mapping[str, Any] = field(default_factory=dict)
    router: str | None = None
    """An external router, as `harness.live.routers` finds it, in place of a scheduler."""
    replicas: tuple[ReplicaAddress, ...] = ()
    """Running ones; the emulator's start with the cell, unless they run on Ray."""
    gpus: tuple[int, ...] = ()
    """GPUs of theirs that are looked at."""
    telemetry_interval_s: float | None = None
    """Between looks at GPUs and host; None: at neither."""
    reset: Mapping[str, Any] = field(default_factory=dict)
    """What was done to them before the cell."""


def play(
    job: CellJob,
    live: LiveJob,
    folder: Path,
    recorder: Recorder,
    progress: Callable[[int, int], None],
) -> Played:
    """Play a cell to its end.

    Args:
        folder: the cell's; logs and trajectories go below it.

    Raises:
        AgentschedError: whatever kept it from ending, in words.
    """
    if live.engine == "emulator" and live.settings.virtual_clock:
        return _play_virtual(job, recorder, progress)
    room_for_sockets()
    with _telemetry(live, folder) as figures:
        played = run_bounded(_play(job, live, folder, recorder, progress))
    return replace(played, facts={**played.facts, **figures})


@contextmanager
def _telemetry(live: LiveJob, folder: Path) -> Iterator[dict[str, Any]]:
    """Look at GPUs and host meanwhile; what came of it is in the dictionary at the end."""
    figures: dict[str, Any] = {}
    if live.telemetry_interval_s is None:
        yield figures
        return
    from harness.live.engines.telemetry import TelemetryThread

    looking = TelemetryThread(live.gpus, live.telemetry_interval_s)
    looking.start()
    try:
        yield figures
    finally:
        summary = looking.stop()
        with disk(folder, "write telemetry"):
            looking.telemetry.write(folder / "telemetry.csv")
        figures |= {k: v for k, v in asdict(summary).items() if v is not None}
        if "missing" in figures:
            figures["gpu_telemetry_missing"] = figures.pop("missing")


def _play_virtual(job: CellJob, recorder: Recorder, progress: Callable[[int, int], None]) -> Played:
    from schedulers.registry import create

    outcome = run_emulated(
        sessions_of(job),
        workers=job.workers,
        scheduler=create(job.target, job.settings, job.cell.seed),
        cluster=job.cluster,
        settings=job.sim,
        engine=job.engine,
        recorder=recorder,
        capacity_share=job.gateway_share,
        time_scale=None,
        target=job.target,
        scheduler_settings=job.settings,
        progress=progress,
    )
    facts = {**outcome.facts, "clock": "virtual"}
    return Played(outcome.makespan_ns, outcome.counters, facts, outcome.timing)


async def _play(
    job: CellJob,
    live: LiveJob,
    folder: Path,
    recorder: Recorder,
    progress: Callable[[int, int], None],
) -> Played:
    wall, cpu = time.perf_counter(), time.process_time()
    limit = job.sim.context_limit or job.cluster.model.context_limit
    player = _player(job, live, folder)
    own = live.engine == "emulator" and not live.replicas
    fleet = _emulated_fleet(job, live, folder, limit) if own else None
    front = _front(job, live, folder, recorder, player)
    watch: ReplicaWatch | None = None
    try:
        replicas = await fleet.start() if fleet is not None else live.replicas
        await front.start(replicas)
        if fleet is not None and isinstance(front, GatewayFront):
            fleet.schedule_faults(job.sim.faults, front)
        speed = live.settings.time_scale
        watch = ReplicaWatch(replicas, speed)
        before = await watch.read()
        clock = front.clock if isinstance(front, GatewayFront) else watch.clock
        if not isinstance(front, GatewayFront):
            watch.start(
                job.sim.sampling_interval_s / speed,
                lambda name, gauges: recorder.replica(
                    replica_record(clock.now, name, gauges, before.get(name))
                ),
            )
        stage = Stage(front, recorder, clock, folder, live.served_model, limit, progress)
        played = await _unless_something_breaks(player.play(stage), front, stage.ending)
        growth = await watch.growth_since(before)
        counters = {**front.counters(), **played.counters, **growth.counters}
        facts = {**live.reset, **front.facts(), **played.facts, "engine": live.engine}
        if any(replica.role != "mixed" for replica in replicas):
            facts |= transfer_facts(growth.transfers)
        if fleet is not None:
            counters |= engine_counters(fleet.server.replicas)
            counters |= kv_counters(fleet.server.replicas)
            facts |= step_facts(fleet.server.specs)
        timing = {
            "cell_wall_s": time.perf_counter() - wall,
            "cell_cpu_s": time.process_time() - cpu,
            **played.timing,
        }
        return Played(played.makespan_ns, counters, facts, timing, played.invalid)
    finally:
        if watch is not None:
            await watch.close()
        await front.close()
        if fleet is not None:
            await fleet.close()


async def _unless_something_breaks(
    playing: Coroutine[Any, Any, Played], front: Front, ending: Ending
) -> Played:
    """What playing returns. An exception in any callback of the loop ends it: the turn that it
    belonged to would else be waited for without end.

    Raises:
        CellInterruptedError: SIGTERM came. Turns that were running have ended, or had `DRAIN_S` to.
    """
    loop, told = asyncio.get_running_loop(), asyncio.Event()
    broken: asyncio.Future[Played] = loop.create_future()

    def on_error(loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception") or RuntimeError(context["message"])
        if not broken.done():
            broken.set_exception(error)

    loop.set_exception_handler(on_error)
    task, waiting = loop.create_task(playing), loop.create_task(told.wait())
    watched = threading.current_thread() is threading.main_thread()
    if watched:
        loop.add_signal_handler(signal.SIGTERM, told.set)
    try:
        awaited: set[asyncio.Future[Any]] = {task, broken, waiting}
        await asyncio.wait(awaited, return_when=asyncio.FIRST_COMPLETED)
        if task.done() or broken.done():
            return (task if task.done() else broken).result()
        await _drain(front, ending)
        raise CellInterruptedError("the cell was interrupted", "the same command goes on with it")
    finally:
        loop.set_exception_handler(None)
        for each in (task, waiting):
            each.cancel()
        await asyncio.gather(task, waiting, return_exceptions=True)
        broken.cancel()
        if watched:
            loop.remove_signal_handler(signal.SIGTERM)


async def _drain(front: Front, ending: Ending) -> None:
    """Begin no turn any more, and wait for those at the replicas. What others' routers have in
    hand the player alone can tell."""
    driver = front.served.driver if isinstance(front, GatewayFront) else None
    if driver is not None:
        driver.draining = True
    until = asyncio.get_running_loop().time() + DRAIN_S
    while asyncio.get_running_loop().time() < until:
        running = ending.drain() if ending.drain is not None else 0
        if driver is not None:  # turns that it holds are not waited for
            facts = driver.facts()
            running = max(facts["in_flight"], running - facts["waiting"])
        if not running:
            return
        await asyncio.sleep(0.05)


def _emulated_fleet(job: CellJob, live: LiveJob, folder: Path, limit: int) -> EmulatedFleet:
    script = None
    if live.driver is not None:
        from workloads.agents.registry import find_driver

        script = find_driver(live.driver).script(folder, live.driver_settings)
    return EmulatedFleet(
        specs_of(job.cluster, job.engine),
        EmulatorSettings(model=live.served_model, max_model_len=limit),
        script=script,
        speed=live.settings.time_scale,
        link=link_of(job.cluster, job.sim.kv_link),
        kv_events=live.router is not None,
    )


def _front(job: CellJob, live: LiveJob, folder: Path, recorder: Recorder, player: Player) -> Front:
    if live.router is not None:
        from harness.live.routers import find_router

        return find_router(live.router, job.settings, folder)
    settings = cell_gateway_settings(
        job.sim,
        share=job.gateway_share,
        emulated=live.engine == "emulator",
        passthrough=live.settings.passthrough,
    )
    if live.driver is not None:
        settings = with_idle_expiry(settings, AGENT_EXPIRY_S)
    return GatewayFront(
        find_policy(job.target, job.settings, job.cell.seed),
        settings,
        recorder,
        live.label,
        record_decisions=job.sim.record_decisions,
        event_log=folder / "gateway.jsonl" if live.settings.event_log else None,
        speed=live.settings.time_scale,
        watcher=getattr(player, "watcher", None),
    )


def _player(job: CellJob, live: LiveJob, folder: Path) -> Player:
    if live.driver is not None:
        from harness.live.agents.player import AgentPlayer
        from workloads.agents.registry import find_driver

        workers = job.workers
        if workers is None:
            raise UsageError("real agents are taken up by workers", "give the workload `workers`")
        driver = find_driver(live.driver)
        tasks = driver.tasks(live.driver_settings, sessions=job.sessions, seed=job.cell.seed)
        chat = _background(job, live, workers)
        return AgentPlayer(driver, live.driver_settings, workers, tasks, chat)
    return ReplayPlayer(
        sessions_of(job), job.workers, _replay_settings(job, live), live.settings.time_scale
    )


def _background(job: CellJob, live: LiveJob, workers: int) -> Background | None:
    """The chat beside real agents; None: there is none."""
    from harness.live.agents.background import Background
    from results.writer import CellWriter
    from workloads.agents.mixed import background_name, background_of

    assert live.driver is not None
    wanted = background_of(live.driver, live.driver_settings)
    if wanted is None:
        return None
    name = background_name(job.cell.workload, wanted, workers)
    cell = replace(job.cell, workload=name, workers=0)
    return Background(
        wanted.load(job.cell.seed),
        _replay_settings(job, live),
        lambda: CellWriter(job.run, cell, live.label),
        {**job.facts, **live.reset, "engine": live.engine},
    )


def _replay_settings(job: CellJob, live: LiveJob) -> ReplaySettings:
    sim, live_settings = job.sim, live.settings
    return ReplaySettings(
        start_spread_s=sim.start_spread_s,
        agent_retries=sim.agent_retries,
        retry_delay_s=sim.retry_delay_s,
        tool_slots=sim.tool_slots,
        release=sim.release,
        gaps=live_settings.gaps,
        gap_scale=live_settings.gap_scale,
        seed=job.cell.seed,
        # Replicas that outlive the cell must find none of its text in what an earlier one left.
        salt="" if live.engine == "emulator" else job.cell.name,
    )
