"""The gateway over real HTTP, in front of emulated replicas."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.live import eventlog
from harness.live.emulated_answers import ScriptLine
from harness.live.gateway import GatewaySettings
from harness.live.http_server import Limits
from schedulers.tool_commands import StatedTime, stated_time
from tests.live.rig import chat, get, post, rig, run

CHAT = "/v1/chat/completions"


def test_a_session_over_several_turns() -> None:
    async def test() -> None:
        async with rig() as r:
            headers = {"x-session-id": "s1"}
            first = await post(r.client, CHAT, chat(), headers)
            assert first.headers["x-agentsched-session"] == "s1"
            assert first.headers["x-agentsched-replica"] == "r0"
            assert float(first.headers["x-agentsched-pause-ms"]) == 0.0
            second = await post(r.client, CHAT, chat("more"), headers)
            assert second.headers["x-agentsched-replica"] == "r1"  # round robin
            sessions = (await get(r.admin, "/sessions")).json
            assert [(s["id"], s["turns_finished"], s["phase"]) for s in sessions] == [
                ("s1", 2, "acting")
            ]
            assert (await post(r.admin, "/sessions/s1/release", {})).json == {"released": True}
            assert (await post(r.admin, "/sessions/s1/release", {})).json == {"released": False}
            assert (await get(r.admin, "/sessions")).json == []

    run(test)


def test_usage_is_shown_only_to_who_asks() -> None:
    async def test() -> None:
        async with rig() as r:
            plain = await post(r.client, CHAT, chat(stream=True))
            assert plain.events[-1] == "[DONE]"
            assert all("usage" not in event for event in plain.events[:-1])
            asking = chat(stream=True, stream_options={"include_usage": True})
            asked = await post(r.client, CHAT, asking)
            assert asked.events[-2]["usage"]["completion_tokens"] == 8
            whole = await post(r.client, CHAT, chat())
            assert whole.json["usage"]["completion_tokens"] == 8

    run(test)


def test_a_final_request_closes_its_session() -> None:
    async def test() -> None:
        async with rig() as r:
            headers = {"x-dynamo-session-id": "s", "x-dynamo-session-final": "true"}
            await post(r.client, CHAT, chat(), headers)
            assert (await get(r.admin, "/sessions")).json == []
            assert (await get(r.admin, "/state")).json["counts"]["sessions_closed"] == 1

    run(test)


def test_unnamed_conversations_become_sessions_while_tools_run() -> None:
    script = [
        ScriptLine("look", (("bash", '{"command": "sleep 3"}'),)),
        ScriptLine("done"),
    ]

    async def test() -> None:
        async with rig(script=script) as r:
            first = await post(r.client, CHAT, chat("task"))
            name = first.headers["x-agentsched-session"]
            [session] = (await get(r.admin, "/sessions")).json
            assert (session["id"], session["tools"]) == (name, ["bash"])
            message = first.json["choices"][0]["message"]
            assert message["tool_calls"][0]["function"]["name"] == "bash"
            messages = [*chat("task")["messages"], message, {"role": "tool", "content": "ok"}]
            second = await post(r.client, CHAT, {**chat(), "messages": messages})
            assert second.headers["x-agentsched-session"] == name
            # The answer starts no tools and nobody named the session: it is over.
            assert (await get(r.admin, "/sessions")).json == []

    run(test)


def test_tool_signals_and_hints_reach_the_scheduler(tmp_path: Path) -> None:
    script = [ScriptLine("look", (("bash", '{"command": "sleep 3"}'),))]
    log = tmp_path / "events.jsonl"

    async def test() -> None:
        async with rig(script=script, event_log=log) as r:
            await post(r.client, CHAT, chat("task", stream=True), {"x-session-id": "s"})
            await post(r.admin, "/sessions/s/hint", {"eta_s": 2.5})
            assert (await post(r.admin, "/sessions/x/hint", {"eta_s": 1})).status == 404
            assert (await post(r.admin, "/sessions/s/hint", {"eta_s": "soon"})).status == 400
            half = await post(r.admin, "/sessions/s/hint", {"progress": 0.5})
            assert half.status == 200

    run(test)
    events = [json.loads(line) for line in log.read_text().splitlines()][1:]
    [tool] = next(e["tools"] for e in events if e["event"] == "ToolStarted")
    signal = eventlog._READERS["tools"]([tool])[0]
    assert signal.name == "bash"
    assert stated_time(signal) == StatedTime(3.0)
    hints = [e["eta_s"] for e in events if e["event"] == "ToolHint"]
    assert hints[0] == 2.5
    assert 0 < hints[1] < 5  # as long again as it has run


def test_a_script_may_be_of_any_length() -> None:
    """Texts that are no multiple of four bytes, more tokens than text, less, and none at all."""
    script = [ScriptLine("abcde"), ScriptLine("ab", tokens=50), ScriptLine("x" * 999, tokens=2)]

    async def test() -> None:
        async with rig(script=[*script, ScriptLine("")]) as r:
            messages = list(chat()["messages"])
            for line in [*script, ScriptLine("")]:
                got = await post(r.client, CHAT, {"model": "m", "messages": messages})
                assert got.status == 200
                assert got.json["choices"][0]["message"]["content"] == line.content
                messages += [got.json["choices"][0]["message"], {"role": "user", "content": "on"}]

    run(test)


def test_fields_that_reach_past_the_gateway_are_dropped() -> None:
    seen: list[dict[str, Any]] = []

    async def test() -> None:
        async with rig() as r:
            replica = r.fleet.replicas[0]
            handle = replica._dialects[CHAT].read

            def spy(body: dict[str, Any], raw: bytes) -> Any:
                seen.append(body)
                return handle(body, raw)

            replica._dialects[CHAT].read = spy  # type: ignore[method-assign]
            body = chat(
                kv_transfer_params={"remote_host": "10.0.0.1"},
                bootstrap_host="10.0.0.1",
                something_new={"a": [1.0, 2]},
            )
            assert (await post(r.client, CHAT, body)).status == 200
            picture = {"type": "image_url", "image_url": {"url": "http://10.0.0.1/x"}}
            asked = chat()
            asked["messages"][1]["content"] = [picture]
            refused = await post(r.client, CHAT, asked)
            assert refused.status == 400
            assert "image_url" in refused.json["error"]["message"]

    run(test)
    assert seen[0]["something_new"] == {"a": [1.0, 2]}
    assert "kv_transfer_params" not in seen[0]
    assert "bootstrap_host" not in seen[0]
    assert seen[0]["stream"] is True


def test_errors_are_in_the_callers_words() -> None:
    async def test() -> None:
        async with rig(limits=Limits(body_bytes=10_000, header_bytes=4_000)) as r:
            for body, status in (
                (b"{broken", 400),
                (b"[]", 400),
                (b"{}", 400),
                ({"messages": []}, 400),
                ({"messages": ["x"]}, 400),
                (chat(max_tokens=10_000_000), 400),
                (chat("x" * 20_000), 413),
            ):
                got = await post(r.client, CHAT, body)
                assert got.status == status
                assert got.json["error"]["message"]
            assert (await post(r.client, CHAT, chat(), {"x-long": "y" * 5_000})).status == 431
            assert (await get(r.client, CHAT)).status == 405
            assert (await get(r.client, "/nowhere")).status == 404
            assert (await get(r.admin, "/nowhere")).status == 404
            assert (await get(r.admin, "/decisions?n=x")).status == 400
            assert (await get(r.client, "/health")).status == 200
            assert (await get(r.client, "/v1/models")).json["data"][0]["id"] == "emulated"

    run(test)


def test_the_event_log_replays_to_the_same_operations(tmp_path: Path) -> None:
    """A live run with tools, several sessions and a replica that dies, replayed line by line."""
    log = tmp_path / "events.jsonl"
    script = [ScriptLine("look", (("bash", "{}"),)), ScriptLine("done")]

    async def test() -> None:
        async with rig(scheduler="tao", script=script, event_log=log) as r:
            for index in range(6):
                session = {"x-session-id": f"s{index % 3}"}
                got = await post(r.client, CHAT, chat(f"task {index}", stream=True), session)
                assert got.status == 200
                if index == 3:
                    await r.fleet.stop_replica(0)
            await post(r.admin, "/sessions/s1/release", {})

    run(test)
    count, difference = eventlog.verify(log)
    assert difference is None
    assert count > 20
    # A log in which one decision was different is told apart.
    lines = log.read_text().splitlines()
    at = next(i for i, line in enumerate(lines) if '"op":"dispatch"' in line)
    changed = lines[at].replace('"decode":"r0"', '"decode":"rX"').replace('"r1"', '"rX"')
    log.write_text("\n".join([*lines[:at], changed, *lines[at + 1 :]]) + "\n")
    _, difference = eventlog.verify(log)
    assert difference is not None
    assert difference.line == at + 1


def test_little_text_memory_bounds_all_that_is_kept(tmp_path: Path) -> None:
    """Sessions that have ended, many of them, and a log that still leads to the same decisions."""
    log = tmp_path / "events.jsonl"
    gateway = GatewaySettings(text_bytes=32 << 10)
    assert gateway.idle_texts == 2  # 20,000 x 32 KiB / 256 MiB = 2.4

    async def test() -> None:
        async with rig(scheduler="cache-aware", gateway=gateway, event_log=log) as r:
            for index in range(40):
                unnamed = {"x-session-id": f"s{index}"} if index % 2 else {}
                text = f"task {index} " + "word " * 400  # 2 kB
                got = await post(r.client, CHAT, chat(text), unnamed)
                assert got.status == 200
                if index % 2:
                    await post(r.admin, f"/sessions/s{index}/release", {})
            served = r.served.gateway
            assert len(served.texts._nodes) <= 35
            assert len(served.conversations._by_session) <= 16  # 32 kB hold no more
            assert len(r.served.driver.plane.ledger.prefixes._nodes) <= 4

    run(test)
    count, difference = eventlog.verify(log)
    assert difference is None
    assert count > 80


def test_prometheus_and_replica_pages() -> None:
    async def test() -> None:
        async with rig() as r:
            await post(r.client, CHAT, chat(), {"x-session-id": 's"1'})
            page = (await get(r.admin, "/metrics")).body.decode()
            assert 'agentsched_turns_ok_total{scheduler="round-robin"} 1' in page
            assert 'agentsched_replica_up{scheduler="round-robin",replica="r1"} 1' in page
            replicas = (await get(r.admin, "/replicas")).json
            assert [x["capacity_tokens"] for x in replicas] == [4096 * 16] * 2

    run(test)
