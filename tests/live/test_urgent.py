"""Chunks wait for others only as long as nothing urgent comes, and only where there are many."""

from __future__ import annotations

import asyncio
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from time import monotonic

import pytest
import uvloop

from cli.serve_options import serve_settings
from harness.live import backlog as backlog_module
from harness.live import urgent as urgent_module
from harness.live.backlog import GATHER_FROM, Backlog
from harness.live.serving import ServeSettings
from harness.live.urgent import Urgent
from tests.live.rig import chat, post, rig, run

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="epoll is Linux's")

LONG_S = 30.0
"""A wait that only an urgent socket can have ended, if the test ends at all."""


@contextmanager
def pair() -> Iterator[tuple[socket.socket, socket.socket]]:
    ours, theirs = socket.socketpair()
    ours.setblocking(False)
    with ours, theirs:
        yield ours, theirs


@pytest.mark.parametrize("selectable", [urgent_module._SELECTABLE, 0])
def test_what_came_before_or_comes_in_the_wait_ends_it(
    monkeypatch: pytest.MonkeyPatch, selectable: int
) -> None:
    """Also where the process has so many files open that select(2) is of no use."""
    monkeypatch.setattr(urgent_module, "_SELECTABLE", selectable)
    urgent = Urgent()
    with pair() as (ours, theirs):
        urgent.watch(ours.fileno())
        urgent.watch(ours.fileno())  # twice is once
        theirs.send(b"x")
        urgent.wait(LONG_S)
        assert ours.recv(9) == b"x"
        sending = threading.Timer(0.05, theirs.send, (b"y",))
        sending.start()
        urgent.wait(LONG_S)
        assert ours.recv(9) == b"y"
        sending.join()


@pytest.mark.parametrize("selectable", [urgent_module._SELECTABLE, 0])
def test_other_sockets_end_no_wait(monkeypatch: pytest.MonkeyPatch, selectable: int) -> None:
    monkeypatch.setattr(urgent_module, "_SELECTABLE", selectable)
    urgent = Urgent()
    with pair() as (watched, _), pair() as (other, its_peer), pair() as (former, its_own):
        for one in (watched, former):
            urgent.watch(one.fileno())
        urgent.unwatch(former.fileno())
        urgent.unwatch(other.fileno())  # never watched
        its_peer.send(b"x")
        its_own.send(b"x")
        began = monotonic()
        urgent.wait(0.05)
        assert monotonic() - began >= 0.05


def test_a_closed_socket_is_no_longer_watched_and_its_number_may_be_again() -> None:
    urgent = Urgent()
    with pair() as (ours, theirs):
        number = ours.fileno()
        urgent.watch(number)
        ours.close()
        urgent.unwatch(number)
        theirs.close()
    with pair() as (ours, theirs):
        urgent.watch(ours.fileno())
        theirs.send(b"x")
        urgent.wait(LONG_S)


def test_nothing_is_waited_for_while_a_connection_is_made() -> None:
    urgent = Urgent()
    urgent.connecting = 1
    urgent.wait(LONG_S)


class Line:
    def __init__(self, seen: list[str], name: str = "chunk") -> None:
        self.seen, self.name = seen, name

    def take(self, data: bytes) -> None:
        self.seen.append(self.name)


def gathering(seconds: float, monkeypatch: pytest.MonkeyPatch) -> Backlog:
    monkeypatch.setattr(backlog_module, "GATHER_S", seconds)
    made = Backlog(Urgent())
    made.streams = GATHER_FROM
    return made


def test_an_urgent_socket_is_served_before_what_is_gathered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def test() -> None:
        loop, seen = asyncio.get_running_loop(), list[str]()
        with pair() as (ours, theirs):
            backlog = gathering(1.0, monkeypatch)
            assert backlog.urgent is not None
            backlog.urgent.watch(ours.fileno())

            def came() -> None:
                ours.recv(9)
                seen.append("request")

            loop.add_reader(ours.fileno(), came)
            monkeypatch.setattr(backlog_module, "LATEST_S", 2.0)
            backlog.put(Line(seen), b"x")
            sending = threading.Timer(0.05, theirs.send, (b"x",))
            sending.start()
            while "chunk" not in seen:
                await asyncio.sleep(0.01)
            loop.remove_reader(ours.fileno())
            sending.join()
        assert seen == ["request", "chunk"]

    uvloop.run(test())


