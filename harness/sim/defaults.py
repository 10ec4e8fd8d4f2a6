"""Engine settings where a run says nothing: what vLLM chooses on the GPU, and the API server."""

from __future__ import annotations

from harness.capacity import Cluster
from harness.sim.perf_catalogue import api_server_costs

PS_PER_US = 10**6


def engine_defaults(cluster: Cluster) -> dict[str, int | str]:
    """Values for EngineParams by field name, chosen by the smallest GPU of the cluster.

    Batch limits are those of vLLM's API server (vllm/engine/arg_utils.py): 8,192 tokens and 1,024
    sequences a step on GPUs of 70 GiB and more, else 2,048 and 256.
    """
    large = all(replica.gpu.memory_gib >= 70 for replica in cluster.replicas)
    costs = api_server_costs()
    return {
        "block_size": cluster.replicas[0].block_size,
        "sequence_blocks": cluster.replicas[0].kv_sequence_blocks,
        "window_hits": cluster.model.kv.window_hits,
        "window_tokens": cluster.model.kv.window_tokens,
        "max_num_batched_tokens": 8192 if large else 2048,
        "max_num_seqs": 1024 if large else 256,
        "max_model_len": cluster.replicas[0].context_limit,
        "api_request_ps": round(costs.request_us * PS_PER_US),
        "api_prompt_token_ps": round(costs.prompt_token_us * PS_PER_US),
        "output_delay_ps": round(costs.delay_us * PS_PER_US),
    }
