"""Anthropic and Responses requests in chat form, and engines that speak these APIs themselves."""

from __future__ import annotations

import json
from typing import Any

from harness.live import anthropic_request, responses_request
from harness.live.anthropic_api import PassedReply, anthropic_usage
from harness.live.gateway import GatewaySettings
from harness.live.wire import Exchange, Request
from schedulers.types import Usage
from tests.live.rig import get, post, run, served_by

ANTHROPIC: dict[str, Any] = {
    "model": "m",
    "max_tokens": 100,
    "system": [
        {"type": "text", "text": "x-anthropic-billing-header: cc_version=2.1.332"},
        {"type": "text", "text": "be brief", "cache_control": {"type": "ephemeral"}},
    ],
    "stop_sequences": ["END"],
    "temperature": 0.5,
    "metadata": {"user_id": "u"},
    "thinking": {"type": "enabled"},
    "min_tokens": 3,
    "tools": [
        {"name": "bash", "description": "run", "input_schema": {"type": "object"}},
        {"type": "web_search_20250305", "name": "web_search"},
    ],
    "tool_choice": {"type": "any", "disable_parallel_tool_use": True},
    "messages": [
        {"role": "user", "content": "hello"},
        {
            "role": "assistant",
            "content": [
                {"type": "thinking", "thinking": "hm", "signature": "s"},
                {"type": "text", "text": "look"},
                {"type": "tool_use", "id": "t1", "name": "bash", "input": {"command": "ls"}},
            ],
        },
        {
            "role": "user",
            "content": [
                {
                    "type": "tool_result",
                    "tool_use_id": "t1",
                    "content": [
                        {"type": "text", "text": "a"},
                        {"type": "text", "text": "b"},
                        {
                            "type": "image",
                            "source": {"type": "base64", "media_type": "image/png", "data": "AA"},
                        },
                    ],
                },
                {"type": "text", "text": "go on"},
            ],
        },
        {"role": "system", "content": "and quickly"},
    ],
}


def test_an_anthropic_request_as_a_chat() -> None:
    chat = anthropic_request.chat_request(ANTHROPIC)
    assert chat == {
        "model": "m",
        "max_tokens": 100,
        "stop": ["END"],
        "temperature": 0.5,
        "min_tokens": 3,  # neither API's field: passed on
        "stream": True,
        "stream_options": {"include_usage": True},
        "tools": [
            {
                "type": "function",
                "function": {
                    "name": "bash",
                    "description": "run",
                    "parameters": {"type": "object"},
                },
            }
        ],
        "tool_choice": "required",
        "parallel_tool_calls": False,
        "messages": [
            {"role": "system", "content": "be brief\nand quickly"},
            {"role": "user", "content": "hello"},
            {
                "role": "assistant",
                "content": "look",
                "reasoning": "hm",
                "tool_calls": [
                    {
                        "id": "t1",
                        "type": "function",
                        "function": {"name": "bash", "arguments": '{"command":"ls"}'},
                    }
                ],
            },
            {"role": "tool", "tool_call_id": "t1", "content": "a\nb"},
            {
                "role": "user",
                "content": [
                    {"type": "image_url", "image_url": {"url": "data:image/png;base64,AA"}},
                    {"type": "text", "text": "go on"},
                ],
            },
        ],
    }
    _, replies = anthropic_request.pieces_of(ANTHROPIC)
    assert replies == ["look"]


