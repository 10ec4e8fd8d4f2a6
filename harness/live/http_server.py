"""HTTP/1.1 server on an asyncio protocol: requests in, answers out, nothing in between.

One object a connection; requests of a connection are handled one after the other. Handlers are
plain functions called from the event loop; they answer then or later.
"""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

import httptools

from harness.live.http_exchange import ServerExchange
from harness.live.urgent import Urgent
from harness.live.wire import Handler, Headers, ListenError, Request

PIPELINE_LIMIT = 64
"""Requests a client may send ahead on one connection."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a client may send."""

    header_bytes: int = 64 << 10
    """All headers of a request together. Our choice: four times what common servers allow, since
    agents send long tracing headers."""
    body_bytes: int = 64 << 20
    """Our choice: a prompt of a million tokens with room to spare."""
    header_s: float = 30.0
    """From a request's first byte to the end of its headers. Our choice: as long as a client needs
    whose network stalls; one that sends a byte now and then does not hold a connection."""
    body_s: float = 300.0
    """From there to the end of the body. Our choice: the longest body at 220 kB/s."""
    idle_s: float = 900.0
    """A connection on which nothing was asked for this long is closed. Our choice: longer than
    most tools run, so that agents find it open."""
    connections: int = 20_000
    """Open at once; more are closed as they come. Our choice."""


