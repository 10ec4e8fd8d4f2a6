"""A gateway in front of emulated replicas on loopback, for tests."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from harness.live.emulated_answers import ScriptLine
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import EngineSpec, FleetServer
from harness.live.gateway import GatewaySettings
from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer, Limits
from harness.live.loops import run_bounded
from harness.live.parts import Role
from harness.live.polling import PollSettings
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.turns import DriverSettings
from harness.live.wire import Handler, Request
from harness.sim.engine_types import DecodePiece, EngineParams
from harness.sim.links import LinkSpec

PS_PER_MS = 10**9
KV_BYTES = 100_000.0
"""Of a token, on each GPU of an engine."""
LINK = LinkSpec(gigabytes_per_s=10.0, efficiency=1.0, latency_us=0.0)
"""Between engines: 10 us a token."""
LIMIT_S = 60.0
"""No test takes longer, whatever goes wrong."""


class SteadySteps:
    """Every step takes 2 ms, and 10 us more for each token of a prefill."""

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(2 * PS_PER_MS, 0, 1 << 60)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        return 2 * PS_PER_MS + sum(new for new, _ in chunks) * PS_PER_MS // 100


def engines(
    count: int = 2, kv_blocks: int = 4096, roles: Sequence[Role] | None = None
) -> list[EngineSpec]:
    params = EngineParams()
    everything: list[Role] = ["mixed"] * count
    return [
        EngineSpec(f"e{i}", params, SteadySteps(), kv_blocks, role, KV_BYTES)
        for i, role in enumerate(roles or everything)
    ]


def run(test: Callable[[], Awaitable[None]], limit_s: float = LIMIT_S) -> None:
    """Run a test on the loop that the product uses, for a bounded time."""

    async def bounded() -> None:
        async with asyncio.timeout(limit_s):
            await test()

    run_bounded(bounded())


class Got:
    """The answer to a request, as it comes in."""

    def __init__(self) -> None:
        self.status = 0
        self.headers: Mapping[str, str] = {}
        self.parts: list[bytes] = []
        self.error: str | None = None
        self.ended = asyncio.Event()
        self.moved = asyncio.Event()

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.status, self.headers = status, dict(headers)
        self.moved.set()

    def data(self, part: bytes) -> None:
        self.parts.append(part)
        self.moved.set()

    def end(self) -> None:
        self.ended.set()
        self.moved.set()

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self.error = reason
        self.ended.set()
        self.moved.set()

    @property
    def body(self) -> bytes:
        return b"".join(self.parts)

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def events(self) -> list[Any]:
        """The data of a stream's events, decoded; `[DONE]` as text."""
        texts = [e.removeprefix(b"data: ") for e in self.body.split(b"\n\n") if e.strip()]
        return [t.decode() if t == b"[DONE]" else json.loads(t) for t in texts]


async def post(
    client: HttpClient, path: str, body: Any, headers: Mapping[str, str] | None = None
) -> Got:
    raw = body if isinstance(body, bytes) else json.dumps(body).encode()
    return await call(client, Request("POST", path, {**JSON, **(headers or {})}, raw))


async def get(client: HttpClient, path: str) -> Got:
    return await call(client, Request("GET", path))


async def call(client: HttpClient, request: Request) -> Got:
    got = Got()
    client.send(request, got)
    await got.ended.wait()
    return got


JSON = {"content-type": "application/json"}


def chat(text: str = "hello", **fields: Any) -> dict[str, Any]:
    messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": text}]
    return {"model": "emulated", "messages": messages, "max_tokens": 8, **fields}


class Rig:
    """Replicas, gateway, and clients to both."""

    def __init__(self, fleet: FleetServer, served: ServedGateway) -> None:
        self.fleet, self.served = fleet, served
        self.client = HttpClient(served.url)
        self.admin = HttpClient(served.admin_url)
        self.direct = HttpClient(fleet.urls[0])

    async def settled(self) -> None:
        """Wait until nothing is in flight anywhere; at most a second."""
        async with asyncio.timeout(1.0):
            while any(r.in_flight for r in self.fleet.replicas) or self.busy:
                await asyncio.sleep(0.005)

    @property
    def busy(self) -> int:
        facts = self.served.driver.facts()
        return facts["in_flight"] + facts["waiting"]


@asynccontextmanager
async def rig(
    *,
    scheduler: str = "round-robin",
    scheduler_settings: Mapping[str, Any] | None = None,
    specs: list[EngineSpec] | None = None,
    script: Sequence[ScriptLine] | None = None,
    event_log: Path | None = None,
    driver: DriverSettings | None = None,
    gateway: GatewaySettings | None = None,
    limits: Limits | None = None,
    poll: PollSettings | None = None,
    all_apis: bool = False,
    bootstrap: bool = False,
    gather: bool = False,
) -> AsyncIterator[Rig]:
    """Args:
    all_apis: engines speak more than OpenAI's chat completions and completions.
    bootstrap: KV is handed over as SGLang does.
    """
    fleet = FleetServer(
        specs or engines(),
        EmulatorSettings(tick_s=0.002, all_apis=all_apis),
        script,
        link=LINK,
    )
    await fleet.start()
    roles = {f"r{i}": spec.role for i, spec in enumerate(fleet.specs)}
    served = ServedGateway(
        find_policy(scheduler, scheduler_settings or {}),
        fleet.urls,
        ServeSettings(
            port=0,
            wait_s=5.0,
            driver=driver or DriverSettings(),
            gateway=gateway or GatewaySettings(),
            limits=limits or Limits(),
            gather=gather,
            poll=poll or PollSettings(interval_s=0.2, retry_s=0.05, failures=2, timeout_s=2.0),
        ),
        event_log=event_log,
        roles=roles,
        bootstrap_ports={name: 8998 for name, r in roles.items() if bootstrap and r == "prefill"},
    )
    try:
        await served.start()
        made = Rig(fleet, served)
        yield made
        for client in (made.client, made.admin, made.direct):
            await client.close()
    finally:
        await served.close()
        await fleet.close()


@asynccontextmanager
async def served_by(
    handler: Handler, *, scheduler: str = "round-robin", **settings: Any
) -> AsyncIterator[tuple[ServedGateway, HttpClient]]:
    """A gateway in front of one hand-made engine."""
    server = HttpServer(handler, lambda path, status, message: ([], message.encode()))
    port = await server.listen("127.0.0.1", 0)
    try:
        served = ServedGateway(
            find_policy(scheduler, {}),
            [f"http://127.0.0.1:{port}"],
            ServeSettings(port=0, wait_s=5.0, **settings),
        )
        try:
            await served.start()
            client = HttpClient(served.url)
            yield served, client
            await client.close()
        finally:
            await served.close()
    finally:
        await server.close()
