"""Clients that leave, engines that break: whatever happens, nothing is left behind."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest

from harness.live.serving import BackendError, ServedGateway, ServeSettings, find_policy
from harness.live.turns import DriverSettings
from harness.live.wire import Exchange, Request
from tests.live.rig import JSON, Got, chat, engines, get, post, rig, run, served_by

CHAT = "/v1/chat/completions"


def request(**fields: Any) -> Request:
    return Request("POST", CHAT, JSON, json.dumps(chat(**fields)).encode())


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("after", [0, 1, 3, 20])
def test_a_client_may_leave_at_any_point(stream: bool, after: int) -> None:
    """It leaves once `after` parts of the answer have come, or so many 2 ms have passed."""

    async def test() -> None:
        async with rig() as r:
            for number in range(8):
                got = Got()
                ask = request(text=f"task {number}", stream=stream, max_tokens=400, ignore_eos=True)
                sent = r.client.send(ask, got)
                for _ in range(after):
                    await asyncio.sleep(0.002)
                sent.cancel()
            await r.settled()
            counts = r.served.driver.counts
            assert counts.get("turns_client_gone", 0) + counts.get("turns_ok", 0) <= 8
            assert all(not s.open for s in r.served.driver.sessions.values())
            assert (await post(r.client, CHAT, chat())).status == 200

    run(test)


def test_a_client_may_leave_while_its_turn_is_held() -> None:
    """Two replicas are full of one session's text; the next is held, and leaves."""

    async def test() -> None:
        async with rig(scheduler="thunderagent", specs=engines(1, kv_blocks=80)) as r:
            # 80 blocks of 16 = 1,280 tokens; each prompt has 1,000.
            big = Got()
            r.client.send(
                request(text="a" * 4000, stream=True, max_tokens=200, ignore_eos=True), big
            )
            await big.moved.wait()
            held = Got()
            sent = r.client.send(request(text="b" * 4000, stream=True), held)
            async with asyncio.timeout(2):
                while r.served.driver.facts()["waiting"] == 0:
                    await asyncio.sleep(0.005)
            sent.cancel()
            async with asyncio.timeout(1):
                while r.served.driver.facts()["waiting"]:
                    await asyncio.sleep(0.005)
            assert r.served.driver.counts["turns_client_gone"] == 1
            await big.ended.wait()

    run(test)


def test_a_session_that_never_returns_expires() -> None:
    async def test() -> None:
        async with rig(driver=DriverSettings(idle_expiry_s=0.2)) as r:
            await post(r.client, CHAT, chat(), {"x-session-id": "s"})
            assert len((await get(r.admin, "/sessions")).json) == 1
            await asyncio.sleep(0.4)
            assert (await get(r.admin, "/sessions")).json == []
            assert r.served.driver.counts["sessions_expired"] == 1

    run(test)


def test_a_turn_moves_when_its_replica_is_dead() -> None:
    async def test() -> None:
        async with rig() as r:
            await r.fleet.stop_replica(0)
            for _ in range(3):
                got = await post(r.client, CHAT, chat(stream=True))
                assert got.status == 200
                assert got.headers["x-agentsched-replica"] == "r1"
            assert r.served.driver.is_down("r0")
            await r.fleet.restart_replica(0)
            async with asyncio.timeout(3):
                while r.served.driver.is_down("r0"):
                    await asyncio.sleep(0.01)
            used = {
                (await post(r.client, CHAT, chat())).headers["x-agentsched-replica"]
                for _ in range(4)
            }
            assert used == {"r0", "r1"}

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_replica_that_dies_in_mid_answer(stream: bool) -> None:
    async def test() -> None:
        async with rig() as r:
            got = Got()
            r.client.send(request(stream=stream, max_tokens=2000, ignore_eos=True), got)
            async with asyncio.timeout(2):
                while not any(f.sent for f in r.fleet.replicas[0]._flights.values()):
                    await asyncio.sleep(0.005)
            await asyncio.sleep(0.05)
            await r.fleet.stop_replica(0)
            await got.ended.wait()
            if stream:
                assert got.events[-2]["error"]["code"] == 502
                assert got.events[-1] == "[DONE]"
            else:  # its client has seen nothing yet, so the other replica can serve it
                assert got.status == 200
                assert got.headers["x-agentsched-replica"] == "r1"
            await r.settled()
            replica = r.served.driver.plane.ledger.replica("r0")
            assert replica.in_flight == 0
            assert replica.queued_prefill_tokens == 0

    run(test)


