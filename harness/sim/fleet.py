"""The engines of a simulated cluster, woken at the times something happens in them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from harness.sim.clock import Clock, Priority
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineEvent, EngineRequest


class Fleet:
    """Engines by replica id on one clock.

    Args:
        deliver: is given each engine event when its time has come.
        rank: of the first engine. At one nanosecond engines are woken in order of rank, the first
            above 0: when each was told its time depends on how far engines may jump.
    """

    def __init__(
        self,
        clock: Clock,
        engines: dict[str, Engine],
        deliver: Callable[[str, EngineEvent], None],
        rank: int = 1,
    ) -> None:
        self._clock = clock
        self._engines = engines
        self._deliver = deliver
        self._wakes: dict[str, int | None] = dict.fromkeys(engines)
        self._ranks = {replica: rank + i for i, replica in enumerate(engines)}

    @property
    def names(self) -> list[str]:
        return list(self._engines)

    def __iter__(self) -> Iterator[tuple[str, Engine]]:
        """All engines, brought up to now."""
        for replica, engine in self._engines.items():
            self._advance(replica)
            yield replica, engine
            self._reschedule(replica)

    def submit(self, replica: str, request: EngineRequest) -> None:
        self._advance(replica)
        self._engines[replica].submit(request, self._clock.now)
        self._reschedule(replica)

    def abort(self, replica: str, request: int) -> None:
        self._advance(replica)
        self._engines[replica].abort(request, self._clock.now)
        self._reschedule(replica)

    def loaded(self, replica: str, request: int) -> None:
        """KV from elsewhere has come."""
        self._advance(replica)
        self._engines[replica].loaded(request, self._clock.now)
        self._reschedule(replica)

    def release(self, replica: str, request: int) -> None:
        """Kept blocks are not needed any more."""
        self._advance(replica)
        self._engines[replica].release(request, self._clock.now)
        self._reschedule(replica)

    def reset(self, replica: str) -> list[int]:
        """The replica is lost; returns the requests that were in flight."""
        self._advance(replica)
        lost = self._engines[replica].reset(self._clock.now)
        self._reschedule(replica)
        return lost

    def slow_down(self, replica: str, factor: float) -> None:
        """Its steps take `factor` times as long from the next one on."""
        self._advance(replica)
        self._engines[replica].slow_down(factor, self._clock.now)
        self._reschedule(replica)

    def streamed(self, replica: str, request: int) -> int:
        """Output tokens the client has by now."""
        return self._engines[replica].output_tokens(request, self._clock.now)

    def _advance(self, replica: str) -> None:
        for event in self._engines[replica].advance(self._clock.now):
            self._deliver(replica, event)

    def _reschedule(self, replica: str) -> None:
        at = self._engines[replica].next_event_time()
        if at != self._wakes[replica]:
            self._wakes[replica] = at
            if at is not None:
                wake = partial(self._wake, replica, at)
                self._clock.at(at, Priority.ENGINE, wake, self._ranks[replica])

    def _wake(self, replica: str, at: int) -> None:
        if self._wakes[replica] != at:
            return  # something has changed what happens next; another wake-up is scheduled
        self._wakes[replica] = None
        self._advance(replica)
        self._reschedule(replica)
