"""Where Solve commands are carried out."""

from __future__ import annotations

import asyncio
import multiprocessing
import signal
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from typing import Any

from harness.live.clock import Clock
from harness.parent import die_with_parent
from harness.sim.clock import Priority
from schedulers import registry
from schedulers.commands import Solve


class ProcessPlanner:
    """Solves in one worker process, so that the event loop never waits.

    Args:
        scheduler: name or file of the scheduler; the worker loads it, to know its solver.
        on_error: is given what a solver raised.
    """

    def __init__(self, scheduler: str, on_error: Callable[[BaseException], None]) -> None:
        self._scheduler = scheduler
        self._on_error = on_error
        self._pool: ProcessPoolExecutor | None = None

    def solve(self, command: Solve, ready: Callable[[Any], None]) -> None:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_begin,
                initargs=(self._scheduler,),
            )
        loop = asyncio.get_running_loop()
        future = loop.run_in_executor(self._pool, command.solver, command.snapshot)

        def done(solved: asyncio.Future[Any]) -> None:
            if solved.cancelled():
                return
            error = solved.exception()
            if error is not None:
                self._on_error(error)
            else:
                ready(solved.result())

        future.add_done_callback(done)

    def close(self) -> None:
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)


def _begin(scheduler: str) -> None:
    """What the worker does first."""
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the gateway's to handle
    registry.find(scheduler)


class FixedPlanner:
    """Solves at once and hands the plan over after a fixed time, as the simulator does."""

    def __init__(self, clock: Clock, latency_ns: int) -> None:
        self._clock, self._latency = clock, latency_ns
        self.pending = 0

    def solve(self, command: Solve, ready: Callable[[Any], None]) -> None:
        self.pending += 1
        plan = command.solver(command.snapshot)
        at = self._clock.now + self._latency
        self._clock.at(at, Priority.PLAN, partial(self._hand_over, ready, plan))

    def _hand_over(self, ready: Callable[[Any], None], plan: Any) -> None:
        self.pending -= 1
        ready(plan)

    def close(self) -> None:
        """Nothing is held."""
