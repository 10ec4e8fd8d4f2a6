"""Where each replica goes: GPUs, NUMA node, ports.

Nodes of a topology are taken to be this machine, their GPUs numbered on from node to node.
"""

from __future__ import annotations

import os
import socket
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from agentsched import TopologyError, UsageError
from harness.capacity import Cluster, ReplicaPlan
from harness.live.engines.kinds import EngineKind
from harness.live.engines.settings import EngineSettings
from harness.live.parts import Role

INTERNAL_PORTS = 32
"""Ports apart from the API's that are set aside for one replica."""
_INTERNAL_OFFSET = 1000
_BOOTSTRAP, _SIDE_CHANNEL, _INTERNAL, _ENGINE_INFO, _EVENTS, _REPLAY = 0, 1, 10, 11, 12, 13
_MAX_PORT = 65_535
_FREE_FROM, _EPHEMERAL = 20_000, 32_768
"""Ports are looked for from the first up to where Linux takes those of clients."""


@dataclass(frozen=True, slots=True)
class Place:
    """One replica on this machine."""

    name: str
    role: Role
    plan: ReplicaPlan
    gpus: tuple[int, ...]
    """As nvidia-smi numbers them; empty on CPUs."""
    numa: int | None
    port: int
    side_channel_port: int
    """vLLM: NIXL's handshake, one more for each data-parallel copy."""
    bootstrap_port: int
    """SGLang: prefill replicas meet decode replicas here."""
    internal_port: int
    """Between the ranks of the replica."""
    engine_info_port: int
    """SGLang: one of its own for each replica of a machine."""
    kv_events: str | None
    """ZMQ address that KV events are published on."""
    kv_replay: str | None
    """ZMQ address that those are answered on who missed some."""

    def url(self, host: str) -> str:
        return f"http://[{host}]:{self.port}" if ":" in host else f"http://{host}:{self.port}"


@dataclass(frozen=True, slots=True)
class LocalGpu:
    """A GPU of this machine."""

    index: int
    name: str
    memory_mib: int
    numa: int | None


def lay_out(
    cluster: Cluster,
    kind: EngineKind,
    settings: EngineSettings,
    runtime: Path,
    machine: Sequence[LocalGpu] | None = None,
) -> list[Place]:
    """A place for each replica of the cluster.

    Args:
        runtime: folder of sockets, with a short path (a socket's may have 107 bytes).
        machine: the GPUs there are; None: not looked at (a dry run).

    Raises:
        TopologyError: engine and topology do not go together, or this machine lacks the GPUs.
        UsageError: the ports do not fit below 65536.
    """
    _check(cluster, kind)
    if machine is not None and kind.gpu:
        _check_gpus(cluster, machine)
    first = _first_gpus(cluster)
    ports = _ports(cluster, settings)
    places = []
    for plan, start, (port, internal) in zip(cluster.replicas, first, ports, strict=True):
        gpus = tuple(range(start, start + plan.gpus)) if kind.gpu else ()
        role: Role = plan.role  # type: ignore[assignment]
        if kind.dialect == "vllm":
            events, replay = (f"ipc://{runtime}/{plan.id}.{end}" for end in ("kv", "replay"))
        else:
            events, replay = (f"tcp://127.0.0.1:{internal + at}" for at in (_EVENTS, _REPLAY))
        publishes = settings.kv_events and plan.data_parallel == 1
        places.append(
            Place(
                name=plan.id,
                role=role,
                plan=plan,
                gpus=gpus,
                numa=_numa(gpus, machine),
                port=port,
                side_channel_port=internal + _SIDE_CHANNEL,
                bootstrap_port=internal + _BOOTSTRAP,
                internal_port=internal + _INTERNAL,
                engine_info_port=internal + _ENGINE_INFO,
                kv_events=events if publishes else None,
                kv_replay=replay if publishes else None,
            )
        )
    return places


def _check(cluster: Cluster, kind: EngineKind) -> None:
    kinds = {plan.gpu.name for plan in cluster.replicas}
    if kind.gpu and "cpu" in kinds:
        raise TopologyError(
            f"topology `{cluster.topology.name}` is of CPUs, and {kind.name} needs GPUs",
            "choose --engine vllm-cpu, or a topology of GPUs",
        )
    if not kind.gpu and kinds != {"cpu"}:
        raise TopologyError(
            f"topology `{cluster.topology.name}` is of GPUs, and {kind.name} runs on CPUs",
            "choose --topology cpu-tiny, or --engine vllm",
        )
    roles = {plan.role for plan in cluster.replicas}
    if ("prefill" in roles) != ("decode" in roles) and "mixed" not in roles:
        raise TopologyError(
            f"topology `{cluster.topology.name}` has only {roles.pop()} replicas",
            "add the other role: a turn needs both",
        )
    if kind.dialect == "sglang" and "mixed" in roles and len(roles) > 1:
        raise TopologyError(
            f"topology `{cluster.topology.name}` mixes `mixed` replicas with prefill and decode "
            "ones, and an SGLang replica has one mode for good",
            "make all replicas mixed, or all prefill or decode; vLLM's can be both",
        )


