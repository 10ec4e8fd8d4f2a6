"""Anthropic Messages: in front of engines that speak only OpenAI's API, or passed through."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import orjson

from harness.live.anthropic_request import chat_request, messages_of, pieces_of
from harness.live.dialect import (
    REFUSED_FIELDS,
    Dialect,
    Reading,
    Reply,
    encode,
    is_count,
    refuse_addresses,
    rewritten,
)
from harness.live.openai_chat import ChatReply
from harness.live.sse import DONE, data_of, event_bytes
from harness.live.tool_signals import ToolCallParts
from harness.live.wire import Headers
from schedulers.types import Usage

Mode = Literal["translate", "pass"]

_ERROR_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    529: "overloaded_error",
}
_STOP_REASONS = {"length": "max_tokens", "tool_calls": "tool_use", "content_filter": "refusal"}


class AnthropicDialect(Dialect):
    """What messages and count_tokens have in common."""

    def __init__(self, *, allow_urls: bool = False) -> None:
        self.allow_urls = allow_urls

    def read(self, body: dict[str, Any], raw: bytes) -> Reading:
        messages = messages_of(body)
        if not self.allow_urls:
            refuse_addresses(messages)
        pieces, replies = pieces_of(body)
        return Reading(body, raw, body.get("stream") is True, pieces, replies)

    def error(self, status: int, message: str) -> bytes:
        kind = _ERROR_TYPES.get(status, "api_error" if status >= 500 else "invalid_request_error")
        return encode({"type": "error", "error": {"type": kind, "message": message}})

    def stream_error(self, status: int, message: str) -> bytes:
        return event_bytes(self.error(status, message), "error")

    def engine_error(self, status: int, body: bytes) -> bytes:
        try:
            error = orjson.loads(body)
        except orjson.JSONDecodeError:
            error = body.decode("utf-8", "replace")
        if isinstance(error, dict):
            if error.get("type") == "error":
                return body
            error = error.get("error", error)
        message = error.get("message") if isinstance(error, dict) else error
        return self.error(status, str(message or "the engine refused the request"))

    def engine_head(self, headers: Mapping[str, str]) -> Headers:
        found = headers.get("x-request-id")
        return [("request-id", found)] if found is not None else []


class Messages(AnthropicDialect):
    """`/v1/messages`, answered by an engine that speaks chat completions."""

    path = "/v1/messages"
    upstream_path = "/v1/chat/completions"

    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        chat = chat_request(reading.body)
        kept = {name: value for name, value in chat.items() if name not in REFUSED_FIELDS}
        return encode({**kept, **extra})

    def reply(self, reading: Reading) -> Reply:
        return TranslatedReply(model=str(reading.body.get("model") or ""))


class PassedMessages(AnthropicDialect):
    """`/v1/messages`, passed through to an engine that speaks it too."""

    path = upstream_path = "/v1/messages"

    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        return rewritten(reading, {"stream": True, **extra})

    def reply(self, reading: Reading) -> Reply:
        return PassedReply()

    def usage_of(self, body: Any) -> Usage | None:
        return anthropic_usage(body.get("usage")) if isinstance(body, dict) else None


class CountTokens(AnthropicDialect):
    """`/v1/messages/count_tokens`, estimated here from the text."""

    path = upstream_path = "/v1/messages/count_tokens"

    def answer(self, reading: Reading, tokens: Callable[[int], int]) -> bytes:
        size = sum(len(piece.text.encode("utf-8", "replace")) for piece in reading.pieces)
        return encode({"input_tokens": tokens(size)})

    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        raise AssertionError("count_tokens is answered by the gateway")

    def reply(self, reading: Reading) -> Reply:
        return PassedReply()


def anthropic_usage(usage: Any) -> Usage | None:
    """Usage of the Messages API, whose input tokens leave out what was read from or written to
    the cache."""
    if not isinstance(usage, dict) or not is_count(usage.get("input_tokens")):
        return None
    read, written = usage.get("cache_read_input_tokens"), usage.get("cache_creation_input_tokens")
    output = usage.get("output_tokens") or 0
    if not all(is_count(count or 0) for count in (read, written, output)):
        return None
    prompt = usage["input_tokens"] + (read or 0) + (written or 0)
    return Usage(prompt, read, output)


def shown_usage(usage: Usage | None, tokens: int) -> dict[str, Any]:
    """Usage as the Messages API shows it."""
    if usage is None:
        return {"input_tokens": 0, "output_tokens": tokens}
    shown = {"input_tokens": usage.prompt - (usage.cached or 0), "output_tokens": usage.output}
    if usage.cached is not None:
        shown |= {"cache_read_input_tokens": usage.cached, "cache_creation_input_tokens": 0}
    return shown


@dataclass(slots=True)
class TranslatedReply(ChatReply):
    """A chat completion's chunks, shown as a message's events."""

    model: str = ""
    block: str | None = None
    """What the open content block holds: `text`, `thinking`, or a tool call's index."""
    blocks: int = 0
    started: bool = False

    def take(self, event: bytes) -> bytes:
        chunk = self._decoded(event)
        if chunk is None:
            return b"".join(self._ending()) if self.complete else b""
        self._absorb(chunk)
        if self.failure is not None:
            return b""
        events = [] if self.started else [self._start()]
        for choice in chunk.get("choices") or ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                events += self._deltas(choice.get("delta"))
        return b"".join(events)

    def _start(self) -> bytes:
        self.started = True
        message = {**self._frame(), "content": [], "stop_reason": None, "stop_sequence": None}
        message["usage"] = {"input_tokens": 0, "output_tokens": 0}
        return _named({"type": "message_start", "message": message})

    def _frame(self) -> dict[str, Any]:
        identity = str(self.top.get("id") or "0").removeprefix("chatcmpl-")
        model = self.top.get("model") or self.model
        return {"id": f"msg_{identity}", "type": "message", "role": "assistant", "model": model}

    def _deltas(self, delta: Any) -> list[bytes]:
        if not isinstance(delta, dict):
            return []
        events: list[bytes] = []
        for name in ("reasoning_content", "reasoning"):
            if isinstance(delta.get(name), str) and delta[name]:
                events += self._open("thinking", {"type": "thinking", "thinking": ""})
                events.append(self._delta({"type": "thinking_delta", "thinking": delta[name]}))
        if isinstance(delta.get("content"), str) and delta["content"]:
            events += self._open("text", {"type": "text", "text": ""})
            events.append(self._delta({"type": "text_delta", "text": delta["content"]}))
        for call in delta.get("tool_calls") or ():
            if isinstance(call, dict):
                events += self._call(call)
        return events

    def _call(self, call: dict[str, Any]) -> list[bytes]:
        index = call.get("index", 0)
        parts = self.calls[(0, index)]
        tool = {"type": "tool_use", "id": parts.id, "name": parts.name, "input": {}}
        events = self._open(str(index), tool)
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if arguments:
            events.append(self._delta({"type": "input_json_delta", "partial_json": arguments}))
        return events

    def _open(self, kind: str, block: dict[str, Any]) -> list[bytes]:
        """Make sure that a block of this kind is the open one."""
        if self.block == kind:
            return []
        events = self._close()
        self.block = kind
        start = {"type": "content_block_start", "index": self.blocks, "content_block": block}
        return [*events, _named(start)]

    def _close(self) -> list[bytes]:
        if self.block is None:
            return []
        self.block = None
        self.blocks += 1
        return [_named({"type": "content_block_stop", "index": self.blocks - 1})]

    def _delta(self, delta: dict[str, Any]) -> bytes:
        return _named({"type": "content_block_delta", "index": self.blocks, "delta": delta})

    def _ending(self) -> list[bytes]:
        events = [] if self.started else [self._start()]
        events += self._close()
        reason, sequence = self._stop()
        delta = {"stop_reason": reason, "stop_sequence": sequence}
        usage = shown_usage(self.usage, self.tokens)
        events.append(_named({"type": "message_delta", "delta": delta, "usage": usage}))
        return [*events, _named({"type": "message_stop"})]

    def _stop(self) -> tuple[str, str | None]:
        choice = self.choices.get(0, {})
        reason, sequence = choice.get("finish_reason"), choice.get("stop_reason")
        if self.calls and reason in ("stop", "tool_calls"):
            return "tool_use", None
        if reason == "stop" and isinstance(sequence, str):
            return "stop_sequence", sequence
        return _STOP_REASONS.get(str(reason), "end_turn"), None

    def whole(self) -> bytes:
        content: list[dict[str, Any]] = []
        message = self._message(0)
        thought = message.get("reasoning_content") or message.get("reasoning")
        if thought:
            content.append({"type": "thinking", "thinking": thought, "signature": ""})
        if message.get("content"):
            content.append({"type": "text", "text": message["content"]})
        for (choice, _), call in sorted(self.calls.items()):
            if choice == 0:
                given = _arguments(call.arguments)
                tool = {"type": "tool_use", "id": call.id, "name": call.name, "input": given}
                content.append(tool)
        reason, sequence = self._stop()
        ending = {"stop_reason": reason, "stop_sequence": sequence}
        usage = shown_usage(self.usage, self.tokens)
        return encode({**self._frame(), "content": content, **ending, "usage": usage})


