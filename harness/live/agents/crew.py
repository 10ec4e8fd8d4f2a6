"""The client processes of a cell: started before its first session, each for one part of a mix."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.live.agents.clients import ClientProcess
from harness.live.loops import run_all
from workloads.agents.base import AgentDriver
from workloads.agents.limits import ClientLimits
from workloads.agents.mixed import part_of

STARTS_AT_A_TIME = 8
"""Client processes that import their packages at the same time. Our choice."""


@dataclass(slots=True)
class Crew:
    """Client processes and which of them are free.

    Args:
        folder: for a log a process.
    """

    driver: AgentDriver
    settings: Mapping[str, Any]
    limits: ClientLimits
    folder: Path
    clients: dict[str, ClientProcess] = field(default_factory=dict)
    """By name; the log is called after it."""
    _garbage: int = 0
    """Of processes that were replaced."""
    _free: dict[str, list[str]] = field(default_factory=dict)
    _starts: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(STARTS_AT_A_TIME))

    async def start(self, counts: Mapping[str, int]) -> None:
        """Start so many processes for each part, and wait until all are ready.

        Raises:
            AgentschedError: one did not get ready.
        """
        wanted = [(part, number) for part, count in counts.items() for number in range(count)]
        await run_all(
            [
                self._start(part, f"worker-{number}" + (f"-{part}" if part else ""))
                for part, number in wanted
            ]
        )

    def take(self, part: str) -> str:
        """Name of a free process; there is one as long as no more are busy than were started."""
        return self._free[part].pop()

    def give_back(self, part: str, name: str) -> None:
        """It is free again."""
        self._free[part].append(name)

    async def replace(self, part: str, name: str) -> None:
        """Start another in the place of one that is gone."""
        self._garbage += self.clients[name].garbage
        await self._start(part, name)

    @property
    def garbage_lines(self) -> int:
        """Lines that were no events."""
        return self._garbage + sum(client.garbage for client in self.clients.values())

    async def close(self) -> None:
        """Let all end by themselves, then make sure."""
        await asyncio.gather(*(client.close() for client in self.clients.values()))

    async def dismiss(self) -> None:
        """End all; when this is itself cut short, they are still told to."""
        for client in self.clients.values():
            client.kill_now()
        await asyncio.gather(*(client.kill() for client in self.clients.values()))

    async def _start(self, part: str, name: str) -> None:
        driver, settings = part_of(self.driver, self.settings, part)
        async with self._starts:
            client = self.clients[name] = ClientProcess(
                driver.command(settings),
                {**os.environ, **driver.environment(settings)},
                self.folder / f"{name}.log",
                self.limits.file_limit_mb,
            )
            await client.start(self.limits.start_limit_s)
        self._free.setdefault(part, []).append(name)
