"""Waiting that ends when something urgent comes: a request, or the first token of an answer."""

from __future__ import annotations

import select
import sys
from contextlib import suppress

POSSIBLE = sys.platform == "linux"
_SELECTABLE = 1024
"""Higher numbers of open files are beyond select(2)."""


class Urgent:
    """Sockets on which something urgent may come; all others are left to the event loop.

    Only on Linux (`POSSIBLE`): it watches them with an epoll instance beside the event loop's own.
    A socket that is closed is no longer watched, without a word.
    """

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._fine = self._epoll.fileno() < _SELECTABLE
        self.connecting = 0
        """Connections being made for somebody who waits: nothing tells here that one is ready."""
        self.served = False
        """Something that somebody waited for has gone out since this was last set to False."""

    def watch(self, fd: int) -> None:
        with suppress(OSError):  # it is watched already, or closed: then nothing comes
            self._epoll.register(fd, select.EPOLLIN)

    def unwatch(self, fd: int) -> None:
        with suppress(OSError):
            self._epoll.unregister(fd)

    def wait(self, seconds: float) -> None:
        """Return when something urgent has come, or when the time is over.

        What has come is left on its socket.
        """
        if self.connecting:
            return
        if self._fine:  # epoll itself waits for whole milliseconds, up to one too long
            select.select([self._epoll], [], [], seconds)
        else:
            self._epoll.poll(seconds, 1)
