"""An emulated replica: vLLM's HTTP API on top of the simulator's engine.

Text counts four bytes a token, so that made-up prompts (`harness.live.words`) have exact lengths;
prefix caching works on the text itself. Tokens appear when the engine has computed them: the
first and the last exactly then, those between at the next tick.

Replicas of roles `prefill` and `decode` hand KV over as vLLM's do with NIXL, and as SGLang's do.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

from harness.live.anthropic_api import Messages
from harness.live.clock import Clock
from harness.live.dialect import JSON_TYPE, Dialect, Reading, RequestError, decode_body, encode
from harness.live.emulated_answers import Answer, Script, plan_answer
from harness.live.emulated_flight import Flight
from harness.live.emulated_kv import Kept, KvExchange, remote_params, wanted_key
from harness.live.emulated_pages import Pages, tokenized
from harness.live.kv_publishing import KvJournal, KvPublisher
from harness.live.openai_chat import ChatCompletions, Completions
from harness.live.parts import Role
from harness.live.responses_api import Responses
from harness.live.texts import Piece, TextTree, TokenRatio, runs_of
from harness.live.wire import Exchange, Request
from harness.live.words import BYTES_PER_TOKEN
from harness.sim.clock import Clock as VirtualClock
from harness.sim.clock import Priority
from harness.sim.content import ContentIndex, Line
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineEvent, EngineRequest
from harness.sim.fleet import Fleet


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
    all_apis: bool = True
    """Serve /v1/messages and /v1/responses too, as vLLM does, and list them in /openapi.json."""


KNOWN_BRANCHES = 100_000
"""Texts told apart at once, so that an emulator may run for days. Our choice: several times what
the largest caches hold."""


class SharedTexts:
    """What the replicas of one emulator have in common: text is named the same at all of them."""

    def __init__(self, block_size: int) -> None:
        self.contents = ContentIndex(block_size, KNOWN_BRANCHES)
        self.tree = TextTree(TokenRatio(float(BYTES_PER_TOKEN)))

    def tokens(self, pieces: Sequence[Piece]) -> int:
        return sum(run.tokens for run in runs_of(self.tree.walk(pieces)))


class EmulatedReplica:
    """One engine behind HTTP.

    Args:
        clock: drives the engine; shared by everything that must agree on time.
        script: what to answer; None: made-up words.
        exchange: through which it hands KV over; None: it does not.
        rank: of its engine among those on the clock, from 1 (`harness.sim.fleet.Fleet`).
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
        *,
        role: Role = "mixed",
        exchange: KvExchange | None = None,
        rank: int = 1,
    ) -> None:
        self.name, self.role = name, role
        self.engine = engine
        self.settings = settings or EmulatorSettings()
        self._texts, self.clock, self._script = texts, clock, script
        self.exchange = exchange
        self._fleet = Fleet(cast(VirtualClock, clock), {name: engine}, self._engine_event, rank)
        self._flights: dict[int, Flight] = {}
        self._count = 0
        self._ticking = False
        self._chat, self._completions = ChatCompletions(), Completions()
        apis: list[Dialect] = [self._chat, self._completions]
        if self.settings.all_apis:
            apis += [Messages(), Responses()]
        self._dialects = {dialect.path: dialect for dialect in apis}
        self._pages = Pages(self, kv_blocks, list(self._dialects))
        self._journal: KvJournal | None = None

    @property
    def in_flight(self) -> int:
        return len(self._flights)

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer a request of vLLM's API, now or later."""
        dialect = self._dialects.get(request.path)
        if dialect is not None and request.method == "POST":
            self._generate(dialect, request, exchange)
        elif request.path == "/tokenize" and request.method == "POST":
            self._tokenize(request, exchange)
        elif request.path == "/reset_prefix_cache" and request.method == "POST":
            exchange.reply(200, [JSON_TYPE], encode({"success": self.reset_cache()}))
        else:
            self._pages.answer(request, exchange)

    def advance(self) -> None:
        """Bring the engine up to now."""
        for _ in self._fleet:
            pass

    def publish(self, publisher: KvPublisher) -> None:
        """Let the publisher tell of the blocks that the cache keeps."""
        if self.engine.watch_cache(publisher.journal):
            self._pages.publisher, self._journal = publisher, publisher.journal

    def set_slowdown(self, factor: float) -> None:
        """Steps take `factor` times as long from the next one on; 1: as fast as ever."""
        self._fleet.slow_down(self.name, factor)

    def reset_cache(self) -> bool:
        """Empty the prefix cache; False, and nothing happens, while requests hold blocks."""
        self.advance()
        return self.engine.clear_cache()

    def fail(self) -> None:
        """The replica dies: its KV is gone, and so are the connections of what it was doing."""
        self._fleet.reset(self.name)
        flights, self._flights = list(self._flights.values()), {}
        copying = self.exchange.lost(self) if self.exchange is not None else []
        for flight in flights:
            self._forget(flight)
        for flight in flights:
            flight.exchange.on_gone = None
            flight.exchange.cut()
        for tell in copying:
            tell()

    # Requests.

    def _generate(self, dialect: Dialect, request: Request, exchange: Exchange) -> None:
        try:
            reading = shown = dialect.read(decode_body(request.body), request.body)
            if dialect is not self._chat and dialect is not self._completions:
                raw = dialect.upstream(reading, {})
                reading = self._chat.read(decode_body(raw), raw)
            if self._script is not None and isinstance(reading.body.get("prompt"), list):
                raise RequestError(400, "a scripted answer needs messages, not token numbers")
            prompt = self._texts.tokens(reading.pieces)
            if prompt < 1:
                raise RequestError(400, "the prompt is empty")
            answer = plan_answer(
                reading,
                prompt,
                self.settings.max_model_len,
                default=self.settings.default_output,
                script=self._script,
                seed=self._seed(reading.pieces),
            )
        except RequestError as error:
            exchange.reply(error.status, [JSON_TYPE], dialect.error(error.status, error.message))
            return
        self._count += 1
        number = self._count
        flight = Flight(
            exchange,
            dialect,
            reading,
            answer,
            chat=dialect is not self._completions,
            stream=shown.stream,
            prompt_tokens=prompt,
            identity=f"{self.name}-{number}",
            number=number,
            model=str(reading.body.get("model") or self.settings.model),
            reply=dialect.reply(shown) if reading is not shown else None,
        )
        self._flights[number] = flight
        exchange.on_gone = partial(self._gone, number)
        exchange.on_catch_up = partial(self._emit, number, flight)
        self._start(number, flight)

    def _start(self, number: int, flight: Flight) -> None:
        """Find out whether the request is one of two legs, and let the engine have it."""
        body, exchange = flight.reading.body, self.exchange
        if exchange is None:
            self._submit(number, flight)
            return
        room, params = body.get("bootstrap_room"), body.get("kv_transfer_params")
        if room is not None and self.role == "prefill":
            flight.keep_as = f"room {room}"
            flight.answer = Answer("", 1, (), "length")
        elif room is not None and self.role == "decode":
            flight.waits_for = f"room {room}"
            exchange.wait(flight.waits_for, partial(self._arrived, number, flight))
            return
        elif isinstance(params, dict) and params.get("do_remote_decode"):
            if flight.answer.tokens == 1 and not flight.stream:
                flight.keep_as = f"{self.name}/{number}"
        elif (key := wanted_key(params)) is not None:
            self._copy_from(number, flight, exchange.take(key))
        self._submit(number, flight)

    def _arrived(self, number: int, flight: Flight, kept: Kept | None) -> None:
        """The other leg that it waited for has ended, well or not."""
        flight.waits_for = None
        if kept is None:
            self._drop(number, flight)
            return
        self._copy_from(number, flight, kept)
        self._submit(number, flight)

    def _copy_from(self, number: int, flight: Flight, kept: Kept | None) -> None:
        flight.source = kept
        if kept is not None:
            kept.taken = partial(self._drop, number, flight)

    def _submit(self, number: int, flight: Flight) -> None:
        body, prompt, answer = flight.reading.body, flight.prompt_tokens, flight.answer
        priority = body.get("priority")
        kept = flight.keep_as is not None
        self._fleet.submit(
            self.name,
            EngineRequest(
                id=number,
                line=self._line(flight, number),
                prompt_tokens=prompt,
                output_tokens=answer.tokens,
                priority=priority if isinstance(priority, int) else 0,
                prefill_only=kept,
                keep_blocks=kept,
                remote_tokens=prompt if flight.source is not None else 0,
            ),
        )

    def _line(self, flight: Flight, number: int) -> Line:
        """The text of prompt and answer together, at least as long as their tokens.

        A scripted answer may be given more tokens than its text has; the rest is nobody's text.
        """
        pieces, known = flight.spoken()
        runs = runs_of(self._texts.tree.walk(pieces))
        segments = [(run.segment, run.tokens) for run in runs]
        tokens = flight.prompt_tokens + flight.answer.tokens
        segments.append((f"{self.name}/{number}", max(0, tokens - sum(run.tokens for run in runs))))
        line = self._texts.contents.intern(segments)
        if known is not None and self._journal is not None:
            flight.line = line
            self._journal.numbers[line] = known
        return line

    def _seed(self, pieces: Sequence[Piece]) -> str:
        """Equal prompts get equal answers, as at temperature 0."""
        path = self._texts.tree.walk(pieces)
        return f"{path[-1].segment}+{path[-1].tokens}" if path else ""

    def _gone(self, number: int) -> None:
        """The client left."""
        flight = self._flights.pop(number, None)
        if flight is not None:
            self._abort(number, flight)

    def _drop(self, number: int, flight: Flight) -> None:
        """The KV that it needs is gone: it fails."""
        if self._flights.pop(number, None) is flight:
            self._abort(number, flight)
            flight.exchange.on_gone = None
            flight.exchange.cut()

    def _abort(self, number: int, flight: Flight) -> None:
        self._fleet.abort(self.name, number)
        self._forget(flight)

    def _forget(self, flight: Flight) -> None:
        """Whoever waits for it, or keeps blocks for it, need not any more."""
        self._named(flight)
        exchange = self.exchange
        if exchange is None:
            return
        if flight.keep_as is not None:
            exchange.failed(flight.keep_as)
        if flight.waits_for is not None:
            exchange.forget(flight.waits_for)
        self._copied(flight)

    # What the engine computes.

    def _engine_event(self, replica: str, event: EngineEvent) -> None:
        flight = self._flights.get(event.id)
        if flight is None:
            return
        flight.cached = event.cached_tokens
        if event.kind == "loading":
            self._load(flight, event)
        elif event.kind == "rejected":
            del self._flights[event.id]
            self._forget(flight)
            flight.refuse(400, event.reason or "refused by the engine")
        elif event.kind == "first_token":
            self._copied(flight)
            flight.emit(1)
            self._tick_later()
        else:
            del self._flights[event.id]
            self._finish(event.id, flight)

    def _named(self, flight: Flight) -> None:
        """Its blocks have all been told of."""
        if flight.line is not None and self._journal is not None:
            self._journal.numbers.pop(flight.line, None)

    def _finish(self, number: int, flight: Flight) -> None:
        self._named(flight)
        exchange, key = self.exchange, flight.keep_as
        if exchange is None or key is None:
            flight.finish()
            return
        if flight.reading.body.get("bootstrap_room") is None:
            exchange.keep(self, number, key)
            block = self.engine.params.block_size
            flight.params = remote_params(key, self.name, flight.prompt_tokens, block)
            flight.finish()
        else:  # its client hears of the end before the other leg starts
            flight.finish()
            exchange.keep(self, number, key)

    def _tick_later(self) -> None:
        if self.settings.tick_s > 0 and not self._ticking:
            self._ticking = True
            at = self.clock.now + int(self.settings.tick_s * 1e9)
            self.clock.at(at, Priority.ENGINE, self._tick)

    def _tick(self) -> None:
        self._ticking = False
        for number, flight in list(self._flights.items()):
            if flight.begun:
                self._emit(number, flight)
        if any(flight.begun for flight in self._flights.values()):
            self._tick_later()

    def _emit(self, number: int, flight: Flight) -> None:
        """Send what there is of the answer by now."""
        if flight.begun:
            flight.emit(self._fleet.streamed(self.name, number))

    # KV from and for other replicas.

    def _load(self, flight: Flight, event: EngineEvent) -> None:
        """The engine has room for the KV that it may copy."""
        assert self.exchange is not None
        assert flight.source is not None
        done = self.exchange.transfer(flight.source.owner.name, self.name, event.load_tokens)
        self.clock.at(done, Priority.ENGINE, partial(self._loaded, event.id, flight))

    def _loaded(self, number: int, flight: Flight) -> None:
        if self._flights.get(number) is flight:
            self._fleet.loaded(self.name, number)
            self._copied(flight)

    def _copied(self, flight: Flight) -> None:
        source, flight.source = flight.source, None
        if source is not None and self.exchange is not None:
            self.exchange.done(source)

    def let_go(self, number: int) -> None:
        """Another replica has copied the blocks of that request."""
        self._fleet.release(self.name, number)

    # Pages.

    def _tokenize(self, request: Request, exchange: Exchange) -> None:
        try:
            body = decode_body(request.body)
            dialect = self._chat if "messages" in body else self._completions
            reading: Reading = dialect.read(body, request.body)
        except RequestError as error:
            exchange.reply(error.status, [JSON_TYPE], encode({"detail": error.message}))
            return
        pieces = reading.pieces
        page = tokenized(pieces, self._texts.tokens(pieces), self.settings.max_model_len)
        exchange.reply(200, [JSON_TYPE], encode(page))
