"""The HTTP front without sockets, and h11 as the judge of what it makes of some bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

import h11

from harness.live.http_server import HttpServer, Limits, _Connection
from harness.live.wire import Exchange, Request

Seen = tuple[str, str, bytes]
"""Method, target and body of a request."""


class Transport(asyncio.Transport):
    """Keeps what is written; hangs up at once."""

    def __init__(self) -> None:
        super().__init__()
        self.written = b""
        self.open = True

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.written += bytes(data)

    def close(self) -> None:
        self.open = False

    def abort(self) -> None:
        self.open = False


@dataclass(slots=True)
class Fed:
    """What a server made of the bytes it was fed."""

    requests: list[Seen] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    written: bytes = b""
    refused: bool = False
    open: bool = True


def ours(parts: Sequence[bytes], limits: Limits | None = None) -> Fed:
    """Feed a connection of our server; every request is answered at once."""
    fed = Fed()

    def handle(request: Request, exchange: Exchange) -> None:
        fed.requests.append((request.method, request.target, request.body))
        fed.headers.append(dict(request.headers))
        exchange.reply(200, [], b"ok")

    def refuse(path: str, status: int, message: str) -> tuple[list[tuple[str, str]], bytes]:
        fed.refused = True
        return [], message.encode()

    async def feed() -> None:
        connection, transport = _Connection(HttpServer(handle, refuse, limits)), Transport()
        connection.connection_made(transport)
        for part in parts:
            if transport.open:
                connection.data_received(part)
        fed.written, fed.open = transport.written, transport.open
        connection.connection_lost(None)

    asyncio.run(feed())
    return fed


def judged(data: bytes) -> tuple[list[Seen], str | None]:
    """The requests that h11 reads out of the bytes, and its objection to what follows them."""
    found: list[Seen] = []
    try:
        connection = _reading(data)
        while True:
            event = connection.next_event()
            if isinstance(event, h11.Request):
                head, body = event, b""
            elif isinstance(event, h11.Data):
                body += bytes(event.data)
            elif isinstance(event, h11.EndOfMessage):
                found.append((head.method.decode(), head.target.decode("latin-1"), body))
                connection.send(h11.Response(status_code=200, headers=[("content-length", "0")]))
                connection.send(h11.EndOfMessage())
                if connection.our_state is not h11.DONE:
                    return found, None
                if connection.their_state is not h11.DONE:
                    return found, None
                connection = _reading(bytes(connection.trailing_data[0]))
            else:  # it needs more
                return found, None
    except h11.RemoteProtocolError as error:
        return found, str(error)


def _reading(data: bytes) -> h11.Connection:
    """Empty lines before a request line are to be ignored (RFC 9112, 2.2), which h11 does not."""
    connection = h11.Connection(h11.SERVER, max_incomplete_event_size=1 << 20)
    while data.startswith(b"\r\n"):
        data = data[2:]
    if data:
        connection.receive_data(data)
    return connection
