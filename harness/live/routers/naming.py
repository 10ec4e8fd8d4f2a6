"""Tells a router which session a request belongs to, in the words that the router knows, and its
client which replica answered.

Agents name their session in many ways (`harness.live.identity`), each router reads one or two of
them. A relay in front of the router reads the name as our gateway would and adds the router's own;
requests, answers and their timing pass through as they are. To the answer's head, which goes out
with its first byte, it adds the replica where that is known.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import orjson

from harness.live.dialect import JSON_TYPE, encode
from harness.live.identity import identify
from harness.live.routers.served import HEADER, ServedBy
from harness.live.wire import Call, Exchange, Headers, Request, Sender

HOP_BY_HOP = frozenset(
    ("connection", "content-length", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)


@dataclass(frozen=True, slots=True)
class SessionName:
    """Where a router looks for the session."""

    header: str | None = None
    field: str | None = None
    """Of the JSON body."""

    def put_on(self, request: Request) -> Request:
        """The request with the session's name, if it has one that the router would not see."""
        headers, body = request.headers, request.body
        session = identify(headers, {}).session
        if session is None:
            session = identify(headers, _json_object(body)).session
        if session is None:
            return request
        if self.header is not None and self.header not in headers:
            headers = {**headers, self.header: session}
        if self.field is not None and self.field not in _json_object(body):
            body = with_field(body, self.field, session)
        return Request(request.method, request.target, headers, body)


def with_field(body: bytes, name: str, value: str) -> bytes:
    """A JSON object's text with one more field at its start; other text as it is."""
    start = body.find(b"{")
    if start < 0:
        return body
    rest = body[start + 1 :].lstrip()
    comma = b"" if rest.startswith(b"}") else b","
    return b"{" + orjson.dumps(name) + b":" + orjson.dumps(value) + comma + rest


class NamingRelay:
    """The handler of the port that sessions talk to."""

    def __init__(self, router: Sender, name: SessionName | None, served: ServedBy) -> None:
        self._router, self._name, self.served = router, name, served
        self.requests = self.refused = self.broken = 0

    def handle(self, request: Request, exchange: Exchange) -> None:
        self.requests += 1
        if request.method == "POST" and self._name is not None:
            request = self._name.put_on(request)
        kept = {k: v for k, v in request.headers.items() if k not in HOP_BY_HOP and k != "host"}
        number = self.served.name(kept)
        passed = Request(request.method, request.target, kept, request.body)
        passing = _Passing(self, exchange, number)
        exchange.on_gone = passing.client_gone
        call = self._router.send(passed, passing)
        passing.call = call
        exchange.on_pressure = call.pressure

    def refusal(self, path: str, status: int, message: str) -> tuple[Headers, bytes]:
        return [JSON_TYPE], encode({"error": {"message": message, "code": status}})


class _Passing:
    """One answer on its way from the router to the client."""

    def __init__(self, relay: NamingRelay, exchange: Exchange, number: str | None) -> None:
        self._relay, self._exchange, self._number = relay, exchange, number
        self._begun = False
        self._head: tuple[int, Mapping[str, str]] | None = None
        """Status and headers, until the first part of the answer is there."""
        self.call: Call | None = None

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._relay.refused += status >= 400
        self._head = status, headers

    def _begin(self, part: bytes) -> None:
        if self._head is None:
            return
        (status, headers), self._head = self._head, None
        self._begun = True
        name = self._relay.served.replica(self._number, headers, part)
        length = headers.get("content-length", "")
        kept = [(key, value) for key, value in headers.items() if key not in HOP_BY_HOP]
        if name is not None:
            kept.append((HEADER, name))
        self._exchange.head(status, kept, length=int(length) if length.isdigit() else None)

    def data(self, part: bytes) -> None:
        self._begin(part)
        self._exchange.data(part)

    def end(self) -> None:
        self._begin(b"")
        self._exchange.on_gone = None
        self._exchange.end()

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self._relay.broken += 1
        self._exchange.on_gone = None
        if self._begun:
            self._exchange.cut()
        else:
            _, body = self._relay.refusal("", 502, f"the router does not answer: {reason}")
            self._exchange.reply(502, [JSON_TYPE], body)

    def client_gone(self) -> None:
        if self.call is not None:
            self.call.cancel()


def _json_object(body: bytes) -> Mapping[str, object]:
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError:
        return {}
    return found if isinstance(found, dict) else {}
