"""Lets requests and first tokens go before the chunks of streams that are under way.

What comes in at the same time is handled one after the other. A chunk of a stream can wait for the
event loop's next turn without anybody noticing; a request or a first token behind ten of them would
be late by all the time that they take.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import Protocol

CHUNKS_A_TURN = 2
"""Then the loop looks for what has come meanwhile: more would make that wait, one alone would cost
another look each. Our choice, by added p99 of the time to first token."""


class Backlogged(Protocol):
    """A connection whose chunks may wait."""

    def take(self, data: bytes) -> None: ...


class Backlog:
    """Chunks in the order in which they came, for the event loop's next turns."""

    def __init__(self) -> None:
        self._chunks: deque[tuple[Backlogged, bytes]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False

    def put(self, connection: Backlogged, data: bytes) -> None:
        self._chunks.append((connection, data))
        if not self._scheduled:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._scheduled = True
            self._loop.call_soon(self._some)

    def flush(self) -> None:
        """Handle all at once: an end has come, and nothing may come after it."""
        while self._chunks:
            connection, data = self._chunks.popleft()
            connection.take(data)

    def _some(self) -> None:
        chunks = self._chunks
        try:
            for _ in range(min(len(chunks), CHUNKS_A_TURN)):
                connection, data = chunks.popleft()
                connection.take(data)
        finally:  # what goes wrong with one is no reason to keep the others
            self._scheduled = bool(chunks)
            if chunks and self._loop is not None:
                self._loop.call_soon(self._some)
