"""An engine that misbehaves on demand, to rehearse what the gateway makes of it.

`POST /misbehave {"kind": KIND, "for_s": SECONDS, "count": N}` lets the next requests go wrong in
one way; `GET /misbehave` lists the kinds. Only `agentsched emulate --misbehave` and tests have it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from harness.live.dialect import JSON_TYPE, RequestError, decode_body, encode
from harness.live.sse import EventSplitter, data_of, event_bytes
from harness.live.wire import Exchange, Handler, Headers, Request

KINDS: Mapping[str, str] = {
    "silent": "accepts requests and never answers",
    "stall": "stops in the middle of a stream",
    "status-500": "answers 500",
    "status-429": "answers 429 with Retry-After",
    "status-503": "answers 503 with Retry-After",
    "cut": "closes the connection in the middle of a stream",
    "half-chunk": "closes the connection in the middle of a chunk",
    "malformed": "sends an event that is no JSON",
    "wrong-usage": "reports negative and absurd token counts",
    "no-usage": "reports no token counts",
    "metrics-gone": "has no metrics page",
    "metrics-lie": "shows metrics that cannot be true",
}
"""What can go wrong, in words."""

_REFUSALS = {"status-500": 500, "status-429": 429, "status-503": 503}
_LIE = b"""# TYPE vllm:num_requests_running gauge
vllm:num_requests_running NaN
vllm:num_requests_waiting -5
vllm:kv_cache_usage_perc 1e308
vllm:prefix_cache_hits_total Inf
vllm:prefix_cache_queries_total 0
vllm:cache_config_info{block_size="0",num_gpu_blocks="-1"} 1
not a metric at all {{{
"""


@dataclass(slots=True)
class Faulty:
    """A handler around an engine's own.

    Args:
        inner: what answers while all is well.
    """

    inner: Handler
    kind: str | None = None
    left: int = 0
    """Requests that still go wrong; below 0: all."""
    happened: dict[str, int] = field(default_factory=dict)
    """Requests that went wrong, by kind."""
    _ending: asyncio.TimerHandle | None = None

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request, well or not."""
        if request.path == "/misbehave":
            self._told(request, exchange)
        elif self.kind is None or not self._concerned(self.kind, request):
            self.inner(request, exchange)
        else:
            self._go_wrong(self.kind, request, exchange)

    def misbehave(self, kind: str | None, *, count: int = -1, for_s: float | None = None) -> None:
        """Let `count` requests (all, if negative) go wrong, for at most `for_s` seconds."""
        if kind is not None and kind not in KINDS:
            raise ValueError(f"kind is `{kind}`, not one of {', '.join(KINDS)}")
        if self._ending is not None:
            self._ending.cancel()
            self._ending = None
        self.kind, self.left = kind, count
        if for_s is not None and kind is not None:
            loop = asyncio.get_running_loop()
            self._ending = loop.call_later(for_s, self.misbehave, None)

    def _told(self, request: Request, exchange: Exchange) -> None:
        try:
            if request.method == "POST":
                body = decode_body(request.body)
                seconds, count = body.get("for_s"), body.get("count", -1)
                timed = seconds is None or isinstance(seconds, (int, float))
                if not timed or type(count) is not int:
                    raise RequestError(400, "`for_s` and `count` are numbers")
                self.misbehave(body.get("kind"), count=count, for_s=seconds)
        except RequestError as error:
            exchange.reply(error.status, [JSON_TYPE], encode({"error": error.message}))
        except ValueError as error:
            exchange.reply(400, [JSON_TYPE], encode({"error": str(error)}))
        else:
            state = {"kind": self.kind, "happened": self.happened, "kinds": dict(KINDS)}
            exchange.reply(200, [JSON_TYPE], encode(state))

    @staticmethod
    def _concerned(kind: str, request: Request) -> bool:
        if kind.startswith("metrics"):
            return request.path == "/metrics"
        return request.method == "POST" and request.path.startswith("/v1/")

    def _go_wrong(self, kind: str, request: Request, exchange: Exchange) -> None:
        self.happened[kind] = self.happened.get(kind, 0) + 1
        if self.left > 0:
            self.left -= 1
            if self.left == 0:
                self.kind = None
        if kind == "silent":
            return
        if kind in _REFUSALS:
            status = _REFUSALS[kind]
            after = [] if status == 500 else [("retry-after", "1")]
            message = f"this engine answers {status}, as it was told to"
            body = encode({"error": {"message": message, "code": status}})
            exchange.reply(status, [JSON_TYPE, *after], body)
        elif kind == "metrics-gone":
            exchange.reply(404, [JSON_TYPE], encode({"detail": "Not Found"}))
        elif kind == "metrics-lie":
            exchange.reply(200, [("content-type", "text/plain")], _LIE)
        else:
            self.inner(request, _Spoilt(exchange, _SPOILERS[kind]))


Spoiler = Callable[["_Spoilt", bytes], bytes | None]
"""Given an event, what is sent instead; None: the spoiler has ended the answer itself."""


class _Spoilt:
    """An answer of the engine, spoilt on its way."""

    def __init__(self, exchange: Exchange, spoiler: Spoiler) -> None:
        self._exchange, self._spoiler = exchange, spoiler
        self._splitter = EventSplitter()
        self._over = False
        self.seen = 0

    @property
    def on_gone(self) -> Callable[[], None] | None:
        return self._exchange.on_gone

    @on_gone.setter
    def on_gone(self, call: Callable[[], None] | None) -> None:
        self._exchange.on_gone = call

    @property
    def on_catch_up(self) -> Callable[[], None] | None:
        return self._exchange.on_catch_up

    @on_catch_up.setter
    def on_catch_up(self, call: Callable[[], None] | None) -> None:
        self._exchange.on_catch_up = call

    @property
    def on_pressure(self) -> Callable[[bool], None] | None:
        return self._exchange.on_pressure

    @on_pressure.setter
    def on_pressure(self, call: Callable[[bool], None] | None) -> None:
        self._exchange.on_pressure = call

    def head(self, status: int, headers: Headers, *, length: int | None = None) -> None:
        self._exchange.head(status, headers)

    def data(self, part: bytes, *, last: bool = False) -> None:
        if self._over:
            return
        for event in self._splitter.feed(part):
            self.seen += 1
            changed = self._spoiler(self, event)
            if changed is None:
                return
            self._exchange.data(changed)

    def end(self) -> None:
        if not self._over:
            self._exchange.end()

    def cut(self) -> None:
        if not self._over:
            self._exchange.cut()

    def reply(self, status: int, headers: Headers, body: bytes) -> None:
        """An answer in one piece is spoilt as if it were one event."""
        self.seen += 2
        changed = self._spoiler(self, body)
        if changed is not None:
            self._exchange.reply(status, headers, changed)

    def go_silent(self) -> None:
        self._over = True

    def break_off(self, last: bytes = b"") -> None:
        """Send these bytes as they are, and close the connection."""
        self._over = True
        raw = getattr(self._exchange, "raw", None)
        if raw is not None and last:
            raw(last)
        gone, self._exchange.on_gone = self._exchange.on_gone, None
        self._exchange.cut()
        if gone is not None:
            gone()


def _stall(answer: _Spoilt, event: bytes) -> bytes | None:
    if answer.seen <= 2:
        return event
    answer.go_silent()
    return None


def _cut(answer: _Spoilt, event: bytes) -> bytes | None:
    if answer.seen <= 2:
        return event
    answer.break_off()
    return None


def _half_chunk(answer: _Spoilt, event: bytes) -> bytes | None:
    if answer.seen <= 2:
        return event
    answer.break_off(b"%x\r\n" % len(event) + event[: len(event) // 2])
    return None


def _malformed(answer: _Spoilt, event: bytes) -> bytes | None:
    return event_bytes(b'{"choices":[{"index":0,"del') if answer.seen == 3 else event


def _with_usage(event: bytes, change: Callable[[dict[str, Any]], None]) -> bytes:
    data = data_of(event) if event.startswith(b"data: ") else event
    if b'"usage"' not in data:
        return event
    try:
        body = decode_body(data)
    except RequestError:
        return event
    change(body)
    return event_bytes(encode(body)) if event.startswith(b"data: ") else encode(body)


def _wrong_usage(answer: _Spoilt, event: bytes) -> bytes | None:
    wrong = {
        "prompt_tokens": -7,
        "completion_tokens": 1 << 62,
        "total_tokens": "many",
        "prompt_tokens_details": {"cached_tokens": -1},
    }
    return _with_usage(event, lambda body: body.update(usage=wrong))


def _no_usage(answer: _Spoilt, event: bytes) -> bytes | None:
    return _with_usage(event, lambda body: body.pop("usage", None))


_SPOILERS: Mapping[str, Spoiler] = {
    "stall": _stall,
    "cut": _cut,
    "half-chunk": _half_chunk,
    "malformed": _malformed,
    "wrong-usage": _wrong_usage,
    "no-usage": _no_usage,
}
