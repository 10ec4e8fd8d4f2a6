"""The HTTP server and client on raw sockets: cut, pipelined, wrong and rude traffic."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import UsageError
from harness.live.http_client import HttpClient
from harness.live.http_server import PIPELINE_LIMIT, HttpServer, Limits
from harness.live.wire import Exchange, Request
from tests.live.rig import Got, call, run


def echo(request: Request, exchange: Exchange) -> None:
    """Says what it was asked; /stream in parts, /late a moment later, /bug not at all."""
    said = f"{request.method} {request.target} ".encode() + request.body
    if request.path == "/bug":
        raise ZeroDivisionError
    if request.path == "/stream":
        exchange.head(200, [("content-type", "text/plain")])
        for start in range(0, len(said), 3):
            exchange.data(said[start : start + 3])
        exchange.end()
    elif request.path == "/late":
        asyncio.get_running_loop().call_later(0.02, exchange.reply, 200, [], said)
    else:
        exchange.reply(200, [], said)


@asynccontextmanager
async def serving(limits: Limits | None = None) -> AsyncIterator[int]:
    server = HttpServer(echo, lambda path, status, message: ([], message.encode()), limits)
    port = await server.listen("127.0.0.1", 0)
    try:
        yield port
    finally:
        await server.close()


async def raw(port: int, *parts: bytes) -> bytes:
    """Send parts one by one and read until the server hangs up."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for part in parts:
        writer.write(part)
        await asyncio.sleep(0)
    async with asyncio.timeout(5):
        answer = await reader.read()
    writer.close()
    return answer


LAST = b"GET /last HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
THREE = (
    b"POST /a HTTP/1.1\r\nhost: x\r\ncontent-length: 5\r\n\r\nhello"
    b"POST /late HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    b"3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n" + LAST
)


def bodies(answer: bytes) -> list[bytes]:
    found = []
    while answer:
        head, _, rest = answer.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        assert length is not None
        size = int(length[1])
        found.append(rest[:size])
        answer = rest[size:]
    return found


@settings(max_examples=25, deadline=None)
@given(st.lists(st.integers(0, len(THREE)), max_size=5).map(sorted))
def test_pipelined_requests_however_they_are_cut(cuts: list[int]) -> None:
    """The second is answered late; the third waits for it."""

    async def test() -> None:
        async with serving() as port:
            parts = [THREE[a:b] for a, b in zip([0, *cuts], [*cuts, len(THREE)], strict=True)]
            answer = await raw(port, *parts)
            assert bodies(answer) == [b"POST /a hello", b"POST /late abcde", b"GET /last "]

    run(test)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"nonsense\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nbad header\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nhost: x\r\nupgrade: websocket\r\nconnection: upgrade\r\n\r\n", b"400"),
        (b"GET / HTTP/1.1\r\nx: " + b"y" * 3000 + b"\r\n\r\n", b"431"),
        (b"POST / HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n", b"413"),
        (
            b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
            + b"400\r\n"
            + b"z" * 1024
            + b"\r\n400\r\n"
            + b"z" * 1024
            + b"\r\n",
            b"413",
        ),
        (b"POST / HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n", b"400"),
        (b"GET /bug HTTP/1.1\r\nhost: x\r\n\r\n", b"500"),
    ],
)
def test_what_is_refused(sent: bytes, status: bytes) -> None:
    async def test() -> None:
        quiet: list[object] = []
        asyncio.get_running_loop().set_exception_handler(
            lambda loop, context: quiet.append(context)
        )
        async with serving(Limits(header_bytes=2000, body_bytes=2000)) as port:
            answer = await raw(port, sent)
            assert answer.startswith(b"HTTP/1.1 " + status), answer
            assert bool(quiet) == (status == b"500")  # our own mistake is reported, others' not
            assert await raw(port, LAST)  # and the next one is served

    run(test)


def test_expect_and_head() -> None:
    async def test() -> None:
        async with serving() as port:
            asked = (
                b"POST / HTTP/1.1\r\nhost: x\r\nexpect: 100-continue\r\ncontent-length: 2\r\n\r\n"
            )
            answer = await raw(port, asked, b"hi" + LAST)
            assert answer.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200")
            for path in (b"/", b"/stream"):
                head = await raw(port, b"HEAD " + path + LAST.removeprefix(b"GET /last"))
                assert head.endswith(b"\r\n\r\n")

    run(test)


def test_a_client_that_sends_too_far_ahead() -> None:
    async def test() -> None:
        async with serving() as port:
            request = b"GET /late HTTP/1.1\r\nhost: x\r\n\r\n"
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request * (PIPELINE_LIMIT + 5))
            async with asyncio.timeout(5):
                with suppress(ConnectionError):
                    while await reader.read(1000):
                        pass
            assert reader.at_eof() or reader.exception() is not None
            writer.close()

    run(test)


def test_connections_are_used_again() -> None:
    async def test() -> None:
        async with serving() as port:
            client = HttpClient(f"http://127.0.0.1:{port}/base")
            for number in range(5):
                got = await call(client, Request("POST", "/x", {}, b"%d" % number))
                assert got.body == b"POST /base/x %d" % number
            assert client.connections_made == 1
            many = [Got() for _ in range(4)]
            for got in many:
                client.send(Request("GET", "/late"), got)
            for got in many:
                await got.ended.wait()
            assert client.connections_made == 4
            await client.close()

    run(test)


