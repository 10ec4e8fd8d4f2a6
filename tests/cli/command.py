"""Runs the real command in a process of its own, on a workload small enough for a test."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def environment(columns: int = 120) -> dict[str, str]:
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("AGENTSCHED", "PYTEST"))}
    return {**kept, "COLUMNS": str(columns), "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"}


def agentsched(
    *arguments: str | Path, cwd: Path, columns: int = 120, timeout_s: float = 240
) -> subprocess.CompletedProcess[str]:
    """What `agentsched ARGUMENTS` does. A traceback on either stream fails the test at once."""
    done = subprocess.run(
        [sys.executable, "-m", "agentsched", *map(str, arguments)],
        cwd=cwd,
        env=environment(columns),
        capture_output=True,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    assert "Traceback" not in done.stdout + done.stderr, done.stderr
    return done


def turn(session: str, number: int, **fields: Any) -> dict[str, Any]:
    """One line of a native trace: each turn adds 500 tokens to the 600 of the one before."""
    head = {"workload": "tiny", "origin": "recorded"} if number == 0 else {}
    kept = {} if number == 0 else {"kept_turn": number - 1, "kept_tokens": 600 * number}
    return {
        "v": 1,
        "session": session,
        "turn": number,
        **head,
        **kept,
        "new_tokens": 500,
        "output_tokens": 100,
        "tools": [{"name": "bash", "seconds": 0.5 + number + 0.3 * (ord(session[-1]) % 5)}],
        **fields,
    }


def tiny_trace(folder: Path, sessions: int = 8, turns: int = 4) -> Path:
    """A valid trace of `sessions` sessions."""
    file = folder / "tiny.jsonl"
    lines = [turn(f"s{s}", t) for s in range(sessions) for t in range(turns)]
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return file


def tiny_spec(folder: Path, **fields: Any) -> Path:
    """A specification that runs in about a second: 8 sessions, 4 at a time."""
    tiny_trace(folder)
    spec: dict[str, Any] = {
        "name": "tiny",
        "model": "qwen3-32b",
        "topology": "4x2xh100",
        "workloads": [{"name": "tiny.jsonl", "workers": [4]}],
        "schedulers": ["round-robin"],
        "seeds": [0],
        **fields,
    }
    file = folder / "spec.yaml"
    file.write_text(json.dumps(spec), encoding="utf-8")
    return file
