"""Events on their way from an engine to its client."""

from __future__ import annotations

from heapq import heapify, heappop, heappush

from harness.sim.engine_types import PS_PER_NS, EngineEvent


class Outbox:
    """Events in order of time; at one time, in the order they were sent."""

    __slots__ = ("_handed", "_items", "_sent")

    def __init__(self) -> None:
        self._items: list[tuple[int, int, EngineEvent, int]] = []
        self._sent = 0
        self._handed: list[tuple[int, int]] = []
        """Request and tokens of events that arrive together, which are told one by one: who hears
        of the first may ask about the others."""

    def send(self, time_ps: int, event: EngineEvent, tokens: int = 0) -> None:
        """Put an event that arrives at `time_ps`, when the request has `tokens` output tokens."""
        self._sent += 1
        heappush(self._items, (time_ps, self._sent, event, tokens))

    def next_time(self) -> int | None:
        return self._items[0][0] if self._items else None

    def pop_until(self, time_ps: int) -> list[EngineEvent]:
        """Events that have arrived by `time_ps`, their times in nanoseconds, rounded up."""
        events: list[EngineEvent] = []
        handed: list[tuple[int, int]] = []
        while self._items and self._items[0][0] <= time_ps:
            time, _, event, tokens = heappop(self._items)
            events.append(event._replace(time=to_ns(time)))
            handed.append((event.id, tokens))
        self._handed = handed if len(handed) > 1 else []
        return events

    def forget(self, request_id: int) -> None:
        """Drop the request's events."""
        self._items = [item for item in self._items if item[2].id != request_id]
        self._handed = [item for item in self._handed if item[0] != request_id]
        heapify(self._items)

    def tokens_of(self, request_id: int) -> int:
        """Output tokens of a request that has ended, as far as its events are still here."""
        coming = [item[3] for item in self._items if item[2].id == request_id]
        arriving = [tokens for number, tokens in self._handed if number == request_id]
        return max((*coming, *arriving), default=0)

    def endings(self) -> list[int]:
        """Requests whose end is still to arrive, in order of time."""
        return [item[2].id for item in sorted(self._items) if item[2].kind in _ENDS]

    def clear(self) -> None:
        self._items.clear()
        self._handed.clear()


_ENDS = ("finished", "rejected")


def to_ns(time_ps: int) -> int:
    """Picoseconds to nanoseconds, rounded up."""
    return -(-time_ps // PS_PER_NS)
