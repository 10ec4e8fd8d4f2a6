"""Coroutines side by side, and event loops that end in time."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import uvloop

Result = TypeVar("Result")
CLOSE_LIMIT_S = 10.0
"""How long an event loop may take to close. Our choice."""


async def run_all(work: Sequence[Coroutine[Any, Any, Any]]) -> None:
    """Run all; the first failure cancels the others and is raised."""
    tasks = [asyncio.ensure_future(one) for one in work]
    try:
        if tasks:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_EXCEPTION)
    finally:
        for task in tasks:
            task.cancel()
        ends = await asyncio.gather(*tasks, return_exceptions=True)
    for end in ends:
        if isinstance(end, BaseException) and not isinstance(end, asyncio.CancelledError):
            raise end


def run_bounded(main: Coroutine[Any, Any, Result], close_limit_s: float = CLOSE_LIMIT_S) -> Result:
    """As `uvloop.run`, but what the coroutine returns does not wait for handles left open.

    Closing a loop of libuv waits for each of its handles, without end where one never closes (a
    child process that was lost, a name being looked up). Here that is left to a thread, which is
    waited for so long and no longer.
    """
    runner = asyncio.Runner(loop_factory=uvloop.new_event_loop)
    try:
        return runner.run(main)
    finally:
        closing = threading.Thread(target=_close, args=(runner,), daemon=True)
        closing.start()
        closing.join(close_limit_s)


def _close(runner: asyncio.Runner) -> None:
    with suppress(RuntimeError):  # of what is left open, which nobody asks for any more
        runner.close()
