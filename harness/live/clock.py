"""The clock of the live parts: the event loop's time, at a chosen speed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from time import monotonic_ns
from typing import Protocol

from harness.sim.clock import Priority


class Clock(Protocol):
    """What the sans-IO parts need; `harness.sim.clock.Clock` is one, `LoopClock` the other."""

    @property
    def now(self) -> int:
        """Nanoseconds since the start of the run."""
        ...

    def at(self, time: int, priority: Priority, action: Callable[[], None], rank: int = 0) -> None:
        """Call `action` at `time`.

        Priority, then rank, order what falls on the same virtual nanosecond.
        """
        ...


class LoopClock:
    """Nanoseconds since construction, `speed` times as fast as real time.

    What is due already runs in the next turn of the event loop, never at once.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, speed: float = 1.0) -> None:
        self._loop = loop
        self._speed = speed
        self._start = monotonic_ns()
        self._floor = 0

    @property
    def now(self) -> int:
        passed = monotonic_ns() - self._start
        return max(self._floor, passed if self._speed == 1.0 else int(passed * self._speed))

    def at(self, time: int, priority: Priority, action: Callable[[], None], rank: int = 0) -> None:
        delay = max(0, time - self.now) / (self._speed * 1e9)
        self._loop.call_later(delay, self._fire, time, action)

    def _fire(self, time: int, action: Callable[[], None]) -> None:
        # Loops round to milliseconds and may be early; who asked to be woken at `time` must never
        # be told an earlier one.
        self._floor = max(self._floor, time)
        action()
