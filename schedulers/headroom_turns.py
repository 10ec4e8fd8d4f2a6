"""How long sessions go on, as Headroom learns it from those that have ended."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque


class TurnsLeft:
    """How many more turns a session is expected to take.

    Args:
        kept: ended sessions that are remembered.
    """

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._order: deque[int] = deque()
        self._sorted: list[int] = []
        self._known: dict[int, float] = {}

    def ended(self, turns: int) -> None:
        """A session has ended after so many turns."""
        self._order.append(turns)
        insort(self._sorted, turns)
        if len(self._order) > self._kept:
            self._sorted.pop(bisect_right(self._sorted, self._order.popleft()) - 1)
        self._known.clear()

    def expected(self, done: int) -> float:
        """E[T - done | T > done], with one session added that goes on for as long again: while
        nothing is known, whoever has gone on for longer is expected to go on for longer."""
        found = self._known.get(done)
        if found is None:
            longer = self._sorted[bisect_right(self._sorted, done) :]
            left = sum(longer) - done * len(longer)
            found = self._known[done] = (left + done) / (len(longer) + 1)
        return found
