"""Runs NVIDIA's Dynamo replay (PyPI: ai-dynamo 1.3.1) in a Python of its own."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from agentsched import AgentschedError, UsageError

PYTHON_VARIABLE = "AGENTSCHED_DYNAMO_PYTHON"
FOLDER = ".venv-dynamo"
PACKAGES = ("ai-dynamo==1.3.1", "ai-dynamo-runtime==1.3.1")
NEEDS = ("pydantic<2.14", "msgspec", "uvloop", "tqdm", "prometheus-client", "transformers")
HOW_TO = (
    f"python3 -m venv {FOLDER} && "
    f"{FOLDER}/bin/pip install --no-deps {' '.join(PACKAGES)} && "
    f"{FOLDER}/bin/pip install {' '.join(repr(need) for need in NEEDS)}"
)


@dataclass(frozen=True, slots=True)
class LinearTiming:
    """Time of a step: so much for each prompt token it computes, and a constant in every step that
    hands out a token."""

    token_us: float = 50.0
    step_us: float = 10_000.0


@dataclass(frozen=True, slots=True)
class Replayed:
    """What a replay reports. Seconds; `hit_rate` of prompt tokens at first admission."""

    requests: int
    makespan_s: float
    hit_rate: float
    ttft_s: float
    tpot_s: float
    e2e_s: float
    e2e_p99_s: float
    cpu_s: float
    """User and system time of the whole process."""


def find_python() -> Path | None:
    """A Python that has the package: named by the variable, in the folder here, or this one."""
    named = os.environ.get(PYTHON_VARIABLE)
    if named:
        if not Path(named).is_file():
            raise UsageError(f"{PYTHON_VARIABLE} names {named}, which is no file", "correct it")
        return Path(named)
    own = Path(FOLDER) / "bin" / "python"
    if own.is_file():
        return own.absolute()
    # Not imported here: the package must not be loaded into this process.
    probe = "import importlib.util as u, sys; sys.exit(u.find_spec('dynamo.replay') is None)"
    found = subprocess.run([sys.executable, "-c", probe], capture_output=True, check=False)
    return Path(sys.executable) if found.returncode == 0 else None


def install(folder: Path = Path(FOLDER)) -> Path:
    """Make a virtual environment with the package; returns its Python.

    Raises:
        AgentschedError: it cannot be installed here.
    """
    python = folder / "bin" / "python"
    pip = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    commands = [
        [sys.executable, "-m", "venv", str(folder)],
        [*pip, "--no-deps", *PACKAGES],
        [*pip, *NEEDS],
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise AgentschedError(f"`{' '.join(command)}` failed: {said}", "see what pip says")
    return python.absolute()


class DynamoReplay:
    """The replay, with one engine configuration.

    Args:
        python: of the environment that has the package.
        folder: for files of the runs.
    """

    def __init__(self, python: Path, folder: Path, timing: LinearTiming) -> None:
        self.python, self.folder = python, folder
        self._timing = folder / "timing.npz"
        # Their table: prefill by new tokens, decode by (tokens held, mean context), milliseconds;
        # both extrapolate linearly, so two points make a line.
        per_token = timing.token_us / 1000
        np.savez(
            self._timing,
            prefill_isl=np.array([0.0, 1e7]),
            prefill_ttft_ms=np.array([0.0, per_token * 1e7]),
            decode_active_kv_tokens=np.array([0.0, 1e9]),
            decode_context_length=np.array([0.0, 1e7]),
            decode_itl=np.full((2, 2), timing.step_us / 1000),
        )

    def replay(
        self,
        trace: Path,
        *,
        replicas: int,
        kv_blocks: int,
        router: str = "round_robin",
        block_size: int = 16,
        max_num_seqs: int = 256,
        max_num_batched_tokens: int = 8192,
    ) -> Replayed:
        """Replay a trace in Mooncake format.

        Raises:
            AgentschedError: the replay failed.
        """
        engine = {
            "block_size": block_size,
            "num_gpu_blocks": kv_blocks,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "enable_prefix_caching": True,
            "enable_chunked_prefill": True,
            "planner_profile_data": str(self._timing),
        }
        report = self.folder / "report.json"
        command = [
            str(self.python), "-m", "dynamo.replay", str(trace),
            "--trace-format", "mooncake", "--trace-block-size", str(block_size),
            "--num-workers", str(replicas), "--router-mode", router,
            "--extra-engine-args", json.dumps(engine), "--report-json", str(report),
        ]  # fmt: skip
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        # Its default logging costs several times the replay itself.
        environment = {**os.environ, "DYN_LOG": "error"}
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, check=False, cwd=self.folder
        )
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or ["no message"])[-1]
            raise AgentschedError(f"dynamo.replay failed: {said}", "check its installation")
        found: dict[str, Any] = json.loads(report.read_text("utf-8"))
        return Replayed(
            requests=found["completed_requests"],
            makespan_s=found["duration_ms"] / 1e3,
            hit_rate=found["first_admission_prefix_cache_reused_ratio"],
            ttft_s=found["mean_ttft_ms"] / 1e3,
            tpot_s=found["mean_tpot_ms"] / 1e3,
            e2e_s=found["mean_e2e_latency_ms"] / 1e3,
            e2e_p99_s=found["p99_e2e_latency_ms"] / 1e3,
            cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime,
        )
