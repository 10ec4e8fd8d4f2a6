"""Lets requests and first tokens go before the chunks of streams that are under way.

What comes in at the same time is handled one after the other. A chunk of a stream can wait for the
event loop's next turn without anybody noticing; a request or a first token behind ten of them would
be late by all the time that they take.

Where many streams are under way, their chunks are also gathered: a process that goes to sleep
after each of them and is woken for the next spends more on that than on the chunks. Then the first
chunk waits a little for others, unless something urgent comes.
"""

from __future__ import annotations

import asyncio
from collections import deque
from time import monotonic
from typing import Protocol

from harness.live.urgent import Urgent

GATHER_S = 0.0015
"""How long a chunk waits for others. Our choice: little beside the time between two tokens."""
LATEST_S = 0.004
"""How long a chunk waits at most when requests and first tokens keep coming. Our choice."""
GATHER_FROM = 32
"""Streams under way from which on chunks are gathered. Our choice: with fewer there is little to
gather, and a processor to spare."""


class Backlogged(Protocol):
    """A connection whose chunks may wait."""

    def take(self, data: bytes) -> None: ...


class Backlog:
    """Chunks in the order in which they came, for the event loop's next turns: one a turn, since
    the loop then looks for what has come meanwhile.

    Args:
        urgent: what ends the wait for more chunks; None: chunks are not gathered.
    """

    def __init__(self, urgent: Urgent | None = None) -> None:
        self.urgent = urgent
        self.streams = 0
        """Answers under way, whose chunks come here."""
        self._chunks: deque[tuple[Backlogged, bytes]] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._scheduled = False
        self._until: float | None = None
        """Chunks are gathered until then; None: nobody has begun to."""
        self._latest = 0.0

    def put(self, connection: Backlogged, data: bytes) -> None:
        self._chunks.append((connection, data))
        if not self._scheduled:
            if self._loop is None:
                self._loop = asyncio.get_running_loop()
            self._scheduled = True
            self._loop.call_soon(self._one)

    def flush(self) -> None:
        """Handle all at once: an end has come, and nothing may come after it."""
        while self._chunks:
            connection, data = self._chunks.popleft()
            connection.take(data)

    def _one(self) -> None:
        chunks = self._chunks
        try:
            if chunks and (self.urgent is None or self._gathered(self.urgent)):
                connection, data = chunks.popleft()
                connection.take(data)
        finally:  # what goes wrong with one is no reason to keep the others
            self._scheduled = bool(chunks)
            if not chunks:
                self._until = None
            elif self._loop is not None:
                self._loop.call_soon(self._one)

    def _gathered(self, urgent: Urgent) -> bool:
        """Wait for more chunks; whether that was long enough, or is of no use.

        After something urgent the loop sees to that, and then the wait goes on, or begins anew if
        it was over: whoever was woken by what went out shall have the processor first.
        """
        if self.streams < GATHER_FROM:
            return True
        now = monotonic()
        if self._until is None:
            self._until, self._latest = now + GATHER_S, now + LATEST_S
        elif urgent.served:
            self._until = min(max(self._until, now + GATHER_S), self._latest)
        urgent.served = False
        left = self._until - now
        if left <= 0:
            return True
        urgent.wait(left)
        return False