def _arguments(text: str) -> Any:
    try:
        return orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {"_malformed": text}


def _named(data: dict[str, Any]) -> bytes:
    return event_bytes(encode(data), str(data["type"]))


@dataclass(slots=True)
class PassedReply(Reply):
    """A message's events, shown as they are."""

    message: dict[str, Any] = field(default_factory=dict)
    blocks: dict[int, dict[str, Any]] = field(default_factory=dict)
    parts: dict[int, list[str]] = field(default_factory=dict)

    def take(self, event: bytes) -> bytes:
        data = data_of(event)
        if not data or data == DONE:
            return event
        try:
            found = orjson.loads(data)
        except orjson.JSONDecodeError:
            self.broken += 1
            return event
        if isinstance(found, dict):
            self._take(found)
        return event

    def _take(self, found: dict[str, Any]) -> None:
        kind, index = found.get("type"), found.get("index", 0)
        if kind == "message_start" and isinstance(found.get("message"), dict):
            self.message = dict(found["message"])
            self._count(self.message.get("usage"))
        elif kind == "content_block_start" and isinstance(found.get("content_block"), dict):
            block = self.blocks[index] = dict(found["content_block"])
            if block.get("type") == "tool_use":
                self.began = True
                name, identity = str(block.get("name")), str(block.get("id"))
                self.calls[index] = ToolCallParts(identity, name)
        elif kind == "content_block_delta" and isinstance(found.get("delta"), dict):
            self._grow(index, found["delta"])
        elif kind == "message_delta":
            self.began = True
            delta = found.get("delta")
            self.message |= delta if isinstance(delta, dict) else {}
            self._count(found.get("usage"))
        elif kind == "message_stop":
            self.complete = True
        elif kind == "error":
            error = found.get("error")
            self.failure = str(error.get("message") if isinstance(error, dict) else error)

    def _count(self, usage: Any) -> None:
        if isinstance(usage, dict):
            known = {k: v for k, v in usage.items() if v is not None}
            merged = {**(self.message.get("usage") or {}), **known}
            self.message["usage"] = merged
            self.usage = anthropic_usage(merged) or self.usage

    def _grow(self, index: int, delta: dict[str, Any]) -> None:
        block = self.blocks.setdefault(index, {"type": "text", "text": ""})
        for name in ("text", "thinking", "signature"):
            if isinstance(delta.get(name), str):
                block[name] = block.get(name, "") + delta[name]
        text = delta.get("text") or delta.get("thinking") or delta.get("partial_json")
        if text:
            self.began = True
            self.tokens += 1
        if isinstance(delta.get("text"), str):
            self.texts.append(delta["text"])
        if isinstance(delta.get("partial_json"), str):
            self.parts.setdefault(index, []).append(delta["partial_json"])
            if index in self.calls:
                self.calls[index].arguments += delta["partial_json"]

    def whole(self) -> bytes:
        for index, parts in self.parts.items():
            self.blocks[index]["input"] = _arguments("".join(parts))
        content = [block for _, block in sorted(self.blocks.items())]
        return encode({**self.message, "content": content})
