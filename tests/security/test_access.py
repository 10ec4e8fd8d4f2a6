"""Who may come in: addresses, tokens, TLS, limits for each caller."""

from __future__ import annotations

import asyncio
import hmac
import json
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest

from agentsched import UsageError
from harness.live.access import Access, Guard, TlsFiles, is_loopback, read_tokens, tls_context
from harness.live.gateway import GatewaySettings
from harness.live.http_client import HttpClient
from harness.live.login import Login
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.wire import Exchange, Request
from tests.live.rig import Got, chat, get, post, run, served_by

CHAT = "/v1/chat/completions"
TOKEN, OTHER = "t" * 32, "u" * 32
BEARER = {"authorization": f"Bearer {TOKEN}"}


def engine(seen: list[Request]) -> Any:
    """An engine that answers a word, and keeps what it was asked."""

    def handle(request: Request, exchange: Exchange) -> None:
        seen.append(request)
        if request.path != CHAT:
            exchange.reply(404, [], b"")
            return
        exchange.head(200, [("content-type", "text/event-stream")])
        delta: dict[str, Any] = {"content": "hi"}
        for finish in (None, "stop"):
            choice = {"index": 0, "delta": delta, "finish_reason": finish}
            exchange.data(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")
            delta = {}
        exchange.data(b"data: [DONE]\n\n")
        exchange.end()

    return handle


@pytest.mark.parametrize(
    ("host", "is_one"),
    [
        ("127.0.0.1", True),
        ("127.9.9.9", True),
        ("::1", True),
        ("[::1]", True),
        ("localhost", True),
        ("0.0.0.0", False),
        ("::", False),
        ("10.0.0.1", False),
        ("localhost.evil.example", False),
        ("", False),
    ],
)
def test_loopback_is_told_from_the_rest(host: str, is_one: bool) -> None:
    assert is_loopback(host) is is_one


@pytest.mark.parametrize("port", ["model", "admin"])
def test_an_open_port_needs_a_token_or_the_operators_word(port: str) -> None:
    name = {"model": "host", "admin": "admin_host"}[port]
    rights = {"model": "access", "admin": "admin_access"}[port]

    def serve(given: Access) -> None:
        settings: dict[str, Any] = {name: "0.0.0.0", rights: given}
        ServedGateway(
            find_policy("round-robin", {}), ["http://127.0.0.1:9"], ServeSettings(**settings)
        )

    with pytest.raises(UsageError, match=f"the {port} port would listen on 0.0.0.0"):
        serve(Access())
    serve(Access((TOKEN,)))
    serve(Access(anyone=True))


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        (BEARER, 200),
        ({"authorization": f"bearer  {TOKEN}"}, 200),
        ({"x-api-key": TOKEN}, 200),
        ({"api-key": TOKEN}, 200),
        ({}, 401),
        ({"authorization": TOKEN}, 401),
        ({"authorization": "Bearer " + TOKEN[:-1]}, 401),
        ({"authorization": f"Bearer {TOKEN}x"}, 401),
        ({"authorization": "Bearer "}, 401),
        ({"x-api-key": "\xe9" * 32}, 401),
    ],
)
def test_only_the_token_opens_the_port(headers: dict[str, str], status: int) -> None:
    seen: list[Request] = []

    async def test() -> None:
        async with served_by(engine(seen), access=Access((TOKEN, OTHER))) as (served, client):
            seen.clear()
            got = await post(client, CHAT, chat(), headers)
            assert got.status == status
            assert (await get(client, "/health")).status == 200
            asked = [request for request in seen if request.path == CHAT]
            assert len(asked) == (status == 200)
            for request in asked:  # the gateway's token is not the engine's business
                assert TOKEN not in str(request.headers)
            if status == 401:
                assert got.headers["www-authenticate"] == "Bearer"
                assert not served.driver.sessions

    run(test)


