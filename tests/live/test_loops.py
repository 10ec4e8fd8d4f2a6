"""Event loops that end in time."""

from __future__ import annotations

import asyncio
import threading
import time

import pytest

from harness.live.loops import run_all, run_bounded


def test_what_never_ends_does_not_hold_up_the_result() -> None:
    release = threading.Event()

    async def main() -> int:
        asyncio.get_running_loop().run_in_executor(None, release.wait)
        return 7

    began = time.monotonic()
    try:
        assert run_bounded(main(), close_limit_s=0.2) == 7
        assert time.monotonic() - began < 30  # closing would wait for the thread without end
    finally:
        release.set()


def test_a_loop_that_can_close_is_closed() -> None:
    async def main() -> asyncio.AbstractEventLoop:
        return asyncio.get_running_loop()

    assert run_bounded(main()).is_closed()


def test_the_coroutines_error_is_raised() -> None:
    async def main() -> None:
        raise KeyError("surprise")

    with pytest.raises(KeyError, match="surprise"):
        run_bounded(main())


def test_the_first_failure_of_several_cancels_the_others() -> None:
    cancelled: list[bool] = []

    async def waits() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.append(True)

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        run_bounded(run_all([waits(), fails()]))
    assert cancelled == [True]
