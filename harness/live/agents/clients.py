"""One client process of agents: started under a guard, spoken to in lines, ended with all it began.

The protocol is that of `workloads.agents.base`.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agentsched import AgentschedError
from harness.live.agents import guard
from workloads.agents.base import Assignment, ClientEvent, EndStatus
from workloads.agents.client import decode_event, encode

LINE_LIMIT = 16 << 20
"""Longest line of a client, in bytes; one that writes more is broken. Our choice."""
KILL_LIMIT_S = 15.0
"""A guard that has not killed everything by then is killed itself. Our choice."""
MB = 1 << 20


@dataclass(frozen=True, slots=True)
class Ended:
    """How a session ended."""

    status: EndStatus
    error: str | None = None
    facts: Mapping[str, Any] = field(default_factory=dict)
    alive: bool = True
    """The client process can take up another session."""
    crashed: bool = False
    """The process died by itself."""


class ClientProcess:
    """A process that runs sessions one after another.

    Args:
        command: what to run.
        environment: all of it.
        log: file for what agents print; appended to.
        file_limit_mb: no file that it writes grows beyond this.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        file_limit_mb: float,
    ) -> None:
        self._command = [
            *(sys.executable, "-I", "-S", guard.__file__),
            *("--files", str(int(file_limit_mb * MB))),
            *command,
        ]
        self._environment, self._log = dict(environment), log
        self._process: asyncio.subprocess.Process | None = None
        self._stop_reason: str | None = None
        self.garbage = 0
        """Lines that were no events."""

    async def start(self, limit_s: float) -> None:
        """Start it and wait until it is ready.

        Raises:
            AgentschedError: it did not get ready in time; shows the end of its log.
        """
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=log,
                env=self._environment,
                limit=LINE_LIMIT,
            )
        try:
            async with asyncio.timeout(limit_s):
                event = await self._next_event()
        except TimeoutError:
            event = None
            problem = f"was not ready after {limit_s:g} s"
        else:
            problem = await self._death() if event is None else f"began with `{event.kind}`"
        if event is None or event.kind != "ready":
            await self.kill()
            raise AgentschedError(
                f"a client process of agents {problem}; the end of {self._log}:\n{self._tail()}",
                "see the log; if packages are missing, install the `agents` extra",
            )

    async def run(
        self,
        assignment: Assignment,
        limit_s: float,
        on_event: Callable[[ClientEvent], None],
    ) -> Ended:
        """Run one session to its end, however it ends."""
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            async with asyncio.timeout(limit_s):
                # A process that is gone shows below, where its output ends.
                with contextlib.suppress(ConnectionError):
                    self._process.stdin.write(encode(assignment).encode())
                    await self._process.stdin.drain()
                while (event := await self._next_event()) is not None:
                    if event.session != assignment.session:
                        self.garbage += 1
                    elif event.kind == "ended":
                        return Ended(event.status or "failed", event.error, event.facts)
                    else:
                        on_event(event)
        except TimeoutError:
            await self.kill()
            return Ended("deadline", f"stopped after {limit_s:g} s", alive=False)
        if self._stop_reason is not None:
            await self.kill()
            return Ended("failed", self._stop_reason, alive=False)
        return Ended(
            "failed", f"the client process {await self._death()}", alive=False, crashed=True
        )

    def stop_session(self, reason: str) -> None:
        """Kill the process; its session fails for this reason."""
        if self._stop_reason is None and self._process is not None:
            self._stop_reason = reason
            self._signal(signal.SIGTERM)

    async def close(self) -> None:
        """It has no more sessions to run: let it end by itself, then make sure."""
        process = self._process
        if process is None:
            return
        if process.stdin is not None:
            process.stdin.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(5.0):
                await process.wait()
        await self.kill()

    async def kill(self) -> None:
        """End it and all that it started; may be called twice."""
        process = self._process
        if process is None:
            return
        if process.returncode is None:
            self._signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(KILL_LIMIT_S):
                    await process.wait()
            except TimeoutError:
                self._signal(signal.SIGKILL)
                await process.wait()
        self._process = None
        await _close_streams(process)

    def kill_now(self) -> None:
        """As `kill`, without waiting: for when there is no time to."""
        self._signal(signal.SIGTERM)

    def _signal(self, number: signal.Signals) -> None:
        if self._process is not None and self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.send_signal(number)

    async def _next_event(self) -> ClientEvent | None:
        """The next event; None: there will be none."""
        assert self._process is not None
        assert self._process.stdout is not None
        while True:
            try:
                line = await self._process.stdout.readline()
            except ValueError:  # longer than any event
                self.garbage += 1
                self.stop_session("the client process wrote a line without end")
                return None
            if not line:
                return None
            try:
                return decode_event(line)
            except ValueError:
                self.garbage += 1

    async def _death(self) -> str:
        """How it ended, now that its output has."""
        assert self._process is not None
        try:
            async with asyncio.timeout(KILL_LIMIT_S):
                code = await self._process.wait()
        except TimeoutError:
            return "closed its output"
        if code > 128 and code - 128 in set(signal.Signals):
            return f"died (signal {signal.Signals(code - 128).name})"
        return f"died (exit status {code})"

    def _tail(self) -> str:
        try:
            with self._log.open("rb") as log:
                log.seek(max(0, os.fstat(log.fileno()).st_size - 4000))
                text = log.read().decode("utf-8", "replace")
        except OSError:
            return "(no log)"
        return "\n".join(text.splitlines()[-15:]) or "(it printed nothing)"


async def _close_streams(process: asyncio.subprocess.Process) -> None:
    """Leave no pipe of a process that is gone to the end of the event loop."""
    if process.stdin is not None:
        process.stdin.close()
    with contextlib.suppress(TimeoutError, ValueError):
        async with asyncio.timeout(1.0):
            while process.stdout is not None and await process.stdout.read(1 << 16):
                pass
