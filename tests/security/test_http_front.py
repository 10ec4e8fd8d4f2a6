"""The HTTP front against h11: no request is seen where there is none, or seen otherwise."""

from __future__ import annotations

import asyncio
import contextlib
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from harness.live.http_client import HttpClient
from harness.live.http_exchange import head_bytes
from harness.live.http_server import HttpServer, Limits
from harness.live.wire import Exchange, Request, header_text
from tests.live.rig import Got, run
from tests.security.front import judged, ours

POST = b"POST /v1/chat/completions HTTP/1.1\r\nhost: a\r\n"
HIDDEN = b"GET /hidden HTTP/1.1\r\nhost: a\r\n\r\n"


@pytest.mark.parametrize(
    "data",
    [
        POST + b"content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: chunked\r\ncontent-length: 5\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"content-length: 5\r\ncontent-length: 6\r\n\r\nhello" + HIDDEN,
        POST + b"content-length: 5, 6\r\n\r\nhello" + HIDDEN,
        POST + b"content-length: +5\r\n\r\nhello" + HIDDEN,
        POST + b"content-length: 0x5\r\n\r\nhello" + HIDDEN,
        POST + b"content-length: -1\r\n\r\n" + HIDDEN,
        POST + b"content-length : 5\r\n\r\nhello" + HIDDEN,
        POST + b"content-length: 99999999999999999999\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: chunked, identity\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: a\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: xchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding:\x0bchunked\r\n\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: chunked\r\n\r\n5;\nx\r\nhello\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: chunked\r\n\r\n0x5\r\nhello\r\n0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: chunked\r\n\r\n5\r\nhelloXX0\r\n\r\n" + HIDDEN,
        POST + b"transfer-encoding: chunked\r\n\r\nffffffffffffffff1\r\n" + HIDDEN,
        POST + b"x: y\r\n folded\r\n\r\n" + HIDDEN,
        b"POST / HTTP/1.1\nhost: a\n\n" + HIDDEN,
        POST + b"x: a\rb\r\n\r\n" + HIDDEN,
        POST + b"x: a\x00b\r\n\r\n" + HIDDEN,
        POST + b"bad name: x\r\n\r\n" + HIDDEN,
        POST + b": empty\r\n\r\n" + HIDDEN,
        b"GET /a b HTTP/1.1\r\nhost: a\r\n\r\n" + HIDDEN,
        b"GET / HTTP/1.2\r\nhost: a\r\n\r\n" + HIDDEN,
        b"GET / HTTP/2.0\r\nhost: a\r\n\r\n" + HIDDEN,
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + HIDDEN,
        b"CONNECT evil.example:443 HTTP/1.1\r\nhost: evil.example\r\n\r\n" + HIDDEN,
        b"GET / HTTP/1.1\r\nhost: a\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + HIDDEN,
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + HIDDEN,
    ],
)
def test_no_request_is_smuggled(data: bytes) -> None:
    """Whatever is wrong with a request, what follows it is not taken for another one."""
    whole = ours([data])
    assert "/hidden" not in [target for _, target, _ in whole.requests]
    cut = ours([data[i : i + 1] for i in range(len(data))])
    assert cut.requests == whole.requests
    if whole.refused:
        assert whole.written.startswith(b"HTTP/1.1 4")
        assert not whole.open


name = st.sampled_from(
    [b"host", b"content-length", b"transfer-encoding", b"connection", b"x-a", b"expect", b"te"]
)
value = st.sampled_from(
    [b"a", b"0", b"3", b"5", b"chunked", b"close", b"keep-alive", b"gzip, chunked", b"", b" 3 "]
) | st.binary(max_size=6)
line_end = st.sampled_from([b"\r\n"] * 12 + [b"\n", b"\r", b"\r\n "])
chunk = st.sampled_from([b"3\r\nabc\r\n", b"0\r\n\r\n", b"1;x=y\r\nz\r\n", b"A\r\n", b"\r\n"])


@st.composite
def requests(draw: st.DrawFn) -> bytes:
    """One request, right or nearly so."""
    method = draw(st.sampled_from([b"GET", b"POST", b"HEAD", b"PUT", b"get", b"G@T"]))
    target = draw(st.sampled_from([b"/", b"/a?b=c", b"http://evil.example/x", b"*", b"/\x80"]))
    version = draw(st.sampled_from([b"HTTP/1.1"] * 8 + [b"HTTP/1.0", b"HTTP/1.3", b"http/1.1"]))
    lines = [method + b" " + target + b" " + version, b"host: a"]
    lines += [n + b": " + v for n, v in draw(st.lists(st.tuples(name, value), max_size=3))]
    data = b"".join(line + draw(line_end) for line in lines) + b"\r\n"
    return data + b"".join(draw(st.lists(chunk, max_size=3)))


streams = st.lists(requests(), min_size=1, max_size=3).map(b"".join)


