"""One replica on a machine of a Ray cluster: its server process, as the actor there owns it."""

from __future__ import annotations

import json
import os
import socket
import sys
import time
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from agentsched import AgentschedError
from harness.capacity import Cluster, resolve_cluster
from harness.live.engines.diagnosis import start_error
from harness.live.engines.process import LeashedProcess
from harness.live.parts import ReplicaAddress, Role
from harness.scratch import Scratch
from harness.specfile import parse_document
from harness.topology import ReplicaSpec, read_topology

if TYPE_CHECKING:
    from harness.live.engines.settings import EngineSettings

EMULATOR = "emulator"
START_TIMEOUT_S = 120.0
"""For an emulated replica. Our choice."""
HEALTH_TIMEOUT_S = 5.0
LOOK_S = 0.2
LOG_BYTES = 1 << 20
"""At most so much of a log is sent at a time."""


@dataclass(frozen=True, slots=True)
class Order:
    """A replica to start. Plain data: it goes to the machine."""

    name: str
    engine: str
    model: str
    topology: str
    """A topology of this replica alone, as JSON."""
    role: Role
    memory: Mapping[str, Any] = field(default_factory=dict)
    """As `resolve_cluster` takes it."""
    launch: EngineSettings | None = None
    """Of real engines."""
    speed: float = 1.0
    """Of emulated ones: emulated seconds per real second."""
    port: int | None = None
    """Where it was reached before; taken again if it is free."""

    def cluster(self) -> Cluster:
        topology = read_topology(parse_document(self.topology, f"{self.name}.json"))
        return resolve_cluster(self.model, topology, **self.memory)


def alone(name: str, spec: ReplicaSpec) -> str:
    """The topology of one replica on a machine of its own, as JSON."""
    replica = {
        "role": spec.role,
        "tensor_parallel": spec.tensor_parallel,
        "data_parallel": spec.data_parallel,
        "expert_parallel": spec.expert_parallel,
        "gpu_memory_utilization": spec.gpu_memory_utilization,
    }
    if spec.kv_cache_gib is not None:
        replica["kv_cache_gib"] = spec.kv_cache_gib
    if spec.power_cap_w != spec.node.gpu.power.cap_w:
        replica["power_cap_w"] = spec.power_cap_w
    nodes = [{"gpu": spec.node.gpu.name, "gpus": spec.gpus}]
    return json.dumps({"name": name, "nodes": nodes, "replicas": [replica]})


class Server(Protocol):
    """What an actor does for its replica. All calls block."""

    def start(self) -> ReplicaAddress: ...
    def healthy(self) -> bool: ...
    def reset(self, cell: str) -> Mapping[str, Any]: ...
    def facts(self) -> Mapping[str, Any]: ...
    def log(self) -> Path: ...
    def stop(self) -> None: ...


class EmulatedServer:
    """A process of `agentsched emulate` for one replica, listening on this machine's address."""

    def __init__(self, order: Order, folder: Path, host: str) -> None:
        self._order, self._host = order, host
        self._log = folder / f"{order.name}.log"
        file = folder / f"{order.name}.yaml"
        file.write_text(order.topology, "utf-8")
        self._port = free_port(host, order.port)
        self.url = f"http://{host}:{self._port}"
        argv = [
            *(sys.executable, "-m", "agentsched", "emulate"),
            *("--model", order.model, "--topology", str(file)),
            *("--host", host, "--port", str(self._port), "--speed", str(order.speed)),
            "--allow-anyone",  # as Ray's own ports: the cluster's network is private
        ]
        path = os.environ.get("PYTHONPATH")
        env = {"PYTHONPATH": path} if path else {}
        self._process = LeashedProcess(order.name, argv, env, self._log, grace_s=5.0)
        self._restarts = 0

    def start(self) -> ReplicaAddress:
        self._process.start()
        began = time.monotonic()
        while not self.healthy():
            if not self._process.running:
                why = f"ended with exit code {self._process.exit_code}"
                raise start_error(self._process, why)
            if time.monotonic() - began > START_TIMEOUT_S:
                raise start_error(self._process, f"was not ready after {START_TIMEOUT_S:g} s")
            time.sleep(LOOK_S)
        return ReplicaAddress(self._order.name, self.url, self._order.role)

    def healthy(self) -> bool:
        return self._process.running and answers(self.url)

    def reset(self, cell: str) -> Mapping[str, Any]:
        """A new process holds nothing of another cell."""
        self._process.stop()
        self._restarts += 1
        self.start()
        return {"restarted": "an emulated replica starts anew for each cell"}

    def facts(self) -> Mapping[str, Any]:
        return {"url": self.url, "log": str(self._log), "restarts": self._restarts}

    def log(self) -> Path:
        return self._log

    def stop(self) -> None:
        self._process.stop()