def test_a_kept_connection_that_the_server_has_closed() -> None:
    """The request goes out again on a new one; its sender does not notice."""

    async def test() -> None:
        async with serving() as port:
            client = HttpClient(f"http://127.0.0.1:{port}")
            await call(client, Request("GET", "/"))
        async with serving_on(port):
            got = await call(client, Request("GET", "/again"))
            assert got.body == b"GET /again "
            await client.close()

    run(test)


@asynccontextmanager
async def serving_on(port: int) -> AsyncIterator[None]:
    server = HttpServer(echo, lambda path, status, message: ([], b""))
    await server.listen("127.0.0.1", port)
    try:
        yield
    finally:
        await server.close()


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"HTTP/1.1 200 OK\r\ncontent-length: 10\r\n\r\nabc",
        b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        b"",
    ],
)
def test_a_server_that_speaks_no_http(answer: bytes) -> None:
    async def test() -> None:
        async def rude(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(answer)
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(rude, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        got = await call(client, Request("GET", "/"))
        assert got.error is not None
        await client.close()
        server.close()
        await server.wait_closed()

    run(test)


def test_an_answer_until_the_server_hangs_up() -> None:
    async def test() -> None:
        async def old(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.0 200 OK\r\n\r\nsome text")
            await writer.drain()
            writer.close()

        server = await asyncio.start_server(old, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        got = await call(client, Request("GET", "/"))
        assert (got.error, got.body) == (None, b"some text")
        await client.close()
        server.close()
        await server.wait_closed()

    run(test)


@pytest.mark.parametrize(
    "url", ["", "localhost:80", "ftp://x", "http://", "http://x:y", "http://x?a"]
)
def test_addresses_that_are_none(url: str) -> None:
    with pytest.raises(UsageError):
        HttpClient(url)


def test_headers_that_drip() -> None:
    """A byte now and then does not hold a connection; a slow body, and idling, are no offence."""

    async def test() -> None:
        async with serving(Limits(header_s=0.15)) as port:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await asyncio.sleep(0.2)  # nothing was begun yet
            writer.write(b"POST /a HTTP/1.1\r\ncontent-length: 2\r\n\r\n")
            await asyncio.sleep(0.2)
            writer.write(b"xy")
            assert b"POST /a xy" in await reader.readuntil(b"xy")
            began = asyncio.get_running_loop().time()
            reading = asyncio.ensure_future(reader.read())
            for byte in b"GET /b HTTP/1.1\r\nx: " + b"y" * 500:
                if reading.done():
                    break
                writer.write(bytes([byte]))
                await asyncio.sleep(0.01)
            answer = await reading
            assert answer.startswith(b"HTTP/1.1 408")
            assert asyncio.get_running_loop().time() - began < 3
            writer.close()

    run(test)


def test_spare_connections_are_open_where_some_are_in_use() -> None:
    """One for up to four in use; none for a request without a body."""

    async def ask(client: HttpClient, count: int) -> None:
        asked = (call(client, Request("POST", "/late", body=b"x")) for _ in range(count))
        answers = await asyncio.gather(*asked)
        assert all(answer.error is None for answer in answers)

    async def made(client: HttpClient, count: int) -> None:
        async with asyncio.timeout(5):
            while client.connections_made < count or client._opening is not None:
                await asyncio.sleep(0.01)
        assert client.connections_made == count

    async def test() -> None:
        async with serving() as port:
            client = HttpClient(f"http://127.0.0.1:{port}", spare=True)
            for _ in range(3):
                assert (await call(client, Request("GET", "/late"))).error is None
            await made(client, 1)
            for _ in range(3):
                await ask(client, 1)
            await made(client, 2)
            await ask(client, 8)
            await made(client, 9)  # two were there, six had to be waited for, one is spare
            for _ in range(3):
                await ask(client, 8)
            await made(client, 10)
            await client.close()

    run(test)


def test_spare_connections_to_a_server_that_is_gone_trouble_nobody() -> None:
    async def test() -> None:
        async with serving() as port:
            client = HttpClient(f"http://127.0.0.1:{port}", spare=True)
            assert (await call(client, Request("GET", "/x"))).error is None
        asked = Request("POST", "/x", body=b"x")
        held = [asyncio.ensure_future(call(client, asked)) for _ in range(9)]
        for one in held:
            assert "cannot reach" in str((await one).error)
        await asyncio.sleep(0.05)
        assert client._opening is None
        await client.close()

    run(test)


def test_an_answer_sent_ahead_is_not_the_next_ones() -> None:
    """The next request goes out while the bytes that hold it are still being read."""
    whole = "HTTP/1.1 200 OK\r\ncontent-length: 6\r\n\r\n"

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{whole}first!{whole}forged".encode())
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"{whole}second".encode())
        writer.close()

    async def test() -> None:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        client = HttpClient(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
        second = Got()

        class ThenAnother(Got):
            def end(self) -> None:
                client.send(Request("GET", "/2"), second)
                super().end()

        first = ThenAnother()
        client.send(Request("GET", "/1"), first)
        async with asyncio.timeout(5):
            await second.ended.wait()
        assert (first.body, second.body) == (b"first!", b"second")
        await client.close()
        server.close()

    run(test)
