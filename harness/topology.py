"""Topologies: which GPUs there are, and how they are cut into replicas.

A topology is a YAML file, shipped or the user's own:

    name: 1p3d-a40
    description: one prefill and three decode replicas
    gpu_memory_utilization: 0.9      # share of each GPU an engine may take
    base_port: 8100                  # real engines: the first replica's port, then one more each
    nodes:
      - {gpu: a40, gpus: 1, count: 4}
    replicas:
      - {role: prefill, tensor_parallel: 1, port: 9000}
      - {role: decode, tensor_parallel: 1, count: 3, power_cap_w: 200}

A replica may also have `data_parallel: N` (N copies of its layers behind one URL, on N x
tensor_parallel GPUs) and `expert_parallel: true` (experts spread over all those GPUs).

Replicas take free GPUs node by node, in the order written; none spans two nodes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from agentsched import UsageError
from harness.fields import Fields
from harness.gpus import GpuKind, find_gpu, gpus
from harness.specfile import Document, closest, parse_document, read_document

if TYPE_CHECKING:
    from harness.capacity import Cluster as Cluster
    from harness.capacity import ReplicaPlan as ReplicaPlan
    from harness.capacity import explain as explain
    from harness.capacity import resolve_cluster as resolve_cluster

ROLES = ("mixed", "prefill", "decode")

DEFAULT_GPU_MEMORY_UTILIZATION = 0.9
"""vLLM's default up to 0.19; newer releases use 0.92."""

DEFAULT_BASE_PORT = 8100
"""Of real engines. Our choice, beside vLLM's 8000 and SGLang's 30000, which are often taken."""

_MAX_REPLICAS = 10_000
_MAX_PORT = 65_535


@dataclass(frozen=True, slots=True)
class Node:
    """One machine."""

    name: str
    gpu: GpuKind
    gpus: int


@dataclass(frozen=True, slots=True)
class ReplicaSpec:
    """One engine instance behind one URL, on `gpus` GPUs of one node."""

    node: Node
    tensor_parallel: int
    role: str
    gpu_memory_utilization: float
    power_cap_w: float
    """Of each GPU; the board power where none is set."""
    kv_cache_gib: float | None = None
    """Fixes the memory of the KV cache on each GPU, as vLLM's --kv-cache-memory-bytes does."""
    data_parallel: int = 1
    """Copies of the attention layers (of all layers, without expert_parallel), each with its own
    KV cache, on `tensor_parallel` GPUs each."""
    expert_parallel: bool = False
    """Experts are spread over all GPUs of the replica instead of being cut in each copy."""
    first_gpu: int = 0
    """Number, on its node, of the first of its GPUs; the others follow."""
    port: int | None = None
    """Of a real engine's API; None: counted up from the topology's base_port."""

    @property
    def gpus(self) -> int:
        return self.tensor_parallel * self.data_parallel


@dataclass(frozen=True, slots=True)
class Topology:
    """Nodes, and the replicas on them in order."""

    name: str
    description: str
    nodes: tuple[Node, ...]
    replicas: tuple[ReplicaSpec, ...]
    base_port: int = DEFAULT_BASE_PORT

    def with_utilization(self, gpu_memory_utilization: float) -> Topology:
        """The same with another share of each GPU."""
        specs = (
            replace(spec, gpu_memory_utilization=gpu_memory_utilization) for spec in self.replicas
        )
        return replace(self, replicas=tuple(specs))


@cache
def topology_names() -> tuple[str, ...]:
    """The topologies that ship."""
    folder = files("harness") / "data" / "topologies"
    return tuple(
        sorted(p.name.removesuffix(".yaml") for p in folder.iterdir() if p.name.endswith(".yaml"))
    )


def find_topology(name: str | Path) -> Topology:
    """A shipped topology by name, or the user's own by the path of a .yaml file.

    Raises:
        UsageError: no such topology; the message lists those there are.
        SpecError: the file is wrong; the message names file, line and field.
    """
    if isinstance(name, Path) or name.endswith((".yaml", ".yml")):
        return read_topology(read_document(Path(name)))
    if name not in topology_names():
        near = closest(name, topology_names())
        hint = f"did you mean `{near}`? " if near else ""
        raise UsageError(
            f"no topology `{name}`",
            f"{hint}topologies: {', '.join(topology_names())}, or the path of a .yaml file",
        )
    source = files("harness") / "data" / "topologies" / f"{name}.yaml"
    return read_topology(
        parse_document(source.read_text("utf-8"), f"harness/data/topologies/{name}.yaml")
    )


