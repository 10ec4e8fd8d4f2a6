"""An emulated replica: vLLM's HTTP API on top of the simulator's engine.

Text counts four bytes a token, so that made-up prompts (`harness.live.words`) have exact lengths;
prefix caching works on the text itself. Tokens appear when the engine has computed them: the
first and the last exactly then, those between at the next tick.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

from harness.live.clock import Clock
from harness.live.dialect import JSON_TYPE, Dialect, Reading, RequestError, decode_body, encode
from harness.live.emulated_answers import Answer, Script, engine_metrics, plan_answer
from harness.live.openai_chat import ChatCompletions, Completions, wants_usage
from harness.live.sse import DONE, event_bytes
from harness.live.texts import Piece, TextTree, TokenRatio, runs_of
from harness.live.wire import Exchange, Request
from harness.live.words import BYTES_PER_TOKEN
from harness.sim.clock import Clock as VirtualClock
from harness.sim.clock import Priority
from harness.sim.content import ContentIndex, Line
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineEvent, EngineRequest
from harness.sim.fleet import Fleet

STREAM_HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
]


@dataclass(frozen=True, slots=True)
class EmulatorSettings:
    """What the emulated server shows to its clients."""

    model: str = "emulated"
    max_model_len: int = 131_072
    tick_s: float = 0.02
    """How often tokens between the first and the last are sent; 0: only when asked for, and with
    the last. Our choice: as often as a model of some size makes one."""
    default_output: int = 64
    """Output tokens of a request that does not force a number. Our choice."""


class SharedTexts:
    """What the replicas of one emulator have in common: text is named the same at all of them."""

    def __init__(self, block_size: int) -> None:
        self.contents = ContentIndex(block_size)
        self.tree = TextTree(TokenRatio(float(BYTES_PER_TOKEN)))


@dataclass(slots=True)
class _Flight:
    """A request in the engine."""

    exchange: Exchange
    reading: Reading
    answer: Answer
    chat: bool
    prompt_tokens: int
    cached: int = 0
    sent: int = 0
    begun: bool = False
    texts: list[str] = field(default_factory=list)


class EmulatedReplica:
    """One engine behind HTTP.

    Args:
        clock: drives the engine; shared by everything that must agree on time.
        script: what to answer; None: made-up words.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        kv_blocks: int,
        texts: SharedTexts,
        clock: Clock,
        settings: EmulatorSettings | None = None,
        script: Script | None = None,
    ) -> None:
        self.name = name
        self.engine = engine
        self.settings = settings or EmulatorSettings()
        self._kv_blocks = kv_blocks
        self._texts, self._clock, self._script = texts, clock, script
        self._fleet = Fleet(cast(VirtualClock, clock), {name: engine}, self._engine_event)
        self._flights: dict[int, _Flight] = {}
        self._count = 0
        self._ticking = False
        self._dialects: dict[str, Dialect] = {
            dialect.path: dialect for dialect in (ChatCompletions(), Completions())
        }
        self._pages: dict[str, Callable[[], bytes]] = {
            "/health": lambda: b"",
            "/ping": lambda: b"",
            "/metrics": self._metrics,
            "/version": lambda: encode({"version": "emulated"}),
            "/v1/models": self._models,
            "/load": lambda: encode({"server_load": len(self._flights)}),
        }

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request of vLLM's API, now or later."""
        dialect = self._dialects.get(request.path)
        if dialect is not None and request.method == "POST":
            self._generate(dialect, request, exchange)
        elif request.path in self._pages and request.method == "GET":
            kind = "text/plain; version=0.0.4" if request.path == "/metrics" else "application/json"
            exchange.reply(200, [("content-type", kind)], self._pages[request.path]())
        elif request.path == "/tokenize" and request.method == "POST":
            self._tokenize(request, exchange)
        else:
            exchange.reply(404, [JSON_TYPE], encode({"detail": "Not Found"}))

    def fail(self) -> None:
        """The replica dies: its KV is gone, and so are the connections of what it was doing."""
        self._fleet.reset(self.name)
        flights, self._flights = list(self._flights.values()), {}
        for flight in flights:
            flight.exchange.on_gone = None
            flight.exchange.cut()

    # Requests.

    def _generate(self, dialect: Dialect, request: Request, exchange: Exchange) -> None:
        try:
            reading = dialect.read(decode_body(request.body), request.body)
            prompt = sum(run.tokens for run in runs_of(self._texts.tree.walk(reading.pieces)))
            limit = self.settings.max_model_len
            if prompt < 1:
                raise RequestError(400, "the prompt is empty")
            answer = plan_answer(
                reading,
                prompt,
                limit,
                default=self.settings.default_output,
                script=self._script,
                seed=self._seed(reading.pieces),
            )
        except RequestError as error:
            exchange.reply(error.status, [JSON_TYPE], dialect.error(error.status, error.message))
            return
        self._count += 1
        number = self._count
        chat = dialect.path.endswith("/chat/completions")
        flight = _Flight(exchange, reading, answer, chat, prompt)
        self._flights[number] = flight
        exchange.on_gone = lambda: self._gone(number)
        exchange.on_catch_up = lambda: self._emit(number, flight)
        line = self._line(reading.pieces, answer, prompt + answer.tokens, number)
        priority = reading.body.get("priority")
        self._fleet.submit(
            self.name,
            EngineRequest(
                id=number,
                line=line,
                prompt_tokens=prompt,
                output_tokens=answer.tokens,
                priority=priority if isinstance(priority, int) else 0,
            ),
        )

    def _line(self, pieces: Sequence[Piece], answer: Answer, tokens: int, number: int) -> Line:
        """The text of prompt and answer together, at least `tokens` long.

        A scripted answer may be given more tokens than its text has; the rest is nobody's text.
        """
        runs = runs_of(self._texts.tree.walk([*pieces, Piece("assistant", answer.text)]))
        segments = [(run.segment, run.tokens) for run in runs]
        segments.append((f"{self.name}/{number}", max(0, tokens - sum(run.tokens for run in runs))))
        return self._texts.contents.intern(segments)

    def _seed(self, pieces: Sequence[Piece]) -> str:
        """Equal prompts get equal answers, as at temperature 0."""
        path = self._texts.tree.walk(pieces)
        return f"{path[-1].segment}+{path[-1].tokens}" if path else ""

    def _gone(self, number: int) -> None:
        if self._flights.pop(number, None) is not None:
            self._fleet.abort(self.name, number)

    # What the engine computes.

    def _engine_event(self, replica: str, event: EngineEvent) -> None:
        flight = self._flights.get(event.id)
        if flight is None:
            return
        flight.cached = event.cached_tokens
        if event.kind == "rejected":
            del self._flights[event.id]
            dialect = self._dialects["/v1/chat/completions"]
            error = dialect.error(400, event.reason or "refused by the engine")
            flight.exchange.reply(400, [JSON_TYPE], error)
        elif event.kind == "first_token":
            self._emit(event.id, flight, 1)
            self._tick_later()
        else:
            del self._flights[event.id]
            self._finish(event.id, flight)

    def _tick_later(self) -> None:
        if self.settings.tick_s > 0 and not self._ticking:
            self._ticking = True
            at = self._clock.now + int(self.settings.tick_s * 1e9)
            self._clock.at(at, Priority.ENGINE, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for number, flight in list(self._flights.items()):
            if flight.begun:
                self._emit(number, flight)
        if any(flight.begun for flight in self._flights.values()):
            self._tick_later()

    def _emit(self, number: int, flight: _Flight, tokens: int | None = None) -> None:
        """Send what there is of the answer by now, one event a token."""
        if tokens is None:
            tokens = self._fleet.streamed(self.name, number) if flight.begun else 0
        tokens = min(tokens, flight.answer.tokens)
        if tokens <= flight.sent:
            return
        texts = [flight.answer.token(index) for index in range(flight.sent, tokens)]
        flight.sent = tokens
        if not flight.reading.stream:
            flight.begun = True
            return
        events: list[bytes] = []
        if not flight.begun:
            flight.exchange.head(200, STREAM_HEADERS)
            if flight.chat:
                events.append(self._chunk(number, flight, {"role": "assistant", "content": ""}))
        flight.begun = True
        events += [self._chunk(number, flight, text) for text in texts if text]
        flight.exchange.data(b"".join(events))

    def _chunk(self, number: int, flight: _Flight, delta: Any, finish: str | None = None) -> bytes:
        choice: dict[str, Any] = {"index": 0}
        if flight.chat:
            choice["delta"] = {"content": delta} if isinstance(delta, str) else delta
        else:
            choice["text"] = delta
        choice |= {"logprobs": None, "finish_reason": finish}
        return event_bytes(encode({**self._head(number, flight, chunk=True), "choices": [choice]}))

    def _head(self, number: int, flight: _Flight, *, chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" if flight.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if flight.chat else 'cmpl'}-{self.name}-{number}",
            "object": f"{kind}.chunk" if chunk and flight.chat else kind,
            "created": int(time.time()),
            "model": flight.reading.body.get("model") or self.settings.model,
        }

    def _finish(self, number: int, flight: _Flight) -> None:
        answer, output = flight.answer, flight.answer.tokens
        usage = {
            "prompt_tokens": flight.prompt_tokens,
            "total_tokens": flight.prompt_tokens + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": flight.cached},
        }
        if not flight.reading.stream:
            flight.exchange.reply(200, [JSON_TYPE], self._whole(number, flight, usage))
            return
        self._emit(number, flight, output)
        events: list[bytes] = []
        if flight.chat and answer.calls:
            events.append(self._chunk(number, flight, {"tool_calls": answer.call_deltas(number)}))
        end: Any = {} if flight.chat else ""
        events.append(self._chunk(number, flight, end, answer.finish_reason))
        if wants_usage(flight.reading.body):
            head = self._head(number, flight, chunk=True)
            events.append(event_bytes(encode({**head, "choices": [], "usage": usage})))
        events.append(event_bytes(DONE))
        flight.exchange.data(b"".join(events))
        flight.exchange.end()

    def _whole(self, number: int, flight: _Flight, usage: dict[str, Any]) -> bytes:
        answer = flight.answer
        choice: dict[str, Any] = {"index": 0}
        if flight.chat:
            choice["message"] = {"role": "assistant", "content": answer.text}
            if answer.calls:
                choice["message"]["tool_calls"] = answer.calls_whole(number)
        else:
            choice["text"] = answer.text
        choice |= {"logprobs": None, "finish_reason": answer.finish_reason}
        head = self._head(number, flight, chunk=False)
        return encode({**head, "choices": [choice], "usage": usage})

    # Pages.

    def _metrics(self) -> bytes:
        for _, engine in self._fleet:
            sample = engine.sample()
        return engine_metrics(
            sample, self.settings.model, self.engine.params.block_size, self._kv_blocks
        )

    def _models(self) -> bytes:
        model = {
            "id": self.settings.model,
            "object": "model",
            "created": 0,
            "owned_by": "agentsched",
            "max_model_len": self.settings.max_model_len,
        }
        return encode({"object": "list", "data": [model]})

    def _tokenize(self, request: Request, exchange: Exchange) -> None:
        try:
            body = decode_body(request.body)
            path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
            pieces = self._dialects[path].read(body, request.body).pieces
        except RequestError as error:
            exchange.reply(error.status, [JSON_TYPE], encode({"detail": error.message}))
            return
        tokens = sum(run.tokens for run in runs_of(self._texts.tree.walk(pieces)))
        limit = self.settings.max_model_len
        exchange.reply(200, [JSON_TYPE], encode({"count": tokens, "max_model_len": limit}))
