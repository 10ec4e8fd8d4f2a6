"""A whole gateway: senders, driver, poller, event log, ports; started and stopped as one."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import orjson

from agentsched import AgentschedError, SchedulerError
from harness.control.ledger import ReplicaConfig
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from harness.live.access import Access, Guard, TlsFiles, check_exposure, tls_context
from harness.live.backlog import Backlog
from harness.live.clock import LoopClock
from harness.live.driver import LiveDriver
from harness.live.eventlog import EventLog
from harness.live.gateway import Gateway, GatewaySettings, Observer
from harness.live.gauges import Gauges, read_gauges
from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer, Limits
from harness.live.invariants import InvariantChecker, asked_for
from harness.live.kv_events import KvStream, KvSubscriber
from harness.live.legs import Bootstrap
from harness.live.login import WITH_AUTHORITY, Login
from harness.live.overdue import Overdue
from harness.live.planners import ProcessPlanner
from harness.live.polling import (
    Poller,
    PollSettings,
    get,
    server_info_bootstrap,
    server_info_capacity,
)
from harness.live.turns import DriverSettings, Watcher
from harness.live.urgent import POSSIBLE, Urgent
from harness.live.wire import Sender
from results.records import DecisionRecord
from schedulers import registry
from schedulers.base import Scheduler
from schedulers.views import Role

READY_POLL_S = 0.5
LOOK_S = 2.0
"""A replica that has not answered after so long is told of, and asked again. Our choice."""
DECISIONS_KEPT = 5_000
"""Newest decisions that the admin port shows."""


class BackendError(AgentschedError):
    """A backend does not answer."""


@dataclass(frozen=True, slots=True)
class ServeSettings:
    """Everything about a gateway that is not the scheduler's."""

    host: str = "127.0.0.1"
    port: int = 8300
    admin_port: int | None = None
    """None: the port after the model port."""
    access: Access = field(default_factory=Access)
    """To the model port."""
    admin_host: str = "127.0.0.1"
    """The admin port stays off the network even where the model port is on it."""
    admin_access: Access = field(default_factory=Access)
    tls: TlsFiles | None = None
    """Of both ports; None: plain HTTP."""
    backend: Login = field(default_factory=Login)
    """How the gateway is let in by its engines: their own API key, whom to trust."""
    capacity_share: float = 1.0
    """Part of each replica's KV that this gateway may use."""
    max_wait_s: float | None = None
    """A turn that waited this long is sent on whatever the scheduler says; None: it decides."""
    wait_s: float = 600.0
    """How long to wait for the replicas to answer before serving."""
    probe_apis: bool = True
    """Ask the engines which APIs they serve; else `gateway.passed` says it."""
    driver: DriverSettings = field(default_factory=DriverSettings)
    gateway: GatewaySettings = field(default_factory=GatewaySettings)
    poll: PollSettings = field(default_factory=PollSettings)
    limits: Limits = field(default_factory=Limits)
    gather: bool = False
    """Relay the chunks of many streams together (`harness.live.backlog`). It blocks the event loop
    for some milliseconds at a time, so nothing else should run on that."""


@dataclass(frozen=True, slots=True)
class Policy:
    """The scheduler that serves."""

    scheduler: Scheduler
    target: str
    """A name, or file.py:Class."""
    settings: Mapping[str, Any]
    seed: int


def find_policy(target: str, settings: Mapping[str, Any], seed: int = 0) -> Policy:
    """A fresh scheduler by name or file.

    Raises:
        UsageError: unknown, or a setting it does not have.
    """
    return Policy(registry.create(target, settings, seed), target, dict(settings), seed)


