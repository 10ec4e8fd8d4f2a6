"""Which replica served an answer: from the router's header, the answer's id, or a worker."""

from __future__ import annotations

import asyncio
import socket
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer
from harness.live.parts import ReplicaAddress
from harness.live.routers.naming import NamingRelay, SessionName
from harness.live.routers.served import HEADER, ServedBy
from harness.live.wire import Exchange, Request
from tests.live.rig import chat, post, run
from tests.routers.rig import emulated, fake_program

REPLICAS = [ReplicaAddress("r-0", "http://127.0.0.1:1"), ReplicaAddress("r1", "http://h:2/")]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        ("http://127.0.0.1:1", "r-0"),
        ("http://127.0.0.1:1/v1", "r-0"),
        ("http://h:2", "r1"),
        ("http://h:3", None),
        ("", None),
    ],
)
def test_by_the_router_s_header(value: str, name: str | None) -> None:
    assert ServedBy(REPLICAS, "x-worker").by_header({"x-worker": value}) == name
    assert ServedBy(REPLICAS, None).by_header({"x-worker": value}) is None


@pytest.mark.parametrize(
    ("part", "name"),
    [
        (b'data: {"id":"chatcmpl-r-0-12","object"', "r-0"),
        (b'{"id": "cmpl-r1-3", "object"', "r1"),
        (b'{"id":"chatcmpl-r2-3"', None),
        (b'{"id":"chatcmpl-2b0c6a1e-9d"', None),
        (b'{"id":"chatcmpl-r1', None),
        (b"", None),
    ],
)
def test_by_an_emulated_answer_s_id(part: bytes, name: str | None) -> None:
    assert ServedBy(REPLICAS, None).by_answer(part) == name


def test_by_what_a_worker_tells() -> None:
    async def test() -> None:
        served = ServedBy(REPLICAS, None)
        headers: dict[str, str] = {}
        assert served.name(headers) is None
        assert headers == {}
        await served.listen("x-request")
        name = served.name(headers)
        assert headers == {"x-request": name}
        host, _, port = (served.address or "").rpartition(":")
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as worker:
            for text in (f"{name} r1", "other nobody", "\xff"):
                worker.sendto(text.encode("latin-1"), (host, int(port)))
        await asyncio.sleep(0.05)
        assert served.replica("other", {}, b"") is None
        assert served.replica(name, {}, b"") == "r1"
        assert served.replica(name, {}, b"") is None
        served.close()

    run(test)


def test_clients_see_it_in_the_head_of_the_answer() -> None:
    """And the head waits for the first part, which may tell, but not for more of it."""

    async def test() -> None:
        exchanges: list[Exchange] = []
        router = HttpServer(lambda request, exchange: exchanges.append(exchange), _refused)
        port = await router.listen("127.0.0.1", 0)
        upstream = HttpClient(f"http://127.0.0.1:{port}")
        relay = NamingRelay(upstream, SessionName(), ServedBy(REPLICAS, "x-worker"))
        front = HttpServer(relay.handle, relay.refusal)
        client = HttpClient(f"http://127.0.0.1:{await front.listen('127.0.0.1', 0)}")
        seen = _Seen()
        client.send(Request("POST", "/v1/completions", {}, b"{}"), seen)
        while not exchanges:
            await asyncio.sleep(0.005)
        exchanges[0].head(200, [("content-type", "text/event-stream"), ("x-worker", "http://h:2")])
        exchanges[0].data(b'data: {"id":"cmpl-x"}\n\n')
        async with asyncio.timeout(2):
            while not seen.parts:
                await asyncio.sleep(0.005)
        assert seen.heads == [(200, "r1")]
        exchanges[0].cut()
        async with asyncio.timeout(2):
            await seen.ended.wait()
        assert seen.broken
        assert relay.broken == 1
        for each in (client, upstream, front, router):
            await each.close()

    run(test)


def test_behind_a_router_that_says_nothing(tmp_path: Path) -> None:
    """A fake router that is a plain relay: emulated replicas tell by their answers' ids."""
    from harness.live.routers import find_router

    fake_program(tmp_path, "vllm-router", PLAIN.format(path=sys.path))

    async def test() -> None:
        async with emulated(1) as replicas:
            settings = {"program": str(tmp_path)}
            front = find_router("vllm-router:random", settings, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            try:
                whole = await post(client, "/v1/chat/completions", chat())
                streamed = await post(client, "/v1/chat/completions", chat(stream=True))
            finally:
                await client.close()
                await front.close()
        assert (whole.status, streamed.status) == (200, 200)
        assert whole.headers[HEADER] == streamed.headers[HEADER] == "e0"

    run(test)


class _Seen:
    def __init__(self) -> None:
        self.heads: list[tuple[int, str | None]] = []
        self.parts: list[bytes] = []
        self.ended = asyncio.Event()
        self.broken = False

    def head(self, status: int, headers: Mapping[str, str]) -> None:
        self.heads.append((status, headers.get(HEADER)))

    def data(self, part: bytes) -> None:
        self.parts.append(part)

    def end(self) -> None:
        self.ended.set()

    def lost(self, reason: str, *, unreachable: bool) -> None:
        self.broken = True
        self.ended.set()


def _refused(path: str, status: int, message: str) -> tuple[list[tuple[str, str]], bytes]:
    return [], b"{}"


PLAIN = """
import asyncio, json, sys
sys.path[:] = {path!r}
from harness.live.http_client import HttpClient
from harness.live.http_server import HttpServer
from harness.live.parts import ReplicaAddress
from harness.live.routers.naming import NamingRelay
from harness.live.routers.served import ServedBy

words = sys.argv
url, port = words[words.index("--worker-urls") + 1], int(words[words.index("--port") + 1])

async def main():
    relay = NamingRelay(HttpClient(url), None, ServedBy([], None))

    def handle(request, exchange):
        if request.path != "/workers":
            relay.handle(request, exchange)
            return
        page = {{"workers": [{{"url": url, "is_healthy": True}}]}}
        exchange.reply(200, [], json.dumps(page).encode())

    await HttpServer(handle, relay.refusal).listen("127.0.0.1", port)
    await asyncio.Event().wait()

asyncio.run(main())
"""
