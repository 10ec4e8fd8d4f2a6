"""Tool times as Headroom learns them, and whether a session in a tool call is worth its room."""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

from schedulers.types import ToolSignal


class ToolTimes:
    """How long each tool took, and with what probability one that still runs ends soon."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._order: dict[str, deque[int]] = {}
        self._sorted: dict[str, list[int]] = {}

    def add(self, tool: str, duration: int) -> None:
        order = self._order.setdefault(tool, deque())
        ordered = self._sorted.setdefault(tool, [])
        order.append(duration)
        insort(ordered, duration)
        if len(order) > self._kept:
            ordered.pop(bisect_right(ordered, order.popleft()) - 1)

    def back_within(self, tool: str, elapsed: int, ahead: int) -> float:
        """P(T <= elapsed + ahead | T > elapsed), with one success and one failure added."""
        ordered = self._sorted.get(tool, ())
        gone = bisect_right(ordered, elapsed)
        soon = bisect_right(ordered, elapsed + ahead) - gone
        return (soon + 1) / (len(ordered) - gone + 2)


@dataclass(frozen=True, slots=True)
class ToolCall:
    """A tool call under way."""

    tool: str
    at: int
    forecast: float
    """Probability, when it began, that it ends by `deadline`."""
    deadline: int


class ToolCalls:
    """The calls under way, with forecasts that are judged when they end."""

    def __init__(self, kept: int) -> None:
        self.times = ToolTimes(kept)
        self._calls: dict[str, ToolCall] = {}
        self._forecasts = 0
        self._error = 0.0
        """Sum of squared errors of the forecasts (Brier)."""

    def started(self, session: str, tools: Sequence[ToolSignal], now: int, horizon: int) -> None:
        tool = "+".join(sorted(one.name for one in tools))
        forecast = self.times.back_within(tool, 0, horizon)
        self._calls[session] = ToolCall(tool, now, forecast, now + horizon)

    def ended(self, session: str, now: int) -> None:
        call = self._calls.pop(session, None)
        if call is not None:
            self._forecasts += 1
            self._error += (call.forecast - (now <= call.deadline)) ** 2
            self.times.add(call.tool, now - call.at)

    def forget(self, session: str) -> None:
        self._calls.pop(session, None)

    def keeps(self, session: str, now: int, worth: int) -> bool:
        """Whether KV that is worth keeping for `worth` nanoseconds keeps its room: not once the
        call has lasted so long, nor while it will more likely than not last so long again."""
        call = self._calls.get(session)
        if call is None:
            return True
        elapsed = now - call.at
        return elapsed < worth and self.times.back_within(call.tool, elapsed, worth) >= 0.5

    def counters(self) -> dict[str, float]:
        if not self._forecasts:
            return {}
        return {
            "forecasts": float(self._forecasts),
            "forecast_brier": self._error / self._forecasts,
        }
