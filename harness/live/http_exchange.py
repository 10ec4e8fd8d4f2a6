"""An answer of the HTTP/1.1 server, as it is put on its connection."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from http import HTTPStatus
from typing import Protocol

from harness.live.wire import Headers, header_text


class Connection(Protocol):
    """What an answer needs of its connection."""

    open: bool
    held: bytes
    transport: asyncio.Transport

    def write(self, data: bytes) -> None: ...
    def hold(self, data: bytes) -> None:
        """Send this with what follows it, or at once if that takes a while."""
        ...

    def ended(self, keep_alive: bool) -> None: ...


class ServerExchange:
    """One request's answer on its connection (`harness.live.wire.Exchange`)."""

    __slots__ = (
        "_bodyless",
        "_chunked",
        "_connection",
        "_ended",
        "_keep_alive",
        "_started",
        "on_catch_up",
        "on_gone",
        "on_pressure",
    )

    def __init__(self, connection: Connection, keep_alive: bool, bodyless: bool) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.on_catch_up: Callable[[], None] | None = None
        self.on_pressure: Callable[[bool], None] | None = None
        self._connection = connection
        self._keep_alive = keep_alive
        self._bodyless = bodyless
        self._chunked = False
        self._started = self._ended = False

    def head(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        self._started = True
        self._chunked = length is None and not self._bodyless
        if self._connection.open:
            self._connection.hold(head_bytes(status, headers, length, self._keep_alive))

    def data(self, part: bytes, *, last: bool = False) -> None:
        connection = self._connection
        if self._ended or not connection.open or self._bodyless or not part:
            return
        chunk = b"%x\r\n%b\r\n" % (len(part), part) if self._chunked else part
        if last:
            connection.hold(chunk)
        elif connection.held:
            connection.write(chunk)
        else:  # nearly always; one call less
            connection.transport.write(chunk)

    def raw(self, data: bytes) -> None:
        """Write bytes as they are, whatever that makes of the answer (faults to rehearse)."""
        if not self._ended and self._connection.open:
            self._connection.write(data)

    def end(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.on_gone = self.on_pressure = self.on_catch_up = None
        if self._connection.open:
            if self._chunked:
                self._connection.write(b"0\r\n\r\n")
            self._connection.ended(self._keep_alive)

    def cut(self) -> None:
        if self._ended:
            return
        self._ended = True
        self.on_gone = self.on_pressure = self.on_catch_up = None
        if self._connection.open:
            # What was written still goes out; the missing last chunk tells the client.
            self._connection.ended(keep_alive=False)

    def gone(self) -> None:
        """The client has left: tell who answers, and let go of it."""
        tell = self.on_gone
        self.on_gone = self.on_pressure = self.on_catch_up = None
        if tell is not None:
            tell()

    def fail(self) -> None:
        """The handler raised: no answer will come of it."""
        if not self._started and not self._ended:
            self._keep_alive = False
            self.reply(500, [("content-type", "text/plain")], b"internal error")
        else:
            self.cut()

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        if self._ended:
            return
        self._started = True
        if self._connection.open:
            head = head_bytes(status, headers, len(body), self._keep_alive)
            self._connection.write(head if self._bodyless else head + body)
        self._chunked = False
        self.end()


_REASONS = {status.value: status.phrase for status in HTTPStatus}


def head_bytes(status: int, headers: Headers, length: int | None, keep_alive: bool) -> bytes:
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Unknown')}"]
    lines += [f"{name}: {header_text(value)}" for name, value in headers]
    lines.append("transfer-encoding: chunked" if length is None else f"content-length: {length}")
    if not keep_alive:
        lines.append("connection: close")
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace")