class ServedGateway:
    """A gateway on its ports. Use `start`, then `close`.

    Args:
        backends: base URLs of the replicas, in order; their ids are r0, r1, ... unless `names`.
        event_log: file for the event log.
        watcher: is told of turns and sessions.
        observer: sees complete turns with their text.
        decision: is given every record of the decision log.
        kv_events: addresses of KV-event publishers by replica id; `kv_replays`: of their replays.
        roles: by replica id; those left out do everything.
        bootstrap_ports: of SGLang prefill replicas by id, where their own page does not tell.
        speed: virtual seconds per real second (emulation).
        tell: is told of replicas that are waited for.

    Raises:
        UsageError: a port would be open to others without a token, or a certificate is none.
    """

    def __init__(
        self,
        policy: Policy,
        backends: Sequence[str],
        settings: ServeSettings | None = None,
        *,
        names: Sequence[str] | None = None,
        event_log: Path | None = None,
        watcher: Watcher | None = None,
        observer: Observer | None = None,
        decision: Callable[[DecisionRecord], None] | None = None,
        on_gauges: Callable[[str, Gauges], None] | None = None,
        kv_events: Mapping[str, str] | None = None,
        kv_replays: Mapping[str, str] | None = None,
        roles: Mapping[str, Role] | None = None,
        bootstrap_ports: Mapping[str, int] | None = None,
        speed: float = 1.0,
        tell: Callable[[str], None] = lambda line: None,
    ) -> None:
        self.settings = settings or ServeSettings()
        self.policy = policy
        names = names or [f"r{i}" for i in range(len(backends))]
        self._observer, self._decision, self._speed = observer, decision, speed
        self._on_gauges, self._tell = on_gauges, tell
        self._kv_events, self._kv_replays = dict(kv_events or {}), dict(kv_replays or {})
        self._roles = dict(roles or {})
        self._bootstrap_ports = dict(bootstrap_ports or {})
        self._subscribers: list[KvSubscriber] = []
        check_exposure(self.settings.host, self.settings.access, "the model port")
        check_exposure(self.settings.admin_host, self.settings.admin_access, "the admin port")
        self._tls = tls_context(self.settings.tls) if self.settings.tls is not None else None
        bring = self.settings.backend
        self._urgent = Urgent() if self.settings.gather and POSSIBLE else None
        backlog = Backlog(self._urgent)
        self.clients = {
            name: HttpClient(
                url, key=bring.token, tls=bring.tls_for(url), backlog=backlog, spare=True
            )
            for name, url in zip(names, backends, strict=True)
        }
        self._event_log_path = event_log
        self._log: EventLog | None = None
        self._watcher = watcher
        self.port = self.admin_port = 0
        self.gateway: Gateway
        self.driver: LiveDriver
        self.poller: Poller
        self.failure: asyncio.Future[SchedulerError]
        self._servers: list[HttpServer] = []
        self._looking: list[Overdue | InvariantChecker] = []
        self._decisions: deque[DecisionRecord] = deque(maxlen=DECISIONS_KEPT)
        self._planner = ProcessPlanner(policy.target, self._planning_failed)

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
            ReplicaConfig(
                name,
                self._roles.get(name, "mixed"),
                Capacity(await self._capacity(name), share=share),
            )
            for name in self.clients
        ]
        self.clock = clock = LoopClock(loop, self._speed)
        self._log = log = self._open_log(replicas)
        self.driver = LiveDriver(
            lambda progress: ControlPlane(
                self.policy.scheduler,
                replicas,
                progress,
                self._decided,
                max_wait_s=self.settings.max_wait_s,
                idle_texts=self.settings.gateway.idle_texts,
            ),
            clock,
            self._planner,
            self.settings.driver,
            on_event=log.write if log is not None else None,
            watcher=self._watcher,
            on_error=self._broken,
        )
        senders: dict[str, Sender] = dict(self.clients)
        settings = self.settings.gateway
        prefillers = [name for name in self.clients if self._roles.get(name) == "prefill"]
        if prefillers:
            # Two legs are done with chat completions and completions: all engines agree on those.
            settings = replace(settings, passed=frozenset())
        elif self.settings.probe_apis:
            settings = replace(settings, passed=await self._engine_apis())
        self.gateway = Gateway(self.driver, senders, settings)
        self.gateway.bootstraps = {
            name: Bootstrap(self.clients[name].host, port)
            for name in prefillers
            for port in [await self._bootstrap_port(name)]
            if port is not None
        }
        self.gateway.observer = self._observer
        admin = Admin(self.gateway, self.policy.scheduler.name, self._decisions)

        def saw_gauges(replica: str, gauges: Gauges) -> None:
            admin.saw_gauges(replica, gauges)
            if self._on_gauges is not None:
                self._on_gauges(replica, gauges)

        self.poller = Poller(self.driver, senders, clock, self.settings.poll, saw_gauges)
        self.gateway.poller = self.poller
        self.poller.start()
        self._looking.append(Overdue(self.driver, self.poller.suspect))
        if asked_for():
            self._looking.append(InvariantChecker(self.driver, self._broken))
        for each in self._looking:
            each.start()
        for name, endpoint in self._kv_events.items():
            cleared = partial(self.driver.kv_changed, name, cleared=True)
            replay = self._kv_replays.get(name)
            self._subscribers.append(KvSubscriber(endpoint, KvStream(cleared), replay))
        host, port = self.settings.host, self.settings.port
        guard = Guard(self.gateway.handle, self.gateway.refusal, self.settings.access)
        self.port = await self._listen(guard, self.gateway.refusal, host, port)
        admin_port = self.settings.admin_port
        if admin_port is None:
            admin_port = self.port + 1 if self.settings.port else 0
        guard = Guard(admin.handle, admin.refusal, self.settings.admin_access)
        admin_host = self.settings.admin_host
        self.admin_port = await self._listen(guard, admin.refusal, admin_host, admin_port)
        scheme = "http" if self._tls is None else "https"
        self.url = f"{scheme}://{host}:{self.port}"
        self.admin_url = f"{scheme}://{admin_host}:{self.admin_port}"

    async def _listen(self, guard: Guard, refuse: Any, host: str, port: int) -> int:
        server = HttpServer(guard.handle, refuse, self.settings.limits, self._urgent)
        self._servers.append(server)
        return await server.listen(host, port, tls=self._tls)

    async def close(self) -> None:
        """Stop listening, drop what is under way, end the planner."""
        for server in self._servers:
            await server.close()
        if hasattr(self, "poller"):
            self.poller.stop()
        for each in self._looking:
            each.stop()
        for subscriber in self._subscribers:
            await subscriber.close()
        for client in self.clients.values():
            await client.close()
        self._planner.close()
        if self._log is not None:
            self._log.close()

    @property
    def log_problem(self) -> str | None:
        """Why the event log ends early; None: it does not, or there is none."""
        if self._log is None or self._log.problem is None:
            return None
        return f"the event log {self._event_log_path} ends early: {self._log.problem}"

    # Parts.

    def _open_log(self, replicas: list[ReplicaConfig]) -> EventLog | None:
        if self._event_log_path is None:
            return None
        policy = self.policy
        return EventLog(
            self._event_log_path.open("wb"),
            policy.target,
            policy.settings,
            policy.seed,
            replicas,
            max_wait_s=self.settings.max_wait_s,
            idle_texts=self.settings.gateway.idle_texts,
        )

    def _decided(self, record: DecisionRecord) -> None:
        self._decisions.append(record)
        if self._decision is not None:
            self._decision(record)

    def _broken(self, error: SchedulerError) -> None:
        if not self.failure.done():
            self.failure.set_result(error)

    def _planning_failed(self, error: BaseException) -> None:
        problem = f"its solver raised {type(error).__name__}: {error}"
        self._broken(
            SchedulerError(self.policy.scheduler.name, "Solve", self.driver.clock.now, problem)
        )

    async def _engine_apis(self) -> frozenset[str]:
        """Paths that all replicas list in their API description, as vLLM's servers do."""
        common: frozenset[str] | None = None
        for client in self.clients.values():
            status, page = await fetch(client, "/openapi.json")
            try:
                paths = orjson.loads(page).get("paths", ()) if status == 200 else ()
            except (orjson.JSONDecodeError, AttributeError):
                paths = ()
            found = frozenset(paths) & {"/v1/messages", "/v1/responses"}
            common = found if common is None else common & found
        return common or frozenset()

    async def _bootstrap_port(self, name: str) -> int | None:
        """Where an SGLang prefill replica meets decoders; None: it is not SGLang's."""
        if name in self._bootstrap_ports:
            return self._bootstrap_ports[name]
        info = await _server_info(self.clients[name])
        return server_info_bootstrap(info) if info is not None else None

    async def _capacity(self, name: str) -> int | None:
        """Wait for the replica and ask for its KV tokens; None if it does not tell."""
        loop = asyncio.get_running_loop()
        until, told = loop.time() + self.settings.wait_s, False
        while True:
            status, page = await fetch(self.clients[name], "/metrics", LOOK_S)
            if status == 200:
                found = read_gauges(page.decode("utf-8", "replace")).capacity_tokens
                if found is not None:
                    return found
            if status:
                info = await _server_info(self.clients[name])
                return server_info_capacity(info) if info is not None else None
            why = page.decode("utf-8", "replace")
            if "certificate" in why:  # it will not become another one by waiting
                raise BackendError(
                    why, f"for engines, {WITH_AUTHORITY.replace('--', '--backend-')}"
                )
            left = until - loop.time()
            if left <= 0:
                url = self.clients[name].url
                raise BackendError(f"{url} does not answer", "start the engine, or wait longer")
            if not told:
                self._tell(f"{name}: {why or 'no answer'}; trying for {left:.0f} s more")
                told = True
            await asyncio.sleep(READY_POLL_S)


async def fetch(sender: Sender, target: str, timeout_s: float = 10.0) -> tuple[int, bytes]:
    """GET something small; status 0: no answer, and why."""
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
        return 0, f"{target} is not answered in {timeout_s:g} s".encode()


async def _server_info(sender: Sender) -> bytes | None:
    """SGLang's page about a server, by its name of today, then by that of older releases.

    None: it has neither.
    """
    for path in ("/server_info", "/get_server_info"):
        status, info = await fetch(sender, path)
        if status == 200:
            return info
    return None