def test_a_responses_request_as_a_chat() -> None:
    body: dict[str, Any] = {
        "model": "m",
        "instructions": "be brief",
        "max_output_tokens": 50,
        "tools": [{"type": "function", "name": "f", "parameters": {}}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"},
        "input": [
            {"role": "developer", "content": "rules"},
            {"role": "user", "content": [{"type": "input_text", "text": "hi"}]},
            {"type": "reasoning", "summary": []},
            {
                "type": "message",
                "role": "assistant",
                "content": [{"type": "output_text", "text": "look"}],
            },
            {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c1", "output": "ok"},
        ],
    }
    chat = responses_request.chat_request(body)
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    assert chat["messages"] == [
        {"role": "system", "content": "be brief"},
        {"role": "system", "content": "rules"},
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "look", "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "ok"},
    ]
    assert chat["max_tokens"] == 50
    assert chat["tools"] == [{"type": "function", "function": {"name": "f", "parameters": {}}}]
    assert chat["tool_choice"] == {"type": "function", "function": {"name": "f"}}


def test_anthropic_usage_leaves_cached_tokens_out() -> None:
    shown = {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 5}
    assert anthropic_usage(shown) == Usage(100, 90, 5)
    assert anthropic_usage({"input_tokens": 10, "output_tokens": 5}) == Usage(10, None, 5)
    assert anthropic_usage({}) is None


def _named(kind: str, **fields: Any) -> bytes:
    return f"event: {kind}\ndata: {json.dumps({'type': kind, **fields})}\n\n".encode()


STREAM = (
    _named(
        "message_start",
        message={
            "id": "msg_1",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": "m",
            "usage": {"input_tokens": 10, "cache_read_input_tokens": 90, "output_tokens": 0},
        },
    ),
    _named("ping"),
    _named("content_block_start", index=0, content_block={"type": "text", "text": ""}),
    _named("content_block_delta", index=0, delta={"type": "text_delta", "text": "lo"}),
    _named("content_block_delta", index=0, delta={"type": "text_delta", "text": "ok"}),
    _named("content_block_stop", index=0),
    _named(
        "content_block_start",
        index=1,
        content_block={"type": "tool_use", "id": "t", "name": "bash", "input": {}},
    ),
    _named(
        "content_block_delta",
        index=1,
        delta={"type": "input_json_delta", "partial_json": '{"command": "ls"}'},
    ),
    _named("content_block_stop", index=1),
    _named(
        "message_delta",
        delta={"stop_reason": "tool_use", "stop_sequence": None},
        usage={"output_tokens": 7},
    ),
    _named("message_stop"),
)


def test_a_passed_message_is_put_together() -> None:
    reply = PassedReply()
    assert b"".join(reply.take(event) for event in STREAM) == b"".join(STREAM)
    assert reply.usage == Usage(100, 90, 7)
    assert (reply.complete, reply.text) == (True, "look")
    message = json.loads(reply.whole())
    assert message["content"] == [
        {"type": "text", "text": "look"},
        {"type": "tool_use", "id": "t", "name": "bash", "input": {"command": "ls"}},
    ]
    assert message["stop_reason"] == "tool_use"
    assert message["usage"]["output_tokens"] == 7


def test_messages_pass_through_to_an_engine_that_speaks_them() -> None:
    """The engine lists the path in its API description, so its own events reach the client."""
    asked: list[dict[str, Any]] = []

    def engine(request: Request, exchange: Exchange) -> None:
        if request.path == "/openapi.json":
            exchange.reply(200, [], b'{"paths": {"/v1/messages": {}}}')
        elif request.path == "/v1/messages":
            asked.append(json.loads(request.body))
            exchange.head(200, [("content-type", "text/event-stream")])
            exchange.data(b"".join(STREAM))
            exchange.end()
        else:
            exchange.reply(404, [], b"")

    async def test() -> None:
        async with served_by(engine) as (served, client):
            body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": "x"}]}
            streamed = await post(client, "/v1/messages", {**body, "stream": True})
            assert streamed.body == b"".join(STREAM)
            whole = await post(client, "/v1/messages?beta=true", body)
            assert whole.json["content"][0]["text"] == "look"
            assert served.gateway.settings == GatewaySettings(passed=frozenset({"/v1/messages"}))
            bad = await post(client, "/v1/messages", {"messages": []})
            assert bad.json["type"] == "error"
            assert (await get(client, "/v1/messages")).json["error"]["type"]

    run(test)
    assert [sent["stream"] for sent in asked] == [True, True]
