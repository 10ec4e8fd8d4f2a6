"""The OpenAI and Anthropic Python SDKs as clients of the gateway, in front of emulated engines."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import anthropic
import openai
import pytest

from harness.live.emulated_answers import ScriptLine
from tests.live.rig import Rig, get, rig, run

SCRIPT = [
    ScriptLine('let me "look" at \\ it: ümläut', (("bash", '{"command": "ls -l"}'),)),
    ScriptLine("all done"),
]
TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "description": "run it",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}},
        },
    }
]


def against(client: Callable[[str], None], script: list[ScriptLine] | None = SCRIPT) -> None:
    """Run a blocking client against a gateway, and see that it leaves nothing behind."""

    async def test() -> None:
        async with rig(script=script) as r:
            await asyncio.to_thread(client, r.served.url)
            await r.settled()
            await _nothing_open(r)

    run(test)


async def _nothing_open(r: Rig) -> None:
    for session in (await get(r.admin, "/sessions")).json:
        assert (session["in_flight"], session["waiting"]) == (0, 0)


def test_openai_chat_whole_and_streamed() -> None:
    def use(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            assert [m.id for m in client.models.list()] == ["emulated"]
            asked: Any = [{"role": "user", "content": "fix it"}]
            whole = client.chat.completions.create(model="emulated", messages=asked, tools=TOOLS)
            message = whole.choices[0].message
            assert message.content == SCRIPT[0].content
            assert whole.choices[0].finish_reason == "tool_calls"
            assert message.tool_calls is not None
            call = message.tool_calls[0]
            assert call.type == "function"
            assert (call.function.name, call.function.arguments) == SCRIPT[0].calls[0]
            assert whole.usage is not None
            assert whole.usage.prompt_tokens > 0

            answered: Any = [
                *asked,
                message.to_dict(),
                {"role": "tool", "tool_call_id": call.id, "content": "a b"},
            ]
            stream = client.chat.completions.create(
                model="emulated",
                messages=answered,
                stream=True,
                stream_options={"include_usage": True},
            )
            chunks = list(stream)
            text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
            assert text == "all done"
            assert chunks[-1].usage is not None
            assert chunks[-1].usage.completion_tokens == 2
            with client.chat.completions.with_streaming_response.create(
                model="emulated", messages=asked
            ) as raw:
                assert raw.headers["x-agentsched-session"]
            with pytest.raises(openai.BadRequestError) as refused:
                client.chat.completions.create(model="emulated", messages=[])
            assert "message" in str(refused.value)

    against(use)


def test_openai_streamed_tool_calls_and_completions() -> None:
    def use(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            with client.chat.completions.stream(
                model="emulated", messages=[{"role": "user", "content": "fix it"}]
            ) as stream:
                final = stream.get_final_completion()
            calls = final.choices[0].message.tool_calls
            assert calls is not None
            assert calls[0].function.name == "bash"
            text = client.completions.create(model="emulated", prompt="once", max_tokens=9)
            assert text.choices[0].text == SCRIPT[0].content

    against(use)


def test_openai_responses() -> None:
    def use(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            first = client.responses.create(model="emulated", input="fix it", instructions="brief")
            assert first.output_text == SCRIPT[0].content
            call = first.output[-1]
            assert call.type == "function_call"
            assert (call.name, call.arguments) == SCRIPT[0].calls[0]
            assert first.usage is not None
            assert first.usage.output_tokens > 0
            answered: Any = [
                {"role": "user", "content": "fix it"},
                *[item.to_dict() for item in first.output],
                {"type": "function_call_output", "call_id": call.call_id, "output": "a"},
            ]
            with client.responses.stream(model="emulated", input=answered) as stream:
                kinds = [event.type for event in stream]
                final = stream.get_final_response()
            assert final.output_text == "all done"
            assert kinds[0] == "response.created"
            assert kinds[-1] == "response.completed"
            with pytest.raises(openai.BadRequestError):
                client.responses.create(model="emulated", input="x", previous_response_id="r")

    against(use)


def test_anthropic_messages() -> None:
    def use(url: str) -> None:
        with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
            asked: Any = [{"role": "user", "content": "fix it"}]
            tool: anthropic.types.ToolParam = {
                "name": "bash",
                "input_schema": {"type": "object", "properties": {}},
            }
            whole = client.messages.create(
                model="emulated", max_tokens=100, messages=asked, tools=[tool], system="be brief"
            )
            text, call = whole.content
            assert text.type == "text"
            assert text.text == SCRIPT[0].content
            assert call.type == "tool_use"
            assert (call.name, call.input) == ("bash", {"command": "ls -l"})
            assert whole.stop_reason == "tool_use"
            assert whole.usage.input_tokens > 0
            results: Any = [
                *asked,
                {"role": "assistant", "content": whole.content},
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "tool_result",
                            "tool_use_id": call.id,
                            "content": [{"type": "text", "text": "a b"}],
                        }
                    ],
                },
            ]
            with client.messages.stream(
                model="emulated", max_tokens=100, messages=results
            ) as stream:
                assert "".join(stream.text_stream) == "all done"
                final = stream.get_final_message()
            assert final.stop_reason == "end_turn"
            assert final.usage.output_tokens == 2
            with client.messages.stream(
                model="emulated", max_tokens=100, messages=asked, tools=[tool]
            ) as stream:
                streamed = stream.get_final_message()
            assert streamed.content[1].to_dict()["input"] == {"command": "ls -l"}
            counted = client.messages.count_tokens(model="emulated", messages=asked)
            assert counted.input_tokens >= 1
            with pytest.raises(anthropic.BadRequestError) as refused:
                client.messages.create(
                    model="emulated", max_tokens=1 << 30, messages=asked, timeout=10
                )
            assert "context length" in str(refused.value)

    against(use)


def test_a_client_that_stops_listening() -> None:
    def use(url: str) -> None:
        with openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            for count in (0, 1, 5):
                stream = client.chat.completions.create(
                    model="emulated",
                    messages=[{"role": "user", "content": "count"}],
                    stream=True,
                    max_tokens=3000,
                    extra_body={"ignore_eos": True},
                )
                for _ in range(count):
                    next(stream)
                stream.close()

    against(use, script=None)
