"""What an emulated replica offers beside chat completions: vLLM's other APIs and pages."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from harness.live.emulated_answers import ScriptLine
from tests.live.rig import Got, chat, engines, get, post, rig, run

TEXT = "word " * 200
"""1,000 bytes: 250 tokens."""
CALL = (ScriptLine("look", (("bash", '{"command": "ls"}'),)), ScriptLine("done"))


def message(**fields: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": TEXT}]
    return {"model": "emulated", "messages": messages, "max_tokens": 12, **fields}


def kinds(got: Got) -> list[str]:
    """Names of a stream's events, each once, in order of appearance."""
    lines = got.body.decode().splitlines()
    names = [line.removeprefix("event: ") for line in lines if line.startswith("event: ")]
    return list(dict.fromkeys(names))


@pytest.mark.parametrize("through", [False, True], ids=["engine", "gateway"])
def test_messages(through: bool) -> None:
    async def test() -> None:
        async with rig(specs=engines(1), script=CALL, all_apis=True) as r:
            client = r.client if through else r.direct
            got = await post(client, "/v1/messages", message())
            assert got.status == 200
            body = got.json
            assert (body["type"], body["role"], body["stop_reason"]) == (
                "message", "assistant", "tool_use",
            )  # fmt: skip
            text, tool = body["content"]
            assert text == {"type": "text", "text": "look"}
            assert (tool["name"], tool["input"]) == ("bash", {"command": "ls"})
            assert body["usage"]["input_tokens"] == 250
            again = await post(client, "/v1/messages", message())
            usage = again.json["usage"]
            assert usage["cache_read_input_tokens"] == 240  # 15 of 16 blocks are full
            assert usage["input_tokens"] == 10
            streamed = await post(client, "/v1/messages", message(stream=True))
            assert kinds(streamed) == [
                "message_start",
                "content_block_start",
                "content_block_delta",
                "content_block_stop",
                "message_delta",
                "message_stop",
            ]
            refused = await post(client, "/v1/messages", message(max_tokens=10**9))
            assert (refused.status, refused.json["type"]) == (400, "error")

    run(test)


@pytest.mark.parametrize("through", [False, True], ids=["engine", "gateway"])
def test_responses(through: bool) -> None:
    async def test() -> None:
        async with rig(specs=engines(1), script=CALL, all_apis=True) as r:
            client = r.client if through else r.direct
            body = {"model": "emulated", "input": TEXT, "max_output_tokens": 12}
            got = await post(client, "/v1/responses", body)
            assert got.status == 200
            shown, call = got.json["output"]
            assert shown["content"][0]["text"] == "look"
            assert (call["type"], call["name"]) == ("function_call", "bash")
            assert got.json["usage"]["input_tokens"] == 250
            streamed = await post(client, "/v1/responses", {**body, "stream": True})
            names = kinds(streamed)
            assert names[0] == "response.created"
            assert names[-1] == "response.completed"
            assert "response.output_text.delta" in names

    run(test)


def test_the_gateway_passes_through_what_engines_list() -> None:
    async def test() -> None:
        for all_apis in (False, True):
            async with rig(specs=engines(1), all_apis=all_apis) as r:
                listed = set((await get(r.direct, "/openapi.json")).json["paths"])
                assert ({"/v1/messages", "/v1/responses"} <= listed) == all_apis
                assert ("/v1/messages" in r.served.gateway.settings.passed) == all_apis

    run(test)


def test_a_cache_is_reset_once_nothing_holds_blocks() -> None:
    async def test() -> None:
        async with rig(specs=engines(1)) as r:
            path = "/v1/chat/completions"
            await post(r.direct, path, chat(TEXT))
            warm = await post(r.direct, path, chat(TEXT))
            assert cached(warm) > 200
            assert (await post(r.direct, "/reset_prefix_cache", {})).json == {"success": True}
            before = r.fleet.replicas[0].engine.sample()
            assert before.prefix_hits == cached(warm)  # counters go on, as vLLM's do
            assert cached(await post(r.direct, path, chat(TEXT))) == 0
            busy = chat(TEXT, max_tokens=500, ignore_eos=True)
            waiting = asyncio.ensure_future(post(r.direct, path, busy))
            replica = r.fleet.replicas[0]
            while not replica.engine.state().held_blocks:
                await asyncio.sleep(0.002)
                replica.advance()
            assert (await post(r.direct, "/reset_prefix_cache", {})).json == {"success": False}
            await waiting

    run(test)


def cached(got: Got) -> int:
    found: int = got.json["usage"]["prompt_tokens_details"]["cached_tokens"]
    return found


def test_tokenize_version_and_load() -> None:
    async def test() -> None:
        async with rig(specs=engines(1)) as r:
            found = (await post(r.direct, "/tokenize", {"prompt": "abcdefgh"})).json
            # Four bytes a token: "abcd" and "efgh" as numbers.
            assert found["tokens"] == [0x61626364, 0x65666768]
            assert (found["count"], found["max_model_len"]) == (2, 131_072)
            talk = (await post(r.direct, "/tokenize", {"messages": chat()["messages"]})).json
            assert len(talk["tokens"]) == talk["count"]
            assert (await get(r.direct, "/version")).json == {"version": "emulated"}
            assert (await get(r.direct, "/load")).json == {"server_load": 0}
            assert (await get(r.direct, "/nowhere")).status == 404
            assert (await post(r.direct, "/tokenize", {"messages": 5})).status == 400

    run(test)


def test_a_slow_replica() -> None:
    """Steps of 2 ms that take five times as long: 40 tokens take 0.4 s instead of 0.08."""

    async def test() -> None:
        async with rig(specs=engines(1)) as r:
            body = chat(max_tokens=40, ignore_eos=True)
            clock = r.fleet.replicas[0].clock
            spent: list[int] = []
            for factor in (5.0, 1.0):
                r.fleet.set_slowdown(0, factor)
                began = clock.now
                assert (await post(r.direct, "/v1/chat/completions", body)).status == 200
                spent.append(clock.now - began)
            assert spent[0] > 0.39e9

    run(test)
