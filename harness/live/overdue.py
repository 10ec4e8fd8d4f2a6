"""Ends turns that nobody answers any more: engines that fell silent, and turns without end.

Looked at now and then in real time; a virtual clock has no need of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

from harness.live.driver import LiveDriver

LOOKS = 8
"""Looks at a turn in the time that it may be silent: it is noticed an eighth too late at most."""


@dataclass(slots=True)
class Overdue:
    """Looks after the open turns of a driver. Use `start`, then `stop`.

    Args:
        suspect: called with a replica that did not answer in time.
    """

    driver: LiveDriver
    suspect: Callable[[str], None]
    _quiet: dict[tuple[int, int], int] = field(default_factory=dict)
    """By (attempt, bytes heard of it): looks without a change."""
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        settings = self.driver.settings
        limits = [t for t in (settings.turn_idle_s, settings.turn_total_s) if t is not None]
        if limits:
            self._later(min(limits) / LOOKS)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _later(self, interval_s: float) -> None:
        loop = asyncio.get_running_loop()
        self._timer = loop.call_later(interval_s, self._look, interval_s)

    def _look(self, interval_s: float) -> None:
        self._later(interval_s)
        settings, now = self.driver.settings, self.driver.clock.now
        quiet: dict[tuple[int, int], int] = {}
        for live in self.driver.open_turns():
            total = settings.turn_total_s
            if total is not None and now - live.arrived > total * 1e9:
                self.driver.count("turns_overdue")
                self.driver.give_up(live, f"no answer in {total:g} s")
                continue
            if live.attempt is None or settings.turn_idle_s is None:
                continue
            key = (live.attempt, live.client.heard())
            looks = self._quiet.get(key, -1) + 1
            if looks * interval_s < settings.turn_idle_s:
                quiet[key] = looks
                continue
            self.driver.count("turns_silent")
            if live.replica is not None:
                self.suspect(live.replica)
            live.client.fell_silent(f"the engine was silent for {settings.turn_idle_s:g} s")
        self._quiet = quiet
