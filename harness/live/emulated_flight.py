"""One request at an emulated replica, and the answer it is shown as."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from harness.live.dialect import JSON_TYPE, Dialect, Reading, Reply, encode
from harness.live.emulated_answers import Answer
from harness.live.emulated_kv import Kept
from harness.live.emulated_tokens import numbers
from harness.live.openai_chat import wants_usage
from harness.live.sse import DONE, event_bytes
from harness.live.texts import Piece
from harness.live.token_numbers import are_tokens, token_pieces
from harness.live.wire import Exchange
from harness.sim.content import Line

STREAM_HEADERS = [
    ("content-type", "text/event-stream; charset=utf-8"),
    ("cache-control", "no-cache"),
]


@dataclass(slots=True)
class Flight:
    """A request in the engine.

    `reading` is the request as chat completions or completions say it. An answer in another API
    is made from the chat completion's events by `reply`, as vLLM makes it.
    """

    exchange: Exchange
    dialect: Dialect
    reading: Reading
    answer: Answer
    chat: bool
    stream: bool
    prompt_tokens: int
    identity: str
    number: int
    model: str
    reply: Reply | None = None
    cached: int = 0
    sent: int = 0
    begun: bool = False
    keep_as: str | None = None
    """Name under which the prompt's blocks are kept for another replica."""
    source: Kept | None = None
    """Blocks that it copies."""
    waits_for: str | None = None
    """A name that it waits for before the engine hears of it."""
    numbers: Sequence[int] | None = None
    """Token numbers of the answer, for clients that asked for them; None: they are not shown."""
    line: Line | None = None
    """Its text, if its token numbers are told of with KV events."""
    params: Mapping[str, Any] | None = field(default=None)
    """`kv_transfer_params` of the answer."""

    def spoken(self) -> tuple[list[Piece], list[int] | None]:
        """Prompt and answer together; and their token numbers, if the prompt came as numbers."""
        shown = self.reading.body.get("return_token_ids") is True
        prompt = None if self.chat else self.reading.body.get("prompt")
        given = prompt if are_tokens(prompt) else None
        found = numbers(self.answer.text) if shown or given is not None else []
        self.numbers = found if shown else None
        if given is not None:
            whole = [*given, *found]
            return token_pieces(whole), whole
        answer = Piece("assistant" if self.chat else "prompt", self.answer.text)
        return [*self.reading.pieces, answer], None

    def emit(self, tokens: int) -> None:
        """Send the answer up to that token, one event a token."""
        tokens = min(tokens, self.answer.tokens)
        if tokens <= self.sent:
            return
        sent = range(self.sent, tokens)
        texts = [(self.answer.token(index), index) for index in sent]
        self.sent = tokens
        if not self.stream:
            self.begun = True
            return
        events: list[bytes] = []
        if not self.begun:
            self.exchange.head(200, STREAM_HEADERS)
            events += self._opening()
        self.begun = True
        events += [self._chunk(text, number=index) for text, index in texts if text]
        self.exchange.data(self._shown(events))

    def finish(self) -> None:
        """The engine is done with it."""
        if not self.stream:
            self.exchange.reply(200, [JSON_TYPE], self._whole())
            return
        self.emit(self.answer.tokens)
        self.exchange.data(self._shown(self._ending()), last=True)
        self.exchange.end()

    def refuse(self, status: int, message: str) -> None:
        self.exchange.reply(status, [JSON_TYPE], self.dialect.error(status, message))

    # Parts of the answer.

    def _shown(self, events: list[bytes]) -> bytes:
        if self.reply is None:
            return b"".join(events)
        return b"".join([self.reply.take(event) for event in events])

    def _opening(self) -> list[bytes]:
        return [self._chunk({"role": "assistant", "content": ""})] if self.chat else []

    def _ending(self) -> list[bytes]:
        events: list[bytes] = []
        if self.chat and self.answer.calls:
            calls = self.answer.call_deltas(self.number)
            events.append(self._chunk({"tool_calls": calls}))
        end: Any = {} if self.chat else ""
        events.append(self._chunk(end, self.answer.finish_reason))
        if self.reply is not None or wants_usage(self.reading.body):
            usage = {**self._head(chunk=True), "choices": [], "usage": self._usage()}
            events.append(event_bytes(encode(usage)))
        return [*events, event_bytes(DONE)]

    def _chunk(self, delta: Any, finish: str | None = None, number: int | None = None) -> bytes:
        """An event.

        Args:
            number: of the token in the answer; None: it brings none.
        """
        choice: dict[str, Any] = {"index": 0}
        if self.numbers is not None:
            choice["token_ids"] = [] if number is None else [self.numbers[number]]
        if self.chat:
            choice["delta"] = {"content": delta} if isinstance(delta, str) else delta
        else:
            choice["text"] = delta
        choice |= {"logprobs": None, "finish_reason": finish}
        return event_bytes(encode({**self._head(chunk=True), "choices": [choice]}))

    def _head(self, *, chunk: bool) -> dict[str, Any]:
        kind = "chat.completion" if self.chat else "text_completion"
        return {
            "id": f"{'chatcmpl' if self.chat else 'cmpl'}-{self.identity}",
            "object": f"{kind}.chunk" if chunk and self.chat else kind,
            "created": int(time.time()),
            "model": self.model,
        }

    def _usage(self) -> dict[str, Any]:
        output = self.answer.tokens
        return {
            "prompt_tokens": self.prompt_tokens,
            "total_tokens": self.prompt_tokens + output,
            "completion_tokens": output,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _whole(self) -> bytes:
        answer = self.answer
        if self.reply is not None:
            texts = [answer.token(index) for index in range(answer.tokens)]
            chunks = [self._chunk(text) for text in texts if text]
            self._shown([*self._opening(), *chunks, *self._ending()])
            return self.reply.whole()
        choice: dict[str, Any] = {"index": 0}
        if self.chat:
            choice["message"] = {"role": "assistant", "content": answer.text}
            if answer.calls:
                choice["message"]["tool_calls"] = answer.calls_whole(self.number)
        else:
            choice["text"] = answer.text
        if self.numbers is not None:
            choice["token_ids"] = list(self.numbers)
        choice |= {"logprobs": None, "finish_reason": answer.finish_reason}
        body = {**self._head(chunk=False), "choices": [choice], "usage": self._usage()}
        if self.params is not None:
            body["kv_transfer_params"] = dict(self.params)
        return encode(body)
