"""Turns in two legs over real HTTP: prompts computed on one replica, answered on another."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from cli.main import app
from harness.live.driver import LiveDriver
from harness.live.eventlog import verify
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer
from harness.live.legs import REMOTE_DECODE, Bootstrap, prefill_body
from harness.live.parts import ReplicaAddress
from harness.live.polling import server_info_bootstrap
from harness.live.replica_watch import ReplicaWatch, transfer_facts
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.wire import Exchange, Request
from tests.live.rig import KV_BYTES, LINK, Rig, chat, engines, get, post, rig, run

SPLIT = engines(roles=("prefill", "decode"))
LONG = "word " * 400
"""2,000 bytes: 500 tokens, with the system prompt and roles a little more."""

SLOW = "word " * 12_000
"""15,000 tokens: a prefill of 150 ms."""


def held(r: Rig) -> list[int]:
    """Blocks of each engine that requests hold."""
    for replica in r.fleet.replicas:
        replica.advance()
    return [replica.engine.state().held_blocks for replica in r.fleet.replicas]


def usage_of(answer: Any) -> dict[str, int]:
    found: dict[str, int] = answer.json["usage"]
    return found


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("bootstrap", [False, True], ids=["nixl", "bootstrap"])
def test_prompt_on_one_replica_answer_on_the_other(bootstrap: bool, stream: bool) -> None:
    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT, bootstrap=bootstrap) as r:
            body = chat(LONG, stream=stream)
            got = await post(r.client, "/v1/chat/completions", body)
            assert got.status == 200
            assert got.headers["x-agentsched-replica"] == "r1"
            assert got.headers["x-agentsched-prefill"] == "r0"
            assert got.headers["x-agentsched-prefill-cached"] == "0"
            assert "kv_transfer_params" not in got.body.decode()
            if stream:
                assert got.events[-1] == "[DONE]"
            else:
                assert usage_of(got)["completion_tokens"] == 8
            states = [replica.engine.state() for replica in r.fleet.replicas]
            prompt = states[0].prefill_tokens
            assert prompt > 500
            # The decoder computes the last token of the prompt, the rest it copied.
            assert states[1].prefill_tokens == 1
            assert states[1].decode_tokens == 7  # the first comes with the prompt's last token
            await r.settled()
            assert held(r) == [0, 0]
            exchange = r.fleet.replicas[0].exchange
            assert exchange is not None
            assert exchange.counters()["kv.transfers"] == 1
            # 100 kB a token at 10 GB/s. The gateway hears of it with its next poll.
            copied = exchange.received["e1"]
            assert copied.bytes == pytest.approx((prompt - 1) * KV_BYTES, abs=KV_BYTES * 16)
            assert copied.seconds == pytest.approx(copied.bytes / 10e9)
            shown = 'agentsched_engine_kv_transfers_total{scheduler="disaggregated",replica="r1"} 1'
            async with asyncio.timeout(5):
                while shown not in (page := (await get(r.admin, "/metrics")).body.decode()):
                    await asyncio.sleep(0.02)
            for name in ("prefill_legs_total", "kv_handovers_total"):
                assert f'agentsched_{name}{{scheduler="disaggregated"}} 1\n' in page
            assert r.served.driver.legs.prefill_ns > 0

    run(test)


def test_a_watch_counts_the_transfers_of_a_cell() -> None:
    """Of two transfers, the one after the first look; its bytes over 10 GB/s are its time."""

    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT) as r:
            named = zip(("r0", "r1"), r.fleet.urls, strict=True)
            watch = ReplicaWatch([ReplicaAddress(name, url) for name, url in named])
            try:
                nothing = await watch.growth_since(await watch.read())
                assert transfer_facts(nothing.transfers) == {}, "nothing was counted yet"
                start = await watch.read()
                for number in range(2):
                    before = await watch.read()
                    text = f"{number} {LONG}"
                    await post(r.client, "/v1/chat/completions", chat(text))
                both, last = await watch.growth_since(start), await watch.growth_since(before)
            finally:
                await watch.close()
            assert both.counters["engine.kv_transfers.r1"] == 2
            assert last.counters["engine.kv_transfers.r1"] == 1
            found = transfer_facts(last.transfers)["kv_transfers"]
            assert found["count"] == 1
            assert found["bytes"] > 500 * KV_BYTES
            assert found["seconds"] == pytest.approx(found["bytes"] / 10e9)
            assert r.served.driver.legs.handovers == 2

    run(test)


@pytest.mark.parametrize("path", ["/v1/completions", "/v1/messages", "/v1/responses"])
def test_every_api_in_two_legs(path: str) -> None:
    bodies: dict[str, dict[str, Any]] = {
        "/v1/completions": {"prompt": LONG, "max_tokens": 5},
        "/v1/messages": {"messages": [{"role": "user", "content": LONG}], "max_tokens": 5},
        "/v1/responses": {"input": LONG, "max_output_tokens": 5},
    }

    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT, all_apis=True) as r:
            got = await post(r.client, path, {"model": "emulated", **bodies[path]})
            assert got.status == 200, got.body
            assert r.fleet.replicas[1].engine.state().prefill_tokens == 1

    run(test)


@pytest.mark.parametrize("scheduler", ["conserve", "ampd", "collocated", "disaggregated"])
def test_policies_and_their_log(scheduler: str, tmp_path: Path) -> None:
    """Sessions of several turns; the log of it all, fed back, gives the same decisions."""
    log = tmp_path / "events.jsonl"

    async def session(r: Rig, name: str) -> None:
        messages: list[dict[str, str]] = []
        for turn in range(3):
            messages.append({"role": "user", "content": f"{name} {turn} {LONG}"})
            body = {"model": "emulated", "messages": messages, "max_tokens": 6}
            got = await post(r.client, "/v1/chat/completions", body, {"x-session-id": name})
            assert got.status == 200, got.body
            messages.append(got.json["choices"][0]["message"])

    async def test() -> None:
        specs = engines(roles=("prefill", "decode", "decode"))
        async with rig(scheduler=scheduler, specs=specs, event_log=log) as r:
            await asyncio.gather(*(session(r, f"s{i}") for i in range(4)))
            legs = r.served.driver.legs
            expected = {"conserve": 4, "disaggregated": 12, "collocated": 0}
            if scheduler in expected:  # ConServe prefills remotely once a conversation
                assert legs.prefill_legs == legs.handovers == expected[scheduler]
            await r.settled()

    run(test)
    count, difference = verify(log)
    assert count > 24  # twelve turns: arrival, first token, end
    assert difference is None


@pytest.mark.parametrize("bootstrap", [False, True], ids=["nixl", "bootstrap"])
def test_the_prefill_replica_dies(bootstrap: bool) -> None:
    """In the middle of its leg: the client, who has seen nothing, is served by the other one."""

    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT, bootstrap=bootstrap) as r:
            waiting = asyncio.ensure_future(post(r.client, "/v1/chat/completions", chat(SLOW)))
            while not r.fleet.replicas[0].in_flight:
                await asyncio.sleep(0.001)
            await r.fleet.stop_replica(0)
            got = await waiting
            assert got.status == 200, got.body
            assert got.headers["x-agentsched-replica"] == "r1"
            assert "x-agentsched-prefill" not in got.headers
            await r.settled()

    run(test)


@pytest.mark.parametrize("bootstrap", [False, True], ids=["nixl", "bootstrap"])
def test_the_decode_replica_dies(bootstrap: bool) -> None:
    """With nobody left to decode the prefill replica serves alone; no KV stays behind."""

    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT, bootstrap=bootstrap) as r:
            body = chat(SLOW, stream=False)
            waiting = asyncio.ensure_future(post(r.client, "/v1/chat/completions", body))
            while not r.fleet.replicas[1].in_flight:
                await asyncio.sleep(0.0005)
            await r.fleet.stop_replica(1)
            got = await waiting
            assert got.status == 200, got.body
            assert got.headers["x-agentsched-replica"] == "r0"
            await r.settled()
            assert held(r)[0] == 0

    run(test)


@pytest.mark.parametrize("bootstrap", [False, True], ids=["nixl", "bootstrap"])
@pytest.mark.parametrize("busy", [0, 1])
def test_a_client_that_leaves_frees_both(busy: int, bootstrap: bool) -> None:
    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT, bootstrap=bootstrap) as r:
            client = HttpClient(r.served.url)
            body = json.dumps(chat(SLOW, max_tokens=4000, ignore_eos=True)).encode()
            waiting = asyncio.ensure_future(post(client, "/v1/chat/completions", body))
            while not r.fleet.replicas[busy].in_flight:
                await asyncio.sleep(0.0005)
            await client.close()
            waiting.cancel()
            await r.settled()
            async with asyncio.timeout(1.0):  # a running step is finished first
                while any(held(r)):
                    await asyncio.sleep(0.01)

    run(test)


Engine = Callable[[Request, Exchange], None]


@asynccontextmanager
async def pair(prefill: Engine, decode: Engine) -> AsyncIterator[tuple[ServedGateway, HttpClient]]:
    """A gateway in front of two hand-made engines."""
    servers = [
        HttpServer(h, lambda path, status, text: ([], text.encode())) for h in (prefill, decode)
    ]
    urls = [f"http://127.0.0.1:{await server.listen('127.0.0.1', 0)}" for server in servers]
    served = ServedGateway(
        find_policy("disaggregated", {}),
        urls,
        ServeSettings(port=0, wait_s=5.0),
        roles={"r0": "prefill", "r1": "decode"},
    )
    try:
        await served.start()
        client = HttpClient(served.url)
        yield served, client
        await client.close()
    finally:
        await served.close()
        for server in servers:
            await server.close()


class Engines:
    """A prefill engine that answers `answers` in turn, a decode engine that streams two tokens."""

    def __init__(self, *answers: tuple[int, Any]) -> None:
        self.answers = list(answers)
        self.prefills: list[dict[str, Any]] = []
        self.decodes: list[dict[str, Any]] = []

    def prefill(self, request: Request, exchange: Exchange) -> None:
        if request.method == "GET":
            exchange.reply(404, [], b"")
            return
        self.prefills.append(json.loads(request.body))
        status, body = self.answers.pop(0)
        exchange.reply(status, [("content-type", "application/json")], json.dumps(body).encode())

    def decode(self, request: Request, exchange: Exchange) -> None:
        if request.method == "GET":
            exchange.reply(404, [], b"")
            return
        self.decodes.append(json.loads(request.body))
        exchange.head(200, [("content-type", "text/event-stream")])
        for text in ("a", "b"):
            chunk = {"choices": [{"index": 0, "delta": {"content": text}}]}
            exchange.data(f"data: {json.dumps(chunk)}\n\n".encode())
        end = {"choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}
        exchange.data(f"data: {json.dumps(end)}\n\ndata: [DONE]\n\n".encode())
        exchange.end()


KV = {"do_remote_prefill": True, "remote_engine_id": "x", "remote_block_ids": [[1, 2]]}


def test_what_the_legs_are_asked() -> None:
    """Only the gateway names peers; the prefill leg is for one token, the decode leg as it was."""
    engines = Engines((200, {"kv_transfer_params": KV}))

    async def test() -> None:
        async with pair(engines.prefill, engines.decode) as (served, client):
            forged = {"do_remote_prefill": True, "remote_host": "10.0.0.1"}
            body = chat(
                stream=True,
                min_tokens=4,
                max_completion_tokens=9,
                stop=["x"],
                tool_choice="required",
                kv_transfer_params=forged,
                bootstrap_host="10.0.0.1",
            )
            got = await post(client, "/v1/chat/completions", body)
            assert got.status == 200
            assert served.driver.counts["turns_ok"] == 1

    run(test)
    (prefill,), (decode,) = engines.prefills, engines.decodes
    assert prefill["kv_transfer_params"] == REMOTE_DECODE
    assert prefill["max_tokens"] == prefill["max_completion_tokens"] == 1
    assert prefill["stream"] is False
    assert prefill["tool_choice"] == "none"
    assert not {"stream_options", "min_tokens", "stop", "bootstrap_host"} & set(prefill)
    assert decode["kv_transfer_params"] == KV
    assert (decode["min_tokens"], decode["max_completion_tokens"]) == (4, 9)
    assert decode["tool_choice"] == "required"
    assert decode["messages"] == prefill["messages"]
    assert "bootstrap_host" not in decode


def test_a_prefill_without_kv_lets_the_decoder_compute() -> None:
    engines = Engines((200, {"kv_transfer_params": None}))

    async def test() -> None:
        async with pair(engines.prefill, engines.decode) as (served, client):
            assert (await post(client, "/v1/chat/completions", chat())).status == 200
            assert served.driver.counts["prefill_legs_without_kv"] == 1

    run(test)
    assert "kv_transfer_params" not in engines.decodes[0]


def test_a_prefill_that_cannot_just_now_is_tried_again() -> None:
    engines = Engines((503, {}), (200, {"kv_transfer_params": KV}))

    async def test() -> None:
        async with pair(engines.prefill, engines.decode) as (_, client):
            got = await post(client, "/v1/chat/completions", chat())
            assert got.status == 200
            assert got.headers["x-agentsched-attempts"] == "2"

    run(test)


def test_what_the_prefill_engine_refuses_the_client_hears() -> None:
    refusal = {"error": {"message": "too long", "type": "BadRequestError", "code": 400}}
    engines = Engines((400, refusal))

    async def test() -> None:
        async with pair(engines.prefill, engines.decode) as (_, client):
            got = await post(client, "/v1/chat/completions", chat())
            assert (got.status, got.json) == (400, refusal)
            assert not engines.decodes

    run(test)


def test_bootstrap_fields_and_where_they_come_from() -> None:
    meeting = Bootstrap("10.1.2.3", 8998)
    fields = meeting.fields(7)
    assert fields == {
        "bootstrap_host": "10.1.2.3",
        "bootstrap_port": 8998,
        "bootstrap_room": 7,
    }
    body = json.dumps({"messages": [], "stream": True, "max_tokens": 50, **fields}).encode()
    asked = json.loads(prefill_body(body, one_token=False))
    assert asked == {"messages": [], "stream": False, "max_tokens": 50, **fields}
    info = {"disaggregation_mode": "prefill", "disaggregation_bootstrap_port": 8999}
    assert server_info_bootstrap(json.dumps(info).encode()) == 8999
    assert (
        server_info_bootstrap(json.dumps({**info, "disaggregation_mode": "null"}).encode()) is None
    )
    assert server_info_bootstrap(b"?") is None


def test_a_late_prefill_answer_is_nothing_new() -> None:
    """With both legs at once, the decoder's first token may tell of the handover first."""
    calls: list[str] = []

    class Spy(LiveDriver):
        def _feed(self, event: Any) -> None:
            calls.append(type(event).__name__)
            super()._feed(event)

    async def test() -> None:
        async with rig(scheduler="disaggregated", specs=SPLIT, bootstrap=True) as r:
            r.served.driver.__class__ = Spy
            original = r.fleet.replicas[0].handle

            def slow(request: Request, exchange: Exchange) -> None:
                if request.method == "POST":
                    reply = exchange.reply
                    later = asyncio.get_running_loop().call_later

                    class Late:
                        def __getattr__(self, name: str) -> Any:
                            return getattr(exchange, name)

                        def reply(self, *args: Any) -> None:
                            later(0.3, reply, *args)

                    original(request, Late())
                else:
                    original(request, exchange)

            r.fleet._servers[0].handler = slow
            got = await post(r.client, "/v1/chat/completions", chat(LONG, max_tokens=200))
            assert got.status == 200
            assert "x-agentsched-prefill-cached" not in got.headers
            await r.settled()

    run(test)
    wanted = ["LegFinished", "FirstToken", "TurnFinished"]
    assert [name for name in calls if name in wanted] == wanted


