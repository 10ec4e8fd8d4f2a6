"""OpenAI chat completions and completions: requests, streamed replies, and replies put together.

https://platform.openai.com/docs/api-reference/chat and vLLM's OpenAI-compatible server.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

import orjson

from harness.live.dialect import (
    Dialect,
    Reading,
    Reply,
    RequestError,
    content_texts,
    encode,
    openai_usage,
    refuse_addresses,
    rewritten,
)
from harness.live.plain_events import PlainEvents
from harness.live.sse import DONE, data_of, event_bytes
from harness.live.texts import Piece
from harness.live.token_numbers import are_tokens, token_pieces
from harness.live.tool_signals import ToolCallParts

_UNSTREAMED = frozenset({"prompt_logprobs", "echo", "use_beam_search", "best_of"})
"""Fields that engines answer only in one piece; the last if it is more than one."""
TEXT_CHUNK_BYTES = 4096
_ERROR_TYPES = {400: "BadRequestError", 404: "NotFoundError", 429: "RateLimitError"}


class OpenAIDialect(Dialect):
    """What chat completions and completions have in common."""

    def __init__(self, *, allow_urls: bool = False) -> None:
        self.allow_urls = allow_urls

    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        if not self.streams(reading):
            return rewritten(reading, extra)
        options = reading.body.get("stream_options")
        options = options if isinstance(options, dict) else {}
        wanted = {"stream": True, "stream_options": {**options, "include_usage": True}}
        return rewritten(reading, {**wanted, **extra})

    def streams(self, reading: Reading) -> bool:
        body = reading.body
        if _UNSTREAMED.isdisjoint(body):  # nearly always
            return True
        best_of = body.get("best_of")
        many = isinstance(best_of, int) and best_of > 1
        return not many and not any(body.get(name) for name in _UNSTREAMED - {"best_of"})

    def error(self, status: int, message: str) -> bytes:
        kind = _ERROR_TYPES.get(status, "InternalServerError" if status >= 500 else "APIError")
        return encode({"error": {"message": message, "type": kind, "param": None, "code": status}})

    def stream_error(self, status: int, message: str) -> bytes:
        return event_bytes(self.error(status, message)) + event_bytes(DONE)


def wants_usage(body: Mapping[str, Any]) -> bool:
    options = body.get("stream_options")
    return isinstance(options, dict) and bool(options.get("include_usage"))


class ChatCompletions(OpenAIDialect):
    """`/v1/chat/completions`."""

    path = upstream_path = "/v1/chat/completions"

    def read(self, body: dict[str, Any], raw: bytes) -> Reading:
        messages = body.get("messages")
        if not isinstance(messages, list) or not messages:
            raise RequestError(400, "`messages` must be a list with at least one message")
        pieces = [Piece("tools", encode(body["tools"]).decode())] if body.get("tools") else []
        replies: list[str] = []
        for message in messages:
            if not isinstance(message, dict):
                raise RequestError(400, "every message must be an object")
            if not self.allow_urls and isinstance(message.get("content"), list):
                refuse_addresses([message])
            role, texts = str(message.get("role", "")), message_texts(message)
            pieces += [Piece(role, text) for text in texts if text]
            if role == "assistant":
                replies.append("".join(texts))
        return Reading(body, raw, body.get("stream") is True, pieces, replies)

    def reply(self, reading: Reading) -> Reply:
        return ChatReply(strip_usage=not wants_usage(reading.body))


def message_texts(message: Mapping[str, Any]) -> list[str]:
    """Texts of a chat message in the order in which a template prints them."""
    content = message.get("content")
    if isinstance(content, str) and len(message) == 2 and "role" in message:  # nearly always
        return [content]
    texts = [
        str(message[name])
        for name in ("reasoning_content", "reasoning")
        if isinstance(message.get(name), str)
    ]
    texts += content_texts(content)
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if isinstance(function, dict):
            texts.append(f"{function.get('name', '')}{function.get('arguments', '')}")
    return texts


class Completions(OpenAIDialect):
    """`/v1/completions`: the prompt is text, or token numbers."""

    path = upstream_path = "/v1/completions"

    def read(self, body: dict[str, Any], raw: bytes) -> Reading:
        prompt = body.get("prompt")
        if isinstance(prompt, str):
            pieces = list(_cut(prompt))
        elif are_tokens(prompt):
            pieces = token_pieces(prompt)
        elif isinstance(prompt, list):
            # Several prompts: the text of its JSON names them well enough.
            pieces = list(_cut(encode(prompt).decode()))
        else:
            raise RequestError(400, "`prompt` must be text, or a list")
        return Reading(body, raw, body.get("stream") is True, pieces, [])

    def reply(self, reading: Reading) -> Reply:
        return CompletionReply(strip_usage=not wants_usage(reading.body))


def _cut(text: str) -> Iterable[Piece]:
    """Pieces of fixed length, so that a text that goes on shares all whole ones."""
    for at in range(0, len(text), TEXT_CHUNK_BYTES):
        yield Piece("prompt", text[at : at + TEXT_CHUNK_BYTES])


@dataclass(slots=True)
class OpenAIReply(Reply):
    """A stream of chunks with choices."""

    text_in: ClassVar[str | None]
    """Field of a choice that holds its text; None: the choice itself."""
    text_key: ClassVar[str]

    strip_usage: bool = False
    """The client did not ask for usage: it is not shown any."""
    top: dict[str, Any] = field(default_factory=dict)
    """Fields of the answer beside its choices, from the first chunk that has them."""
    seen: set[str] = field(default_factory=set)
    choices: dict[int, dict[str, Any]] = field(default_factory=dict)
    raw_usage: Any = None
    plain: PlainEvents = field(default_factory=PlainEvents)
    joined: list[str] = field(default_factory=list)
    """Where the first choice's texts are kept, once an event like the next ones is known."""

    def take(self, event: bytes) -> bytes:
        chunk = self._decoded(event)
        if chunk is None:
            return event
        self._absorb(chunk)
        if self.strip_usage and "usage" in chunk:
            if not chunk.get("choices") and "error" not in chunk:
                return b""
            del chunk["usage"]
            return event_bytes(encode(chunk))
        if self.began and chunk.get("usage") is None:
            self._learn(event, chunk)
        return event

    def _learn(self, event: bytes, chunk: dict[str, Any]) -> None:
        """Remember the event as one that others will be like, if all it brings is a text."""
        choices = chunk.get("choices")
        if not isinstance(choices, list) or len(choices) != 1 or "error" in chunk:
            return
        choice = choices[0]
        if choice.get("index", 0) != 0 or any(choice.get(name) is not None for name in _BESIDE):
            return
        holder = choice.get(self.text_in) if self.text_in is not None else choice
        if not isinstance(holder, dict) or (self.text_in is not None and len(holder) != 1):
            return
        text = holder.get(self.text_key)
        if isinstance(text, str) and text:
            self.joined = self._first_texts()
            self.plain.learn(event, chunk, holder, self.text_key)

    def take_plain(self, part: bytes) -> bool:
        text = self.plain.text_of(part)
        if text is None:
            return False
        self.joined.append(text)
        self.texts.append(text)
        self.tokens += 1
        return True

    @abstractmethod
    def _first_texts(self) -> list[str]:
        """Texts of the first choice, which has some."""

    def _decoded(self, event: bytes) -> dict[str, Any] | None:
        """The chunk in an event; None if there is none in it."""
        data = data_of(event)
        if not data:
            return None
        if data == DONE:
            self.complete = True
            return None
        try:
            chunk = orjson.loads(data)
        except orjson.JSONDecodeError:
            chunk = None
        if not isinstance(chunk, dict):
            self.broken += 1
            return None
        return chunk

    def _absorb(self, chunk: dict[str, Any]) -> None:
        """Keep the books."""
        usage = chunk.get("usage")
        if usage is not None:
            self.raw_usage = usage
            self.usage = openai_usage(usage) or self.usage
        if "error" in chunk:
            self._fail(chunk["error"])
        for choice in chunk.get("choices") or ():
            self._choose(choice)
        if chunk.keys() - self.seen:  # as a rule, only in the first chunk
            self.seen.update(chunk)
            for name, value in chunk.items():
                if name not in ("choices", "usage") and self.top.get(name) is None:
                    self.top[name] = value

    def _fail(self, error: Any) -> None:
        message = error.get("message") if isinstance(error, dict) else error
        self.failure = str(message or "the engine reported an error")

    def _choose(self, choice: Any) -> None:
        if not isinstance(choice, dict):
            return
        index = choice.get("index", 0)
        known = self.choices.get(index)
        if known is None:
            known = self.choices[index] = {"index": index}
        if self._grow(index, known, choice):
            self.began = True
            self.tokens += 1
        if choice.get("finish_reason") is not None:
            self.began = self.ending = True
            known["finish_reason"] = choice["finish_reason"]
        if "stop_reason" in choice:
            known["stop_reason"] = choice["stop_reason"]
        if choice.get("logprobs") is not None:
            _grow_logprobs(known, choice["logprobs"])
        if isinstance(choice.get("token_ids"), list):
            known.setdefault("token_ids", []).extend(choice["token_ids"])

    @abstractmethod
    def _grow(self, index: int, known: dict[str, Any], choice: dict[str, Any]) -> bool:
        """Add what a chunk brings to a choice; whether it brought a token."""

    def _assembled(self, kind: str, choices: list[dict[str, Any]]) -> bytes:
        left_out = ("object", "error", "kv_transfer_params")
        top = {name: value for name, value in self.top.items() if name not in left_out}
        head = {"id": top.pop("id", None), "object": kind}
        return encode({**head, **top, "choices": choices, "usage": self.raw_usage})


