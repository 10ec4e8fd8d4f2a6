"""The simulated engines of a cluster, with their step times."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from agentsched import UsageError
from harness.capacity import Cluster, ReplicaPlan
from harness.models import Model
from harness.sim.async_engine import engine_for
from harness.sim.content import ContentIndex
from harness.sim.data_parallel import DataParallelStepTime
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineParams, StepTime
from harness.sim.settings import SimSettings
from harness.sim.sglang_engine import SglangEngine
from harness.sim.sglang_policy import SglangParams
from harness.sim.step_time import TableStepTime, step_time_for


def check_engine(params: EngineParams, cluster: Cluster, settings: SimSettings) -> None:
    """Refuse what the simulated engine cannot do.

    Raises:
        UsageError: KV would have to move to or from SGLang, or window states with it.
    """
    if settings.cpu_offload is not None and params.window_hits != "dense":
        raise UsageError(
            f"window states of {cluster.model.name} are not simulated in host memory",
            "leave sim.cpu_offload out, or choose a model without sliding windows",
        )
    if params.engine != "sglang":
        return
    if any(replica.role != "mixed" for replica in cluster.replicas):
        raise UsageError(
            "the simulated SGLang engine does not exchange KV with other replicas",
            "simulate vLLM, or a topology without prefill/decode disaggregation",
        )
    for name in ("kv_store", "cpu_offload"):
        if getattr(settings, name) is not None:
            raise UsageError(
                f"the simulated SGLang engine has no `{name}`",
                f"simulate vLLM, or leave sim.{name} out",
            )


def replica_step_time(
    model: Model, replica: ReplicaPlan, settings: SimSettings, params: EngineParams
) -> TableStepTime | DataParallelStepTime:
    """Step times of one replica; its data-parallel copies step together.

    Raises:
        PerformanceDataError: no back end of that name, a setting out of range, a damaged table.
    """
    copies = replica.data_parallel
    rank = step_time_for(
        model,
        replica,
        host_fixed_us=settings.host_fixed_us,
        host_prefill_us=settings.host_prefill_us,
        host_per_seq_us=settings.host_per_seq_us,
        bandwidth_scale=settings.bandwidth_scale,
        backend=params.engine,
        expert_ranks=copies if replica.expert_parallel else 1,
    )
    return rank if copies == 1 else DataParallelStepTime(rank, copies)


def replica_engine(
    params: EngineParams, steps: StepTime, replica: ReplicaPlan, contents: ContentIndex
) -> Engine:
    """An idle engine. Data-parallel copies are one engine with the slots, blocks and budget of all,
    where a request's chunk stays within the budget of one."""
    if params.engine == "sglang":
        settings = SglangParams.of(params)
        pages = replica.kv_blocks * params.block_size // settings.page_size
        return SglangEngine(settings, steps, pages, contents)
    copies = replica.data_parallel
    if copies > 1:
        budget, threshold = params.max_num_batched_tokens, params.long_prefill_token_threshold
        params = replace(
            params,
            max_num_batched_tokens=budget * copies,
            max_num_seqs=params.max_num_seqs * copies,
            long_prefill_token_threshold=min(budget, threshold) if threshold else budget,
        )
    return engine_for(params, steps, replica.kv_blocks, contents)


def engines_of(
    cluster: Cluster, params: EngineParams, steps: Mapping[str, StepTime], contents: ContentIndex
) -> dict[str, Engine]:
    """By replica id."""
    return {r.id: replica_engine(params, steps[r.id], r, contents) for r in cluster.replicas}
