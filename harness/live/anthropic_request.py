"""Anthropic Messages requests: their text, and the chat completion that says the same.

https://platform.claude.com/docs/en/api/messages
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from harness.live.dialect import RequestError, content_texts, encode
from harness.live.texts import Piece

BILLING_HEADER = "x-anthropic-billing-header"
"""Claude Code starts its system prompt with a block of this name that changes from request to
request, and so would keep every prefix from being found again. vLLM leaves it out too."""

_TRANSLATED = frozenset(
    {
        "model",
        "messages",
        "system",
        "tools",
        "tool_choice",
        "max_tokens",
        "stop_sequences",
        "stream",
    }
)
_SAME = ("temperature", "top_p", "top_k")
_ONLY_ANTHROPIC = frozenset(
    {
        "anthropic_beta",
        "betas",
        "cache_control",
        "container",
        "context_management",
        "inference_geo",
        "mcp_servers",
        "metadata",
        "output_config",
        "service_tier",
        "speed",
        "thinking",
    }
)
"""Fields that mean nothing to an engine that speaks OpenAI's API."""


def messages_of(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages of a request, checked.

    Raises:
        RequestError: there are none, or they are no messages.
    """
    messages = body.get("messages")
    if not isinstance(messages, list) or not messages:
        raise RequestError(400, "messages: at least one message is required")
    for message in messages:
        if not isinstance(message, dict) or not isinstance(message.get("content"), (str, list)):
            raise RequestError(400, "messages: each needs a role and content")
    return messages


def pieces_of(body: Mapping[str, Any]) -> tuple[list[Piece], list[str]]:
    """The prompt's text in the order a template prints it, and the model's earlier answers."""
    pieces = [Piece("tools", encode(body["tools"]).decode())] if body.get("tools") else []
    pieces += [Piece("system", text) for text in system_texts(body.get("system"))]
    replies: list[str] = []
    for message in messages_of(body):
        role = str(message.get("role", ""))
        texts = [text for text in content_texts(message["content"]) if text]
        pieces += [Piece(role, text) for text in texts]
        if role == "assistant":
            replies.append("".join(_said(message["content"])))
    return pieces, replies


def _said(content: Any) -> list[str]:
    if isinstance(content, str):
        return [content]
    return [str(b.get("text", "")) for b in content if isinstance(b, dict) and b.get("text")]


def system_texts(system: Any) -> list[str]:
    return [text for text in content_texts(system) if text and not text.startswith(BILLING_HEADER)]


def chat_request(body: Mapping[str, Any]) -> dict[str, Any]:
    """The chat completion request that says the same, streamed and with usage.

    Fields that neither API knows are passed on.
    """
    known = _TRANSLATED | _ONLY_ANTHROPIC
    chat: dict[str, Any] = {
        "model": body.get("model"),
        "messages": chat_messages(body),
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    if body.get("max_tokens") is not None:
        chat["max_tokens"] = body["max_tokens"]
    if body.get("stop_sequences"):
        chat["stop"] = body["stop_sequences"]
    tools = [_tool(tool) for tool in body.get("tools") or () if _is_custom(tool)]
    if tools:
        chat["tools"] = tools
        chat |= _tool_choice(body.get("tool_choice"))
    chat |= {name: value for name, value in body.items() if name in _SAME and value is not None}
    return chat | {name: value for name, value in body.items() if name not in known}


def _is_custom(tool: Any) -> bool:
    """A tool of the caller's own; those that Anthropic runs itself have no schema."""
    return isinstance(tool, dict) and isinstance(tool.get("input_schema"), dict)


def _tool(tool: Mapping[str, Any]) -> dict[str, Any]:
    function: dict[str, Any] = {"name": tool.get("name")}
    if tool.get("description"):
        function["description"] = tool["description"]
    return {"type": "function", "function": {**function, "parameters": tool["input_schema"]}}


def _tool_choice(choice: Any) -> dict[str, Any]:
    if not isinstance(choice, dict):
        return {}
    kind = choice.get("type")
    if kind == "tool":
        found: dict[str, Any] = {
            "tool_choice": {"type": "function", "function": {"name": choice.get("name")}}
        }
    else:
        names = {"auto": "auto", "any": "required", "none": "none"}
        found = {"tool_choice": names.get(str(kind), "auto")}
    if choice.get("disable_parallel_tool_use"):
        found["parallel_tool_calls"] = False
    return found


def chat_messages(body: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The messages in OpenAI's form; system text first, wherever it stood."""
    system = system_texts(body.get("system"))
    rest: list[dict[str, Any]] = []
    for message in messages_of(body):
        role, content = message.get("role"), message["content"]
        if role == "system":
            system += system_texts(content)
        elif isinstance(content, str):
            rest.append({"role": role, "content": content})
        elif role == "assistant":
            rest.append(_assistant(content))
        else:
            rest += _user(content)
    head = [{"role": "system", "content": "\n".join(system)}] if system else []
    return head + rest


def _assistant(content: list[Any]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for block in content:
        kind = block.get("type") if isinstance(block, dict) else None
        if kind == "text":
            texts.append(str(block.get("text", "")))
        elif kind == "thinking":
            thoughts.append(str(block.get("thinking", "")))
        elif kind == "tool_use":
            arguments = encode(block.get("input") or {}).decode()
            function = {"name": block.get("name"), "arguments": arguments}
            calls.append({"id": block.get("id"), "type": "function", "function": function})
    message: dict[str, Any] = {"role": "assistant", "content": "".join(texts) or None}
    if thoughts:
        message["reasoning"] = "".join(thoughts)
    if calls:
        message["tool_calls"] = calls
    elif message["content"] is None:
        message["content"] = ""
    return message


def _user(content: list[Any]) -> list[dict[str, Any]]:
    """Tool results become messages of their own; what the user says comes after them."""
    results: list[dict[str, Any]] = []
    said: list[dict[str, Any]] = []
    for block in content:
        if not isinstance(block, dict):
            continue
        if block.get("type") == "tool_result":
            text, pictures = _result(block)
            name = block.get("tool_use_id")
            results.append({"role": "tool", "tool_call_id": name, "content": text})
            said += pictures
        elif block.get("type") == "image":
            said.append(_image(block))
        else:
            said += [{"type": "text", "text": text} for text in content_texts([block]) if text]
    if not said:
        return results
    texts = [part["text"] for part in said if part["type"] == "text"]
    plain = len(texts) == len(said) == 1
    return [*results, {"role": "user", "content": texts[0] if plain else said}]


def _result(block: Mapping[str, Any]) -> tuple[str, list[dict[str, Any]]]:
    content = block.get("content")
    parts = content if isinstance(content, list) else []
    pictures = [_image(p) for p in parts if isinstance(p, dict) and p.get("type") == "image"]
    spoken = [p for p in parts if not (isinstance(p, dict) and p.get("type") == "image")]
    text = "\n".join(content_texts(spoken)) if parts else "".join(content_texts(content))
    return text, pictures


def _image(block: Mapping[str, Any]) -> dict[str, Any]:
    source = block.get("source")
    source = source if isinstance(source, dict) else {}
    if source.get("type") == "url":
        url = str(source.get("url", ""))
    else:
        url = f"data:{source.get('media_type', 'image/jpeg')};base64,{source.get('data', '')}"
    return {"type": "image_url", "image_url": {"url": url}}
