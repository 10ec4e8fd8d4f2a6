"""OpenAI Responses: in front of engines that speak only chat completions, or passed through."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import orjson

from harness.live.dialect import (
    Reading,
    Reply,
    RequestError,
    encode,
    is_count,
    refuse_addresses,
    rewritten,
)
from harness.live.openai_chat import ChatReply, OpenAIDialect
from harness.live.responses_request import chat_request, pieces_of
from harness.live.sse import DONE, data_of, event_bytes
from harness.live.texts import Piece
from harness.live.tool_signals import ToolCallParts
from schedulers.types import Usage


class Responses(OpenAIDialect):
    """`/v1/responses`, answered by an engine that speaks chat completions."""

    path = "/v1/responses"
    upstream_path = "/v1/chat/completions"

    def read(self, body: dict[str, Any], raw: bytes) -> Reading:
        chat = chat_request(body)
        if not self.allow_urls:
            refuse_addresses(chat["messages"])
        pieces, replies = pieces_of(body)
        return Reading(body, raw, body.get("stream") is True, pieces, replies)

    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        return encode({**chat_request(reading.body), **extra})

    def reply(self, reading: Reading) -> Reply:
        return TranslatedResponse(asked=reading.body, created=int(time.time()))

    def stream_error(self, status: int, message: str) -> bytes:
        error = {"type": "error", "code": str(status), "message": message, "param": None}
        return event_bytes(encode(error), "error")


class PassedResponses(Responses):
    """`/v1/responses`, passed through to an engine that speaks it too."""

    upstream_path = "/v1/responses"

    def read(self, body: dict[str, Any], raw: bytes) -> Reading:
        given = body.get("input")
        if not self.allow_urls and isinstance(given, list):
            refuse_addresses(given)
        try:
            pieces, replies = pieces_of(body)
        except RequestError:  # items that only the engine understands
            pieces, replies = [Piece("input", encode(given).decode())], []
        return Reading(body, raw, body.get("stream") is True, pieces, replies)

    def upstream(self, reading: Reading, extra: Mapping[str, Any]) -> bytes:
        return rewritten(reading, {"stream": True, **extra})

    def reply(self, reading: Reading) -> Reply:
        return PassedResponse()

    def usage_of(self, body: Any) -> Usage | None:
        return responses_usage(body.get("usage")) if isinstance(body, dict) else None


def responses_usage(usage: Any) -> Usage | None:
    """Usage of the Responses API, where input tokens include cached ones."""
    if not isinstance(usage, dict) or not is_count(usage.get("input_tokens")):
        return None
    output = usage.get("output_tokens") or 0
    if not is_count(output):
        return None
    details = usage.get("input_tokens_details")
    cached = details.get("cached_tokens") if isinstance(details, dict) else None
    known = is_count(cached) and cached <= usage["input_tokens"]
    return Usage(usage["input_tokens"], cached if known else None, output)


@dataclass(slots=True)
class TranslatedResponse(ChatReply):
    """A chat completion's chunks, shown as a response's events."""

    asked: Mapping[str, Any] = field(default_factory=dict)
    created: int = 0
    items: list[dict[str, Any]] = field(default_factory=list)
    open: str | None = None
    """The item that grows: `message`, `reasoning`, or a tool call's index."""
    number: int = 0
    started: bool = False

    def take(self, event: bytes) -> bytes:
        chunk = self._decoded(event)
        if chunk is None:
            return b"".join(self._ending()) if self.complete else b""
        self._absorb(chunk)
        if self.failure is not None:
            return b""
        events = self._start()
        for choice in chunk.get("choices") or ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                events += self._deltas(choice.get("delta"))
        return b"".join(events)

    def _event(self, kind: str, **fields: Any) -> bytes:
        self.number += 1
        data = {"type": kind, "sequence_number": self.number - 1, **fields}
        return event_bytes(encode(data), kind)

    def _start(self) -> list[bytes]:
        if self.started:
            return []
        self.started = True
        frame = self._frame("in_progress")
        return [
            self._event("response.created", response=frame),
            self._event("response.in_progress", response=frame),
        ]

    def _frame(self, status: str) -> dict[str, Any]:
        echoed = ("instructions", "metadata", "temperature", "top_p", "max_output_tokens")
        choice = self.asked.get("tool_choice", "auto")
        ended = status in ("completed", "incomplete")
        short = {"reason": "max_output_tokens"} if status == "incomplete" else None
        return {
            "id": self._id("resp"),
            "object": "response",
            "created_at": self.created,
            "status": status,
            "error": None,
            "incomplete_details": short,
            "model": self.top.get("model") or self.asked.get("model"),
            "output": list(self.items) if ended else [],
            "parallel_tool_calls": self.asked.get("parallel_tool_calls", True),
            "tool_choice": choice,
            "tools": self.asked.get("tools") or [],
            "usage": self._usage() if ended else None,
            **{name: self.asked.get(name) for name in echoed},
        }

    def _id(self, kind: str) -> str:
        identity = str(self.top.get("id") or "0").removeprefix("chatcmpl-")
        return f"{kind}_{identity}"

    def _usage(self) -> dict[str, Any] | None:
        usage = self.usage
        if usage is None:
            return None
        return {
            "input_tokens": usage.prompt,
            "input_tokens_details": {"cached_tokens": usage.cached or 0},
            "output_tokens": usage.output,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": usage.total,
        }

    def _deltas(self, delta: Any) -> list[bytes]:
        if not isinstance(delta, dict):
            return []
        events: list[bytes] = []
        thought = delta.get("reasoning_content") or delta.get("reasoning")
        if isinstance(thought, str) and thought:
            events += self._begin("reasoning", {"type": "reasoning", "summary": [], "content": []})
            self._extend("reasoning_text", thought)
            events.append(self._text_event("response.reasoning_text.delta", delta=thought))
        text = delta.get("content")
        if isinstance(text, str) and text:
            events += self._begin(
                "message", {"type": "message", "role": "assistant", "content": []}
            )
            if not self.items[-1]["content"]:
                part = {"type": "output_text", "text": "", "annotations": []}
                events.append(self._text_event("response.content_part.added", part=part))
            self._extend("output_text", text)
            shown = self._text_event("response.output_text.delta", delta=text, logprobs=[])
            events.append(shown)
        for call in delta.get("tool_calls") or ():
            if isinstance(call, dict):
                events += self._call(call)
        return events

    def _extend(self, kind: str, text: str) -> None:
        content = self.items[-1]["content"]
        if not content:
            part: dict[str, Any] = {"type": kind, "text": ""}
            content.append(part | ({"annotations": []} if kind == "output_text" else {}))
        content[0]["text"] += text

    def _text_event(self, kind: str, **fields: Any) -> bytes:
        place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
        return self._event(kind, **place, content_index=0, **fields)

    def _call(self, call: dict[str, Any]) -> list[bytes]:
        index = call.get("index", 0)
        parts = self.calls[(0, index)]
        item = {"type": "function_call", "call_id": parts.id, "name": parts.name, "arguments": ""}
        events = self._begin(str(index), item)
        function = call.get("function")
        arguments = function.get("arguments") if isinstance(function, dict) else None
        if arguments:
            self.items[-1]["arguments"] += arguments
            place = {"item_id": self.items[-1]["id"], "output_index": len(self.items) - 1}
            kind = "response.function_call_arguments.delta"
            events.append(self._event(kind, **place, delta=arguments))
        return events

    def _begin(self, kind: str, item: dict[str, Any]) -> list[bytes]:
        if self.open == kind:
            return []
        events = self._close()
        self.open = kind
        short = {"message": "msg", "reasoning": "rs"}.get(kind, "fc")
        identity = f"{self._id(short)}_{len(self.items)}"
        self.items.append({"id": identity, "status": "in_progress", **item})
        place = {"output_index": len(self.items) - 1, "item": dict(self.items[-1])}
        return [*events, self._event("response.output_item.added", **place)]

    def _close(self) -> list[bytes]:
        if self.open is None:
            return []
        item, index = self.items[-1], len(self.items) - 1
        self.open = None
        item["status"] = "completed"
        events: list[bytes] = []
        if item["type"] == "message":
            part = item["content"][0]
            text = self._text_event("response.output_text.done", text=part["text"], logprobs=[])
            events += [text, self._text_event("response.content_part.done", part=part)]
        elif item["type"] == "function_call":
            place = {"item_id": item["id"], "output_index": index, "name": item["name"]}
            kind = "response.function_call_arguments.done"
            events.append(self._event(kind, **place, arguments=item["arguments"]))
        return [*events, self._event("response.output_item.done", output_index=index, item=item)]

    def _status(self) -> str:
        short = self.choices.get(0, {}).get("finish_reason") == "length"
        return "incomplete" if short else "completed"

    def _ending(self) -> list[bytes]:
        events = self._start() + self._close()
        status = self._status()
        return [*events, self._event(f"response.{status}", response=self._frame(status))]

    def whole(self) -> bytes:
        return encode(self._frame(self._status()))


@dataclass(slots=True)
class PassedResponse(Reply):
    """A response's events, shown as they are."""

    response: dict[str, Any] = field(default_factory=dict)

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
        kind = str(found.get("type"))
        if kind.endswith(".delta"):
            self.began = True
            self.tokens += 1
            if kind == "response.output_text.delta":
                self.texts.append(str(found.get("delta", "")))
        elif kind == "response.output_item.done":
            item = found.get("item")
            if isinstance(item, dict) and item.get("type") == "function_call":
                name, given = str(item.get("name")), str(item.get("arguments"))
                call = ToolCallParts(str(item.get("call_id")), name, given)
                self.calls[found.get("output_index", len(self.calls))] = call
        elif kind in ("response.completed", "response.incomplete"):
            self.began = self.complete = True
            response = found.get("response")
            self.response = response if isinstance(response, dict) else {}
            self.usage = responses_usage(self.response.get("usage"))
        elif kind in ("response.failed", "error"):
            self.failure = str(found.get("message") or "the engine reported an error")

    def whole(self) -> bytes:
        return encode(self.response)
