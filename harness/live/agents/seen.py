"""Where the agents of a cell send their requests so that every turn is seen.

Our own gateway tells what it sees. In front of somebody else's router stands a gateway of ours
with one backend, the router, that decides nothing: it passes requests on and stamps them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from harness.live.agents.records import TurnBook
from harness.live.parts import Stage
from harness.live.polling import PollSettings
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.turns import DriverSettings

NEVER_S = 1e6
"""The router is not polled: its `/metrics` are its own affair."""


@asynccontextmanager
async def recorded(
    stage: Stage, book: TurnBook, strangers: frozenset[str] = frozenset()
) -> AsyncIterator[tuple[str, Callable[[str], None]]]:
    """Base URL for the agents, and what to call when a session has ended.

    Args:
        strangers: sessions at the front that others play and record.

    Raises:
        BackendError: the router does not answer.
    """
    if stage.front.admin_url is not None:
        book.open(stage.recorder, strangers=strangers)
        yield stage.front.url, stage.front.release
        return
    settings = ServeSettings(
        port=0,
        wait_s=60.0,
        driver=DriverSettings(idle_expiry_s=NEVER_S, max_attempts=1),
        poll=PollSettings(interval_s=NEVER_S),
    )
    passing = ServedGateway(
        find_policy("round-robin", {}),
        [stage.front.url],
        settings,
        names=["router"],
        watcher=book,
    )

    def release(session: str) -> None:
        passing.driver.release(session)
        stage.front.release(session)

    try:
        await passing.start()
        shift = stage.clock.now - passing.clock.now
        book.open(stage.recorder, shift=shift, replicas=False)
        yield passing.url, release
    finally:
        await passing.close()
