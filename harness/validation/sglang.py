"""SGLang's own scheduler, step by step, as a finding."""

from __future__ import annotations

from pathlib import Path

from harness.validation.findings import Finding
from harness.validation.stepwise import Stepwise, stepwise_finding

SGLANG = Stepwise(
    "sglang",
    "Against SGLang's own scheduler",
    "SGLang 0.5.23's Scheduler (policy, prefill admission, ratio of new tokens, retraction), its "
    "radix tree and allocators and our loop go through the same random multi-turn workloads with "
    "small KV caches, without a model or a GPU: batch composition, every node of the tree, free "
    "pages, cache hits and retractions must be equal at every step. Requests are not aborted here, "
    "and stay within what SGLang would not cut.",
    "batches, tree, free pages, hits, retractions",
    "sglang",
    "AGENTSCHED_SGLANG_PYTHON",
    Path("tests") / "harness" / "test_sglang_stepwise.py",
    "Install sglang 0.5.23 without its dependencies (pip's --no-deps), torch for CPUs, the "
    "packages that its import asks for, those of the project and pytest, and name that Python",
)


def sglang_finding(root: Path | None = None) -> Finding:
    """See `stepwise_finding`."""
    return stepwise_finding(SGLANG, root)