def _check_gpus(cluster: Cluster, machine: Sequence[LocalGpu]) -> None:
    needed = sum(node.gpus for node in cluster.topology.nodes)
    if needed > len(machine):
        raise TopologyError(
            f"topology `{cluster.topology.name}` needs {needed} GPUs, and this machine has "
            f"{len(machine)}",
            "choose a smaller topology (agentsched list topologies), or --engine sim",
        )
    for plan, start in zip(cluster.replicas, _first_gpus(cluster), strict=True):
        for gpu in machine[start : start + plan.gpus]:
            there = gpu.memory_mib / 1024
            if there < plan.gpu.memory_gib * 0.97:
                raise TopologyError(
                    f"replica {plan.id} is planned for {plan.gpu.name} of "
                    f"{plan.gpu.memory_gib:.1f} GiB, and GPU {gpu.index} ({gpu.name}) has "
                    f"{there:.1f} GiB",
                    "choose a topology of this machine's GPUs, or write one",
                )


def _first_gpus(cluster: Cluster) -> list[int]:
    offsets, total = {}, 0
    for node in cluster.topology.nodes:
        offsets[node.name] = total
        total += node.gpus
    return [offsets[spec.node.name] + spec.first_gpu for spec in cluster.topology.replicas]


def _ports(cluster: Cluster, settings: EngineSettings) -> list[tuple[int, int]]:
    """Port of the API, and the first of the internal ones, of each replica."""
    count = len(cluster.replicas)
    if settings.base_port == 0:
        return _free_ports(count)
    base = settings.base_port or cluster.topology.base_port
    specs = cluster.topology.replicas
    ports = [
        (
            base + index if spec.port is None or settings.base_port else spec.port,
            base + _INTERNAL_OFFSET + INTERNAL_PORTS * index,
        )
        for index, spec in enumerate(specs)
    ]
    highest = max(max(port, internal + INTERNAL_PORTS - 1) for port, internal in ports)
    if highest > _MAX_PORT:
        raise UsageError(
            f"{count} replicas from port {base} on would need ports up to {highest:,}",
            f"lower base_port; they need {_INTERNAL_OFFSET:,} + {INTERNAL_PORTS} x replicas",
        )
    return ports


def _free_ports(count: int) -> list[tuple[int, int]]:
    """Free now: another program may still be quicker, so two of ours begin at different places."""
    blocks = (_EPHEMERAL - _FREE_FROM) // INTERNAL_PORTS
    found: list[tuple[int, int]] = []
    for block in range(blocks):
        start = _FREE_FROM + INTERNAL_PORTS * ((os.getpid() + block) % blocks)
        if len(found) == count:
            break
        if _all_free(range(start, start + INTERNAL_PORTS)):
            found.append((start + INTERNAL_PORTS - 1, start))
    if len(found) < count:
        raise UsageError(f"only {len(found)} of {count} replicas find free ports", "name base_port")
    return found


def _all_free(ports: range) -> bool:
    hold = hold_port(ports[-1])
    if hold is None:
        return False
    hold.close()
    return all(is_free(port) for port in ports)


def hold_port(port: int) -> socket.socket | None:
    """Keep other runs on this machine from the port of a replica until the result is closed.

    None: another run has it. While a replica starts or is started anew nothing listens on its port,
    and vLLM shares a port with whoever listens on it already (SO_REUSEPORT): two runs would answer
    each other's turns. What is bound is a name in Linux's abstract namespace, which goes with the
    process.
    """
    hold = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        hold.bind(f"\0agentsched-port-{port}")
    except OSError:
        hold.close()
        return None
    return hold


class PortHolds:
    """Ports of replicas that are kept from other runs until `let_go`, or while this exists."""

    def __init__(self) -> None:
        self._holds: list[socket.socket] = []
        weakref.finalize(self, _close, self._holds)

    def take(self, ports: Sequence[int]) -> int | None:
        """Hold all of them; or none, and the first that another run has is returned."""
        self.let_go()
        for port in ports:
            hold = hold_port(port)
            if hold is None:
                self.let_go()
                return port
            self._holds.append(hold)
        return None

    def let_go(self) -> None:
        _close(self._holds)

    def __bool__(self) -> bool:
        return bool(self._holds)


def _close(holds: list[socket.socket]) -> None:
    while holds:
        holds.pop().close()


def is_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether one could listen on a port now."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
    return True


def _numa(gpus: tuple[int, ...], machine: Sequence[LocalGpu] | None) -> int | None:
    """The node that all GPUs of a replica hang on; None: several, or not known."""
    if machine is None or not gpus:
        return None
    nodes = {machine[gpu].numa for gpu in gpus}
    return nodes.pop() if len(nodes) == 1 else None