def test_every_token_is_compared_in_constant_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each known token is looked at in full, whether or not an earlier one was right."""
    compared: list[tuple[bytes, bytes]] = []

    def compare(a: bytes, b: bytes) -> bool:
        compared.append((a, b))
        return a == b

    monkeypatch.setattr(hmac, "compare_digest", compare)
    names: list[str] = []
    guard = Guard(
        lambda request, exchange: names.append(request.caller),
        lambda path, status, message: ([], b""),
        Access((TOKEN, OTHER)),
    )
    guard.handle(Request("GET", "/v1/models", BEARER), Got())  # type: ignore[arg-type]
    assert names == ["key-0"]
    assert len(compared) == 2
    assert {len(digest) for pair in compared for digest in pair} == {32}


def test_the_engines_key_is_sent_and_nothing_of_the_callers() -> None:
    seen: list[Request] = []

    async def test() -> None:
        settings: dict[str, Any] = {"access": Access((TOKEN,)), "backend": Login("engine-key")}
        async with served_by(engine(seen), **settings) as (_, client):
            assert (await post(client, CHAT, chat(), BEARER)).status == 200
        assert {r.headers.get("authorization") for r in seen} == {"Bearer engine-key"}

    run(test)


def test_web_pages_are_not_served_without_a_token() -> None:
    async def test() -> None:
        async with served_by(engine([])) as (served, client):
            page = {"origin": "http://evil.example"}
            assert (await post(client, CHAT, chat(), page)).status == 403
            own = {"origin": "http://localhost:3000"}
            assert (await post(client, CHAT, chat(), own)).status == 200
            admin = HttpClient(served.admin_url)
            assert (await post(admin, "/sessions/s/release", {}, page)).status == 403
            await admin.close()

    run(test)


def test_sessions_of_one_key_are_limited_and_its_own() -> None:
    limits = GatewaySettings(sessions_per_key=2)

    async def test() -> None:
        settings: dict[str, Any] = {"access": Access((TOKEN, OTHER)), "gateway": limits}
        async with served_by(engine([]), **settings) as (served, client):

            async def ask(session: str, token: str) -> Got:
                headers = {"authorization": f"Bearer {token}", "x-session-id": session}
                return await post(client, CHAT, chat(), headers)

            assert [(await ask(s, TOKEN)).status for s in ("a", "b", "c", "a")] == [
                200,
                200,
                429,
                200,
            ]
            third = await ask("c", TOKEN)
            assert third.headers["retry-after"] == "1"
            assert "2 sessions" in third.json["error"]["message"]
            assert (await ask("a", OTHER)).status == 403  # not theirs
            assert (await ask("d", OTHER)).status == 200
            served.driver.release("a")
            assert (await ask("c", TOKEN)).status == 200

    run(test)


def test_the_queue_has_an_end() -> None:
    """No replica is up: turns wait, two of them."""

    async def test() -> None:
        async with served_by(engine([]), gateway=GatewaySettings(queue_length=2)) as (
            served,
            client,
        ):
            served.driver.lost("r0", "test")
            waiting = [Got(), Got()]
            body = json.dumps(chat()).encode()
            json_type = {"content-type": "application/json"}
            calls = [client.send(Request("POST", CHAT, json_type, body), got) for got in waiting]
            async with asyncio.timeout(5):
                while served.driver.facts()["waiting"] < 2:
                    await asyncio.sleep(0.005)
            third = await post(client, CHAT, chat())
            assert (third.status, third.headers["retry-after"]) == (429, "1")
            assert served.driver.counts["turns_refused_queue"] == 1
            for call in calls:
                call.cancel()

    run(test)


def test_tls_by_the_standard_library(certificate: TlsFiles) -> None:
    async def test() -> None:
        async with served_by(engine([]), tls=certificate) as (served, plain):
            assert served.url.startswith("https://")
            trusting = ssl.create_default_context(cafile=str(certificate.certificate))
            reader, writer = await asyncio.open_connection("127.0.0.1", served.port, ssl=trusting)
            body = json.dumps(chat(stream=True)).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\nconnection: close\r\ncontent-length: "
            writer.write(head.encode() + str(len(body)).encode() + b"\r\n\r\n" + body)
            answer = await reader.read()
            assert answer.startswith(b"HTTP/1.1 200 OK")
            assert answer.endswith(b"0\r\n\r\n")
            writer.close()
            old = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            old.check_hostname, old.verify_mode = False, ssl.CERT_NONE
            old.maximum_version = ssl.TLSVersion.TLSv1_1
            with pytest.raises((ssl.SSLError, ConnectionError, OSError)):
                await asyncio.open_connection("127.0.0.1", served.port, ssl=old)
            await plain.close()

    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of the old version, on purpose
        run(test)


def test_no_certificate_is_said_so(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("nonsense")
    with pytest.raises(UsageError, match="cannot use certificate"):
        tls_context(TlsFiles(tmp_path / "cert.pem"))
    with pytest.raises(UsageError, match="No such file"):
        tls_context(TlsFiles(tmp_path / "absent.pem"))


def test_token_files(tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    path.write_text(f"# of the lab\n{TOKEN}\n\n{OTHER}\n")
    path.chmod(0o644)
    with pytest.raises(UsageError, match="others may read it"):
        read_tokens(path)
    path.chmod(0o600)
    assert read_tokens(path) == (TOKEN, OTHER)
    path.write_text("# none\n")
    with pytest.raises(UsageError, match="holds no token"):
        read_tokens(path)
    with pytest.raises(UsageError, match="No such file"):
        read_tokens(tmp_path / "absent")


@pytest.mark.parametrize("token", ["short", "x" * 20 + "\n", "\xe9" * 20])
def test_tokens_that_are_none(token: str) -> None:
    with pytest.raises(UsageError) as error:
        Access((token,))
    assert token not in str(error.value)


def test_a_token_is_not_shown() -> None:
    settings = ServeSettings(access=Access((TOKEN,)), backend=Login("engine-key"))
    assert TOKEN not in repr(settings)
    assert "engine-key" not in repr(settings)


def test_the_admin_port_stays_on_loopback() -> None:
    async def test() -> None:
        settings: dict[str, Any] = {"host": "0.0.0.0", "access": Access((TOKEN,))}
        async with served_by(engine([]), **settings) as (served, client):
            assert served.admin_url.startswith("http://127.0.0.1:")
            with socket.socket() as probe:  # the same port on another address of this machine
                probe.settimeout(1.0)
                assert probe.connect_ex(("127.0.0.2", served.admin_port)) != 0
            await client.close()

    run(test)
