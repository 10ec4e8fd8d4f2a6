"""Sessions played through a router or our gateway, in lockstep with emulated replicas."""

from __future__ import annotations

import asyncio
import json
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from harness.live.clock import LoopClock
from harness.live.emulator import EmulatedReplica, EmulatorSettings
from harness.live.fleet_server import EngineSpec, emulated_replicas
from harness.live.gateway import GatewaySettings
from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer
from harness.live.kv_publishing import KvPublisher
from harness.live.parts import ReplicaAddress
from harness.live.polling import PollSettings
from harness.live.routers.base import PROBE_SESSION
from harness.live.routers.front import RouterFront, ask
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.turns import DriverSettings
from harness.live.wire import Exchange, Handler, Request
from harness.live.words import words
from harness.sim.clock import Clock, Priority
from harness.sim.engine_types import DecodePiece, EngineParams
from results.records import DecisionRecord

PS_PER_MS = 10**9
SETTLE_S = 0.004
"""After an answer has come, for what the router does when its connection is done."""
GENERATING = ("/v1/chat/completions", "/v1/completions")
HELD_S = 2.0
"""A turn that has reached no replica after this is held by the router."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What is played."""

    sessions: int = 40
    turns: int = 6
    workers: int = 12
    kv_blocks: int = 40_000
    named: bool = False
    """Requests carry the session's name."""
    kv_events: bool = False
    """Replicas publish KV events."""
    heard_s: float = 0.0
    """Before each request, until a router that follows streams and KV events has heard them."""
    lockstep: bool = True
    """False: in real time."""
    seed: int = 1


@dataclass(frozen=True, slots=True)
class Choice:
    """Which replica a turn went to."""

    session: str
    turn: int
    replica: str
    why: str = ""


class SlowSteps:
    """Every step takes 20 ms and 50 us more for each token of a prefill: a few seconds a turn."""

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(20 * PS_PER_MS, 0, 1 << 60)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        return 20 * PS_PER_MS + sum(new for new, _ in chunks) * PS_PER_MS // 20


@dataclass(slots=True)
class Talk:
    """One session: what it has said and what it will say."""

    name: str
    rng: random.Random
    messages: list[dict[str, str]] = field(default_factory=list)
    turn: int = 0

    @classmethod
    def start(cls, number: int, seed: int) -> Talk:
        """Every second session shares its long system prompt with the others of its kind."""
        rng = random.Random(f"{seed}/{number}")
        kind = number % 2
        system = words(f"system {kind}", 600) if kind else words(f"own {number}", 60)
        first = words(f"task {seed} {number}", rng.randint(100, 1200))
        messages = [{"role": "system", "content": system}, {"role": "user", "content": first}]
        return cls(f"s{number:02}", rng, messages)

    def body(self, named: bool) -> bytes:
        fields: dict[str, Any] = {
            "model": "emulated",
            "messages": self.messages,
            "max_tokens": self.rng.randint(20, 120),
            "ignore_eos": True,
        }
        return json.dumps(fields).encode()

    def heard(self, answer: Mapping[str, Any]) -> None:
        text = answer["choices"][0]["message"]["content"]
        more = words(f"tool {self.name} {self.turn}", self.rng.randint(40, 400))
        self.messages.append({"role": "assistant", "content": text})
        self.messages.append({"role": "user", "content": more})
        self.turn += 1


