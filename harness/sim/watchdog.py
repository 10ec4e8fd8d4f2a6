"""Ends a decision of a policy that takes for ever. The only place where real time matters to a
simulation: it can make a cell fail, and never changes a result."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


class TooSlow(BaseException):
    """Raised inside the decision. No Exception, so that a policy does not swallow it unawares."""


@contextmanager
def watchdog(limit_s: float, decision: Callable[[], int]) -> Iterator[None]:
    """Raise TooSlow in the main thread once one decision has lasted `limit_s` seconds.

    Counts ticks of a timer, not hours of a clock: a machine that was asleep is not too slow.
    Native code is only interrupted when it returns. In other threads than the main one there are
    no signals, and no limit.

    Args:
        decision: the number of the decision under way; an even number: none is.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interval = min(1.0, limit_s / 4)
    last, ticks = 0, 0

    def tick(_signal: int, _frame: FrameType | None) -> None:
        nonlocal last, ticks
        current = decision()
        ticks = ticks + 1 if current == last and current % 2 else 0
        last = current
        if ticks * interval >= limit_s:
            ticks = 0
            raise TooSlow

    before = signal.signal(signal.SIGALRM, tick)
    signal.setitimer(signal.ITIMER_REAL, interval, interval)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
