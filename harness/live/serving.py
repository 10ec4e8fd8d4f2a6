"""A whole gateway: senders, driver, poller, event log, ports; started and stopped as one."""

from __future__ import annotations

import asyncio
import multiprocessing
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from agentsched import AgentschedError, SchedulerError
from harness.control.ledger import ReplicaConfig
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from harness.live.clock import LoopClock
from harness.live.driver import DriverSettings, LiveDriver, Watcher
from harness.live.eventlog import EventLog
from harness.live.gateway import Gateway, GatewaySettings
from harness.live.gauges import read_gauges
from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer, Limits
from harness.live.polling import Poller, PollSettings, get, server_info_capacity
from harness.live.wire import Sender
from results.records import DecisionRecord
from schedulers import registry
from schedulers.commands import Solve

READY_POLL_S = 0.5
DECISIONS_KEPT = 10_000
"""Newest decisions that the admin port shows."""


class BackendError(AgentschedError):
    """A backend does not answer."""


class ProcessPlanner:
    """Solves in one worker process, so that the event loop never waits.

    Args:
        scheduler: name or file of the scheduler; the worker loads it, to know its solver.
        on_error: is given what a solver raised.
    """

    def __init__(self, scheduler: str, on_error: Callable[[BaseException], None]) -> None:
        self._scheduler = scheduler
        self._on_error = on_error
        self._pool: ProcessPoolExecutor | None = None

    def solve(self, command: Solve, ready: Callable[[Any], None]) -> None:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=registry.find,
                initargs=(self._scheduler,),
            )
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, command.solver, command.snapshot)

        def done(solved: asyncio.Future[Any]) -> None:
            if solved.cancelled():
                return
            error = solved.exception()
            if error is not None:
                self._on_error(error)
            else:
                ready(solved.result())

        future.add_done_callback(done)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything about a gateway that is not the scheduler's."""

    host: str = "127.0.0.1"
    port: int = 8300
    admin_port: int | None = None
    """None: the port after the model port."""
    capacity_share: float = 1.0
    """Part of each replica's KV that this gateway may use."""
    wait_s: float = 600.0
    """How long to wait for the replicas to answer before serving."""
    seed: int = 0
    driver: DriverSettings = field(default_factory=DriverSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    poll: PollSettings = field(default_factory=PollSettings)
    limits: Limits = field(default_factory=Limits)


class ServedGateway:
    """A gateway on its ports. Use `start`, then `close`.

    Args:
        scheduler: a name, or file.py:Class.
        scheduler_settings: its settings.
        backends: base URLs of the replicas, in order; their ids are r0, r1, ...
        event_log: file for the event log.
        watcher: is told of turns and sessions.
    """

    def __init__(
        self,
        scheduler: str,
        scheduler_settings: Mapping[str, Any],
        backends: Sequence[str],
        settings: ServeSettings | None = None,
        *,
        event_log: Path | None = None,
        watcher: Watcher | None = None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.scheduler = scheduler
        self._policy = registry.create(scheduler, scheduler_settings, self.settings.seed)
        self._policy_settings = dict(scheduler_settings)
        self.clients = {f"r{i}": HttpClient(url) for i, url in enumerate(backends)}
        self._event_log_path = event_log
        self._log_stream: IO[bytes] | None = None
        self._watcher = watcher
        self.port = self.admin_port = 0
        self.gateway: Gateway
        self.driver: LiveDriver
        self.poller: Poller
        self.failure: asyncio.Future[SchedulerError]
        self._servers: list[HttpServer] = []
        self._decisions: deque[DecisionRecord] = deque(maxlen=DECISIONS_KEPT)
        self._planner = ProcessPlanner(scheduler, self._planning_failed)

    async def start(self) -> None:
        """Wait for the replicas, then listen.

        Raises:
            BackendError: a replica did not answer in time.
            ListenError: a port cannot be listened on.
        """
        from harness.live.admin import Admin

        loop = asyncio.get_running_loop()
        self.failure = loop.create_future()
        share = self.settings.capacity_share
        replicas = [
            ReplicaConfig(name, "mixed", Capacity(await self._capacity(name), share=share))
            for name in self.clients
        ]
        clock = LoopClock(loop)
        log = self._open_log(replicas)
        self.driver = LiveDriver(
            lambda progress: ControlPlane(self._policy, replicas, progress, self._decisions.append),
            clock,
            self._planner,
            self.settings.driver,
            on_event=log.write if log is not None else None,
            watcher=self._watcher,
            on_error=self._broken,
        )
        senders: dict[str, Sender] = dict(self.clients)
        self.gateway = Gateway(self.driver, senders, self.settings.gateway)
        admin = Admin(self.gateway, self._policy.name, self._decisions)
        self.poller = Poller(
            self.driver, senders, clock, self.settings.poll, on_gauges=admin.saw_gauges
        )
        self.gateway.poller = self.poller
        self.poller.start()
        host, port = self.settings.host, self.settings.port
        self.port = await self._listen(self.gateway.handle, self.gateway.refusal, port)
        admin_port = self.settings.admin_port
        if admin_port is None:
            admin_port = self.port + 1 if self.settings.port else 0
        self.admin_port = await self._listen(admin.handle, admin.refusal, admin_port)
        self.url = f"http://{host}:{self.port}"
        self.admin_url = f"http://{host}:{self.admin_port}"

    async def _listen(self, handler: Any, refuse: Any, port: int) -> int:
        server = HttpServer(handler, refuse, self.settings.limits)
        self._servers.append(server)
        return await server.listen(self.settings.host, port)

    async def close(self) -> None:
        """Stop listening, drop what is under way, end the planner."""
        for server in self._servers:
            await server.close()
        if hasattr(self, "poller"):
            self.poller.stop()
        for client in self.clients.values():
            await client.close()
        self._planner.close()
        if self._log_stream is not None:
            self._log_stream.close()

    # Parts.

    def _open_log(self, replicas: list[ReplicaConfig]) -> EventLog | None:
        if self._event_log_path is None:
            return None
        self._log_stream = self._event_log_path.open("wb")
        return EventLog(
            self._log_stream, self.scheduler, self._policy_settings, self.settings.seed, replicas
        )

    def _broken(self, error: SchedulerError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)

    def _planning_failed(self, error: BaseException) -> None:
        problem = f"its solver raised {type(error).__name__}: {error}"
        self._broken(SchedulerError(self._policy.name, "Solve", self.driver.clock.now, problem))

    async def _capacity(self, name: str) -> int | None:
        """Wait for the replica and ask for its KV tokens; None if it does not tell."""
        loop = asyncio.get_running_loop()
        until = loop.time() + self.settings.wait_s
        while True:
            status, page = await fetch(self.clients[name], "/metrics")
            if status == 200:
                found = read_gauges(page.decode("utf-8", "replace")).capacity_tokens
                if found is not None:
                    return found
            if status:
                status, info = await fetch(self.clients[name], "/get_server_info")
                return server_info_capacity(info) if status == 200 else None
            if loop.time() >= until:
                url = self.clients[name].url
                raise BackendError(f"{url} does not answer", "start the engine, or wait longer")
            await asyncio.sleep(READY_POLL_S)


async def fetch(sender: Sender, target: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """GET something small; status 0: no answer."""
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[tuple[int, bytes]] = loop.create_future()

    def done(status: int, body: bytes) -> None:
        if not answer.done():
            answer.set_result((status, body))

    request = get(sender, target, done)
    try:
        async with asyncio.timeout(timeout_s):
            return await answer
    except TimeoutError:
        request.give_up()
        return 0, b""
