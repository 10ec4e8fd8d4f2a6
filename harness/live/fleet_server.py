"""Emulated replicas on their ports: many in one process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from harness.capacity import Cluster
from harness.live.clock import Clock, LoopClock
from harness.live.dialect import JSON_TYPE, encode
from harness.live.emulated_answers import Script
from harness.live.emulated_kv import KvExchange
from harness.live.emulator import EmulatedReplica, EmulatorSettings, SharedTexts
from harness.live.faulty import Faulty
from harness.live.http_server import HttpServer
from harness.live.kv_publishing import KvPublisher
from harness.live.parts import Role
from harness.live.wire import Exchange, Handler, Headers, Request
from harness.sim.async_engine import engine_for
from harness.sim.engine_types import EngineParams, StepTime
from harness.sim.links import LinkSpec
from harness.sim.step_time import step_time_for

_ROLES: dict[str, Role] = {"mixed": "mixed", "prefill": "prefill", "decode": "decode"}


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """One replica to emulate."""

    name: str
    params: EngineParams
    step_time: StepTime
    kv_blocks: int
    role: Role = "mixed"
    kv_bytes_per_token: float = 0.0
    """On each GPU."""


def link_of(cluster: Cluster, given: LinkSpec | None = None) -> LinkSpec:
    """What KV goes over between replicas: as given, or the network of the first one's GPU."""
    gpu = cluster.replicas[0].gpu
    return given or LinkSpec(gpu.network_gbs, latency_us=gpu.link_latency_us)


def specs_of(cluster: Cluster, params: EngineParams) -> list[EngineSpec]:
    """The replicas of a cluster.

    Raises:
        PerformanceDataError: no step times for the model on this hardware.
    """
    return [
        EngineSpec(
            r.id,
            params,
            step_time_for(cluster.model, r),
            r.kv_blocks,
            _ROLES[r.role],
            r.kv_bytes_per_token,
        )
        for r in cluster.replicas
    ]


def emulated_replicas(
    specs: Sequence[EngineSpec],
    clock: Clock,
    settings: EmulatorSettings | None = None,
    script: Script | None = None,
    link: LinkSpec | None = None,
) -> list[EmulatedReplica]:
    """Replicas that agree on the names of texts, on one clock.

    Args:
        link: what they hand KV over; None: they do not.
    """
    texts = SharedTexts(specs[0].params.block_size)
    exchange = None
    if link is not None:
        sizes = {spec.name: spec.kv_bytes_per_token for spec in specs}
        exchange = KvExchange(clock, link, sizes)
    return [
        EmulatedReplica(
            spec.name,
            engine_for(spec.params, spec.step_time, spec.kv_blocks, texts.contents),
            spec.kv_blocks,
            texts,
            clock,
            settings,
            script,
            role=spec.role,
            exchange=exchange,
            rank=rank,
        )
        for rank, spec in enumerate(specs, 1)
    ]


@dataclass(slots=True)
class FleetServer:
    """Serves emulated replicas. Use `start`, then `close`.

    Args:
        speed: virtual seconds per real second.
        link: what replicas hand KV over; None: they do not.
        kv_port: port of the first replica's KV events, the others follow, then their replays;
            0: any free ports; None: there are none.
        misbehave: replicas go wrong when told to at `/misbehave`.
    """

    specs: Sequence[EngineSpec]
    settings: EmulatorSettings = field(default_factory=EmulatorSettings)
    script: Script | None = None
    speed: float = 1.0
    link: LinkSpec | None = None
    kv_port: int | None = None
    misbehave: bool = False
    replicas: list[EmulatedReplica] = field(default_factory=list)
    urls: list[str] = field(default_factory=list)
    publishers: list[KvPublisher] = field(default_factory=list)
    """Of KV events, one for each replica; empty if there are none."""
    faults: list[Faulty] = field(default_factory=list)
    """What makes each replica go wrong; empty without `misbehave`."""
    _servers: list[HttpServer] = field(default_factory=list)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set)

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listen on `port` and those after it, one for each replica; 0: any free ports.

        Raises:
            ListenError: a port cannot be listened on.
        UsageError: KV events cannot be published on one.
        """
        clock = LoopClock(asyncio.get_running_loop(), self.speed)
        self.replicas = emulated_replicas(self.specs, clock, self.settings, self.script, self.link)
        for index, replica in enumerate(self.replicas):
            if self.misbehave:
                self.faults.append(Faulty(replica.handle))
            server = HttpServer(self._handler(index), _refusal)
            self._servers.append(server)
            bound = await server.listen(host, port + index if port else 0)
            self.urls.append(f"http://{host}:{bound}")
            if self.kv_port is not None:
                self._publish(replica, f"tcp://{host}", index)

    def _handler(self, index: int) -> Handler:
        return self.faults[index].handle if self.misbehave else self.replicas[index].handle

    def _publish(self, replica: EmulatedReplica, host: str, index: int) -> None:
        port, count = self.kv_port or 0, len(self.specs)
        publisher = KvPublisher(
            f"{host}:{port + index if port else 0}",
            replica.clock,
            replica.engine.params.block_size,
            replay=f"{host}:{port + count + index if port else 0}",
        )
        self.publishers.append(publisher)
        replica.publish(publisher)

    async def stop_replica(self, index: int) -> None:
        """The replica dies: nothing listens on its port any more."""
        self.replicas[index].fail()
        await self._servers[index].close()

    async def restart_replica(self, index: int) -> None:
        """The replica comes back on its port, empty."""
        host, _, port = self.urls[index].removeprefix("http://").partition(":")
        server = HttpServer(self._handler(index), _refusal)
        self._servers[index] = server
        await server.listen(host, int(port))

    def set_slowdown(self, index: int, factor: float) -> None:
        """The replica's steps take `factor` times as long from now on."""
        self.replicas[index].set_slowdown(factor)

    def background(self, task: asyncio.Task[None]) -> None:
        """Keep a task that nobody waits for until it is done, or the fleet closes."""
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def drain(self) -> int:
        """Take no further request; how many still run. To be asked again until none does."""
        for server in self._servers:
            server.handler = _stopping
        return sum(replica.in_flight for replica in self.replicas)

    async def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for server in self._servers:
            await server.close()
        for publisher in self.publishers:
            await publisher.close()


def _stopping(request: Request, exchange: Exchange) -> None:
    exchange.reply(503, *_refusal(request.path, 503, "the engine is stopping"))


def _refusal(path: str, status: int, message: str) -> tuple[Headers, bytes]:
    return [JSON_TYPE], encode({"error": {"message": message, "code": status}})
