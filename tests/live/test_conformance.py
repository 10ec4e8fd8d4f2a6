"""Record and compare: 200 varied requests, through the gateway and straight to the engine."""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace
from typing import Any

from harness.live.emulated_answers import ScriptLine
from harness.sim.engine_types import EngineParams
from tests.live.rig import engines, post, rig, run

COUNT = 200
_NAMES = re.compile(rb'"(id)":"[^"]*"|"(created)":\d+|(call-)\d+')
TEXTS = ("plain", 'quo"ted \\ text\n', "ümläut 漢字 🙂", "", "x" * 3000, " \t ")


def masked(body: bytes) -> bytes:
    """Without what differs from request to request at an engine: its ids and times."""
    return _NAMES.sub(rb"#", body)


def varied(rng: random.Random) -> tuple[str, dict[str, Any] | bytes]:
    """A request of any kind, some of them wrong."""
    kind = rng.random()
    if kind < 0.05:
        return "/v1/chat/completions", rng.choice([b"{", b"null", b'{"messages":{}}', b""])
    body: dict[str, Any] = {"model": rng.choice(["emulated", "other"])}
    if rng.random() < 0.5:
        body["stream"] = rng.choice([True, False])
    if rng.random() < 0.3:
        body["stream_options"] = {"include_usage": rng.choice([True, False])}
    if rng.random() < 0.8:
        body["max_tokens"] = rng.choice([1, 2, 7, 30, 0, 10**7])
    if rng.random() < 0.3:
        body |= {"ignore_eos": True, "unknown_field": {"deep": [1, 2.5, None, "é"]}}
    if kind < 0.3:
        body["prompt"] = rng.choice(TEXTS)
        return "/v1/completions", body
    messages = [{"role": "system", "content": rng.choice(TEXTS)}]
    messages += [{"role": "user", "content": rng.choice(TEXTS)} for _ in range(rng.randint(0, 3))]
    if rng.random() < 0.3:
        parts: Any = [{"type": "text", "text": rng.choice(TEXTS)} for _ in range(2)]
        messages.append({"role": "user", "content": parts})
    if rng.random() < 0.3:
        body["emulate"] = {"tool_calls": [{"name": "bash", "arguments": {"command": "ls"}}] * 2}
    body["messages"] = messages
    return "/v1/chat/completions", body


def test_bodies_are_byte_equal() -> None:
    """Status, body and content type; ids and times are the engine's own.

    Two documented differences: a stream shows usage only if the client asked for it (so does the
    emulator), and a whole body is put together from a stream.
    """
    # Without prefix caching, the second of two equal requests reports the same usage.
    specs = [replace(engines(1)[0], params=EngineParams(prefix_caching=False))]

    async def test() -> None:
        rng = random.Random(7)
        statuses: dict[int, int] = {}
        async with rig(specs=specs) as r:
            for _ in range(COUNT):
                path, body = varied(rng)
                raw = body if isinstance(body, bytes) else json.dumps(body).encode()
                direct = await post(r.direct, path, raw)
                through = await post(r.client, path, raw)
                assert through.status == direct.status, raw
                assert through.headers["content-type"] == direct.headers["content-type"], raw
                assert masked(through.body) == masked(direct.body), raw
                statuses[through.status] = statuses.get(through.status, 0) + 1
        assert statuses[200] > 100
        assert statuses[400] > 20

    run(test)


def test_what_an_agent_says_again_is_what_it_got() -> None:
    """A scripted answer with everything JSON can escape comes through both ways unchanged."""
    content = "".join(map(chr, range(32, 127))) + "\n\t\r é漢🙂 \u2028"
    script = [ScriptLine(content, (("tool", '{"a": "\\"\\\\ é"}'),))]

    async def test() -> None:
        async with rig(script=script) as r:
            for stream in (True, False):
                body = {"model": "m", "messages": [{"role": "user", "content": "x"}]}
                got = await post(r.client, "/v1/chat/completions", {**body, "stream": stream})
                if stream:
                    deltas = [e["choices"][0]["delta"] for e in got.events[:-1]]
                    assert "".join(d.get("content") or "" for d in deltas) == content
                    [calls] = [d["tool_calls"] for d in deltas if "tool_calls" in d]
                else:
                    message = got.json["choices"][0]["message"]
                    assert message["content"] == content
                    calls = message["tool_calls"]
                assert calls[0]["function"]["arguments"] == script[0].calls[0][1]

    run(test)
