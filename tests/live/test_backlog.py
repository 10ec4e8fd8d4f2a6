"""Chunks of streams under way wait for the loop's next turn: in order, and none is lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import uvloop
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.live.backlog import Backlog
from harness.live.http_client import HttpClient
from harness.live.wire import Call, Request
from tests.live.rig import Got, chat, post, rig, run

CHAT = "/v1/chat/completions"


class Line:
    """A connection that notes what it is given, in a list that all share."""

    def __init__(self, name: int, seen: list[tuple[int, bytes]]) -> None:
        self.name, self.seen = name, seen
        self.fails_at: bytes | None = None

    def take(self, data: bytes) -> None:
        if data == self.fails_at:
            raise RuntimeError("broken")
        self.seen.append((self.name, data))


async def idle(turns: int) -> None:
    for _ in range(turns):
        await asyncio.sleep(0)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.one_of(st.integers(0, 3), st.just(None), st.just("wait")), max_size=40))
def test_chunks_come_in_their_order_and_once(steps: list[Any]) -> None:
    """A step is a chunk on a connection, an end (None), or a turn of the event loop."""

    async def test() -> None:
        backlog, seen, sent = Backlog(), list[tuple[int, bytes]](), list[tuple[int, bytes]]()
        lines = [Line(number, seen) for number in range(4)]
        for at, step in enumerate(steps):
            if step == "wait":
                await asyncio.sleep(0)
            elif step is None:
                backlog.flush()
                assert seen == sent
            else:
                backlog.put(lines[step], b"%d" % at)
                sent.append((step, b"%d" % at))
            assert seen == sent[: len(seen)]
        await idle(2 + len(sent))
        assert seen == sent

    uvloop.run(test())


def test_what_comes_meanwhile_waits_for_one_chunk_at_most() -> None:
    order: list[str] = []

    class Noted(Line):
        def take(self, data: bytes) -> None:
            order.append("chunk")

    async def test() -> None:
        loop, backlog = asyncio.get_running_loop(), Backlog()
        for _ in range(3):
            backlog.put(Noted(0, []), b"x")
        loop.call_soon(order.append, "came with them")
        for _ in range(10):
            await asyncio.sleep(0)
        assert order == ["chunk", "came with them", "chunk", "chunk"]

    uvloop.run(test())


def test_a_chunk_that_fails_keeps_none_of_the_others() -> None:
    async def test() -> None:
        loop, backlog, seen = asyncio.get_running_loop(), Backlog(), list[tuple[int, bytes]]()
        problems: list[dict[str, Any]] = []
        loop.set_exception_handler(lambda _, context: problems.append(context))
        bad, good = Line(0, seen), Line(1, seen)
        bad.fails_at = b"1"
        for data in (b"0", b"1", b"2", b"3"):
            backlog.put(bad, data)
            backlog.put(good, data)
        await idle(12)
        assert seen == [(n, b"%d" % i) for i in range(4) for n in (0, 1) if (n, i) != (0, 1)]
        assert [str(problem["exception"]) for problem in problems] == ["broken"]

    uvloop.run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_many_answers_at_once_are_whole(stream: bool) -> None:
    """Forty answers of forty tokens at the same time: the texts are those of each alone."""

    async def test() -> None:
        async with rig() as r:
            bodies = [chat(f"task {n}", stream=stream, max_tokens=40) for n in range(40)]
            answers = await asyncio.gather(*(post(r.client, CHAT, body) for body in bodies))
            texts = [text_of(answer, stream) for answer in answers]
            assert all(answer.error is None for answer in answers)
            for body, text in zip(bodies[:3], texts, strict=False):
                assert text_of(await post(r.client, CHAT, body), stream) == text
            await r.settled()

    run(test)


def text_of(answer: Got, stream: bool) -> str:
    if not stream:
        return str(answer.json["choices"][0]["message"]["content"])
    assert answer.events[-1] == "[DONE]"
    deltas = [event["choices"][0]["delta"] for event in answer.events[:-1] if event["choices"]]
    return "".join(delta.get("content") or "" for delta in deltas)


HEAD = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


class UnderWay(Got):
    """Lets what follows the head wait."""

    sent: Call

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        super().head(status, headers)
        asyncio.get_running_loop().call_soon(lambda: self.sent.under_way())


Serve = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


@asynccontextmanager
async def client_of(serve: Serve, backlog: Backlog) -> AsyncIterator[HttpClient]:
    server = await asyncio.start_server(serve, "127.0.0.1", 0)
    client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", backlog=backlog)
    try:
        yield client
    finally:
        await client.close()
        server.close()


@pytest.mark.parametrize(
    ("rest", "error"),
    [(b"0\r\n\r\n", None), (b"", "the connection was closed"), (b"zz\r\n", "sent no HTTP")],
    ids=["whole", "broken off", "no HTTP"],
)
def test_all_that_came_is_delivered_before_the_end(rest: bytes, error: str | None) -> None:
    """On forty connections at once, so that much waits when they end."""
    served = 0
    all_there = asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal served
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        served += 1
        if served == 40:
            all_there.set()
        await all_there.wait()
        await asyncio.sleep(0.05)
        for number in range(9):
            writer.write(b"1\r\n%d\r\n" % number)
            await asyncio.sleep(0.001)
        writer.write(b"1\r\n9\r\n" + rest)
        writer.close()

    async def test() -> None:
        backlog = Backlog()
        async with client_of(serve, backlog) as client:
            answers = [UnderWay() for _ in range(40)]
            for got in answers:
                got.sent = client.send(Request("GET", "/"), got)
            for got in answers:
                await got.ended.wait()
        assert [got.body for got in answers] == [b"0123456789"] * 40
        assert backlog.streams == 0
        for got in answers:
            assert (got.error is None) if error is None else error in str(got.error)

    run(test)


def test_a_connection_ends_though_a_chunk_of_another_fails() -> None:
    """What waits when a connection ends is handled first: an error in that is not its own."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        await asyncio.sleep(0.05)
        writer.write(b"1\r\nx\r\n")
        writer.close()

    async def test() -> None:
        loop, problems = asyncio.get_running_loop(), list[dict[str, Any]]()
        loop.set_exception_handler(lambda _, context: problems.append(context))
        backlog, got, bad = Backlog(), UnderWay(), Line(0, [])
        bad.fails_at = b"1"
        async with client_of(serve, backlog) as client:
            got.sent = client.send(Request("GET", "/"), got)
            while not got.ended.is_set():
                backlog.put(bad, b"1")
                await asyncio.sleep(0)
        assert got.error == "the connection was closed"
        assert {str(problem["exception"]) for problem in problems} == {"broken"}

    run(test)


def test_nothing_is_delivered_after_a_cancel() -> None:
    """Even of what had come and was waiting."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(HEAD)
        for number in range(200):
            writer.write(b"3\r\n%03d\r\n" % number)
            await asyncio.sleep(0.001)
        writer.close()

    async def test() -> None:
        got, backlog = UnderWay(), Backlog()
        async with client_of(serve, backlog) as client:
            got.sent = client.send(Request("GET", "/"), got)
            while len(got.parts) < 20:
                got.moved.clear()
                await got.moved.wait()
            assert backlog.streams == 1
            got.sent.cancel()
            assert backlog.streams == 0
            before = len(got.parts)
            await asyncio.sleep(0.3)
            assert len(got.parts) == before
            assert not got.ended.is_set()

    run(test)
