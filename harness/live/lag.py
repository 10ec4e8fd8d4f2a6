"""How late the event loop runs what is due: the measure of a client's or gateway's own load."""

from __future__ import annotations

import asyncio
from time import monotonic

INTERVAL_S = 0.01


class LagProbe:
    """Asks to be woken every 10 ms and keeps how late it was, in milliseconds.

    Loops that round to milliseconds are up to 1 ms off by themselves.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self.lags_ms: list[float] = []
        self._due = monotonic() + INTERVAL_S
        self._handle: asyncio.TimerHandle | None = loop.call_later(INTERVAL_S, self._woken)

    def _woken(self) -> None:
        now = monotonic()
        self.lags_ms.append(max(0.0, (now - self._due) * 1e3))
        self._due = now + INTERVAL_S
        self._handle = self._loop.call_later(INTERVAL_S, self._woken)

    def stop(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None

    def percentile(self, percent: float) -> float:
        return percentile(self.lags_ms, percent)


def percentile(values: list[float] | list[int], percent: float) -> float:
    """Nearest-rank percentile; 0 of nothing."""
    if not values:
        return 0.0
    ordered = sorted(values)
    rank = max(0, -(-len(ordered) * percent // 100) - 1)
    return float(ordered[int(rank)])