def _grow_logprobs(known: dict[str, Any], logprobs: Any) -> None:
    if not isinstance(logprobs, dict):
        return
    grown = known.setdefault("logprobs", {})
    for name, values in logprobs.items():
        if isinstance(values, list) and isinstance(grown.get(name), list):
            grown[name].extend(values)
        elif grown.get(name) is None:
            grown[name] = values


_BESIDE = ("finish_reason", "stop_reason", "logprobs", "token_ids")
"""What a choice may bring beside its text."""
_JOINED = ("content", "reasoning_content", "reasoning", "refusal")


@dataclass(slots=True)
class ChatReply(OpenAIReply):
    """Chunks of a chat completion."""

    text_in = "delta"
    text_key = "content"

    messages: dict[int, dict[str, Any]] = field(default_factory=dict)
    parts: dict[tuple[int, str], list[str]] = field(default_factory=dict)
    """Texts by choice and field, joined at the end."""

    def _first_texts(self) -> list[str]:
        return self.parts[0, "content"]

    def _grow(self, index: int, known: dict[str, Any], choice: dict[str, Any]) -> bool:
        delta = choice.get("delta")
        if not isinstance(delta, dict):
            return False
        if len(delta) == 1 and index == 0 and self.texts:
            text = delta.get("content")
            if isinstance(text, str) and text:  # what nearly every chunk brings
                self.parts[0, "content"].append(text)
                self.texts.append(text)
                return True
        token = False
        message = self.messages.setdefault(index, {"role": "assistant"})
        for name, value in delta.items():
            if name == "tool_calls":
                for call in value or ():
                    token = self._grow_call(index, call) or token
            elif name in _JOINED and isinstance(value, str):
                message.setdefault(name, None)
                if value:
                    token = True
                    self.parts.setdefault((index, name), []).append(value)
                    if name == "content" and index == 0:
                        self.texts.append(value)
                elif name == "content":
                    self.parts.setdefault((index, name), [])
            elif value is not None or name not in message:
                message[name] = value
        return token

    def _grow_call(self, index: int, call: Any) -> bool:
        if not isinstance(call, dict):
            return False
        parts = self.calls.setdefault((index, call.get("index", 0)), ToolCallParts())
        function = call.get("function")
        function = function if isinstance(function, dict) else {}
        parts.id = call.get("id") or parts.id
        name, arguments = function.get("name"), function.get("arguments")
        if isinstance(name, str):
            parts.name += name if parts.name != name else ""
        if isinstance(arguments, str):
            parts.arguments += arguments
        return bool(name or arguments)

    def whole(self) -> bytes:
        choices: list[dict[str, Any]] = []
        for index, known in sorted(self.choices.items()):
            choices.append(
                {
                    "index": index,
                    "message": self._message(index),
                    "logprobs": known.get("logprobs"),
                    "finish_reason": known.get("finish_reason"),
                    **{k: known[k] for k in ("stop_reason", "token_ids") if k in known},
                }
            )
        return self._assembled("chat.completion", choices)

    def _message(self, index: int) -> dict[str, Any]:
        message = dict(self.messages.get(index, {"role": "assistant"}))
        message.setdefault("content", None)
        calls = [
            {
                "id": call.id,
                "type": "function",
                "function": {"name": call.name, "arguments": call.arguments},
            }
            for (choice, _), call in sorted(self.calls.items())
            if choice == index
        ]
        for (choice, name), parts in self.parts.items():
            if choice == index:
                text = "".join(parts)
                message[name] = None if not text and name == "content" and calls else text
        if calls:
            message["tool_calls"] = calls
        return message


@dataclass(slots=True)
class CompletionReply(OpenAIReply):
    """Chunks of a text completion."""

    text_in = None
    text_key = "text"

    parts: dict[int, list[str]] = field(default_factory=dict)

    def _first_texts(self) -> list[str]:
        return self.parts[0]

    def _grow(self, index: int, known: dict[str, Any], choice: dict[str, Any]) -> bool:
        text = choice.get("text")
        parts = self.parts.setdefault(index, [])
        if not isinstance(text, str) or not text:
            return False
        parts.append(text)
        if index == 0:
            self.texts.append(text)
        return True

    def whole(self) -> bytes:
        choices = [
            {
                "index": index,
                "text": "".join(self.parts.get(index, ())),
                "logprobs": known.get("logprobs"),
                "finish_reason": known.get("finish_reason"),
                **{k: known[k] for k in ("stop_reason", "token_ids") if k in known},
            }
            for index, known in sorted(self.choices.items())
        ]
        return self._assembled("text_completion", choices)
