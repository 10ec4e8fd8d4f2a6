"""The virtual clock: a heap of events in a deterministic order."""

from __future__ import annotations

import heapq
from collections.abc import Callable
from enum import IntEnum


class Priority(IntEnum):
    """Order of things that happen at the same nanosecond."""

    FAULT = 0
    ENGINE = 1
    PLAN = 2
    AGENT = 3
    SAMPLE = 4
    TIMER = 5


class Clock:
    """Runs callbacks by (time, priority, rank, order of scheduling)."""

    def __init__(self) -> None:
        self.now = 0
        self._heap: list[tuple[int, int, int, int, Callable[[], None]]] = []
        self._sequence = 0
        self.pending = [0] * len(Priority)
        """Scheduled callbacks by priority."""

    def at(self, time: int, priority: Priority, action: Callable[[], None], rank: int = 0) -> None:
        """Schedule `action` at `time` (nanoseconds, not before now).

        `rank` orders what may be scheduled sooner or later without a difference in meaning.
        """
        if time < self.now:
            raise AssertionError(f"scheduled at {time}, before now ({self.now})")
        self._sequence += 1
        self.pending[priority] += 1
        heapq.heappush(self._heap, (time, priority, rank, self._sequence, action))

    def step(self) -> bool:
        """Run the next callback; False when none is left."""
        if not self._heap:
            return False
        time, priority, _, _, action = heapq.heappop(self._heap)
        self.now = time
        self.pending[priority] -= 1
        action()
        return True
