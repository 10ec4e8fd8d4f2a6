"""Callers that vanish, dawdle, crowd in, or never come to an end."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from harness.live import http_client
from harness.live.http_server import Limits
from harness.live.invariants import InvariantChecker
from harness.live.turns import DriverSettings
from harness.live.wire import Request
from tests.faults.matrix import fault
from tests.faults.stage import CHAT, faulted
from tests.live.rig import JSON, Got, chat, engines, get, post, rig, run


@fault(
    "slow-loris clients",
    sees="408 once the headers have taken too long; others notice nothing",
    retried="not concerned",
    freed="the connection",
)
def test_slow_loris() -> None:
    async def test() -> None:
        async with rig(limits=Limits(header_s=0.3)) as r:
            slow = [await asyncio.open_connection("127.0.0.1", r.served.port) for _ in range(50)]
            for _, writer in slow:
                writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nhost")
            assert (await post(r.client, CHAT, chat())).status == 200
            for reader, writer in slow:
                async with asyncio.timeout(10):
                    assert (await reader.read()).startswith(b"HTTP/1.1 408")
                writer.close()

    run(test)


@fault(
    "clients that vanish in prefill, in decode",
    sees="not concerned",
    retried="no",
    freed="the request at the engine at once, its tokens, its place",
)
def test_clients_that_vanish() -> None:
    async def test() -> None:
        async with faulted() as f:
            for wait in (0.0, 0.01, 0.1):
                body = json.dumps(chat(stream=True, max_tokens=400, ignore_eos=True)).encode()
                sent = []
                for i in range(10):
                    headers = {**JSON, "x-session-id": f"{wait}-{i}"}
                    sent.append(f.client.send(Request("POST", CHAT, headers, body), Got()))
                await asyncio.sleep(wait)
                for call in sent:
                    call.cancel()
            await f.settled()
            async with asyncio.timeout(5):
                while any(replica.in_flight for replica in f.fleet.replicas):
                    await asyncio.sleep(0.01)

    run(test)


@fault(
    "clients that vanish while paused",
    sees="not concerned",
    retried="no",
    freed="the waiting turn",
)
def test_clients_that_vanish_while_paused() -> None:
    async def test() -> None:
        async with rig(scheduler="thunderagent", specs=engines(1, kv_blocks=80)) as r:
            checker = InvariantChecker(r.served.driver, lambda error: None)
            big = Got()
            body = json.dumps(chat(text="a" * 4000, stream=True, max_tokens=200, ignore_eos=True))
            r.client.send(Request("POST", CHAT, JSON, body.encode()), big)
            await big.moved.wait()
            body = json.dumps(chat(text="b" * 4000))
            held = [r.client.send(Request("POST", CHAT, JSON, body.encode()), Got())]
            async with asyncio.timeout(5):
                while not r.served.driver.facts()["waiting"]:
                    await asyncio.sleep(0.005)
            assert checker.problem() is None
            held[0].cancel()
            async with asyncio.timeout(5):
                while r.served.driver.facts()["waiting"]:
                    await asyncio.sleep(0.005)
            assert checker.problem() is None
            await big.ended.wait()

    run(test)


@fault(
    "a thousand sessions arriving at once",
    sees="answers, later; 429 with Retry-After where `--queue-length` is given",
    retried="no",
    freed="as ever",
)
def test_a_thousand_sessions_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # Callers, gateway and engines share one thread here: connecting takes as long as all of it.
    monkeypatch.setattr(http_client, "CONNECT_TIMEOUT_S", 120.0)

    async def test() -> None:
        async with faulted(scheduler="tao", idle_s=120.0) as f:
            f.checker.interval_s = 0.5
            asked = [f.ask(session=f"s{i}", text=f"task {i}", max_tokens=1) for i in range(1000)]
            async with asyncio.timeout(200):
                got = await asyncio.gather(*asked)
            assert {each.status for each in got} == {200}
            await f.settled(30)

    run(test, 240.0)


@fault(
    "a session that never ends",
    sees="not concerned",
    retried="no",
    freed="its place, after `--idle-expiry` without a turn",
)
def test_a_session_that_never_ends() -> None:
    async def test() -> None:
        async with rig(driver=DriverSettings(idle_expiry_s=0.2)) as r:
            await post(r.client, CHAT, chat(), {"x-session-id": "s"})
            async with asyncio.timeout(10):
                while r.served.driver.sessions:
                    await asyncio.sleep(0.02)
            assert (await get(r.admin, "/sessions")).json == []

    run(test)


@fault(
    "a tool that never returns",
    sees="not concerned",
    retried="no",
    freed="as for a session that never ends; agents' own limits end it in a run",
)
def test_a_tool_that_never_returns() -> None:
    async def test() -> None:
        async with rig(driver=DriverSettings(idle_expiry_s=0.2)) as r:
            tools: dict[str, Any] = {"emulate": {"tool_calls": [{"name": "bash", "arguments": {}}]}}
            got = await post(r.client, CHAT, chat(**tools), {"x-session-id": "s"})
            assert got.json["choices"][0]["message"]["tool_calls"]
            (session,) = r.served.driver.plane.ledger.session_states.values()
            assert [tool.name for tool in session.tools] == ["bash"]
            async with asyncio.timeout(10):
                while r.served.driver.sessions:
                    await asyncio.sleep(0.02)
            assert not r.served.driver.plane.ledger.session_states

    run(test)


@fault(
    "a turn that takes for ever",
    sees="504 after `--turn-total`, wherever it is",
    retried="no",
    freed="its place, or its turn in the queue",
)
def test_a_turn_that_takes_for_ever() -> None:
    async def test() -> None:
        async with rig(driver=DriverSettings(turn_total_s=0.3, turn_idle_s=None)) as r:
            for name in ("r0", "r1"):
                r.served.driver.lost(name, "test")
                r.served.poller.blind.add(name)
            got = await post(r.client, CHAT, chat())
            assert got.status == 502
            assert "no answer in 0.3 s" in got.json["error"]["message"]
            assert not r.served.driver.facts()["waiting"]

    run(test)