class Replicas:
    """Emulated replicas on ports, on a clock of ours or on the real one."""

    def __init__(self, count: int, plan: Plan) -> None:
        self.clock = Clock() if plan.lockstep else None
        self._specs = [
            EngineSpec(f"e{i}", EngineParams(), SlowSteps(), plan.kv_blocks) for i in range(count)
        ]
        self.replicas: list[EmulatedReplica] = []
        self.ports: list[int] = []
        self.arrivals: list[str] = []
        self.arrived = asyncio.Event()
        self._servers: list[HttpServer] = []
        self._with_events = plan.kv_events
        self._publishers: list[KvPublisher] = []

    async def start(self, ports: Sequence[int] | None) -> None:
        """Listen on these ports, or on free ones."""
        clock = self.clock or LoopClock(asyncio.get_running_loop())
        settings = EmulatorSettings(tick_s=0.05)
        self.replicas = emulated_replicas(self._specs, clock, settings)
        for index, replica in enumerate(self.replicas):
            server = HttpServer(self._noting(replica), lambda path, status, text: ([], b"{}"))
            port = await server.listen("127.0.0.1", ports[index] if ports else 0)
            self.ports.append(port)
            self._servers.append(server)
            if self._with_events:
                size = replica.engine.params.block_size
                publisher = KvPublisher("tcp://127.0.0.1:0", replica.clock, size)
                self._publishers.append(publisher)
                replica.publish(publisher)

    def addresses(self) -> list[ReplicaAddress]:
        found = [ReplicaAddress(f"e{i}", url) for i, url in enumerate(self.urls)]
        for index, publisher in enumerate(self._publishers):
            found[index] = replace(found[index], kv_events=publisher.address)
        return found

    def _noting(self, replica: EmulatedReplica) -> Handler:
        def handle(request: Request, exchange: Exchange) -> None:
            replica.handle(request, exchange)
            if request.path in GENERATING:  # some routers ask for tokens as well
                self.arrivals.append(replica.name)
                self.arrived.set()

        return handle

    @property
    def urls(self) -> list[str]:
        return [f"http://127.0.0.1:{port}" for port in self.ports]

    @property
    def in_flight(self) -> int:
        return sum(replica.in_flight for replica in self.replicas)

    async def run_free(self) -> None:
        """Let the virtual clock go on by itself, for requests outside the play."""
        while self.clock is not None:
            while self.clock.step():
                pass
            await asyncio.sleep(0.005)

    async def close(self) -> None:
        for server in self._servers:
            await server.close()
        for publisher in self._publishers:
            await publisher.close()


class Play:
    """Plays the sessions of a plan, `workers` at once, against one URL."""

    def __init__(
        self,
        plan: Plan,
        url: str,
        replicas: Replicas,
        release: Callable[[str], object],
        reason: Callable[[], str] = lambda: "",
    ) -> None:
        self._plan, self._replicas = plan, replicas
        self._release, self._reason = release, reason
        self._client = HttpClient(url)
        self._waiting = [Talk.start(n, plan.seed) for n in range(plan.sessions)]
        self._due: list[Talk] = []
        self._flying: set[asyncio.Task[None]] = set()
        self.choices: list[Choice] = []

    async def run(self) -> list[Choice]:
        try:
            if self._replicas.clock is None:
                await self._in_real_time()
            else:
                await self._in_lockstep(self._replicas.clock)
        finally:
            for task in self._flying:
                task.cancel()
            await self._client.close()
        return self.choices

    # On the virtual clock.

    async def _in_lockstep(self, clock: Clock) -> None:
        for index in range(self._plan.workers):
            clock.at(clock.now + index * 50_000_000, Priority.AGENT, self._next_session)
        while self._due or self._flying or any(clock.pending):
            while self._due:
                await self._send(self._due.pop(0))
            if not clock.step():
                break
            await self._answers_are_in()

    async def _answers_are_in(self) -> None:
        """Wait until every answer that a replica gave has reached its client."""
        if len(self._flying) <= self._replicas.in_flight:
            return
        async with asyncio.timeout(10.0):
            while len(self._flying) > self._replicas.in_flight:
                await asyncio.sleep(0.0005)
        await asyncio.sleep(SETTLE_S)

    def _next_session(self) -> None:
        if self._waiting:
            self._due.append(self._waiting.pop(0))

    async def _send(self, talk: Talk) -> None:
        await asyncio.sleep(self._plan.heard_s)
        seen = len(self._replicas.arrivals)
        self._replicas.arrived.clear()
        task = asyncio.ensure_future(self._turn(talk))
        self._flying.add(task)
        task.add_done_callback(self._flying.discard)
        async with asyncio.timeout(HELD_S):
            await self._replicas.arrived.wait()
        replica = self._replicas.arrivals[seen]
        self.choices.append(Choice(talk.name, talk.turn, replica, self._reason()))

    async def _turn(self, talk: Talk) -> None:
        headers = {"content-type": "application/json"}
        headers |= {"x-session-id": talk.name} if self._plan.named else {}
        body = talk.body(self._plan.named)
        request = Request("POST", "/v1/chat/completions", headers, body)
        status, answer = await ask(self._client, request)
        if status != 200:
            raise RuntimeError(f"{talk.name} turn {talk.turn}: {status} {answer[:300]!r}")
        heard = json.loads(answer)
        if self._replicas.clock is None:
            replica = heard["id"].split("-")[1]
            self.choices.append(Choice(talk.name, talk.turn, replica))
        talk.heard(heard)
        if self._replicas.clock is not None:
            self._later(talk, self._replicas.clock)

    def _later(self, talk: Talk, clock: Clock) -> None:
        if talk.turn < self._plan.turns:
            at = clock.now + talk.rng.randint(200, 3000) * 1_000_000
            clock.at(at, Priority.AGENT, lambda: self._due.append(talk))
        else:
            self._ended(talk)
            clock.at(clock.now, Priority.AGENT, self._next_session)

    def _ended(self, talk: Talk) -> None:
        if self._plan.named:
            self._release(talk.name)

    # In real time.

    async def _in_real_time(self) -> None:
        await asyncio.gather(*(self._worker(n) for n in range(self._plan.workers)))

    async def _worker(self, number: int) -> None:
        await asyncio.sleep(number * 0.05)
        while self._waiting:
            talk = self._waiting.pop(0)
            while talk.turn < self._plan.turns:
                await self._turn(talk)
                await asyncio.sleep(talk.rng.randint(200, 1500) / 1000)
            self._ended(talk)