def test_chunks_that_come_in_the_wait_go_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """And in the order in which they came."""

    async def test() -> None:
        loop, seen = asyncio.get_running_loop(), list[str]()
        with pair() as (ours, theirs):
            backlog = gathering(1.0, monkeypatch)

            def came() -> None:
                backlog.put(Line(seen, "second"), ours.recv(9))

            loop.add_reader(ours.fileno(), came)
            backlog.put(Line(seen, "first"), b"x")
            sending = threading.Timer(0.05, theirs.send, (b"x",))
            sending.start()
            while not seen:
                await asyncio.sleep(0)
            assert len(backlog._chunks) == 2 - len(seen)  # it came in the wait
            while len(seen) < 2:
                await asyncio.sleep(0)
            assert seen == ["first", "second"]
            loop.remove_reader(ours.fileno())
            sending.join()

    uvloop.run(test())


@pytest.mark.parametrize("times", [1, 1000])
def test_the_wait_begins_anew_when_something_went_out_but_not_for_ever(
    monkeypatch: pytest.MonkeyPatch, times: int
) -> None:
    """Whoever that woke has the processor first; chunks come in the end, however much goes out."""
    monkeypatch.setattr(backlog_module, "LATEST_S", 0.3)

    async def test() -> None:
        seen, went_out = list[str](), 0
        backlog = gathering(0.1, monkeypatch)
        urgent = backlog.urgent
        assert urgent is not None
        began = monotonic()
        backlog.put(Line(seen), b"x")
        while not seen:
            await asyncio.sleep(0)
            if went_out < times and monotonic() - began > 0.05:
                urgent.served = True
                went_out += 1
        took = monotonic() - began
        assert took >= (0.15 if times == 1 else 0.3)
        assert times == 1 or went_out < times  # the limit ended it, not the end of what went out

    uvloop.run(test())


def test_chunks_of_few_streams_wait_for_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        seen = list[str]()
        backlog = gathering(LONG_S, monkeypatch)
        backlog.streams -= 1
        backlog.put(Line(seen), b"x")
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == ["chunk"]

    uvloop.run(test())


def test_a_flush_ends_the_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    async def test() -> None:
        seen = list[str]()
        backlog = gathering(LONG_S, monkeypatch)
        backlog.put(Line(seen), b"x")
        backlog.flush()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert seen == ["chunk"]

    uvloop.run(test())


@pytest.mark.parametrize("stream", [True, False])
def test_a_gateway_that_gathers_counts_its_streams_down_again(stream: bool) -> None:
    """Sixty answers at once, so that chunks are gathered."""

    async def test() -> None:
        async with rig(gather=True) as r:
            backlog = next(iter(r.served.clients.values())).backlog
            assert backlog is not None
            path, most = "/v1/chat/completions", 0

            async def watch() -> None:
                nonlocal most
                while True:
                    most = max(most, backlog.streams)
                    await asyncio.sleep(0.001)

            watching = asyncio.ensure_future(watch())
            bodies = [chat(f"task {n}", stream=stream, max_tokens=60) for n in range(60)]
            asked = [asyncio.ensure_future(post(r.client, path, body)) for body in bodies]
            answers = await asyncio.gather(*asked)
            assert all(answer.error is None and answer.status == 200 for answer in answers)
            assert most >= GATHER_FROM
            again = await post(r.client, path, bodies[0])
            assert again.body.count(b'"content"') == answers[0].body.count(b'"content"')
            watching.cancel()
            await r.settled()
            assert backlog.streams == 0

    run(test)


def test_gathering_is_asked_for() -> None:
    """Only a process that does nothing else may block its loop; `serve` and `record` do."""
    assert not ServeSettings().gather
    assert serve_settings(
        host="127.0.0.1",
        port=0,
        admin_port=None,
        share=1.0,
        idle_expiry=1.0,
        poll=1.0,
        wait=1.0,
        allow_urls=False,
    ).gather
