"""Does the model fit, and how many tokens of KV cache does a replica hold?

For each GPU of a replica:

    kv = memory x gpu_memory_utilization - weights / tensor_parallel - overhead

`overhead` (activations, CUDA graphs, NCCL buffers) is an estimate, within 2 GiB: a setting.

With data parallelism each copy has this for itself. With expert parallelism the experts' part of
the weights is divided by all GPUs of the replica instead of by tensor_parallel. That part follows
from the parameter counts: all - active = (count - active experts) x one expert.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentsched import TopologyError
from harness.gpus import GpuKind
from harness.models import DTYPE_BYTES, Model, find_model
from harness.topology import Node, ReplicaSpec, Topology, find_topology

GIB = 2**30


@dataclass(frozen=True, slots=True)
class ReplicaPlan:
    """One replica with a model on it. GiB figures are for each of its GPUs."""

    id: str
    index: int
    role: str
    node: Node
    gpu: GpuKind
    gpus: int
    tensor_parallel: int
    gpu_memory_utilization: float
    power_cap_w: float
    block_size: int
    kv_blocks: int
    kv_tokens: int
    """Tokens that all blocks together hold, over the whole replica."""
    kv_bytes_per_token: float
    """On each GPU."""
    kv_sequence_blocks: int
    """Of `kv_blocks`, those that each live sequence holds whatever its length."""
    weights_gib: float
    overhead_gib: float
    kv_gib: float
    unused_gib: float
    """What gpu_memory_utilization leaves alone."""
    context_limit: int
    """Tokens of prompt and output that one turn may have here."""
    data_parallel: int = 1
    """Copies with a KV cache each; `kv_blocks` and `kv_tokens` count all of them."""
    expert_parallel: bool = False


@dataclass(frozen=True, slots=True)
class Cluster:
    """A model on a topology."""

    model: Model
    topology: Topology
    replicas: tuple[ReplicaPlan, ...]

    @property
    def kv_tokens(self) -> int:
        return sum(replica.kv_tokens for replica in self.replicas)

    @property
    def gpus(self) -> int:
        return sum(replica.gpus for replica in self.replicas)


@dataclass(frozen=True, slots=True)
class CapacityRow:
    """One line of the capacity table: replicas that are alike. GiB figures for each GPU."""

    replicas: str
    count: int
    role: str
    gpus: str
    gpu: str
    """Kind, as `cpu`."""
    memory_gib: float
    weights_gib: float
    overhead_gib: float
    kv_gib: float
    unused_gib: float
    kv_tokens: int
    context_limit: int
    sessions_at_limit: float
    """How many turns as long as context_limit fit one replica."""


def resolve_cluster(
    model: Model | str,
    topology: Topology | str,
    *,
    gpu_memory_utilization: float | None = None,
    overhead_gib: float | None = None,
    block_size: int | None = None,
    max_model_len: int | None = None,
    kv_cache_dtype: str | None = None,
) -> Cluster:
    """Lay a model over a topology.

    Args:
        gpu_memory_utilization: share of each GPU; None: as the topology says.
        overhead_gib: memory of each GPU that is neither weights nor KV; None: the model's estimate.
        block_size: tokens of a KV block; None: the model's (16, where its attention fixes none).
        max_model_len: tokens of prompt and output; None: the model's limit, or what the KV cache
            holds where that is less.
        kv_cache_dtype: `float8` halves a bfloat16 cache; None: the model's.

    Raises:
        UsageError: no such model or topology, or a setting out of range.
        TopologyError: the model does not fit, or leaves no room for KV; with the arithmetic.
    """
    model = find_model(model) if isinstance(model, str) else model
    topology = find_topology(topology) if isinstance(topology, str) else topology
    if gpu_memory_utilization is not None:
        _check(0 < gpu_memory_utilization <= 1, "gpu_memory_utilization", gpu_memory_utilization)
        topology = topology.with_utilization(gpu_memory_utilization)
    overhead = model.overhead_gib if overhead_gib is None else overhead_gib
    _check(overhead >= 0, "overhead_gib", overhead)
    block = block_size or model.kv.block_tokens
    _check(block_size is None or block_size > 0, "block_size", block_size)
    if model.kv.block_fixed and block != model.kv.block_tokens:
        raise TopologyError(
            f"{model.name} needs blocks of {model.kv.block_tokens} tokens, not {block}",
            f"leave block_size out, or set it to {model.kv.block_tokens}",
        )
    _check(max_model_len is None or max_model_len > 0, "max_model_len", max_model_len)
    width = _kv_width(model, kv_cache_dtype)
    plans = tuple(
        _plan(model, spec, index, overhead, block, max_model_len, width)
        for index, spec in enumerate(topology.replicas)
    )
    return Cluster(model, topology, plans)


def explain(cluster: Cluster) -> list[CapacityRow]:
    """The capacity table: one row for each run of replicas that are alike."""
    rows: list[CapacityRow] = []
    alike: list[ReplicaPlan] = []
    for plan in cluster.replicas:
        if alike and _kind(alike[-1]) != _kind(plan):
            rows.append(_row(alike))
            alike = []
        alike.append(plan)
    return [*rows, _row(alike)]


def _check(ok: bool, name: str, value: object) -> None:
    if not ok:
        raise TopologyError(f"{name} is {value}, out of range", f"give {name} a sensible value")


def _kv_width(model: Model, kv_cache_dtype: str | None) -> float:
    if kv_cache_dtype is None:
        return 1.0
    if kv_cache_dtype not in DTYPE_BYTES:
        raise TopologyError(
            f"no KV cache dtype `{kv_cache_dtype}`", f"known: {', '.join(DTYPE_BYTES)}"
        )
    return DTYPE_BYTES[kv_cache_dtype] / DTYPE_BYTES[model.kv.dtype]


def _plan(
    model: Model,
    spec: ReplicaSpec,
    index: int,
    overhead_gib: float,
    block_size: int,
    max_model_len: int | None,
    kv_width: float,
) -> ReplicaPlan:
    ranks = spec.tensor_parallel
    if spec.expert_parallel and model.experts is None:
        raise TopologyError(
            f"{model.name} has no experts to spread over the GPUs of replica r{index}",
            "leave expert_parallel out, or choose a mixture-of-experts model",
        )
    if model.heads % ranks:
        raise TopologyError(
            f"{model.name} has {model.heads} attention heads, which {ranks} GPUs cannot share "
            "evenly",
            "set tensor_parallel to a divisor of the heads",
        )
    weights, division = _weights(model, spec)
    kv_gib = spec.kv_cache_gib
    usable = spec.node.gpu.memory_gib * spec.gpu_memory_utilization
    if kv_gib is None:
        kv_gib = usable - weights - overhead_gib
    arithmetic = _arithmetic(spec, f"weights {division}", overhead_gib, kv_gib)
    if weights + overhead_gib + max(kv_gib, 0.0) > spec.node.gpu.memory_gib or kv_gib <= 0:
        raise TopologyError(
            f"{model.name} does not fit replica r{index}: {arithmetic}",
            "use a smaller model, or less kv_cache_gib"
            if spec.node.gpu.name == "cpu"
            else "use more tensor_parallel, larger GPUs or a smaller model",
        )
    per_token = model.kv.bytes_per_token_on_gpu(ranks) * kv_width
    blocks = int(kv_gib * GIB // (per_token * block_size))
    fixed = model.kv.sequence_blocks
    if blocks <= fixed:
        beside = f", and each sequence {fixed} blocks beside those of its tokens" if fixed else ""
        raise TopologyError(
            f"replica r{index} would have no KV block: {arithmetic}; a block of {block_size} "
            f"tokens takes {per_token * block_size / GIB:.4f} GiB{beside}",
            "use more tensor_parallel, or raise gpu_memory_utilization or kv_cache_gib",
        )
    tokens = blocks * block_size
    copies = spec.data_parallel
    longest = tokens - fixed * block_size
    if max_model_len is not None and max_model_len > longest:
        raise TopologyError(
            f"max_model_len {max_model_len:,} is more than the {longest:,} tokens of KV cache that "
            f"replica r{index} holds ({arithmetic})",
            f"set max_model_len to {longest:,} or less, or give the replica more memory",
        )
    return ReplicaPlan(
        id=f"r{index}",
        index=index,
        role=spec.role,
        node=spec.node,
        gpu=spec.node.gpu,
        gpus=spec.gpus,
        tensor_parallel=ranks,
        gpu_memory_utilization=spec.gpu_memory_utilization,
        power_cap_w=spec.power_cap_w,
        block_size=block_size,
        kv_blocks=blocks * copies,
        kv_tokens=tokens * copies,
        kv_bytes_per_token=per_token,
        kv_sequence_blocks=fixed,
        weights_gib=weights,
        overhead_gib=overhead_gib,
        kv_gib=kv_gib,
        unused_gib=spec.node.gpu.memory_gib - weights - overhead_gib - kv_gib,
        context_limit=min(max_model_len or model.context_limit, longest),
        data_parallel=copies,
        expert_parallel=spec.expert_parallel,
    )


def expert_share(model: Model) -> float:
    """Share of the parameters that are experts': 0 for a dense model."""
    if model.experts is None or model.experts.count == model.experts.active:
        return 0.0
    one = (model.params_b - model.active_params_b) / (model.experts.count - model.experts.active)
    return min(one * model.experts.count / model.params_b, 1.0)


