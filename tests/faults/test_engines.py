"""Engines that fail in every way we know: what callers see, what is retried, what is freed."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from harness.live.wire import Exchange, Request
from tests.faults.matrix import fault
from tests.faults.stage import CHAT, faulted
from tests.live.rig import JSON, Got, chat, post, run, served_by

LONG: dict[str, Any] = {"max_tokens": 400, "ignore_eos": True}


@fault(
    "replica killed in the middle of streams",
    sees="an error event (502) as the stream's last; nothing if no token had come",
    retried="turns of which no token was delivered",
    freed="its turns, its tokens; its sessions lose their place",
)
@pytest.mark.parametrize("stream", [True, False])
def test_replica_killed_in_mid_stream(stream: bool) -> None:
    async def test() -> None:
        async with faulted() as f:
            got = Got()
            headers = {**JSON, "x-session-id": "s"}
            body = json.dumps(chat(stream=stream, **LONG)).encode()
            f.client.send(Request("POST", CHAT, headers, body), got)
            async with asyncio.timeout(5):
                while not any(x.sent for x in f.fleet.replicas[0]._flights.values()):
                    await asyncio.sleep(0.002)
            await asyncio.sleep(0.05)
            await f.fleet.stop_replica(0)
            await got.ended.wait()
            if stream:
                assert got.events[-2]["error"]["code"] == 502
                assert "retries" not in f.counts  # tokens were delivered: never repeated silently
            else:
                assert got.status == 200
                assert f.counts["retries"] == 1
            await f.fleet.restart_replica(0)

    run(test)


@fault(
    "replica that accepts and never answers",
    sees="the answer of another replica, later; 504 if all are silent",
    retried="yes, after `--turn-idle` without a byte",
    freed="the turn's place at the silent replica",
)
def test_replica_that_never_answers() -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave("silent")
            got = await f.ask()
            assert got.status == 200
            assert got.headers["x-agentsched-replica"] == "r1"
            assert f.counts["turns_silent"] == 1
            f.misbehave("silent", replica=1)
            got = await f.ask()
            assert got.status == 504
            assert "silent" in got.json["error"]["message"]

    run(test)


@fault(
    "replica that stops in the middle of a stream",
    sees="an error event (504) as the stream's last",
    retried="no: tokens were delivered",
    freed="the turn's place",
)
def test_replica_that_stalls() -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave("stall")
            got = await f.ask(stream=True, **LONG)
            assert got.status == 200
            assert got.events[-2]["error"]["code"] == 504
            assert "retries" not in f.counts

    run(test)


@fault(
    "replica that answers 500",
    sees="the engine's own 500",
    retried="no: the request may be what breaks it",
    freed="the turn's place",
)
def test_replica_that_answers_500() -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave("status-500", count=1)
            got = await f.ask()
            assert (got.status, f.counts["turns_failed"]) == (500, 1)
            assert (await f.ask()).status == 200

    run(test)


@fault(
    "replica that answers 429",
    sees="the engine's 429",
    retried="no: the caller is told to come back",
    freed="the turn's place",
)
def test_replica_that_answers_429() -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave("status-429", count=1)
            got = await f.ask()
            assert got.status == 429
            assert "retries" not in f.counts

    run(test)


@fault(
    "replica that answers 503 with Retry-After",
    sees="the answer of another replica; 502 after three attempts",
    retried="yes, three attempts in all",
    freed="each attempt's place",
)
def test_replica_that_answers_503() -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave("status-503")
            got = await f.ask()
            assert (got.status, f.counts["retries"]) == (200, 1)
            f.misbehave("status-503", replica=1)
            assert (await f.ask()).status == 502
            assert f.counts["retries"] == 3

    run(test)


@fault(
    "half a chunk, then a closed connection",
    sees="an error event (502); the answer of another replica if not streamed",
    retried="turns of which no token was delivered",
    freed="the turn's place",
)
@pytest.mark.parametrize("kind", ["half-chunk", "cut"])
def test_half_a_chunk(kind: str) -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave(kind)
            got = await f.ask(stream=True, **LONG)
            assert got.events[-2]["error"]["code"] == 502
            assert "retries" not in f.counts
            f.misbehave(kind, replica=1)
            f.misbehave(kind, count=1)
            got = await f.ask(**LONG)
            assert got.status in (200, 502)
            assert f.counts["retries"] >= 1

    run(test)


@fault(
    "malformed server-sent events",
    sees="streamed: passed on as they came; else 502",
    retried="no: tokens were read",
    freed="the turn's place",
)
def test_malformed_events() -> None:
    async def test() -> None:
        async with faulted() as f:
            f.misbehave("malformed")
            f.misbehave("malformed", replica=1)
            assert (await f.ask(**LONG)).status == 502
            got = await f.ask(stream=True, **LONG)
            assert got.status == 200

    run(test)


@fault(
    "wrong usage, or none",
    sees="nothing: the answer is theirs, the counts are what the gateway saw",
    retried="no",
    freed="as ever",
)
@pytest.mark.parametrize("kind", ["wrong-usage", "no-usage"])
@pytest.mark.parametrize("stream", [True, False])
def test_usage_that_is_wrong_or_missing(kind: str, stream: bool) -> None:
    async def test() -> None:
        async with faulted() as f:
            for replica in (0, 1):
                f.misbehave(kind, replica=replica)
            for _ in range(3):
                assert (await f.ask(stream=stream, max_tokens=8)).status == 200
            (session,) = f.served.driver.plane.ledger.session_states.values()
            assert 0 < session.tokens < 10_000

    run(test)


@fault(
    "metrics endpoint gone, or lying",
    sees="nothing: turns go on",
    retried="not concerned",
    freed="impossible gauges are dropped",
)
@pytest.mark.parametrize("kind", ["metrics-gone", "metrics-lie"])
@pytest.mark.parametrize("scheduler", ["round-robin", "tao", "thunderagent", "smetric", "lmetric"])
def test_metrics_that_are_gone_or_lie(kind: str, scheduler: str) -> None:
    async def test() -> None:
        async with faulted(scheduler=scheduler) as f:
            for replica in (0, 1):
                f.misbehave(kind, replica=replica)
            await asyncio.sleep(0.3)
            got = await asyncio.gather(*(f.ask(session=f"s{i}", max_tokens=4) for i in range(8)))
            assert [each.status for each in got] == [200] * 8
            for state in f.served.driver.plane.ledger.replica_states.values():
                assert state.healthy
                sample = state.sample
                if sample is not None and sample.waiting is not None:
                    assert sample.waiting >= 0

    run(test)


@fault(
    "events of another form than the API has",
    sees="502, or an error event (502) as the stream's last",
    retried="turns of which no token was delivered",
    freed="the turn's place",
)
@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("event", [b'{"choices": 1}', b"[]", b'{"choices":[{"delta":[1]}]}'])
def test_events_of_another_form(stream: bool, event: bytes) -> None:
    def engine(request: Request, exchange: Exchange) -> None:
        if request.path != CHAT:
            exchange.reply(404, [], b"")
            return
        exchange.head(200, [("content-type", "text/event-stream")])
        exchange.data(b"data: " + event + b"\n\ndata: [DONE]\n\n")
        exchange.end()

    async def test() -> None:
        async with served_by(engine) as (served, client):
            got = await post(client, CHAT, chat(stream=stream))
            assert got.ended.is_set()
            assert got.status in (200, 502)
            facts = served.driver.facts()
            assert (facts["in_flight"], facts["waiting"]) == (0, 0)

    run(test)
