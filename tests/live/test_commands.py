"""The commands as a user starts them: emulate, serve, replay, top, verify-log, record."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cli.serve_options import replica_addresses
from workloads.model import Session, ToolCall, TurnSpec
from workloads.trace import load_trace, write_trace

LIMIT_S = 60.0


def agentsched(*words: str | Path) -> list[str]:
    return [sys.executable, "-m", "agentsched", *map(str, words)]


@contextmanager
def started(log: Path, *words: str | Path) -> Iterator[subprocess.Popen[bytes]]:
    with log.open("wb") as output:
        process = subprocess.Popen(agentsched(*words), stdout=output, stderr=output)
        try:
            yield process
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()


def urls(log: Path, count: int) -> list[str]:
    """Addresses that a started program has printed, once there are so many."""
    until = time.monotonic() + LIMIT_S
    while time.monotonic() < until:
        found = re.findall(r"http://127\.0\.0\.1:\d+", log.read_text())
        if len(found) >= count:
            return found
        time.sleep(0.1)
    raise AssertionError(f"no {count} addresses in: {log.read_text()}")


def stop(process: subprocess.Popen[bytes]) -> int:
    process.send_signal(signal.SIGINT)
    return process.wait(LIMIT_S)


def free_ports(count: int) -> int:
    """The first of so many free ports in a row."""
    for _ in range(50):
        with socket.socket() as sock:
            sock.bind(("127.0.0.1", 0))
            first: int = sock.getsockname()[1]
        try:
            for port in range(first, first + count):
                with socket.socket() as sock:
                    sock.bind(("127.0.0.1", port))
        except OSError:
            continue
        return first
    raise AssertionError("no free ports")


def done(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        agentsched(*words),
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        check=False,
        env={**os.environ, "COLUMNS": "100"},
    )


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    turns = (
        TurnSpec(40, 8, tools=(ToolCall("bash", 0.1),)),
        TurnSpec(20, 8, kept_turn=0, kept_tokens=48),
    )
    path = tmp_path / "small.jsonl"
    write_trace(path, [Session(f"s{i}", turns, "small", "recorded") for i in range(3)])
    return path


@pytest.mark.parametrize("option", ["--gather", "--no-gather"])
def test_many_streams_at_once_lose_nothing(tmp_path: Path, option: str) -> None:
    trace = tmp_path / "many.jsonl"
    turns = (TurnSpec(40, 60), TurnSpec(20, 30, kept_turn=0, kept_tokens=100))
    write_trace(trace, [Session(f"s{i}", turns, "many", "recorded") for i in range(48)])
    emulator, gateway = tmp_path / "emulate.log", tmp_path / "serve.log"
    port = free_ports(6)
    words = ("emulate", "--topology", "4x1xh100", "--port", str(port))
    with started(emulator, *words, "--speed", "0.5") as engines:
        backends = [f"--backend={url}" for url in urls(emulator, 4)[:2]]
        serve = ("serve", "--scheduler", "round-robin", *backends, "--port", str(port + 4), option)
        with started(gateway, *serve) as served:
            url = urls(gateway, 2)[0]
            played = done("replay", trace, "--url", url, "--workers", "48", "-o", tmp_path / "run")
            assert played.returncode in (0, 3), played.stderr  # 3: this machine is too busy
            assert re.search(r"turns ended +96\b", played.stdout)
            assert re.search(r"output tokens +4,?320\b", played.stdout)
            assert stop(served) == 0
        assert stop(engines) == 0
    assert "Traceback" not in gateway.read_text()


def test_from_engines_to_a_verified_log(tmp_path: Path, trace: Path) -> None:
    emulator, gateway = tmp_path / "emulate.log", tmp_path / "serve.log"
    events, runs = tmp_path / "events.jsonl", tmp_path / "run"
    port = free_ports(6)
    words = ("emulate", "--topology", "4x1xh100", "--port", str(port))
    with started(emulator, *words, "--speed", "5") as engines:
        backends = [f"--backend={url}" for url in urls(emulator, 4)[:2]]
        serve = ("serve", "--scheduler", "tao", *backends, "--port", str(port + 4))
        with started(gateway, *serve, "--event-log", events) as served:
            url, admin = urls(gateway, 2)
            played = done("replay", trace, "--url", url, "--workers", "3", "-o", runs)
            assert played.returncode in (0, 3), played.stderr  # 3: this machine is too busy
            assert re.search(r"turns ended +6\b", played.stdout)
            assert re.search(r"output tokens +48\b", played.stdout)
            shown = done("top", admin, "--once")
            assert shown.returncode == 0
            assert "tao" in shown.stdout
            assert "r1" in shown.stdout
            assert done("top", url, "--once").returncode == 1
            assert stop(served) == 0
        assert stop(engines) == 0
    checked = done("verify-log", events)
    assert checked.returncode == 0, checked.stderr
    assert "every decision the same" in checked.stdout
    summary = next(runs.glob("cells/*/summary.json")).read_text()
    assert '"label": "measured"' in summary or '"label":"measured"' in summary


def test_prefill_and_decode_on_different_engines(tmp_path: Path, trace: Path) -> None:
    """ConServe over four emulated engines; their KV events are followed as well."""
    emulator, gateway = tmp_path / "emulate.log", tmp_path / "serve.log"
    events, runs = tmp_path / "events.jsonl", tmp_path / "run"
    port = free_ports(14)
    words = ("emulate", "--topology", "1p3d-h100", "--port", str(port), "--speed", "5")
    with started(emulator, *words, "--kv-events-port", str(port + 6)) as engines:
        first, *others = urls(emulator, 4)
        backends = ["--prefill", first, *(f"--decode={url}" for url in others)]
        told = re.findall(r"KV events\s+(\S+)", emulator.read_text())
        at = "tcp://127.0.0.1"
        assert told == [f"{at}:{port + 6 + i},{at}:{port + 10 + i}" for i in range(4)]
        follow = [f"--kv-events={addresses}" for addresses in told]
        serve = ("serve", "--scheduler", "conserve", *backends, *follow, "--port", str(port + 4))
        with started(gateway, *serve, "--event-log", events) as served:
            url, admin = urls(gateway, 2)
            played = done("replay", trace, "--url", url, "--workers", "3", "-o", runs)
            assert played.returncode in (0, 3), played.stderr  # 3: this machine is too busy
            assert re.search(r"turns ended +6\b", played.stdout)
            shown = done("top", admin, "--once")
            assert "r0 prefill" in shown.stdout
            assert "r3 decode" in shown.stdout
            assert stop(served) == 0
        assert stop(engines) == 0
    assert events.read_text().count('"event":"LegFinished"') == 3  # once a conversation
    assert done("verify-log", events).returncode == 0


def test_record_writes_a_trace_that_reads_back(tmp_path: Path, trace: Path) -> None:
    emulator, gateway = tmp_path / "emulate.log", tmp_path / "record.log"
    out, port = tmp_path / "recorded.jsonl", free_ports(6)
    with started(emulator, "emulate", "--port", str(port), "--speed", "5") as engines:
        backend = f"--backend={urls(emulator, 4)[0]}"
        with started(gateway, "record", backend, "--port", str(port + 4), "-o", out) as recorder:
            url = urls(gateway, 2)[0]
            played = done("replay", trace, "--url", url, "--workers", "1", "--gaps", "none")
            assert played.returncode in (0, 3), played.stderr
            assert stop(recorder) == 0
        assert stop(engines) == 0
    recorded = load_trace(out)
    assert [len(s.turns) for s in recorded] == [2, 2, 2]
    assert [t.kept_tokens for s in recorded for t in s.turns] == [0, 48] * 3


def test_mistakes_are_told_in_a_line(tmp_path: Path, trace: Path) -> None:
    for words, code, said in (
        (("serve",), 2, "no engine to serve"),
        (("serve", "--prefill", "http://127.0.0.1:1"), 2, "no engine to serve"),
        (("serve", "--backend", "nonsense"), 2, "not the address of a server"),
        (("serve", "--backend", "http://127.0.0.1:1", "--scheduler", "x"), 2, "unknown scheduler"),
        (("serve", "--backend", "http://127.0.0.1:1", "--wait", "0"), 1, "does not answer"),
        (("replay", trace, "--url", "http://127.0.0.1:1"), 1, "nothing answers"),
        (("replay", trace, "--url", "http://127.0.0.1:1", "--gaps", "odd"), 2, "--gaps"),
        (("verify-log", trace), 2, "not an event log"),
        (("emulate", "--script", tmp_path / "none.jsonl"), 2, "cannot be read"),
    ):
        failed = done(*words)
        assert failed.returncode == code, (words, failed.stderr)
        assert said in failed.stderr
        assert "Traceback" not in failed.stderr


def test_addresses_of_kv_events_and_replays() -> None:
    given = ["tcp://h:1,tcp://h:2", "tcp://h:3"]
    found = replica_addresses(["http://h:8"], None, ["http://h:9"], given, None)
    assert [(r.kv_events, r.kv_replay) for r in found] == [
        ("tcp://h:1", "tcp://h:2"),
        ("tcp://h:3", None),
    ]
