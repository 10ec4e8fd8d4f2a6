"""The seam between HTTP and what is said over it.

A server hands a `Request` and an `Exchange` to a handler; a client sends a `Request` and gives a
`Receiver` what comes back. Both may be sockets (`http_server`, `http_client`) or, with `Loopback`,
two parts of one process that call each other: then a virtual clock can drive them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple, Protocol

from agentsched import AgentschedError

Headers = Sequence[tuple[str, str]]


class ListenError(AgentschedError):
    """An address cannot be listened on."""


class Request(NamedTuple):
    """One HTTP request. Header names are lower case; of repeated ones the last counts."""

    method: str
    target: str
    """Path and query as sent."""
    headers: Mapping[str, str] = MappingProxyType({})
    body: bytes = b""
    caller: str = ""
    """Name of the token that opened the port; empty where none is asked for."""

    @property
    def path(self) -> str:
        return self.target.partition("?")[0]


class Exchange(Protocol):
    """The answer to one request, as its handler gives it: `head`, `data`..., `end`; or `reply`.

    `on_gone` is called once if the client leaves before the end; what is written after that goes
    nowhere. `on_catch_up` is called when the client wants to know what there is so far (only a
    Loopback does).
    """

    on_gone: Callable[[], None] | None
    on_catch_up: Callable[[], None] | None
    on_pressure: Callable[[bool], None] | None
    """Called with True when the client reads too slowly, and with False when it has caught up."""

    def head(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        """Start the answer; `length` None: its parts are sent chunked."""
        ...

    def data(self, part: bytes, *, last: bool = False) -> None:
        """Send a part. `last`: the end is expected at once, and this may go out with it."""
        ...

    def end(self) -> None: ...
    def cut(self) -> None:
        """End the answer in a way the client sees as broken off."""
        ...

    def reply(self, status: int, headers: Headers, body: bytes) -> None: ...


Handler = Callable[[Request, Exchange], None]


def header_text(value: str) -> str:
    """A header's value without what would end its line."""
    if value.isprintable():
        return value
    return "".join(c if c == "\t" or c.isprintable() or c > "\x9f" else "?" for c in value)


class Receiver(Protocol):
    """What becomes of a sent request: `head`, `data`..., then `end` or `lost`; or `lost` alone."""

    def head(self, status: int, headers: Mapping[str, str]) -> None: ...
    def data(self, part: bytes) -> None: ...
    def end(self) -> None: ...
    def lost(self, reason: str, *, unreachable: bool) -> None:
        """The connection failed. `unreachable`: nothing listens there."""
        ...


class Call(Protocol):
    """A sent request. After `cancel` its receiver hears nothing more."""

    def cancel(self) -> None: ...
    def pressure(self, slow: bool) -> None:
        """True: stop reading for now; False: go on."""
        ...

    def under_way(self) -> None:
        """The answer has begun: what follows may wait behind requests and first tokens."""
        ...

    def catch_up(self) -> None:
        """Deliver at once what there is so far; without effect over a socket."""
        ...


class Sender(Protocol):
    """Sends requests to one server."""

    def send(self, request: Request, receiver: Receiver) -> Call: ...


class Loopback:
    """Sends requests to a handler of this process, by plain calls."""

    def __init__(self, handler: Handler) -> None:
        self._handler = handler
        self.listening = True
        """False: as if nothing listened there."""

    def send(self, request: Request, receiver: Receiver) -> Call:
        exchange = _LoopbackExchange(receiver)
        if self.listening:
            self._handler(request, exchange)
        else:
            exchange.refuse()
        return exchange


class _LoopbackExchange:
    def __init__(self, receiver: Receiver) -> None:
        self.on_gone: Callable[[], None] | None = None
        self.on_catch_up: Callable[[], None] | None = None
        self.on_pressure: Callable[[bool], None] | None = None
        self._receiver: Receiver | None = receiver

    def head(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        if self._receiver is not None:
            self._receiver.head(status, {name.lower(): value for name, value in headers})

    def data(self, part: bytes, *, last: bool = False) -> None:
        if self._receiver is not None:
            self._receiver.data(part)

    def end(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.end()

    def cut(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost("connection closed", unreachable=False)

    def refuse(self) -> None:
        receiver, self._receiver = self._receiver, None
        if receiver is not None:
            receiver.lost("connection refused", unreachable=True)

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        self.head(status, headers, length=len(body))
        self.data(body)
        self.end()

    def cancel(self) -> None:
        if self._receiver is not None:
            self._receiver = None
            if self.on_gone is not None:
                self.on_gone()

    def pressure(self, slow: bool) -> None:
        if self.on_pressure is not None:
            self.on_pressure(slow)

    def under_way(self) -> None:
        """Plain calls wait for nothing."""

    def catch_up(self) -> None:
        if self._receiver is not None and self.on_catch_up is not None:
            self.on_catch_up()