def test_options_of_serve() -> None:
    runner = CliRunner()
    only_prefill = runner.invoke(app, ["serve", "--prefill", "http://127.0.0.1:1"])
    assert only_prefill.exit_code != 0
    unequal = ["serve", "--prefill", "http://127.0.0.1:1", "--decode", "http://127.0.0.1:2"]
    unequal += ["--bootstrap-port", "1", "--bootstrap-port", "2"]
    assert runner.invoke(app, unequal).exit_code != 0


def test_blocks_that_nobody_fetches_are_let_go() -> None:
    """After 30 s of the engine's time, here a third of a second."""

    async def test() -> None:
        fleet = FleetServer(SPLIT, speed=100.0, link=LINK)
        await fleet.start()
        client = HttpClient(fleet.urls[0])
        try:
            body = json.loads(prefill_body(json.dumps(chat(LONG)).encode(), one_token=True))
            answer = (await post(client, "/v1/chat/completions", body)).json
            assert answer["kv_transfer_params"]["remote_num_tokens"] > 500
            replica = fleet.replicas[0]
            assert replica.engine.state().held_blocks > 30
            async with asyncio.timeout(5):
                while replica.engine.state().held_blocks:
                    await asyncio.sleep(0.02)
            asked = {**body, "kv_transfer_params": answer["kv_transfer_params"]}
            decoder = HttpClient(fleet.urls[1])
            late = (await post(decoder, "/v1/chat/completions", asked)).json
            assert late["usage"]["completion_tokens"] == 1  # computed by itself
            assert fleet.replicas[1].engine.state().prefill_tokens > 500
            await decoder.close()
        finally:
            await client.close()
            await fleet.close()

    run(test)
