"""Ordinary chat beside the agents of a cell: replayed open-loop, recorded as a cell of its own.

It goes through the same gateway (in front of somebody else's router: to that router), as long as
the agents are at work. Its figures stand under a workload name of their own, in a cell beside
the agents', so that neither is counted with the other.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from harness.live.http_client import HttpClient
from harness.live.lag import client_problems, percentile
from harness.live.parts import Stage
from harness.live.replay import Replayer, ReplaySettings
from results.writer import CellWriter
from workloads.model import Session


@dataclass(slots=True)
class Background:
    """Sessions that come by themselves.

    Args:
        sessions: with arrivals, in seconds from the first task on.
        open_cell: makes the cell that they are recorded in.
        facts: of that cell.
    """

    sessions: Sequence[Session]
    settings: ReplaySettings
    open_cell: Callable[[], CellWriter]
    facts: Mapping[str, Any] = field(default_factory=dict)
    _writer: CellWriter | None = None
    _open: ExitStack = field(default_factory=ExitStack)
    _replayer: Replayer | None = None
    _client: HttpClient | None = None
    _stage: Stage | None = None
    _started: int = 0
    _cut_off: int = 0
    _all_ended: bool = False

    @property
    def names(self) -> frozenset[str]:
        """Of the sessions at the gateway."""
        return frozenset(session.id for session in self.sessions)

    def start(self, stage: Stage) -> None:
        """Let the sessions come from now on."""
        self._stage, self._started = stage, stage.clock.now
        self._writer = self._open.enter_context(self.open_cell())
        self._client = HttpClient(stage.front.url)
        self._replayer = Replayer(
            [_later(session, self._started / 1e9) for session in self.sessions],
            workers=None,
            sender=self._client,
            clock=stage.clock,
            recorder=self._writer,
            settings=replace(self.settings, model=stage.model, context_limit=stage.context_limit),
            release=stage.front.release,
            done=self._done,
        )
        self._replayer.start()

    async def finish(self) -> None:
        """The agents are done: cut off what is open, and write the figures of what was not.

        Raises:
            RunDirectoryError: they cannot be written.
        """
        writer, replayer, stage = self._writer, self._replayer, self._stage
        assert writer is not None
        assert replayer is not None
        assert stage is not None
        makespan, counts = stage.clock.now - self._started, replayer.counts
        self._cut_off = counts.active
        await self._hang_up()
        counters = {**self.counters(), "client.wrong_length": float(counts.wrong_length)}
        lag = percentile(counts.dispatch_lags_ns, 99) / 1e6
        problems = client_problems(counts.ttft_mean_ms, 0.0, lag, counts.wrong_length, counts.turns)
        facts = {**self.facts, "client": "replay", "front": "beside agents"}
        if problems:
            facts["invalid"] = problems[0]
        await asyncio.to_thread(
            writer.finish, makespan, counters, facts, {"dispatch_lag_p99_ms": lag}
        )

    async def stop(self) -> None:
        """Send nothing more; may be called twice. A cell that is not finished stays partial."""
        await self._hang_up()
        self._open.close()

    async def _hang_up(self) -> None:
        if self._replayer is not None:
            self._replayer.stop()
        if self._client is not None:
            client, self._client = self._client, None
            await client.close()

    def counters(self) -> dict[str, float]:
        """For the agents' cell: how much there was beside them."""
        counts = self._replayer.counts if self._replayer is not None else None
        return {
            "background.sessions": float(counts.sessions if counts is not None else 0),
            "background.turns": float(counts.turns if counts is not None else 0),
            "background.cut_off": float(self._cut_off),
        }

    def ran_out(self) -> str | None:
        """Why the agents' figures must not be used; None: they may."""
        if not self._all_ended:
            return None
        return (
            f"the {len(self.sessions)} sessions of chat beside the agents ran out before the "
            "agents were done"
        )

    def _done(self) -> None:
        self._all_ended = True


def _later(session: Session, seconds: float) -> Session:
    if session.arrival_s is None:
        return session
    return replace(session, arrival_s=session.arrival_s + seconds)