def _weights(model: Model, spec: ReplicaSpec) -> tuple[float, str]:
    """GiB on each GPU, and how that came about."""
    ranks = spec.tensor_parallel
    share = expert_share(model)
    if not spec.expert_parallel or spec.data_parallel == 1 or not share:
        weights = model.weights_gib / ranks
        return weights, f"{model.weights_gib:.2f} / {ranks} = {weights:.2f} GiB"
    experts = model.weights_gib * share
    rest = model.weights_gib - experts
    weights = rest / ranks + experts / spec.gpus
    return (
        weights,
        f"{rest:.2f} / {ranks} + experts {experts:.2f} / {spec.gpus} = {weights:.2f} GiB",
    )


def _arithmetic(spec: ReplicaSpec, weights: str, overhead: float, kv_gib: float) -> str:
    gpu = spec.node.gpu
    taken = f"{weights}, overhead {overhead:.2f} GiB (estimate)"
    if spec.kv_cache_gib is not None:
        return f"{gpu.name} {gpu.memory_gib:.2f} GiB; {taken}, KV set to {kv_gib:.2f} GiB"
    return (
        f"{gpu.name} {gpu.memory_gib:.2f} GiB x {spec.gpu_memory_utilization:g} = "
        f"{gpu.memory_gib * spec.gpu_memory_utilization:.2f} GiB; {taken}; left for KV "
        f"{kv_gib:.2f} GiB"
    )


def _kind(plan: ReplicaPlan) -> tuple[object, ...]:
    return (
        plan.role,
        plan.gpu.name,
        plan.tensor_parallel,
        plan.data_parallel,
        plan.expert_parallel,
        plan.kv_blocks,
        plan.power_cap_w,
        plan.gpu_memory_utilization,
    )


def _row(alike: list[ReplicaPlan]) -> CapacityRow:
    plan, last = alike[0], alike[-1]
    cap = "" if plan.power_cap_w == plan.gpu.power.cap_w else f" at {plan.power_cap_w:g} W"
    return CapacityRow(
        replicas=plan.id if plan is last else f"{plan.id}-{last.id}",
        count=len(alike),
        role=plan.role,
        gpus=f"{plan.gpus}x{plan.gpu.name}{cap}",
        gpu=plan.gpu.name,
        memory_gib=plan.gpu.memory_gib,
        weights_gib=plan.weights_gib,
        overhead_gib=plan.overhead_gib,
        kv_gib=plan.kv_gib,
        unused_gib=plan.unused_gib,
        kv_tokens=plan.kv_tokens,
        context_limit=plan.context_limit,
        sessions_at_limit=plan.kv_tokens / plan.context_limit,
    )