def test_no_replica_at_all() -> None:
    async def test() -> None:
        async with rig() as r:
            await r.fleet.stop_replica(0)
            await r.fleet.stop_replica(1)
            got = Got()
            sent = r.client.send(request(), got)  # held until one is back
            await asyncio.sleep(0.2)
            assert not got.ended.is_set()
            await r.fleet.restart_replica(1)
            await got.ended.wait()
            assert got.status == 200
            sent.cancel()

    run(test)


def _event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


TOKEN = b'{"id":"x","choices":[{"index":0,"delta":{"content":"hi"},"finish_reason":null}]}'
END = b'{"id":"x","choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}'
USAGE = b'{"id":"x","choices":[],"usage":{"prompt_tokens":5,"completion_tokens":1}}'
Stream = Callable[[Exchange], None]


def engine(answer: Callable[[int, Exchange], None]) -> Callable[[Request, Exchange], None]:
    """An engine whose n-th answer to a chat request is up to the test."""
    count = 0

    def handle(request: Request, exchange: Exchange) -> None:
        nonlocal count
        if request.path == CHAT:
            count += 1
            answer(count, exchange)
        else:
            exchange.reply(404, [], b"")

    return handle


def streaming(exchange: Exchange, *parts: bytes) -> None:
    exchange.head(200, [("content-type", "text/event-stream")])
    for part in parts:
        exchange.data(part)


async def ask(
    answer: Callable[[int, Exchange], None], *, stream: bool
) -> tuple[Got, dict[str, int]]:
    async with served_by(engine(answer)) as (served, client):
        got = await post(client, CHAT, chat(stream=stream))
        facts = served.driver.facts()
        assert (facts["in_flight"], facts["waiting"]) == (0, 0)
        return got, dict(served.driver.counts)


def test_a_last_token_waits_for_no_end() -> None:
    """The end as a rule comes with it, and then they go out together; here it takes its time."""
    last = TOKEN.replace(b"null", b'"length"')
    exchanges: list[Exchange] = []

    def answer(count: int, exchange: Exchange) -> None:
        exchanges.append(exchange)
        streaming(exchange, _event(TOKEN), _event(TOKEN), _event(last))

    async def test() -> None:
        async with served_by(engine(answer)) as (served, client):
            got = Got()
            client.send(request(stream=True), got)
            while got.body != 2 * _event(TOKEN) + _event(last):
                got.moved.clear()
                await got.moved.wait()
            assert not got.ended.is_set()
            exchanges[0].data(_event(USAGE))
            exchanges[0].data(_event(b"[DONE]"))
            exchanges[0].end()
            await got.ended.wait()
            assert got.body == 2 * _event(TOKEN) + _event(last) + _event(b"[DONE]")
            assert served.driver.counts["turns_ok"] == 1

    run(test)


def test_odd_but_readable_streams() -> None:
    """Comments, CR LF, events cut anywhere, several choices of line ends."""
    whole = (
        b": ping\n\n"
        + b"event: x\r\ndata: "
        + TOKEN
        + b"\r\n\r\n"
        + _event(END)
        + _event(USAGE)
        + _event(b"[DONE]")
    )

    def answer(count: int, exchange: Exchange) -> None:
        streaming(exchange, *(whole[i : i + 7] for i in range(0, len(whole), 7)))
        exchange.end()

    async def test() -> None:
        got, counts = await ask(answer, stream=False)
        assert got.status == 200
        assert got.json["choices"][0]["message"] == {"role": "assistant", "content": "hi"}
        assert got.json["usage"] == {"prompt_tokens": 5, "completion_tokens": 1}
        got, _ = await ask(answer, stream=True)
        assert got.body == whole.replace(_event(USAGE), b"")
        assert counts == {"turns_ok": 1, "sessions_closed": 1}

    run(test)


@pytest.mark.parametrize("stream", [True, False])
def test_a_stream_that_is_cut_before_a_token_is_tried_again(stream: bool) -> None:
    def answer(count: int, exchange: Exchange) -> None:
        if count == 1:
            streaming(exchange, b": hello\n\n")
            exchange.cut()
        elif count == 2:
            exchange.reply(503, [], b"busy")
        else:
            streaming(exchange, _event(TOKEN), _event(END), _event(b"[DONE]"))
            exchange.end()

    async def test() -> None:
        got, counts = await ask(answer, stream=stream)
        assert got.status == 200
        assert b"hello" not in got.body  # of the first attempt nothing is shown
        assert counts["retries"] == 2

    run(test)