async def play_original(front: RouterFront, plan: Plan, count: int) -> tuple[list[Choice], Order]:
    """Through the original; the order in which it goes through the replicas, and their ports."""
    async with AsyncExitStack() as stack:
        replicas = Replicas(count, plan)
        await replicas.start(None)
        stack.push_async_callback(replicas.close)
        stack.push_async_callback(front.close)
        await _freely(replicas, front.start(replicas.addresses()))
        choices = await Play(plan, front.url, replicas, front.release).run()
        order = [replicas.urls.index(url) for url in front.order] or list(range(count))
        return choices, Order(order, replicas.ports, front.router.probe("emulated"))


@dataclass(frozen=True, slots=True)
class Order:
    """What the original's run leaves to ours."""

    replicas: list[int]
    ports: list[int]
    probe: Request


async def play_ours(
    scheduler: str, settings: Mapping[str, Any], plan: Plan, order: Order
) -> list[Choice]:
    """Through our gateway, with the replicas in the original's order and the same first request."""
    reasons = [""]

    def decided(record: DecisionRecord) -> None:
        if record.command == "route":
            reasons.append(record.why)

    async with AsyncExitStack() as stack:
        replicas = Replicas(len(order.ports), plan)
        await replicas.start(order.ports)
        stack.push_async_callback(replicas.close)
        served = ServedGateway(
            find_policy(scheduler, settings),
            [replicas.urls[index] for index in order.replicas],
            ServeSettings(
                port=0,
                driver=DriverSettings(idle_expiry_s=1e8),
                # Emulated engines count four bytes a token: nothing to learn.
                gateway=GatewaySettings(learn_ratio=False),
                poll=PollSettings(interval_s=1.0),
            ),
            names=[f"e{index}" for index in order.replicas],
            decision=decided,
        )
        stack.push_async_callback(served.close)
        await served.start()
        client = HttpClient(served.url)
        stack.push_async_callback(client.close)
        await _freely(replicas, ask(client, order.probe))
        release = served.driver.release
        release(PROBE_SESSION)
        return await Play(plan, served.url, replicas, release, lambda: reasons[-1]).run()


async def _freely(replicas: Replicas, doing: Any) -> None:
    """Do something while the replicas' clock goes on by itself."""
    free = asyncio.ensure_future(replicas.run_free())
    try:
        await doing
    finally:
        free.cancel()
    replicas.arrivals.clear()
