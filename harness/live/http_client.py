"""HTTP/1.1 client on asyncio protocols: a pool of kept connections to one server."""

from __future__ import annotations

import asyncio
import socket
import ssl
from collections.abc import Mapping
from typing import cast
from urllib.parse import urlsplit

import httptools

from agentsched import UsageError
from harness.live.backlog import Backlog
from harness.live.login import Login, connect_problem
from harness.live.wire import Call, Receiver, Request, header_text

CONNECT_TIMEOUT_S = 5.0
"""Our choice: engines are near; a slower accept means a hung machine."""
IDLE_CONNECTIONS = 1024
CONNECTS_AT_ONCE = 64
BUSY_A_SPARE = 4
"""One connection is open beyond those in use for up to so many of these. Our choice: enough where
streams begin in quick succession."""


class HttpClient:
    """Sends requests to the server at `url`, each on a connection of its own while it lasts.

    Connections are kept for later requests. A kept one that the server closed just as a request
    was put on it is replaced, once, without the receiver noticing.

    Args:
        key: the server's own; sent with every request in place of any other.
        tls: for https; None: certificates are held against what the system trusts.
        backlog: where chunks of answers wait that a call says are under way; None: they are
            delivered as they come.
        spare: have some connections open beyond those in use, so that a request with a body
            rarely waits for one to be made.

    Raises:
        UsageError: `url` is not http(s)://host[:port][/path].
    """

    def __init__(
        self,
        url: str,
        *,
        key: str | None = None,
        tls: ssl.SSLContext | None = None,
        backlog: Backlog | None = None,
        spare: bool = False,
    ) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError:
            port = -1
        usable = parts.scheme in ("http", "https") and parts.hostname and port != -1
        if not usable or parts.query or parts.fragment:
            raise UsageError(f"`{url}` is not the address of a server", "as http://127.0.0.1:8000")
        assert parts.hostname is not None
        self.url, self.backlog = url, backlog
        self.urgent = backlog.urgent if backlog is not None else None
        self.host, self.port = parts.hostname, port or (443 if parts.scheme == "https" else 80)
        self.prefix = parts.path.rstrip("/")
        self._ssl = (tls or Login().tls_for(url)) if parts.scheme == "https" else None
        host = f"[{self.host}]" if ":" in self.host else self.host
        self._authority = host if port is None else f"{host}:{port}"
        self._extra = {"authorization": f"Bearer {key}"} if key is not None else {}
        self._idle: list[_Upstream] = []
        self._busy: set[_Call] = set()
        self._spare = spare
        self._opening: asyncio.Task[None] | None = None
        self.connections_made = 0

    def send(self, request: Request, receiver: Receiver) -> Call:
        call = _Call(self, self._request_bytes(request), receiver)
        self._busy.add(call)
        connection = self._kept()
        if connection is not None:
            call.put_on(connection, fresh=False)
        else:
            call.connect()
        # Without a body it is a look at metrics or health, which comes for ever and is in no hurry.
        if self._spare and self._opening is None and request.body:
            wanted = -(-len(self._busy) // BUSY_A_SPARE)
            if len(self._idle) < wanted:
                self._opening = asyncio.get_running_loop().create_task(self._open_spare(wanted))
        return call

    def _kept(self) -> _Upstream | None:
        while self._idle:
            connection = self._idle.pop()
            if connection.usable:
                return connection
        return None

    async def _open_spare(self, count: int) -> None:
        try:
            await self.open_ahead(count)
        finally:
            self._opening = None

    async def open_ahead(self, count: int) -> None:
        """Have so many connections ready (at most IDLE_CONNECTIONS), that sending needs not wait.

        A server that cannot be reached is left for the first request to find out.
        """
        wanted = min(count, IDLE_CONNECTIONS) - len(self._idle)
        for start in range(0, wanted, CONNECTS_AT_ONCE):
            some = min(CONNECTS_AT_ONCE, wanted - start)
            ends = await asyncio.gather(
                *(self._open_one() for _ in range(some)), return_exceptions=True
            )
            for problem in ends:
                if isinstance(problem, BaseException) and not isinstance(problem, OSError):
                    raise problem

    async def _open_one(self) -> None:
        self.keep(await self.open_connection())  # here: none is lost if the others are cancelled

    async def close(self) -> None:
        """Cancel what is under way and close all connections."""
        if self._opening is not None:
            self._opening.cancel()
            await asyncio.wait([self._opening])
        for call in list(self._busy):
            call.cancel()
        for connection in self._idle:
            connection.drop()
        self._idle.clear()
        await asyncio.sleep(0)

    def _request_bytes(self, request: Request) -> bytes:
        lines = [f"{request.method} {self.prefix}{request.target} HTTP/1.1"]
        lines.append(f"host: {self._authority}")
        headers = {**request.headers, **self._extra} if self._extra else request.headers
        lines += [f"{name}: {header_text(value)}" for name, value in headers.items()]
        if request.body or request.method not in ("GET", "HEAD", "DELETE"):
            lines.append(f"content-length: {len(request.body)}")
        return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1", "replace") + request.body

    # For _Call and _Upstream.

    def ended(self, call: _Call) -> None:
        self._busy.discard(call)

    def keep(self, connection: _Upstream) -> None:
        if len(self._idle) < IDLE_CONNECTIONS:
            self._idle.append(connection)
        else:
            connection.drop()

    def forget(self, connection: _Upstream) -> None:
        if connection in self._idle:
            self._idle.remove(connection)

    async def open_connection(self) -> _Upstream:
        """Raises OSError (a TimeoutError too) if the server cannot be reached."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(CONNECT_TIMEOUT_S):
            _, connection = await loop.create_connection(
                lambda: _Upstream(self), self.host, self.port, ssl=self._ssl
            )
        self.connections_made += 1
        return connection


class _Call:
    """One request on its way; joins the receiver to a connection."""

    __slots__ = ("_client", "_connection", "_fresh", "_payload", "_task", "answered", "receiver")

    def __init__(self, client: HttpClient, payload: bytes, receiver: Receiver) -> None:
        self._client = client
        self._payload = payload
        self.receiver: Receiver | None = receiver
        self._connection: _Upstream | None = None
        self._task: asyncio.Task[None] | None = None
        self._fresh = False
        self.answered = False

    def connect(self) -> None:
        self._task = asyncio.get_running_loop().create_task(self._connect())

    async def _connect(self) -> None:
        urgent = self._client.urgent
        if urgent is not None:
            urgent.connecting += 1
        try:
            connection = await self._client.open_connection()
        except OSError as error:
            reason = f"cannot reach {self._client.url}: {connect_problem(error)}"
            self._fail(reason, unreachable=True)
            return
        finally:
            if urgent is not None:
                urgent.connecting -= 1
        self._task = None
        if self.receiver is None:
            connection.drop()
        else:
            self.put_on(connection, fresh=True)

    def put_on(self, connection: _Upstream, *, fresh: bool) -> None:
        self._connection, self._fresh = connection, fresh
        connection.start(self, self._payload)

    def cancel(self) -> None:
        self.receiver = None
        self._client.ended(self)
        if self._task is not None:
            self._task.cancel()
            self._task = None
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.drop()

    def pressure(self, slow: bool) -> None:
        if self._connection is not None:
            self._connection.pressure(slow)

    def under_way(self) -> None:
        if self._connection is not None:
            self._connection.under_way()

    def catch_up(self) -> None:
        """Nothing to do: what the socket holds comes by itself."""

    def finished(self) -> None:
        receiver, self.receiver = self.receiver, None
        self._connection = None
        self._client.ended(self)
        if receiver is not None:
            receiver.end()

    def broken(self, reason: str) -> None:
        self._connection = None
        if not self._fresh and not self.answered and self.receiver is not None:
            self.connect()
            return
        self._fail(reason, unreachable=False)

    def _fail(self, reason: str, *, unreachable: bool) -> None:
        receiver, self.receiver = self.receiver, None
        self._client.ended(self)
        if receiver is not None:
            receiver.lost(reason, unreachable=unreachable)


class _Upstream(asyncio.Protocol):
    def __init__(self, client: HttpClient) -> None:
        self._client = client
        self._transport: asyncio.Transport
        self._fd = -1
        self._call: _Call | None = None
        self._parser: httptools.HttpResponseParser
        self._headers: dict[str, str] = {}
        self._until_close = False
        self._backlog: Backlog | None = None
        """Where its chunks wait; None: they are handled as they come."""
        self._watched = False
        """What comes next is urgent, and the backlog's `urgent` knows of it."""
        self.usable = True

    def start(self, call: _Call, payload: bytes) -> None:
        self._call = call
        self._transport.write(payload)  # before anything that can be done while it travels
        urgent = self._client.urgent
        if urgent is not None:
            urgent.served = True
            if not self._watched and self._fd >= 0:
                self._watched = True
                urgent.watch(self._fd)
        self._headers = {}
        self._until_close = False

    def drop(self) -> None:
        self._call = None
        self.usable = False
        self._alone()
        self._transport.abort()

    def under_way(self) -> None:
        backlog = self._client.backlog
        if backlog is None or self._backlog is not None:
            return
        self._backlog = backlog
        backlog.streams += 1
        if backlog.urgent is not None:
            backlog.urgent.served = True
            if self._watched:
                self._watched = False
                backlog.urgent.unwatch(self._fd)

    def _alone(self) -> None:
        """No stream is under way on it any more."""
        if self._backlog is not None:
            self._backlog.streams -= 1
            self._backlog = None

    def pressure(self, slow: bool) -> None:
        if slow:
            self._transport.pause_reading()
        else:
            self._transport.resume_reading()

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's is none by class
        self._parser = httptools.HttpResponseParser(self)
        sock = transport.get_extra_info("socket")
        if sock is not None:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            self._fd = sock.fileno()

    def data_received(self, data: bytes) -> None:
        if self._backlog is None:
            self.take(data)
        else:
            self._backlog.put(self, data)

    def take(self, data: bytes) -> None:
        if not self.usable:  # dropped while the chunk waited
            return
        if self._call is None:  # an answer nobody asked for
            self._client.forget(self)
            self.drop()
            return
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserCallbackError as error:
            # Something of ours is broken, not the server: that must not look like the latter.
            raise error.__context__ or error from None
        except httptools.HttpParserError as error:
            self._break(f"the server sent no HTTP: {error}")

    def connection_lost(self, exc: BaseException | None) -> None:
        try:
            if self._backlog is not None:
                self._backlog.flush()
        finally:  # whatever is wrong with a chunk, this connection has ended
            self._lost(exc)

    def _lost(self, exc: BaseException | None) -> None:
        self.usable = False
        self._alone()
        self._client.forget(self)
        # These hold the connection, as it holds them: let go, so that nothing waits for the
        # collector of garbage, which rarely comes.
        for name in ("_parser", "_transport"):
            self.__dict__.pop(name, None)
        call, self._call = self._call, None
        if call is None:
            return
        if self._until_close and exc is None:
            call.finished()
        else:
            call.broken("the connection was closed" if exc is None else f"connection lost: {exc}")

    def _break(self, reason: str) -> None:
        call, self._call = self._call, None
        self.drop()
        if call is not None:
            call.broken(reason)

    # httptools callbacks

    def on_header(self, name: bytes, value: bytes) -> None:
        self._headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        call, status = self._call, self._parser.get_status_code()
        if call is None or call.receiver is None or status < 200:
            self._headers = {}
            return
        call.answered = True
        headers: Mapping[str, str] = self._headers
        sized = "content-length" in headers or "transfer-encoding" in headers
        self._until_close = not sized and status not in (204, 304)
        call.receiver.head(status, headers)

    def on_body(self, body: bytes) -> None:
        call = self._call  # answered: not what a server sent before it was asked
        if call is not None and call.answered and (receiver := call.receiver) is not None:
            receiver.data(body)

    def on_message_complete(self) -> None:
        call = self._call
        if call is None or not call.answered:
            return
        self._call = None
        self._alone()
        self._transport.resume_reading()
        if self._parser.should_keep_alive() and not self._until_close:
            self._parser = httptools.HttpResponseParser(self)  # now, while nobody waits for it
            self._client.keep(self)
        else:
            self.drop()
        call.finished()
