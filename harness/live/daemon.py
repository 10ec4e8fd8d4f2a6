"""Runs a gateway or an emulator until it is told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import uvloop

from agentsched import AgentschedError, UsageError
from harness.live.emulated_answers import Script
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import EngineSpec, FleetServer
from harness.live.latency import calm_collector, room_for_sockets, short_slices
from harness.live.parts import ReplicaAddress
from harness.live.recording import TraceRecorder
from harness.live.serving import Policy, ServedGateway, ServeSettings
from harness.sim.links import LinkSpec

Tell = Callable[[str], None]
FULL_DISK = "make room on the disk, or name a file elsewhere"
SPARE_PREFIX = "agentsched-recording-"
SAVE_EVERY_S = 30.0
"""How often a recording is written while it goes on. Our choice."""
DRAIN_S = 20.0
"""Turns that run when a server is told to end have this long for it. Our choice."""
DRAIN_LOOK_S = 0.02


class DiskError(AgentschedError):
    """What was measured is there, but not where it should be, or not all of a log."""


def serve(
    policy: Policy,
    replicas: Sequence[ReplicaAddress],
    settings: ServeSettings,
    *,
    tell: Tell,
    event_log: Path | None = None,
    trace: Path | None = None,
    content: Path | None = None,
    workload: str = "recorded",
) -> None:
    """Serve until SIGINT or SIGTERM. Turns that run then may end, unless it comes twice.

    Args:
        tell: is given lines for the user.
        trace: file for a recorded trace; None: nothing is recorded.
        content: file for the text of prompts and answers.

    Raises:
        SchedulerError: the policy broke its contract.
        BackendError: a replica did not answer in time.
        ListenError: a port cannot be listened on.
        TraceError: the trace cannot be written.
        DiskError: a trace or log is not where it should be, or not whole.
    """
    recorder = None
    if trace is not None:
        text = content.open("wb") if content is not None else None
        recorder = TraceRecorder(trace, workload, text)
    room_for_sockets()
    try:
        problem = uvloop.run(_serve(policy, replicas, settings, tell, event_log, recorder))
    finally:
        if recorder is not None:
            assert trace is not None
            _keep(recorder, trace, tell)
    if problem is not None:
        raise DiskError(problem, FULL_DISK)


def _keep(recorder: TraceRecorder, trace: Path, tell: Tell) -> None:
    """Write a recording for good; where its disk does not take it, to the temporary folder.

    Raises:
        DiskError: it is elsewhere, or its text is not whole.
    """
    recorder.close_content()
    try:
        count = recorder.save()
    except UsageError as error:
        spare = Path(tempfile.mkdtemp(prefix=SPARE_PREFIX)) / trace.name
        recorder.save(spare)
        raise DiskError(f"{error.message}; the recording is in {spare}", FULL_DISK) from None
    tell(f"recorded {count} session(s), {recorder.turns} turn(s) in {trace}")
    if recorder.problem is not None:
        raise DiskError(recorder.problem, FULL_DISK)


def _save(recorder: TraceRecorder) -> str | None:
    """Write a recording while it goes on; why it cannot be."""
    try:
        recorder.save()
    except UsageError as error:
        return error.message
    return recorder.problem


async def _serve(
    policy: Policy,
    replicas: Sequence[ReplicaAddress],
    settings: ServeSettings,
    tell: Tell,
    event_log: Path | None,
    recorder: TraceRecorder | None,
) -> str | None:
    """Returns why the event log is not whole; None: it is, or there is none."""
    served = ServedGateway(
        policy,
        [replica.url for replica in replicas],
        settings,
        names=[replica.name for replica in replicas],
        event_log=event_log,
        watcher=recorder,
        observer=recorder,
        kv_events={r.name: r.kv_events for r in replicas if r.kv_events is not None},
        kv_replays={r.name: r.kv_replay for r in replicas if r.kv_replay is not None},
        roles={r.name: r.role for r in replicas},
        bootstrap_ports={
            r.name: r.bootstrap_port for r in replicas if r.bootstrap_port is not None
        },
        tell=tell,
    )
    stopping = Stopping()
    stopped = stopping.told
    calm_collector()
    short_slices()
    told: set[str] = set()
    try:
        starting = asyncio.ensure_future(served.start())
        tell(f"waiting for {len(replicas)} replica(s) ...")
        if not await _first(starting, stopped):
            return None
        apis = ", ".join(dialect.path for dialect in served.gateway.dialects)
        tell(f"{policy.scheduler.name}: {served.url} ({apis})")
        tell(f"admin: {served.admin_url} (/state, /sessions, /replicas, /decisions, /metrics)")
        while not (stopped.is_set() or served.failure.done()):
            waiting = asyncio.ensure_future(stopped.wait())
            both: list[asyncio.Future[Any]] = [waiting, served.failure]
            await asyncio.wait(both, timeout=SAVE_EVERY_S, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            for problem in (served.log_problem, _save(recorder) if recorder is not None else None):
                if problem is not None and problem not in told:
                    told.add(problem)
                    tell(f"{problem}; turns go on")
        if served.failure.done():
            raise served.failure.result()
        served.driver.draining = True
        await stopping.drained(lambda: served.driver.facts()["in_flight"], tell)
    finally:
        await served.close()
    return served.log_problem


def emulate(
    specs: Sequence[EngineSpec],
    settings: EmulatorSettings,
    *,
    host: str,
    port: int,
    speed: float,
    script: Script | None,
    tell: Tell,
    link: LinkSpec | None = None,
    kv_port: int | None = None,
    misbehave: bool = False,
) -> None:
    """Serve emulated replicas until SIGINT or SIGTERM. Arguments as those of `FleetServer`.

    Raises:
        ListenError: a port cannot be listened on.
        UsageError: KV events cannot be published on one.
    """
    fleet = FleetServer(specs, settings, script, speed, link, kv_port, misbehave)
    room_for_sockets()
    uvloop.run(_emulate(fleet, host, port, tell))


async def _emulate(fleet: FleetServer, host: str, port: int, tell: Tell) -> None:
    stopping = Stopping()
    try:
        await fleet.start(host, port)
        for index, (replica, url) in enumerate(zip(fleet.replicas, fleet.urls, strict=True)):
            role = "" if replica.role == "mixed" else f", {replica.role}"
            events = ""
            if fleet.publishers:  # as `serve --kv-events` takes them
                publisher = fleet.publishers[index]
                events = f", KV events {publisher.address},{publisher.replay_address}"
            tell(f"{replica.name}: {url}{role}{events}")
        await stopping.told.wait()
        await stopping.drained(fleet.drain, tell)
    finally:
        await fleet.close()


class Stopping:
    """SIGINT or SIGTERM: the first asks to end well, the second to end at once."""

    def __init__(self) -> None:
        self.told, self.again = asyncio.Event(), asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(number, self._signalled)

    def _signalled(self) -> None:
        (self.again if self.told.is_set() else self.told).set()

    async def drained(self, running: Callable[[], int], tell: Tell) -> None:
        """Wait until nothing runs any more, for `DRAIN_S` at most, or for the second signal."""
        left = running()
        if not left or self.again.is_set():
            return
        tell(f"stopping: {left} running turn(s) may end; Ctrl-C again stops at once")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(DRAIN_S):
                while running() and not self.again.is_set():
                    await asyncio.sleep(DRAIN_LOOK_S)
        await asyncio.sleep(DRAIN_LOOK_S)  # the last answers are on their way


async def _first(work: asyncio.Future[None], stopped: asyncio.Event) -> bool:
    """Wait for the work; False if it was stopped before it was done."""
    waiting = asyncio.ensure_future(stopped.wait())
    both: list[asyncio.Future[Any]] = [work, waiting]
    await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    if not work.done():
        work.cancel()
        return False
    waiting.cancel()
    work.result()
    return True