@given(streams, st.lists(st.integers(0, 200), max_size=4))
@settings(max_examples=400, deadline=None)
@example(b"GET / HTTP/1.1\r\nhost: a\r\ncontent-length: 3\r\n\r\n3\r\nabc\r\n", [3])
@example(b"GET / HTTP/1.0\r\nhost: a\r\nconnection: keep-alive\r\n\r\n" * 2, [])
@example(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n\r\nGET / HTTP/1.1\r\nhost: a\r\n\r\n", [])
def test_the_front_sees_what_h11_sees(data: bytes, cuts: list[int]) -> None:
    places = sorted({min(cut, len(data)) for cut in cuts} | {0, len(data)})
    parts = [data[a:b] for a, b in pairwise(places)] or [data]
    fed = ours(parts)
    found, objection = judged(data)
    for position, request in enumerate(fed.requests):
        # Where h11 objects, or needs more, we must not have found a request either.
        assert position < len(found), (request, objection)
        assert request == found[position]


def test_what_may_be_sent_is_bounded() -> None:
    small = Limits(header_bytes=200, body_bytes=10)
    endless = ours([POST + b"x: ", *[b"y" * 50] * 6], small)
    assert endless.written.startswith(b"HTTP/1.1 431")
    assert ours([POST + b"x: " + b"y" * 300 + b"\r\nz:"], small).written.startswith(b"HTTP/1.1 431")
    many = b"".join(b"h%d: x\r\n" % i for i in range(100))
    assert ours([POST + many], small).written.startswith(b"HTTP/1.1 431")
    assert ours([POST + b"content-length: 11\r\n\r\n"], small).written.startswith(b"HTTP/1.1 413")
    chunked = POST + b"transfer-encoding: chunked\r\n\r\n" + b"6\r\nabcdef\r\n" * 2
    assert ours([chunked], small).written.startswith(b"HTTP/1.1 413")
    assert ours([b"GET /" + b"a" * 300 + b" "], small).written.startswith(b"HTTP/1.1 431")


def limited(limits: Limits, sent: bytes, answer: bytes) -> None:
    """A client sends that and nothing more; it is answered and hung up on."""

    async def test() -> None:
        server = HttpServer(
            lambda request, exchange: exchange.reply(200, [], b"ok"),
            lambda path, status, message: ([], b""),
            limits,
        )
        port = await server.listen("127.0.0.1", 0)
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(sent)
        async with asyncio.timeout(5):
            assert (await reader.read()).startswith(answer)
        writer.close()
        assert not server.connections
        await server.close()

    run(test)


def test_slow_headers_bodies_and_idle_connections_end() -> None:
    limited(Limits(header_s=0.1), POST[:20], b"HTTP/1.1 408")
    limited(Limits(body_s=0.1), POST + b"content-length: 9\r\n\r\nabc", b"HTTP/1.1 408")
    limited(Limits(idle_s=0.1), b"", b"")
    limited(Limits(idle_s=0.1), b"GET / HTTP/1.1\r\nhost: a\r\n\r\n", b"HTTP/1.1 200")


def test_connections_are_counted() -> None:
    async def test() -> None:
        server = HttpServer(
            lambda request, exchange: exchange.reply(200, [], b"ok"),
            lambda path, status, message: ([], b""),
            Limits(connections=2),
        )
        port = await server.listen("127.0.0.1", 0)
        kept = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        async with asyncio.timeout(5):
            with contextlib.suppress(ConnectionResetError):
                assert await reader.read() == b""
        for _, each in [*kept, (reader, writer)]:
            each.close()
        await server.close()

    run(test)


@given(st.text(max_size=30))
@settings(max_examples=200, deadline=None)
@example("a\r\nset-cookie: b")
@example("a\x85b\u2028c\x00")
def test_no_text_ends_its_header(text: str) -> None:
    head = head_bytes(200, [("x-agentsched-session", text)], 0, True)
    assert head.count(b"\r\n") == 4
    assert head.count(b"\n") == head.count(b"\r") == 4
    assert b"\x00" not in head
    sent = HttpClient("http://127.0.0.1:1")._request_bytes(Request("GET", "/", {"x": text}))
    assert sent.count(b"\n") == sent.count(b"\r") == 4


def test_printable_headers_stay_as_they_are() -> None:
    assert header_text("application/json; q=0.5\t\xe9") == "application/json; q=0.5\t\xe9"


@pytest.mark.parametrize(
    ("target", "status"),
    [
        ("http://evil.example/v1/chat/completions", 404),
        ("//evil.example/v1/models", 404),
        ("/v1/../v1/models", 404),
        ("/v1/models/../../metrics", 404),
        ("/v1/%6dodels", 404),
        ("/metrics", 404),
        ("/reset_prefix_cache", 404),
        ("*", 404),
    ],
)
def test_no_open_proxy_and_no_path_escape(target: str, status: int) -> None:
    """Engines are asked only for what the gateway serves, whatever a target says."""
    from tests.live.rig import served_by

    asked: list[str] = []

    def engine(request: Request, exchange: Exchange) -> None:
        asked.append(request.target)
        exchange.reply(404, [], b"")

    async def test() -> None:
        async with served_by(engine) as (_, client):
            asked.clear()
            for method in ("GET", "POST"):
                got = Got()
                client.send(Request(method, target, {"content-type": "application/json"}), got)
                await got.ended.wait()
                assert got.status == status
            assert set(asked) <= {"/metrics"}  # its own look at the replica

    run(test)


def test_headers_that_steer_routers_and_engines_do_not_pass() -> None:
    import json

    from tests.live.rig import chat, post, served_by

    seen: list[Request] = []

    def engine(request: Request, exchange: Exchange) -> None:
        seen.append(request)
        exchange.reply(400, [], b"{}")

    async def test() -> None:
        async with served_by(engine) as (_, client):
            steering = {
                "x-data-parallel-rank": "7",
                "x-smg-target-worker": "http://evil.example",
                "proxy-authorization": "Basic eDp5",
                "transfer-encoding-x": "kept",
            }
            await post(client, "/v1/chat/completions", chat(), steering)
        asked = [request for request in seen if request.method == "POST"]
        assert len(asked) == 1
        assert not set(asked[0].headers) & {"x-data-parallel-rank", "x-smg-target-worker"}
        assert "proxy-authorization" not in asked[0].headers
        assert int(asked[0].headers["content-length"]) == len(asked[0].body)
        assert json.loads(asked[0].body)["messages"]

    run(test)
