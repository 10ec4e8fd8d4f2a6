"""The gateway: requests of any agent in, turns to the driver, answers back."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

from harness.control.prefix_index import IDLE_LIMIT
from harness.live.anthropic_api import CountTokens, Messages, PassedMessages
from harness.live.conversations import Conversations
from harness.live.dialect import JSON_TYPE, Dialect, Reading, RequestError, decode_body, encode
from harness.live.driver import LiveDriver
from harness.live.identity import Identity, identify
from harness.live.legs import Bootstrap
from harness.live.openai_chat import ChatCompletions, Completions
from harness.live.polling import Poller
from harness.live.relay import Relay
from harness.live.responses_api import PassedResponses, Responses
from harness.live.texts import TEXT_LIMIT, Node, TextTree, TokenRatio, correct, runs_of
from harness.live.wire import Exchange, Headers, Receiver, Request, Sender
from schedulers.types import PromptRef, Usage

RETRY_AFTER_S = 1
"""What callers are told that are refused because too much is going on. Our choice."""


@dataclass(frozen=True, slots=True)
class GatewaySettings:
    """What callers may do, and how their text is counted."""

    allow_urls: bool = False
    """Let requests name URLs and files for engines to fetch."""
    bytes_per_token: float = 4.0
    """Until engines have reported usage. Our choice, a common rule of thumb."""
    learn_ratio: bool = True
    """Correct the bytes per token by what engines report (ThunderAgent's EWMA)."""
    text_bytes: int = TEXT_LIMIT
    """Text kept to find prompts that begin alike; least recently used text goes first."""
    sessions_per_key: int | None = None
    """Sessions that the holder of one token may have open; None: any number."""
    queue_length: int | None = None
    """Turns that may wait; further ones are refused (429). None: any number."""
    passed: frozenset[str] = frozenset()
    """Paths among /v1/messages and /v1/responses that the engines serve themselves: passed
    through. The others are translated to chat completions."""

    @property
    def idle_texts(self) -> int:
        """Texts of closed sessions whose places are remembered: as many less than usual as less
        text is kept, since text that was dropped is never found again."""
        return min(IDLE_LIMIT, max(1, IDLE_LIMIT * self.text_bytes // TEXT_LIMIT))


class Observer(Protocol):
    """Sees turns with their text (recording)."""

    def answered(self, relay: Relay, usage: Usage) -> None:
        """A turn's answer is complete."""
        ...


@dataclass(slots=True)
class Gateway:
    """Handles the requests of the model port.

    Args:
        senders: by replica id, in configured order.
        bootstraps: of the SGLang replicas that prefill alone.
    """

    driver: LiveDriver
    senders: Mapping[str, Sender]
    settings: GatewaySettings = field(default_factory=GatewaySettings)
    dialects: tuple[Dialect, ...] = ()
    observer: Observer | None = None
    poller: Poller | None = None
    bootstraps: Mapping[str, Bootstrap] = field(default_factory=dict)
    ratio: TokenRatio = field(init=False)
    texts: TextTree = field(init=False)
    conversations: Conversations = field(default_factory=Conversations)
    _owners: dict[str, str] = field(default_factory=dict)
    """Names of the tokens that open sessions were opened with."""
    _by_path: dict[str, Dialect] = field(init=False)

    def __post_init__(self) -> None:
        self.ratio = TokenRatio(self.settings.bytes_per_token)
        self.texts = TextTree(
            self.ratio, text_limit=self.settings.text_bytes, dropped=self.conversations.forget
        )
        if not self.dialects:
            self.dialects = default_dialects(self.settings)
        self._by_path = {dialect.path: dialect for dialect in self.dialects}

    # Handling requests.

    def handle(self, request: Request, exchange: Exchange) -> None:
        """Answer one request of the model port, now or later."""
        dialect = self._by_path.get(request.path)
        if dialect is not None and request.method == "POST":
            self._serve(dialect, request, exchange)
        elif request.path in ("/v1/models", "/version") and request.method == "GET":
            self._pass(request, exchange)
        elif request.path in ("/health", "/ping") and request.method == "GET":
            up = any(not self.driver.is_down(name) for name in self.senders)
            exchange.reply(200 if up and self.driver.broken is None else 503, [], b"")
        elif dialect is not None or request.path in ("/v1/models", "/version", "/health", "/ping"):
            self._refuse(request, exchange, 405, f"{request.method} is not for {request.path}")
        else:
            self._refuse(request, exchange, 404, f"there is no {request.path} here")

    def refusal(self, path: str, status: int, message: str) -> tuple[Headers, bytes]:
        """An error answer in the dialect of the path."""
        dialect = self._by_path.get(path) or self.dialects[0]
        return [JSON_TYPE], dialect.error(status, message)

    def _refuse(self, request: Request, exchange: Exchange, status: int, message: str) -> None:
        exchange.reply(status, *self.refusal(request.path, status, message))

    def _serve(self, dialect: Dialect, request: Request, exchange: Exchange) -> None:
        if self.driver.broken is not None:
            self._refuse(request, exchange, 503, self.driver.broken.message)
            return
        if self.driver.draining:
            self._refuse(request, exchange, 503, "the gateway is stopping")
            return
        try:
            body = decode_body(request.body)
            reading = dialect.read(body, request.body)
        except RequestError as error:
            self._refuse(request, exchange, error.status, error.message)
            return
        local = dialect.answer(reading, self.ratio.tokens)
        if local is not None:
            exchange.reply(200, [JSON_TYPE], local)
            return
        path = self.texts.walk(reading.pieces)
        identity = identify(request.headers, body)
        session, unnamed = self._session(identity, reading, path)
        no = self._too_much(session, request.caller)
        if no is not None:
            status, message = no
            headers, answer = self.refusal(request.path, status, message)
            after = [("retry-after", str(RETRY_AFTER_S))] if status == 429 else []
            exchange.reply(status, [*headers, *after], answer)
            return
        relay = Relay(
            request,
            exchange,
            dialect,
            reading,
            path,
            self.driver,
            self.senders,
            self.bootstraps,
            ended=self._ended,
            lost=self._lost,
            suspect=self._suspect,
        )
        prompt = PromptRef(runs_of(path), len(reading.replies))
        relay.live = self.driver.arrive(
            relay, session, identity.parent, prompt, one_off=unnamed, final=identity.final
        )
        if unnamed:
            self.conversations.arrived(session, path)
        self.driver.decide(relay.live)

    def _session(self, identity: Identity, reading: Reading, path: list[Node]) -> tuple[str, bool]:
        """The session's name, and whether nobody named it."""
        if identity.session is not None:
            return identity.session, False
        found = self.conversations.find(path, reading.replies, self.driver.busy)
        return found or self.conversations.new_name(), True

    def _too_much(self, session: str, caller: str) -> tuple[int, str] | None:
        """Why a turn of the session is refused, as (status, message); None: it is not."""
        limit = self.settings.queue_length
        if limit is not None and len(self.driver.plane.ledger.waiting) >= limit:
            self.driver.count("turns_refused_queue")
            return 429, f"{limit} turns are waiting already"
        if not caller:
            return None
        known = session in self.driver.sessions
        if known and self._owners.get(session, caller) != caller:
            return 403, "the session was opened with another token"
        most = self.settings.sessions_per_key
        if not known and most is not None:
            if self._opened(caller) >= most:
                self._forget_closed()
            if self._opened(caller) >= most:
                self.driver.count("turns_refused_sessions")
                return 429, f"the token has {most} sessions open already"
        if len(self._owners) > 2 * len(self.driver.sessions) + 1000:
            self._forget_closed()
        self._owners[session] = caller
        return None

    def _opened(self, caller: str) -> int:
        """Sessions of one token, some that are closed by now included."""
        return sum(owner == caller for owner in self._owners.values())

    def _forget_closed(self) -> None:
        open_sessions = self.driver.sessions
        self._owners = {s: owner for s, owner in self._owners.items() if s in open_sessions}

    def _ended(self, relay: Relay, usage: Usage) -> None:
        if self.settings.learn_ratio:
            prompt = relay.live.turn.prompt
            self.ratio.learn(prompt.bytes, usage.prompt)
            if usage.prompt != prompt.tokens:
                correct(relay.path, usage.prompt)
        self.conversations.replied(relay.live.turn.session, relay.reply.text)
        if self.observer is not None:
            self.observer.answered(relay, usage)

    # Replicas.

    def _lost(self, replica: str, reason: str) -> None:
        if not self.driver.is_down(replica):
            self.driver.lost(replica, reason)
            if self.poller is not None:
                self.poller.watch(replica)

    def _suspect(self, replica: str) -> None:
        if self.poller is not None:
            self.poller.suspect(replica)

    def _pass(self, request: Request, exchange: Exchange) -> None:
        """Let the first replica that is up answer."""
        for name, sender in self.senders.items():
            if not self.driver.is_down(name):
                passing = _Passing(exchange)
                kept = ("authorization", "accept")
                headers = {k: v for k, v in request.headers.items() if k in kept}
                call = sender.send(Request(request.method, request.target, headers), passing)
                exchange.on_gone = call.cancel
                return
        self._refuse(request, exchange, 503, "no replica is up")


class _Passing(Receiver):
    """Hands an engine's answer on as it is."""

    def __init__(self, exchange: Exchange) -> None:
        self._exchange = exchange
        self._status = 502
        self._type = "application/json"
        self._parts: list[bytes] = []

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self._status = status
        self._type = headers.get("content-type", self._type)

    def data(self, part: bytes) -> None:
        self._parts.append(part)

    def end(self) -> None:
        self._exchange.reply(self._status, [("content-type", self._type)], b"".join(self._parts))

    def lost(self, reason: str, *, unreachable: bool) -> None:
        body = encode({"error": {"message": reason, "type": "APIError", "code": 502}})
        self._exchange.reply(502, [JSON_TYPE], body)


def default_dialects(settings: GatewaySettings) -> tuple[Dialect, ...]:
    """All APIs, translated where the engines do not speak them."""
    urls = settings.allow_urls
    passed = settings.passed
    return (
        ChatCompletions(allow_urls=urls),
        Completions(allow_urls=urls),
        (PassedMessages if "/v1/messages" in passed else Messages)(allow_urls=urls),
        CountTokens(allow_urls=urls),
        (PassedResponses if "/v1/responses" in passed else Responses)(allow_urls=urls),
    )
