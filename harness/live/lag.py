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


SATURATED_SHARE = 0.05
SATURATED_MS = 5.0
"""A client whose event loop is late (99th percentile) by more than 5 % of the mean time to first
token, and by more than 5 ms, was the bottleneck. Our choice: what one would still believe."""


def client_problems(
    ttft_mean_ms: float, loop_lag_ms: float, dispatch_lag_ms: float, wrong_length: int, turns: int
) -> list[str]:
    """Why a replay must not be used, as far as its client can tell; empty if it can be.

    Args:
        loop_lag_ms, dispatch_lag_ms: 99th percentiles of how late the client's event loop ran, and
            its turns were sent.
        wrong_length: answers of another length than the trace has, among `turns`.
    """
    limit = max(SATURATED_MS, SATURATED_SHARE * ttft_mean_ms)
    found = [
        f"the client was the bottleneck: its {name} was {lag:.1f} ms late at the 99th percentile, "
        f"the limit is {limit:.1f} ms"
        for name, lag in (("event loop", loop_lag_ms), ("dispatch", dispatch_lag_ms))
        if lag > limit
    ]
    if wrong_length:
        found.append(
            f"{wrong_length} of {turns} answers had another length than the trace: "
            "the engine does not honour ignore_eos and min_tokens"
        )
    return found
