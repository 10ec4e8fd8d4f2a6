"""A rival's router as the front of a cell."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer
from harness.live.parts import ReplicaAddress
from harness.live.routers.base import MODEL_UNKNOWN, PROBE_SESSION, Launch, Router
from harness.live.routers.naming import NamingRelay
from harness.live.routers.process import RouterError, RouterProcess, free_ports
from harness.live.routers.served import ServedBy
from harness.live.serving import fetch
from harness.live.wire import Request, Sender
from harness.scratch import Scratch
from results.records import Label

POLL_S = 0.1
TRIES = 3
"""How often it is started when somebody takes its free port first."""


@dataclass(frozen=True, slots=True)
class Found:
    """An installed router."""

    program: tuple[str, ...]
    """The start of its command line."""
    version: str | None
    """None: it does not say."""


class RouterFront:
    """One router process, and the relay that names sessions to it. Use `start`, then `close`.

    Attributes:
        url: what sessions talk to.
        router_url: the router itself.
        command: its command line, after `start`.
        order: URLs of the replicas in the order it goes through them, where it tells.
    """

    def __init__(self, router: Router, found: Found, folder: Path | None = None) -> None:
        self.label: Label = "external"
        self.router, self.found = router, found
        self.url = self.router_url = ""
        self.admin_url: str | None = None
        self.command: list[str] = []
        self.order: list[str] = []
        self._folder = folder
        self._temporary: Scratch | None = None
        self._process: RouterProcess | None = None
        self._helpers: list[RouterProcess] = []
        self._scratch: Scratch | None = None
        self._served: ServedBy | None = None
        self._client: HttpClient | None = None
        self._relay: NamingRelay | None = None
        self._server: HttpServer | None = None
        self._releases: set[asyncio.Task[None]] = set()
        self._counts = {"router.probes": 0, "router.releases_failed": 0}

    @property
    def log(self) -> Path:
        assert self._folder is not None
        return self._folder / f"{self.router.name}.log"

    async def start(self, replicas: Sequence[ReplicaAddress]) -> None:
        """Start it and wait until it has answered a request with every replica known to it.

        Raises:
            RouterError: it ended, or was not ready in time; shows the end of its log.
            UsageError: it cannot front these replicas.
        """
        if self._folder is None:
            self._temporary = Scratch("router")
            self._folder = self._temporary.path
        self._folder.mkdir(parents=True, exist_ok=True)
        served = await served_model(replicas)
        self._served = ServedBy(replicas, self.router.replica_header)
        header = self.router.request_header
        if header is not None and self.router.settings.name_sessions:
            await self._served.listen(header)
        try:
            for attempt in range(1, TRIES + 1):
                if await self._launched(replicas, served, last=attempt == TRIES):
                    break
            await self._open_relay()
        except BaseException:
            await self.close()
            raise

    async def _launched(
        self, replicas: Sequence[ReplicaAddress], served: Mapping[str, Any], *, last: bool
    ) -> bool:
        """One try; False if the port was taken meanwhile and another one may be tried."""
        settings = self.router.settings
        port, metrics_port = free_ports(2)
        port = settings.port or port
        launch = self._launch(port, metrics_port, replicas, served)
        self.command = [*self.router.command(launch), *settings.args]
        helpers = self.router.helpers(launch)
        environment = {**self.router.environment(launch), **settings.environment}
        self.router_url = f"http://127.0.0.1:{port}"
        self._client = HttpClient(self.router_url)
        self._process = RouterProcess(self.router.name, self.command, self.log, environment)
        for helper in helpers:
            log = launch.folder / f"{helper.name}.log"
            self._helpers.append(RouterProcess(helper.name, helper.command, log, environment))
        try:
            await self._ready(replicas, launch.model)
        except RouterError:
            if settings.port or last or not self._process.port_was_taken:
                raise
            await self._stop_process()
            return False
        return True

    def _launch(
        self,
        port: int,
        metrics_port: int,
        replicas: Sequence[ReplicaAddress],
        served: Mapping[str, Any],
    ) -> Launch:
        assert self._folder is not None
        self._scratch = Scratch("router")
        return Launch(
            self.found.program,
            port,
            metrics_port,
            replicas,
            str(served.get("id", MODEL_UNKNOWN)),
            self._folder,
            self._scratch.path,
            served,
            self._served.address if self._served is not None else None,
        )

    async def _ready(self, replicas: Sequence[ReplicaAddress], model: str) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + self.router.settings.ready_s
        process = self._process
        assert process is not None
        known = answered = False
        answer = "nothing yet"
        while not (known and answered):
            for each in (process, *self._helpers):
                if not each.running:
                    raise each.failure("ended before it was ready")
            if loop.time() >= until:
                seconds = self.router.settings.ready_s
                raise process.failure(f"was not ready after {seconds:g} s (it answered: {answer})")
            known = known or await self._knows_all(replicas)
            if known:
                status, body = await self._ask(self.router.probe(model))
                answered = status == 200
                answer = f"{status} {body[:200].decode('utf-8', 'replace')}" if status else answer
            if not answered:
                await asyncio.sleep(POLL_S)
        self._release_probe()

    async def _knows_all(self, replicas: Sequence[ReplicaAddress]) -> bool:
        path = self.router.known_path
        if path is None:
            return True
        assert self._client is not None
        status, body = await fetch(self._client, path)
        if status != 200:
            return False
        page = orjson.loads(body)
        if not self.router.knows(page, replicas):
            return False
        self.order = self.router.order(page)
        return True

    async def _ask(self, request: Request) -> tuple[int, bytes]:
        assert self._client is not None
        self._counts["router.probes"] += 1
        return await ask(self._client, request)

    def _release_probe(self) -> None:
        self.release(PROBE_SESSION)

    async def _open_relay(self) -> None:
        self.url = self.router_url
        if self.router.settings.name_sessions:
            assert self._client is not None
            assert self._served is not None
            self._relay = NamingRelay(self._client, self.router.session_name, self._served)
            self._server = HttpServer(self._relay.handle, self._relay.refusal)
            port = await self._server.listen("127.0.0.1", 0)
            self.url = f"http://127.0.0.1:{port}"

    async def failed(self) -> Exception:
        assert self._process is not None
        processes = [self._process, *self._helpers]
        ends = [asyncio.ensure_future(process.ended()) for process in processes]
        try:
            await asyncio.wait(ends, return_when=asyncio.FIRST_COMPLETED)
            index = next(index for index, end in enumerate(ends) if end.done())
            code = ends[index].result()
            return processes[index].failure(f"ended with exit code {code} while it was needed")
        finally:
            for end in ends:
                end.cancel()

    def release(self, session: str) -> None:
        """Tell the router that the session has ended, if it wants to know."""
        request = self.router.release(session)
        if request is not None:
            task = asyncio.ensure_future(self._release(request))
            self._releases.add(task)
            task.add_done_callback(self._releases.discard)

    async def _release(self, request: Request) -> None:
        assert self._client is not None
        status, _ = await ask(self._client, request)
        self._counts["router.releases_failed"] += not 200 <= status < 300

    def counters(self) -> dict[str, float]:
        counts = dict(self._counts)
        if self._relay is not None:
            counts["router.requests"] = self._relay.requests
            counts["router.refused"] = self._relay.refused
            counts["router.broken"] = self._relay.broken
        return {name: float(count) for name, count in counts.items()}

    def facts(self) -> Mapping[str, Any]:
        return {
            "front": self.router.name,
            "policy": self.router.policy,
            "version": self.found.version,
            "made_for_version": self.router.version,
            "command": self.command,
            "log": self.log.name if self._temporary is None else None,
            "sessions_named_by_relay": self._relay is not None,
            **self.router.facts(),
        }

    async def close(self) -> None:
        """Stop everything; may be called twice."""
        for task in list(self._releases):
            task.cancel()
        if self._server is not None:
            await self._server.close()
        await self._stop_process()
        if self._served is not None:
            self._served.close()
        if self._temporary is not None:
            self._temporary.close()

    async def _stop_process(self) -> None:
        if self._client is not None:
            await self._client.close()
        helpers, self._helpers = self._helpers, []
        running = [each for each in (self._process, *helpers) if each is not None]
        await asyncio.gather(*(each.close() for each in running))
        if self._scratch is not None:
            self._scratch.close()
            self._scratch = None


async def served_model(replicas: Sequence[ReplicaAddress]) -> Mapping[str, Any]:
    """What the first replica says of its model, with its name in `id`; empty: nothing."""
    client = HttpClient(replicas[0].url)
    try:
        status, body = await fetch(client, "/v1/models")
    finally:
        await client.close()
    page = orjson.loads(body) if status == 200 else {}
    models = page.get("data") if isinstance(page, dict) else None
    return models[0] if isinstance(models, list) and models and "id" in models[0] else {}


class _Answer:
    """Collects an answer; a lost connection is status 0."""

    def __init__(self) -> None:
        self.status = 0
        self.parts: list[bytes] = []
        self.ended = asyncio.Event()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status = status

    def data(self, part: bytes) -> None:
        self.parts.append(part)

    def end(self) -> None:
        self.ended.set()

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self.status = 0
        self.ended.set()


async def ask(sender: Sender, request: Request, timeout_s: float = 60.0) -> tuple[int, bytes]:
    """Send a request and wait for the whole answer; status 0: none."""
    answer = _Answer()
    call = sender.send(request, answer)
    try:
        async with asyncio.timeout(timeout_s):
            await answer.ended.wait()
    except TimeoutError:
        call.cancel()
        return 0, b""
    return answer.status, b"".join(answer.parts)
