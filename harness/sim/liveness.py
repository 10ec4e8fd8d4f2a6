"""Tells a simulation that no longer gets anywhere from one that takes its time."""

from __future__ import annotations

from harness.sim.agents import nanoseconds

STEPS_AT_ONCE = 100_000
"""More than this at one instant, besides ten a session, and time is taken to stand still."""


class Liveness:
    """Asked after every step of the clock.

    Args:
        limit_s: how long turns may go unserved while nothing happens, in virtual seconds.
        sessions: how many the cell has.
    """

    def __init__(self, limit_s: float, sessions: int) -> None:
        self._limit_s, self._limit = limit_s, nanoseconds(limit_s)
        self._steps_at_once = STEPS_AT_ONCE + 10 * sessions
        self._instant = self._steps = 0
        self._stalled_since: int | None = None

    def problem(self, now: int, moving: bool) -> str | None:
        """Why the cell must end, in words; None if it may go on.

        Args:
            moving: engines or tools are at work, or no turn goes unserved.
        """
        if now != self._instant:
            self._instant, self._steps = now, 0
        self._steps += 1
        if self._steps > self._steps_at_once:
            return f"with more than {self._steps_at_once:,} steps at one instant"
        if moving:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since > self._limit:
            return f"for {self._limit_s:g} s"
        return None