class RealServer:
    """A real engine on the GPUs that Ray gave to the actor."""

    def __init__(self, order: Order, folder: Path, host: str, gpus: tuple[int, ...]) -> None:
        from harness.live.engines.fleet import EngineFleet
        from harness.live.engines.settings import EngineSettings

        launch = replace(
            order.launch or EngineSettings(), host=host, base_port=0, between_cells="restart"
        )
        self._order = order
        self._fleet = EngineFleet(order.engine, order.cluster(), folder, launch)
        if gpus:
            # Numbered by the machine; which NUMA node they hang on is not looked up.
            self._fleet.places = [
                replace(place, gpus=gpus, numa=None) for place in self._fleet.places
            ]
        self._name = self._fleet.places[0].name
        self._url = ""

    def start(self) -> ReplicaAddress:
        (address,) = self._fleet.start()
        self._url = address.url
        if (address.kv_events or "").startswith("ipc://"):  # of this machine alone
            address = replace(address, kv_events=None, kv_replay=None)
        return replace(address, name=self._order.name)

    def healthy(self) -> bool:
        return bool(self._url) and answers(self._url)

    def reset(self, cell: str) -> Mapping[str, Any]:
        facts: Mapping[str, Any] = self._fleet.reset(cell)[self._name]
        return facts

    def facts(self) -> Mapping[str, Any]:
        return self._fleet.facts()

    def log(self) -> Path:
        return self._fleet.log(self._name)

    def stop(self) -> None:
        self._fleet.close()


class ReplicaActor:
    """Owns the server of one replica; Ray makes it where the replica's GPUs are."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._scratch = Scratch("replica")
        self._folder = self._scratch.path
        self._server: Server | None = None
        self._sent = 0

    def start(self) -> ReplicaAddress:
        """Start the server; returns when it answers.

        Raises:
            AgentschedError: it did not come up; with the end of its log.
        """
        if self._server is not None:
            self._server.stop()
        host = address_here()
        if self._order.engine == EMULATOR:
            self._server = EmulatedServer(self._order, self._folder, host)
        else:
            self._server = RealServer(self._order, self._folder, host, gpus_here())
        address = self._server.start()
        port = int(address.url.rpartition(":")[2])
        self._order = replace(self._order, port=port)
        return address

    def healthy(self) -> bool:
        return self._server is not None and self._server.healthy()

    def reset(self, cell: str) -> Mapping[str, Any]:
        if self._server is None:
            raise AgentschedError(f"replica {self._order.name} was not started", "start it first")
        return self._server.reset(cell)

    def facts(self) -> Mapping[str, Any]:
        facts = dict(self._server.facts()) if self._server is not None else {}
        return {**facts, "machine": socket.gethostname()}

    def new_log(self) -> bytes:
        """What the log has got since the last call, a part of it if that is long."""
        if self._server is None:
            return b""
        try:
            with self._server.log().open("rb") as log:
                log.seek(self._sent)
                new = log.read(LOG_BYTES)
        except OSError:
            return b""
        self._sent += len(new)
        return new

    def stop(self) -> None:
        if self._server is not None:
            self._server.stop()


def answers(url: str) -> bool:
    """Whether a server says that it is healthy."""
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=HEALTH_TIMEOUT_S) as page:
            return bool(page.status == 200)
    except OSError:
        return False


def free_port(host: str, wanted: int | None) -> int:
    """`wanted` if it is free, else one that is."""
    for port in (wanted, 0):
        if port is None:
            continue
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
            return int(probe.getsockname()[1])
    raise AgentschedError(f"no free port on {host}", "see what listens there (ss -ltn)")


def address_here() -> str:
    """Address of this machine in the cluster."""
    import ray

    return str(ray.util.get_node_ip_address())


def gpus_here() -> tuple[int, ...]:
    """GPUs that Ray gave to this actor."""
    import ray

    return tuple(int(gpu) for gpu in ray.get_gpu_ids())