class HttpServer:
    """Listening sockets and the connections they accepted.

    Args:
        handler: called with every request.
        refuse: makes (headers, body) of an answer to a request that is refused before it reaches
            the handler, from (path, status, message): the body is in the caller's dialect.
        urgent: is told of the sockets on which requests may come.
    """

    def __init__(
        self,
        handler: Handler,
        refuse: Callable[[str, int, str], tuple[Headers, bytes]],
        limits: Limits | None = None,
        urgent: Urgent | None = None,
    ) -> None:
        self.handler, self.refuse = handler, refuse
        self.limits, self.urgent = limits or Limits(), urgent
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def listen(
        self,
        host: str,
        port: int,
        *,
        reuse_port: bool = False,
        tls: ssl.SSLContext | None = None,
    ) -> int:
        """Start accepting; returns the port (useful with port 0).

        Raises:
            ListenError: the address is in use or not ours.
        """
        loop = asyncio.get_running_loop()
        try:
            self._server = await loop.create_server(
                lambda: _Connection(self),
                host,
                port,
                backlog=4096,
                reuse_port=reuse_port or None,
                ssl=tls,
            )
        except OSError as error:
            raise ListenError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                "choose another port, or stop what uses it",
            ) from None
        if self.urgent is not None:
            for listening in self._server.sockets:
                self.urgent.watch(listening.fileno())
        self._look_later()
        bound: int = self._server.sockets[0].getsockname()[1]
        return bound

    def _look_later(self) -> None:
        interval = min(self.limits.idle_s, self.limits.body_s) / 4
        self._looking = asyncio.get_running_loop().call_later(interval, self._look)

    def _look(self) -> None:
        """Close connections on which nothing comes."""
        now = asyncio.get_running_loop().time()
        for connection in list(self.connections):
            connection.check_age(now)
        self._look_later()

    async def close(self) -> None:
        """Stop accepting and drop every connection."""
        if self._looking is not None:
            self._looking.cancel()
        if self._server is not None:
            self._server.close()
        for connection in list(self.connections):
            connection.drop()
        if self._server is not None:
            await self._server.wait_closed()
        await asyncio.sleep(0)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self.server = server
        self.open = False
        self.held = b""
        """Waits for what follows it, until the event loop's next turn."""
        self.transport: asyncio.Transport
        self._loop: asyncio.AbstractEventLoop
        self._parser = httptools.HttpRequestParser(self)
        self._waiting: deque[tuple[Request, bool]] = deque()
        self._exchange: ServerExchange | None = None
        self._refused = False
        self._last = False
        """The connection ends with the request that came last; nothing after it is read."""
        self._in_head = self._in_body = False
        self._since = 0.0
        """Loop time at which it became idle, or a body began that is not here yet."""
        self._slow: asyncio.TimerHandle | None = None
        self._start_request()

    def _start_request(self) -> None:
        self._body_seen = False
        self._target = b""
        self._headers: dict[str, str] = {}
        self._header_bytes = self._unseen_bytes = 0
        self._body: list[bytes] = []
        self._body_bytes = 0

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self.open = True
        self._loop = asyncio.get_running_loop()  # each call asks the kernel who we are (3.11)
        self._since = self._loop.time()
        if len(self.server.connections) >= self.server.limits.connections:
            self.drop()
            return
        self.server.connections.add(self)
        sock = transport.get_extra_info("socket")
        if sock is not None and sock.family != socket.AF_UNIX:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if sock is not None and self.server.urgent is not None:
            self.server.urgent.watch(sock.fileno())

    def data_received(self, data: bytes) -> None:
        if self._refused:
            return
        began = self._in_head
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            self._refuse(400, "upgrading the connection is not supported")
        except httptools.HttpParserCallbackError as error:
            raise error.__context__ or error from None
        except httptools.HttpParserError:
            if not self._refused:  # else a limit was passed inside a callback
                self._refuse(400, "this is not an HTTP/1.1 request")
        if began and self._in_head and not self._refused:
            self._count_unseen(len(data))
        if self._in_head and self._slow is None and not self._refused:
            # Headers as a rule come in one piece: only those that do not need a timer.
            self._slow = self._loop.call_later(self.server.limits.header_s, self._too_slow)
        if self._in_body and not self._body_seen:
            self._body_seen = True
            self._since = self._loop.time()
        self._next()  # out here: what goes wrong in a handler is no mistake of the client's

    def connection_lost(self, exc: BaseException | None) -> None:
        self.open = False
        self._head_ended()
        self.server.connections.discard(self)
        exchange, self._exchange = self._exchange, None
        self._waiting.clear()
        if exchange is not None:
            exchange.gone()
        # Parser and connection hold each other: let go, so that nothing waits for the collector.
        del self._parser

    def pause_writing(self) -> None:
        if self._exchange is not None and self._exchange.on_pressure is not None:
            self._exchange.on_pressure(True)

    def resume_writing(self) -> None:
        if self._exchange is not None and self._exchange.on_pressure is not None:
            self._exchange.on_pressure(False)

    # httptools callbacks

    def on_message_begin(self) -> None:
        self._in_head = True
        self._body_seen = False
        self._start_request()

    def on_url(self, url: bytes) -> None:
        self._target += url
        self._count_header(len(url))

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count_header(len(name) + len(value) + 4)
        key = name.decode("latin-1").lower()
        if key == "host":
            if key in self._headers:
                self._refuse(400, "there are several Host headers")
        elif key == "transfer-encoding" and (
            key in self._headers or value.strip().lower() != b"chunked"
        ):
            # The parser takes any list that ends so, but nothing here undoes the others.
            self._refuse(400, "the body may be chunked, and coded in no other way")
        self._headers[key] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self._head_ended()
        if self._refused:
            return
        self._in_body = True
        length = self._headers.get("content-length", "0")
        if length.isdecimal() and int(length) > self.server.limits.body_bytes:
            self._refuse_body()
        elif self._headers.get("expect", "").lower() == "100-continue":
            self.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        if self._body_bytes > self.server.limits.body_bytes:
            self._refuse_body()
        elif not self._refused:
            self._body.append(body)

    def on_message_complete(self) -> None:
        self._in_body = False
        if self._refused or self._last:
            return
        request = Request(
            self._parser.get_method().decode("ascii"),
            self._target.decode("latin-1"),
            self._headers,
            self._body[0] if len(self._body) == 1 else b"".join(self._body),
        )
        self._body = []
        # After HTTP/1.0 nothing is read: what asks there to be kept open is read in many ways.
        kept = self._parser.should_keep_alive() and self._parser.get_http_version() != "1.0"
        self._last = not kept
        self._waiting.append((request, kept))
        if len(self._waiting) > PIPELINE_LIMIT:
            self.drop()

    def _head_ended(self) -> None:
        self._in_head = False
        if self._slow is not None:
            self._slow.cancel()
            self._slow = None

    def _too_slow(self) -> None:
        self._slow = None
        if self._in_head and self.open:
            limit = self.server.limits.header_s
            self._refuse(408, f"the headers took longer than {limit:g} s")

    def check_age(self, now: float) -> None:
        """Close the connection if nothing has come for too long."""
        limits, age = self.server.limits, now - self._since
        if self._in_body and self._body_seen:
            if age > limits.body_s:
                self._refuse(408, f"the body took longer than {limits.body_s:g} s")
        elif self._exchange is None and not self._in_head and age > limits.idle_s:
            self.transport.close()

    def _count_unseen(self, size: int) -> None:
        """The parser keeps a header to itself until it has ended, however long it gets."""
        self._unseen_bytes += size
        if self._unseen_bytes > self.server.limits.header_bytes:
            self._count_header(self._unseen_bytes)

    def _count_header(self, size: int) -> None:
        self._header_bytes += size
        if self._header_bytes > self.server.limits.header_bytes:
            limit = self.server.limits.header_bytes
            self._refuse(431, f"the headers are longer than {limit} bytes")

    def _refuse_body(self) -> None:
        self._refuse(413, f"the body is longer than {self.server.limits.body_bytes} bytes")

    # Answers

    def _next(self) -> None:
        while self._waiting and self._exchange is None and self.open:
            request, keep_alive = self._waiting.popleft()
            exchange = self._exchange = ServerExchange(self, keep_alive, request.method == "HEAD")
            try:
                self.server.handler(request, exchange)
            except BaseException:
                exchange.fail()
                raise

    def _refuse(self, status: int, message: str) -> None:
        """Answer a request that cannot be handled, and hang up."""
        if self._refused:
            return
        self._refused = True
        if self._exchange is not None:
            self.drop()  # an earlier request is being answered; there is no room for an answer
            return
        path = self._target.decode("latin-1").partition("?")[0]
        headers, body = self.server.refuse(path, status, message)
        exchange = self._exchange = ServerExchange(self, keep_alive=False, bodyless=False)
        exchange.reply(status, headers, body)

    def write(self, data: bytes) -> None:
        held, self.held = self.held, b""
        self.transport.write(held + data if held else data)

    def hold(self, data: bytes) -> None:
        """Send this with what follows it, or at once if that takes a while: two writes would be
        two packets, and wake the client twice."""
        self.held += data
        self._loop.call_soon(self._let_go)

    def _let_go(self) -> None:
        if self.held and self.open:
            self.write(b"")

    def ended(self, keep_alive: bool) -> None:
        self._exchange = None
        self._since = self._loop.time()
        if not keep_alive:
            self._let_go()
            self.transport.close()
        elif self._waiting:
            self._next()

    def drop(self) -> None:
        self.transport.abort()
