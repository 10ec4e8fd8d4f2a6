"""OpenAI Responses requests: their text, and the chat completion that says the same.

https://platform.openai.com/docs/api-reference/responses
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.live.dialect import RequestError, encode
from harness.live.openai_chat import message_texts
from harness.live.texts import Piece

_SAME = (
    "temperature",
    "top_p",
    "parallel_tool_calls",
    "ignore_eos",
    "min_tokens",
    "seed",
    "priority",
    "emulate",
)


def chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The request's instructions and input as chat messages.

    Raises:
        RequestError: the input is none, or holds items that cannot be said in a chat.
    """
    messages: list[dict[str, Any]] = []
    if body.get("instructions"):
        messages.append({"role": "system", "content": str(body["instructions"])})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": given}]
    if not isinstance(given, list) or not given:
        raise RequestError(400, "`input` must be text or a list of items")
    for item in given:
        if not isinstance(item, dict):
            raise RequestError(400, "every item of `input` must be an object")
        _add(messages, item)
    return messages


def _add(messages: list[dict[str, Any]], item: Mapping[str, Any]) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = {"developer": "system"}.get(str(item.get("role")), item.get("role", "user"))
        messages.append({"role": role, "content": _content(item.get("content"))})
    elif kind == "function_call":
        function = {"name": item.get("name"), "arguments": item.get("arguments") or "{}"}
        call = {"id": item.get("call_id"), "type": "function", "function": function}
        last = messages[-1] if messages else None
        if last is not None and last["role"] == "assistant":
            last.setdefault("tool_calls", []).append(call)
        else:
            messages.append({"role": "assistant", "content": None, "tool_calls": [call]})
    elif kind == "function_call_output":
        output = item.get("output")
        text = output if isinstance(output, str) else encode(output).decode()
        messages.append({"role": "tool", "tool_call_id": item.get("call_id"), "content": text})
    elif kind != "reasoning":  # what the model thought is not given back to it
        raise RequestError(400, f"items of type `{kind}` cannot be passed to this engine")


def _content(content: Any) -> Any:
    if isinstance(content, str):
        return content
    parts: list[dict[str, Any]] = []
    for part in content if isinstance(content, list) else ():
        kind = part.get("type") if isinstance(part, dict) else None
        if kind in ("input_text", "output_text", "text"):
            parts.append({"type": "text", "text": part.get("text", "")})
        elif kind == "refusal":
            parts.append({"type": "text", "text": part.get("refusal", "")})
        elif kind == "input_image":
            url = {"url": part.get("image_url", "")}
            parts.append({"type": "image_url", "image_url": url})
        else:
            raise RequestError(400, f"content of type `{kind}` cannot be passed to this engine")
    return parts[0]["text"] if len(parts) == 1 and parts[0]["type"] == "text" else parts


def pieces_of(body: Mapping[str, Any]) -> tuple[list[Piece], list[str]]:
    """The prompt's text and the model's earlier answers."""
    pieces = [Piece("tools", encode(body["tools"]).decode())] if body.get("tools") else []
    replies: list[str] = []
    for message in chat_messages(body):
        texts = message_texts(message)
        pieces += [Piece(message["role"], text) for text in texts if text]
        if message["role"] == "assistant":
            replies.append("".join(texts))
    return pieces, replies


def chat_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completion request that says the same, streamed and with usage.

    Raises:
        RequestError: it builds on a stored response, which only the engine that made it has.
    """
    if body.get("previous_response_id") or body.get("conversation"):
        raise RequestError(
            400,
            "`previous_response_id` and `conversation` need an engine that stores responses",
            "send the whole input with each request",
        )
    chat: dict[str, Any] = {
        "model": body.get("model"),
        "messages": chat_messages(body),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if body.get("max_output_tokens") is not None:
        chat["max_tokens"] = body["max_output_tokens"]
    tools = [
        {"type": "function", "function": {k: v for k, v in tool.items() if k != "type"}}
        for tool in body.get("tools") or ()
        if isinstance(tool, dict) and tool.get("type") == "function"
    ]
    if tools:
        chat["tools"] = tools
        choice = body.get("tool_choice")
        if isinstance(choice, dict) and choice.get("type") == "function":
            choice = {"type": "function", "function": {"name": choice.get("name")}}
        if choice is not None:
            chat["tool_choice"] = choice
    return chat | {name: body[name] for name in _SAME if body.get(name) is not None}