def broken_token(count: int, exchange: Exchange) -> None:
    streaming(exchange, _event(TOKEN), _event(b"{broken"), _event(b"[DONE]"))
    exchange.end()


def early_end(count: int, exchange: Exchange) -> None:
    streaming(exchange, _event(TOKEN))
    exchange.end()


def cut_in_an_event(count: int, exchange: Exchange) -> None:
    streaming(exchange, _event(TOKEN), b"data: {")
    exchange.cut()


def error_event(count: int, exchange: Exchange) -> None:
    streaming(exchange, _event(TOKEN), _event(b'{"error":{"message":"out of memory"}}'))
    exchange.end()


def no_json(count: int, exchange: Exchange) -> None:
    exchange.reply(200, [("content-type", "text/html")], b"<html>")


def always_503(count: int, exchange: Exchange) -> None:
    exchange.reply(503, [], b"busy")


@pytest.mark.parametrize(
    ("answer", "stream", "status"),
    [
        (broken_token, False, 502),
        (early_end, False, 502),
        (early_end, True, 200),
        (cut_in_an_event, False, 502),
        (cut_in_an_event, True, 200),
        (error_event, False, 500),
        (error_event, True, 200),
        (no_json, False, 502),
        (no_json, True, 502),
        (always_503, False, 502),
        (always_503, True, 502),
    ],
)
def test_what_cannot_be_mended_is_told(
    answer: Callable[[int, Exchange], None], stream: bool, status: int
) -> None:
    async def test() -> None:
        got, counts = await ask(answer, stream=stream)
        assert got.status == status
        assert got.error is None
        assert counts["turns_failed"] == 1
        if status == 200:  # the stream had begun: its last words are the error
            assert got.events[-1] == "[DONE]"
            assert "error" in got.events[-2]
        else:
            assert got.json["error"]["message"]

    run(test)


def test_an_engines_refusal_is_passed_on() -> None:
    body = b'{"error":{"message":"too long","type":"BadRequestError","code":400}}'

    async def test() -> None:
        got, counts = await ask(lambda count, x: x.reply(400, [], body), stream=True)
        assert (got.status, got.body) == (400, body)
        assert "retries" not in counts

    run(test)


def test_a_slow_reader_slows_its_engine_only() -> None:
    """A client that stops reading holds back its own stream, so that no buffer grows for ever."""
    burst, bursts = _event(TOKEN) * 1000, 400
    slow: list[bool] = []
    sent = 0

    def answer(count: int, exchange: Exchange) -> None:
        exchange.on_pressure = slow.append
        exchange.head(200, [("content-type", "text/event-stream")])
        asyncio.get_running_loop().call_soon(go_on, exchange)

    def go_on(exchange: Exchange) -> None:
        nonlocal sent
        if sent == bursts:
            exchange.data(_event(b"[DONE]"))
            exchange.end()
            return
        if not slow or not slow[-1]:
            exchange.data(burst)
            sent += 1
        asyncio.get_running_loop().call_later(0.001, go_on, exchange)

    async def test() -> None:
        async with served_by(engine(answer)) as (served, client):
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, limit=4096)
            body = json.dumps(chat(stream=True)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            writer.write(head.encode() + body)
            while not slow:
                await asyncio.sleep(0.01)
            stalled = sent
            await asyncio.sleep(0.1)
            assert sent == stalled < bursts
            assert (await get(client, "/health")).status == 200  # others are served meanwhile
            received, data = 0, b"x"
            while data and not data.endswith(b"0\r\n\r\n"):
                data = await reader.read(1 << 16)
                received += len(data)
            assert received > bursts * len(burst)
            writer.close()

    run(test)
    assert slow[0] is True
    assert False in slow


def test_a_backend_that_is_not_there_is_told_of() -> None:
    """At once, not when the wait for it is over; and once, however long that is."""

    async def test() -> None:
        told: list[str] = []
        served = ServedGateway(
            find_policy("round-robin", {}),
            ["http://127.0.0.1:1"],
            ServeSettings(port=0, wait_s=1.2),
            tell=told.append,
        )
        with pytest.raises(BackendError, match="does not answer"):
            await served.start()
        await served.close()
        assert len(told) == 1
        assert told[0].startswith("r0: ")
        assert told[0].endswith("trying for 1 s more")

    run(test)
