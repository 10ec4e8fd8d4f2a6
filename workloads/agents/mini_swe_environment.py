"""An environment of mini-swe-agent in our sandbox: /testbed is writable, nothing else is there.

Imported by the client process alone, where mini-swe-agent is installed.
"""

from __future__ import annotations

import os
import selectors
import subprocess
import time
from pathlib import Path
from typing import Any

from minisweagent.environments.extra.bubblewrap import (
    BubblewrapEnvironment,
    BubblewrapEnvironmentConfig,
)

from workloads.agents.bubblewrap import SandboxSpec, python_inside, sandbox_argv

OUTPUT_LIMIT = 4 << 20
"""Bytes kept of a command's output; of what is longer the model is shown 10,000 letters anyway."""


class SandboxConfig(BubblewrapEnvironmentConfig):
    """Settings."""

    root: str
    """Folder that becomes the sandbox's /."""
    cwd: str = "/testbed"


class SandboxEnvironment(BubblewrapEnvironment):
    """mini-swe-agent's own bubblewrap environment with a stricter sandbox: no network, no
    variables of the host, no leftover processes, bounded output."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(config_class=SandboxConfig, **settings)

    def execute(
        self, action: dict[str, Any], cwd: str = "", *, timeout: int | None = None
    ) -> dict[str, Any]:
        """Run one command; what mini-swe-agent's environments answer."""
        _, mounts = python_inside()
        spec = SandboxSpec(
            root=Path(self.config.root),
            read_only=mounts,
            environment={**self.config.env},
            folder=cwd or self.config.cwd,
        )
        command = ["bash", "-c", action.get("command", "")]
        argv = sandbox_argv(spec, command, self.config.executable)
        limit = timeout or self.config.timeout
        status, text, late = run_bounded(argv, limit)
        output: dict[str, Any] = {"output": text, "returncode": status, "exception_info": ""}
        if late:
            problem = f"Command '{action.get('command', '')}' timed out after {limit} seconds"
            output |= {
                "returncode": -1,
                "exception_info": f"An error occurred while executing the command: {problem}",
                "extra": {"exception_type": "TimeoutExpired", "exception": problem},
            }
        self._check_finished(output)
        return output

    def cleanup(self) -> None:
        """The folder is the harness's to remove; that of the base class was never used."""
        if self.working_dir.exists():
            self.working_dir.rmdir()


def run_bounded(argv: list[str], limit_s: float) -> tuple[int, str, bool]:
    """Run a command with bounded time and output.

    Returns:
        Exit status, output (with a note where it was cut), and whether it was too slow.
    """
    end, kept, dropped, late = time.monotonic() + limit_s, bytearray(), 0, False
    process = subprocess.Popen(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT
    )
    assert process.stdout is not None
    with process.stdout as stream, selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        while True:
            if not selector.select(max(0.0, end - time.monotonic())):
                late = True
                process.kill()  # the sandbox dies with it, and all that runs there
                break
            part = os.read(stream.fileno(), 1 << 16)
            if not part:
                break
            room = OUTPUT_LIMIT - len(kept)
            kept += part[:room]
            dropped += max(0, len(part) - room)
    try:
        status = process.wait(timeout=max(1.0, end - time.monotonic()))
    except subprocess.TimeoutExpired:
        late = True
        process.kill()
        status = process.wait()
    text = kept.decode("utf-8", "replace")
    if dropped:
        text += f"\n[{dropped} more bytes of output were dropped]\n"
    return status, text, late
