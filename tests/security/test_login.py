"""Commands that are clients of a gateway which asks for a token, over TLS: real processes."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentsched import UsageError
from harness.live.access import Access, TlsFiles
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.login import Login
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from scripts._soak import free_port
from tests.cli.command import environment
from tests.live.rig import engines, run
from workloads.model import Session, TurnSpec
from workloads.trace import load_trace, write_trace

TOKEN, ADMIN = "model-token-" + "m" * 20, "admin-token-" + "a" * 20


@asynccontextmanager
async def guarded(files: TlsFiles) -> AsyncIterator[ServedGateway]:
    fleet = FleetServer(engines(1), EmulatorSettings(tick_s=0.002))
    await fleet.start()
    settings = ServeSettings(
        port=0, tls=files, access=Access((TOKEN,)), admin_access=Access((ADMIN,))
    )
    served = ServedGateway(find_policy("round-robin", {}), fleet.urls, settings)
    try:
        await served.start()
        yield served
    finally:
        await served.close()
        await fleet.close()


async def start(arguments: Sequence[str | Path], folder: Path) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "agentsched", *map(str, arguments)),
        cwd=folder,
        env=environment(),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def said(folder: Path, *arguments: str | Path) -> tuple[int | None, str]:
    """Exit status of a command, and all that it said."""
    process = await start(arguments, folder)
    out, err = await process.communicate()
    text = (out + err).decode()
    assert "Traceback" not in text
    assert TOKEN not in text
    assert ADMIN not in text
    return process.returncode, text


def token_file(folder: Path, token: str) -> Path:
    path = folder / f"{token[:5]}.token"
    path.write_text(f"# of the tests\n{token}\n")
    path.chmod(0o600)
    return path


def tiny(folder: Path) -> Path:
    """Two sessions of two turns."""
    turns = (TurnSpec(40, 4), TurnSpec(60, 4, kept_turn=0, kept_tokens=44))
    path = folder / "tiny.jsonl"
    write_trace(path, [Session(f"s{number}", turns, "tiny", "recorded") for number in range(2)])
    return path


def test_top_is_let_in(tmp_path: Path, certificate: TlsFiles) -> None:
    admin = token_file(tmp_path, ADMIN)

    async def test() -> None:
        async with guarded(certificate) as served:
            trusted = ("--cacert", certificate.certificate)
            look = ("top", served.admin_url, "--once")
            status, text = await said(tmp_path, *look)
            assert (status, "certificate is not trusted" in text) == (2, True), text
            assert "--cacert" in text
            status, text = await said(tmp_path, *look, *trusted)
            assert (status, "asks for a token" in text) == (2, True), text
            status, text = await said(tmp_path, *look, *trusted, "--token-file", admin)
            assert (status, "round-robin: 0 sessions" in text) == (0, True), text

    run(test, limit_s=250)


def test_replay_is_let_in(tmp_path: Path, certificate: TlsFiles) -> None:
    model, admin = token_file(tmp_path, TOKEN), token_file(tmp_path, ADMIN)

    async def test() -> None:
        async with guarded(certificate) as served:
            play: list[str | Path] = ["replay", tiny(tmp_path), "--workers", "2"]
            play += ["--url", served.url]
            trusted = ("--cacert", str(certificate.certificate))
            status, text = await said(tmp_path, *play)
            assert (status, "certificate is not trusted" in text) == (2, True), text
            status, text = await said(tmp_path, *play, *trusted)
            assert (status, "asks for a token" in text) == (2, True), text
            play += [*trusted, "--token-file", model, "--admin-url", served.admin_url]
            status, text = await said(tmp_path, *play, "--admin-token-file", model)
            assert (status, "asks for a token" in text) == (2, True), text
            status, text = await said(tmp_path, *play, "--admin-token-file", admin)
            assert status in (0, 3), text  # 3: this client may have been too slow here
            assert served.driver.counts["turns_ok"] == 4
            assert not served.driver.sessions

    run(test, limit_s=250)


def test_record_before_a_guarded_gateway(tmp_path: Path, certificate: TlsFiles) -> None:
    """A gateway behind a gateway: the inner one's token and certificate, none of the outer's."""
    model, trace, port = token_file(tmp_path, TOKEN), tmp_path / "seen.jsonl", free_port()

    async def test() -> None:
        async with guarded(certificate) as served:
            serve: list[str | Path] = [
                "record",
                "-o",
                trace,
                "--backend",
                served.url,
                "--port",
                str(port),
            ]
            serve += ["--admin-port", str(free_port()), "--backend-key-file", model]
            status, text = await said(tmp_path, *serve)
            assert (status, "certificate is not trusted" in text) == (1, True), text
            assert "--backend-cacert" in text
            recorder = await start([*serve, "--backend-cacert", certificate.certificate], tmp_path)
            url = f"http://127.0.0.1:{port}"
            assert recorder.stderr is not None
            while line := await recorder.stderr.readline():
                if url.encode() in line:
                    break
            play = ("replay", tiny(tmp_path), "--workers", "2", "--url", url)
            status, text = await said(tmp_path, *play)
            assert status in (0, 3), text
            recorder.send_signal(signal.SIGTERM)
            await recorder.communicate()
            assert recorder.returncode == 0

    run(test, limit_s=250)
    assert len(load_trace(trace)) == 2


def test_certificates_that_are_none(tmp_path: Path) -> None:
    (tmp_path / "nonsense.pem").write_text("nonsense")
    for name in ("nonsense.pem", "absent.pem"):
        with pytest.raises(UsageError, match="cannot use the certificates"):
            Login(authorities=tmp_path / name).tls_for("https://x")
    assert Login(authorities=tmp_path / "absent.pem").tls_for("http://x") is None
    assert Login().tls_for("HTTPS://x") is not None
    assert TOKEN not in repr(Login(TOKEN))
