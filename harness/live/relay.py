"""One request on its way through the gateway: from its caller to an engine and back."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import orjson

from harness.control.operations import Dispatch
from harness.live.dialect import EVENT_STREAM, JSON_TYPE, Dialect, Reading, Reply
from harness.live.driver import LiveDriver
from harness.live.legs import ROOM_BITS, Bootstrap, PrefillLeg, prefill_body
from harness.live.sse import EventSplitter, StreamError, of_form
from harness.live.texts import Node
from harness.live.tool_signals import signals
from harness.live.turns import LiveTurn
from harness.live.upstream import Attempt, engine_headers, tools_of
from harness.live.wire import Call, Exchange, Headers, Request, Sender
from schedulers.types import Usage

RETRIED_STATUS = frozenset({502, 503, 504})
"""Answers of an engine that say it cannot serve just now; the turn is dispatched again."""


class Relay:
    """The client of one turn (`harness.live.driver.TurnClient`), and the receiver of its answers.

    Args:
        senders: by replica id.
        bootstraps: of the SGLang prefill replicas; the others are taken to be vLLM's.
        ended: called once with the relay when its answer is complete and well.
        lost: called with (replica, reason) when nothing listens at the replica any more.
        suspect: called with the replica when a connection to it broke.
    """

    def __init__(
        self,
        request: Request,
        exchange: Exchange,
        dialect: Dialect,
        reading: Reading,
        path: list[Node],
        driver: LiveDriver,
        senders: Mapping[str, Sender],
        bootstraps: Mapping[str, Bootstrap],
        *,
        ended: Callable[[Relay, Usage], None],
        lost: Callable[[str, str], None],
        suspect: Callable[[str], None],
    ) -> None:
        self.dialect, self.reading, self.path = dialect, reading, path
        self.reply: Reply = dialect.reply(reading)
        self.live: LiveTurn
        self._request, self._exchange = request, exchange
        self._driver, self._senders, self._bootstraps = driver, senders, bootstraps
        self._ended, self._lost, self._suspect = ended, lost, suspect
        self._call: Call | None = None
        self._leg: PrefillLeg | None = None
        self._prefill_cached: int | None = None
        self._splitter = EventSplitter()
        self._status = 0
        self._headers: Mapping[str, str] = {}
        self._streamed_body = True
        self._body: list[bytes] = []
        self._head_sent = False
        self._over = False
        self._verdict = 502
        self._heard = 0
        exchange.on_gone = self._client_gone
        exchange.on_pressure = self._client_pressure

    @property
    def now(self) -> int:
        return self._driver.clock.now

    # TurnClient

    def dispatch(self, operation: Dispatch) -> None:
        if self.live.attempts > 1:  # what an earlier one left
            self.reply = self.dialect.reply(self.reading)
            self._splitter = EventSplitter()
            self._status, self._body = 0, []
        extra: dict[str, Any] = {}
        if "priority" in operation.annotations:
            extra["priority"] = int(operation.annotations["priority"])
        self._prefill_cached = None
        if operation.prefill is None:
            self._send(operation.decode, self.dialect.upstream(self.reading, extra))
            return
        bootstrap = self._bootstraps.get(operation.prefill)
        if bootstrap is not None:
            extra |= bootstrap.fields(secrets.randbits(ROOM_BITS))
        body = self.dialect.upstream(self.reading, extra)
        asked = prefill_body(body, one_token=bootstrap is None)
        after = None if bootstrap is not None else partial(self._decode, operation.decode, extra)
        leg = self._leg = PrefillLeg(operation.prefill, partial(self._prefilled, after))
        call = self._senders[operation.prefill].send(self._upstream(asked), leg)
        leg.call = call
        if self._leg is not leg and not leg.over:
            call.cancel()
        elif bootstrap is not None and self.live.attempt == operation.attempt:
            self._send(operation.decode, body)

    def _upstream(self, body: bytes) -> Request:
        headers = engine_headers(self._request.headers)
        return Request("POST", self.dialect.upstream_path, headers, body)

    def _send(self, replica: str, body: bytes) -> None:
        receiver = Attempt(self, replica)
        self._call = receiver.call = None
        call = self._senders[replica].send(self._upstream(body), receiver)
        if receiver.over:
            return
        self._call = receiver.call = call

    def _prefilled(
        self, after: Callable[[dict[str, Any] | None], None] | None, leg: PrefillLeg
    ) -> None:
        """The prefill leg has ended, well or not."""
        if leg is not self._leg:
            return
        self._leg = None
        if leg.lost_reason is not None:
            self.engine_lost(leg.replica, leg.lost_reason, unreachable=leg.unreachable)
        elif leg.status in RETRIED_STATUS:
            self._retry(f"the prefill replica answered {leg.status}")
        elif leg.status != 200:
            self.withdraw()
            self._status = leg.status
            self._pass_error(leg.body)
        else:
            answer = leg.answer()
            self._prefill_cached = answer.cached
            if self.live.leg_ended is None and self._driver.leg_finished(self.live) and after:
                after(answer.params)

    def _decode(self, replica: str, extra: dict[str, Any], params: dict[str, Any] | None) -> None:
        """The second leg. Without `params` the decoder computes the prompt itself."""
        if params is not None:
            extra["kv_transfer_params"] = params
        else:
            self._driver.count("prefill_legs_without_kv")
        self._send(replica, self.dialect.upstream(self.reading, extra))

    def refuse(self, reason: str, retry_after_s: float | None) -> None:
        after: Headers = (
            [("retry-after", str(max(1, round(retry_after_s))))] if retry_after_s else []
        )
        self._fail_client(429, f"refused by the scheduler: {reason}", after)

    def fail(self, reason: str) -> None:
        self._fail_client(self._verdict, f"the engine failed: {reason}")

    def withdraw(self) -> None:
        call, self._call = self._call, None
        if call is not None:
            call.cancel()
        leg, self._leg = self._leg, None
        if leg is not None:
            leg.cancel()

    def streamed(self) -> int:
        if self._call is not None:
            self._call.catch_up()
        return self.reply.tokens

    def heard(self) -> int:
        return self._heard

    def fell_silent(self, reason: str) -> None:
        if self._head_sent:
            self._give_up(504, reason)
        else:
            self._verdict = 504
            self._retry(reason)

    # What the engine answers.

    def engine_head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status, self._headers = status, headers
        self._heard += 1
        kind = headers.get("content-type", "")
        self._streamed_body = status == 200 and kind.startswith(EVENT_STREAM)

    def engine_data(self, part: bytes) -> None:
        self._heard += 1
        if not self._streamed_body:
            self._body.append(part)
            return
        reply = self.reply
        began = reply.began
        visible = self._head_sent  # only then may a part pass unread to a client that streams
        ready = visible or not self.reading.stream
        if ready and not self._splitter.rest and reply.take_plain(part):
            if visible:
                self._exchange.data(part)
            return
        try:
            events = self._splitter.feed(part)
            shown = of_form(lambda: [reply.take(event) for event in events])
        except StreamError as error:
            self.withdraw()
            self._engine_broke(error.message)
            return
        if reply.began and not began:
            # The client comes first where nothing can be decided about its turn any more.
            settled = self.reading.stream and self._driver.settled(self.live)
            if settled:
                self._forward(shown)
            if not self._driver.first_token(self.live):
                return
            if self._call is not None:
                self._call.under_way()
            if settled:
                return
        if self.reading.stream:
            self._forward(shown)

    def _forward(self, shown: list[bytes]) -> None:
        data = shown[0] if len(shown) == 1 else b"".join(shown)
        # Nothing is shown before the first token: until then another replica may serve the turn.
        if not self._head_sent:
            self._body.append(data)
            if not self.reply.began:
                return
            self._send_head()
            data = b"".join(self._body)
            self._body = []
        if data:
            self._exchange.data(data, last=self.reply.ending or self.reply.complete)

    def _send_head(self) -> None:
        self._head_sent = True
        kind = self._headers.get("content-type", EVENT_STREAM)
        headers = [("content-type", kind), ("cache-control", "no-cache"), *self._answer_headers()]
        self._exchange.head(200, headers)

    def _answer_headers(self) -> list[tuple[str, str]]:
        live = self.live
        pause = (live.dispatched or live.arrived) - live.arrived
        headers = [
            *self.dialect.engine_head(self._headers),
            ("x-agentsched-session", live.turn.session),
            ("x-agentsched-replica", live.decode or ""),
            ("x-agentsched-pause-ms", f"{pause / 1e6:.6f}"),
            ("x-agentsched-attempts", str(live.attempts)),
        ]
        if live.prefill is not None:
            spent = (live.leg_ended or live.arrived) - live.arrived
            headers += [
                ("x-agentsched-prefill", live.prefill),
                ("x-agentsched-prefilled-ms", f"{spent / 1e6:.6f}"),
            ]
            if self._prefill_cached is not None:
                headers.append(("x-agentsched-prefill-cached", str(self._prefill_cached)))
        return headers

    def engine_end(self) -> None:
        self._call = None
        if not self._streamed_body:
            self._engine_replied(b"".join(self._body))
            return
        reply = self.reply
        if reply.failure is not None:
            self._give_up(500, reply.failure)
        elif reply.broken and not self.reading.stream:
            self._give_up(502, "the stream held something that is no JSON")
        elif not reply.complete:
            self._engine_broke("the stream ended early")
        else:
            self._finish(reply.usage)

    def _finish(self, reported: Usage | None) -> None:
        """The answer is complete: tell the control plane, then let the client go."""
        reply = self.reply
        usage = reported or Usage(self.live.turn.prompt.tokens, None, reply.tokens)
        try:
            tools = of_form(lambda: signals(list(reply.calls.values()), reply.text))
            last = of_form(reply.tail if self.reading.stream else reply.whole)
        except StreamError as error:
            self._engine_broke(error.message)
            return
        if not reply.began and not self._driver.first_token(self.live):
            return
        usage = self._in_legs(usage)
        headers = self._answer_headers() if not self._head_sent else []
        self._over = True
        self._exchange.on_gone = None
        self._ended(self, usage)
        self._driver.finish(self.live, usage, tools)
        if not self.reading.stream:
            self._exchange.reply(200, [JSON_TYPE, *headers], last)
            return
        if not self._head_sent:
            kind = self._headers.get("content-type", EVENT_STREAM)
            self._exchange.head(200, [("content-type", kind), *headers])
            last = b"".join(self._body) + last
        if last:
            self._exchange.data(last, last=True)
        self._exchange.end()

    def _in_legs(self, usage: Usage) -> Usage:
        """Usage of a turn: what the prefill replica had cached is what was not computed. A decoder
        speaks of its own cache, or counts what it received."""
        if self.live.prefill is None:
            return usage
        return replace(usage, cached=self._prefill_cached)

    def _engine_replied(self, body: bytes) -> None:
        """The engine answered in one piece: an error, or a request that cannot be streamed."""
        if self._status in RETRIED_STATUS:
            self._retry(f"the engine answered {self._status}")
            return
        if self._status != 200:
            self._pass_error(body)
            return
        if not self._driver.first_token(self.live):
            return
        try:
            decoded = orjson.loads(body)
            usage, tools = of_form(lambda: (self.dialect.usage_of(decoded), tools_of(decoded)))
        except (orjson.JSONDecodeError, StreamError):
            self._give_up(502, "the engine answered something that is not its API's JSON")
            return
        headers = self._answer_headers()
        self._over = True
        self._exchange.on_gone = None
        usage = self._in_legs(usage or Usage(self.live.turn.prompt.tokens, None, 0))
        self._ended(self, usage)
        self._driver.finish(self.live, usage, tools)
        kind = self._headers.get("content-type", "application/json")
        self._exchange.reply(200, [("content-type", kind), *headers], body)

    def _pass_error(self, body: bytes) -> None:
        """The engine's own refusal goes to the client as it is, in the client's dialect."""
        headers = [JSON_TYPE, *self._answer_headers()]
        self._over = True
        self._exchange.on_gone = None
        self._driver.fail(self.live, f"the engine answered {self._status}", again=False)
        self._exchange.reply(self._status, headers, self.dialect.engine_error(self._status, body))

    def decoder_lost(self, replica: str, reason: str, *, unreachable: bool) -> None:
        self._call = None
        self.engine_lost(replica, reason, unreachable=unreachable)

    def engine_lost(self, replica: str, reason: str, *, unreachable: bool) -> None:
        if unreachable:
            self._lost(replica, reason)
        else:
            self._suspect(replica)
        self._engine_broke(reason)

    def _engine_broke(self, reason: str) -> None:
        """The answer broke off: another try if the client has seen nothing, else an error."""
        if self._head_sent:
            self._give_up(502, reason)
        else:
            self._retry(reason)

    def _retry(self, reason: str) -> None:
        self.withdraw()  # the other leg, if there are two
        self._driver.fail(self.live, reason, again=True)

    def _give_up(self, status: int, reason: str) -> None:
        self.withdraw()
        self._verdict = status
        self._driver.fail(self.live, reason, again=False)

    # The client.

    def _client_gone(self) -> None:
        self._over = True
        self.withdraw()
        self._driver.gone(self.live)

    def _client_pressure(self, slow: bool) -> None:
        if self._call is not None:
            self._call.pressure(slow)

    def _fail_client(self, status: int, message: str, headers: Headers = ()) -> None:
        if self._over:
            return
        self._over = True
        self._exchange.on_gone = None
        if self._head_sent:
            self._exchange.data(self.dialect.stream_error(status, message))
            self._exchange.end()
            return
        answer = [JSON_TYPE, *headers, ("x-agentsched-session", self.live.turn.session)]
        self._exchange.reply(status, answer, self.dialect.error(status, message))