def read_topology(document: Document) -> Topology:
    """The topology in a YAML document.

    Raises:
        SpecError: an unknown field, a wrong type or value, or more replicas than GPUs.
    """
    fields = Fields(document)
    name = fields.text("name")
    description = fields.text("description", name)
    utilization = fields.number("gpu_memory_utilization", DEFAULT_GPU_MEMORY_UTILIZATION, most=1.0)
    base_port = _port(fields, "base_port", DEFAULT_BASE_PORT)
    nodes = tuple(node for group in fields.groups("nodes") for node in _read_nodes(group))
    nodes = tuple(replace(node, name=f"node{i}") for i, node in enumerate(nodes))
    free = {node.name: node.gpus for node in nodes}
    replicas: list[ReplicaSpec] = []
    for group in fields.groups("replicas"):
        replicas += _read_replicas(group, nodes, free, utilization)
    fields.done()
    _refuse_shared_ports(fields, replicas)
    return Topology(name, description, nodes, tuple(replicas), base_port)


def _read_nodes(fields: Fields) -> list[Node]:
    gpu = find_gpu(fields.choice("gpu", tuple(gpus())))
    count = _count(fields)
    node = Node("", gpu, fields.whole("gpus"))
    fields.done()
    return [node] * count


def _count(fields: Fields) -> int:
    count = fields.whole("count", 1)
    if count > _MAX_REPLICAS:
        raise fields.error("count", f"is above {_MAX_REPLICAS:,}", "lower it")
    return count


def _port(fields: Fields, key: str, default: int) -> int:
    port = fields.whole(key, default)
    if port > _MAX_PORT:
        raise fields.error(key, f"is above {_MAX_PORT}", "write a port number")
    return port


def _refuse_shared_ports(fields: Fields, replicas: list[ReplicaSpec]) -> None:
    seen: set[int] = set()
    for replica in replicas:
        if replica.port is not None and replica.port in seen:
            raise fields.error(
                "replicas", f"gives port {replica.port} to two replicas", "give each its own port"
            )
        seen.update([replica.port] if replica.port is not None else [])


def _read_replicas(
    fields: Fields, nodes: tuple[Node, ...], free: dict[str, int], utilization: float
) -> list[ReplicaSpec]:
    tensor_parallel = fields.whole("tensor_parallel")
    role = fields.choice("role", ROLES, "mixed")
    wanted = fields.choice("gpu", tuple(gpus())) if "gpu" in fields else None
    share = fields.number("gpu_memory_utilization", utilization, most=1.0)
    cap = fields.optional_number("power_cap_w")
    kv_cache_gib = fields.optional_number("kv_cache_gib")
    data_parallel = fields.whole("data_parallel", 1)
    expert_parallel = fields.flag("expert_parallel", False)
    port = _port(fields, "port", 1) if "port" in fields else None
    count = _count(fields)
    if port is not None and count > 1:
        raise fields.error("port", f"is one port for {count} replicas", "write one item for each")
    fields.done()
    placed = []
    for _ in range(count):
        ranks = tensor_parallel * data_parallel
        node = _place(fields, nodes, free, ranks, wanted)
        limit = node.gpu.power
        if cap is not None and not limit.idle_w.value < cap <= limit.cap_w:
            raise fields.error(
                "power_cap_w",
                f"is {cap:g} W; a {node.gpu.name} takes more than {limit.idle_w.value:g} W and at "
                f"most {limit.cap_w:g} W",
                "set a cap between the two",
            )
        placed.append(
            ReplicaSpec(
                node=node,
                tensor_parallel=tensor_parallel,
                role=role,
                gpu_memory_utilization=share,
                power_cap_w=cap or limit.cap_w,
                kv_cache_gib=kv_cache_gib,
                data_parallel=data_parallel,
                expert_parallel=expert_parallel,
                first_gpu=node.gpus - free[node.name] - ranks,
                port=port,
            )
        )
    return placed


def _place(
    fields: Fields,
    nodes: tuple[Node, ...],
    free: dict[str, int],
    gpus_each: int,
    wanted: str | None,
) -> Node:
    for node in nodes:
        if free[node.name] >= gpus_each and wanted in (None, node.gpu.name):
            free[node.name] -= gpus_each
            return node
    kind = f" {wanted}" if wanted else ""
    raise fields.error(
        None,
        f"needs a node with {gpus_each} free{kind} GPUs for each replica, and none is left",
        "add nodes, or ask for fewer replicas or less tensor_parallel or data_parallel",
    )


def __getattr__(name: str) -> Any:
    # Capacity arithmetic lives in its own module, which needs this one; its names are offered here.
    if name in ("Cluster", "ReplicaPlan", "explain", "resolve_cluster"):
        from harness import capacity

        return getattr(capacity, name)
    raise AttributeError(f"module 'harness.topology' has no attribute {name!r}")
