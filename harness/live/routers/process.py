"""A router's process: started with a log, watched, ended with everything it started."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Mapping, Sequence
from pathlib import Path

from agentsched import AgentschedError
from harness.live.engines.process import LeashedProcess

WATCH_S = 0.2
"""How often it is looked whether the process still runs."""
GRACE_S = 3.0
"""From asking it to end until it is killed. Our choice."""
TAIL_LINES = 12
PORT_TAKEN = ("address already in use", "addrinuse", "address in use")


class RouterError(AgentschedError):
    """A router did not start, or ended while it was needed."""


class RouterProcess:
    """One program on a leash: it ends when this process does, however that happens.

    Args:
        log: what the program prints goes to the end of this file.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str]
    ) -> None:
        self.name, self.log = name, log
        self._log_start = log.stat().st_size if log.exists() else 0
        self._process = LeashedProcess(name, command, environment, log, GRACE_S)
        self._process.start()

    @property
    def running(self) -> bool:
        return self._process.running

    async def ended(self) -> int:
        """Returns with the exit code once it has ended by itself."""
        while self.running:
            await asyncio.sleep(WATCH_S)
        code = self._process.exit_code
        return code if code is not None else 1

    async def close(self) -> None:
        """End it, if need be by force; returns when all of it is gone. May be called twice."""
        await asyncio.to_thread(self._process.stop)

    def printed(self) -> list[str]:
        """Lines that it wrote, without those that are empty."""
        with self.log.open("rb") as stream:
            stream.seek(self._log_start)
            text = stream.read().decode("utf-8", "replace")
        return [line.rstrip() for line in text.splitlines() if line.strip()]

    @property
    def port_was_taken(self) -> bool:
        return any(words in line.lower() for line in self.printed() for words in PORT_TAKEN)

    def failure(self, what: str) -> RouterError:
        """What went wrong, with the end of its log and what can be done about it."""
        lines = self.printed()
        tail = "\n".join(f"  {line[:300]}" for line in lines[-TAIL_LINES:]) or "  (nothing)"
        message = f"{self.name} {what}; the end of its log {self.log}:\n{tail}"
        return RouterError(message, self._remedy(lines))

    def _remedy(self, lines: Sequence[str]) -> str:
        text = "\n".join(lines).lower()
        if self.port_was_taken:
            return "free the port, or leave `port` out so that a free one is taken"
        if "unrecognized arguments" in text or "unexpected argument" in text:
            return "remove the flag from `args`, or install the version that docs/routers.md names"
        if "modulenotfounderror" in text or "importerror" in text:
            return "install the router anew, with all that it needs, in an environment of its own"
        return f"read the whole log {self.log}; flags of your own are those in `args`"


def free_ports(count: int) -> list[int]:
    """Ports of the loopback address that nobody listens on now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()
