"""Real commands that are interrupted and killed, and what is left of them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import environment, tiny_spec


def start(*arguments: str | Path, cwd: Path, mark: str = "", **extra: str) -> subprocess.Popen[str]:
    """The command, in a session of its own; everything it starts carries `mark`."""
    return subprocess.Popen(
        [sys.executable, "-m", "agentsched", *map(str, arguments)],
        cwd=cwd,
        env={**environment(), "DURABILITY_MARK": mark, **extra},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def marked(mark: str) -> list[int]:
    """Living processes with this mark in their environment."""
    found: list[int] = []
    wanted = f"DURABILITY_MARK={mark}".encode()
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
                if state not in "ZX":
                    found.append(int(entry.name))
        except OSError:
            continue
    return found


def wait_until(
    holds: Callable[[], Any],
    what: str,
    limit_s: float = 120.0,
    process: subprocess.Popen[str] | None = None,
) -> None:
    """Fails when the time is up, or the process has ended before it holds."""
    until = time.monotonic() + limit_s
    while time.monotonic() < until:
        if holds():
            return
        if process is not None and process.poll() is not None:
            pytest.fail(f"ended before {what}: {process.communicate()}")
        time.sleep(0.05)
    pytest.fail(f"waited {limit_s:g} s in vain for {what}")


def turns_in(folder: Path) -> list[dict[str, Any]]:
    """Complete lines of a running cell's event log."""
    try:
        text = (folder / "events.jsonl").read_text()
    except FileNotFoundError:
        return []
    whole = text[: text.rfind("\n") + 1]
    return [json.loads(line) for line in whole.splitlines()]


def emulated_spec(folder: Path, **fields: Any) -> Path:
    """8 sessions of 4 turns of two seconds each, in real time."""
    return tiny_spec(folder, engine="emulator", model="qwen3-8b", topology="4x1xh100", **fields)


def ended(process: subprocess.Popen[str]) -> bool:
    return process.poll() is not None


def kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return
