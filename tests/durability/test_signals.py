"""Servers and clients that are told to end: what runs may end first, unless they are told twice."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from scripts._soak import fetch, free_port
from tests.durability.processes import marked, start, turns_in, wait_until
from workloads.model import Session, TurnSpec
from workloads.trace import load_trace, write_trace

LONG = 400
"""Tokens of an answer; the engine emulated here makes some 110 a second."""


@dataclass
class Served:
    """An emulator and what stands before it, by port."""

    engine: subprocess.Popen[str]
    gateway: subprocess.Popen[str]
    ports: tuple[int, int]
    mark: str


@contextmanager
def served(folder: Path, *command: str | Path) -> Iterator[Served]:
    ports, mark = [free_port() for _ in range(3)], f"signals {folder}"
    engine = start(
        *("emulate", "--topology", "1x1xh100", "--port", str(ports[0])), cwd=folder, mark=mark
    )
    backend = ("--backend", f"http://127.0.0.1:{ports[0]}", "--wait", "60")
    port = ("--port", str(ports[1]), "--admin-port", str(ports[2]))
    gateway = start(*command, *backend, *port, cwd=folder, mark=mark)
    try:
        models = f"http://127.0.0.1:{ports[1]}/v1/models"
        wait_until(lambda: fetch(models), "the gateway", process=gateway)
        yield Served(engine, gateway, (ports[0], ports[1]), mark)
    finally:
        for process in (gateway, engine):
            process.kill()
            process.communicate()


class Stream:
    """A streamed answer under way, over a plain socket."""

    def __init__(self, port: int) -> None:
        body = {"model": "m", "messages": [{"role": "user", "content": "go on"}], "stream": True}
        text = json.dumps({**body, "max_tokens": LONG, "ignore_eos": True}).encode()
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=60)
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}"
        self._socket.sendall(head.encode() + b"\r\n\r\n" + text)
        self.seen = b""
        while self.seen.count(b"data: ") < 3:
            self._more()

    def _more(self) -> bool:
        try:
            part = self._socket.recv(1 << 16)
        except ConnectionError:
            part = b""
        self.seen += part
        return bool(part)

    def whole(self) -> bool:
        """Read on until it ends; whether it ended well."""
        while not self.seen.endswith(b"0\r\n\r\n") and self._more():
            pass
        self._socket.close()
        ended = b"[DONE]" in self.seen and self.seen.endswith(b"0\r\n\r\n")
        return ended and b'"error"' not in self.seen


@pytest.mark.parametrize(
    ("who", "number"), [("gateway", signal.SIGTERM), ("engine", signal.SIGINT)]
)
def test_running_turns_may_end(tmp_path: Path, who: str, number: signal.Signals) -> None:
    with served(tmp_path, "serve") as s:
        process = s.gateway if who == "gateway" else s.engine
        stream = Stream(s.ports[1])
        process.send_signal(number)
        assert process.stderr is not None
        while "running turn(s) may end" not in process.stderr.readline():
            pass
        port = s.ports[1 if who == "gateway" else 0]
        refused = _status(port)
        assert refused == 503  # no further turn is taken
        assert stream.whole()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err


@pytest.mark.parametrize("who", ["gateway", "engine"])
def test_told_twice_they_end_at_once(tmp_path: Path, who: str) -> None:
    with served(tmp_path, "serve") as s:
        process = s.gateway if who == "gateway" else s.engine
        stream = Stream(s.ports[1])
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "running turn(s) may end" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert not stream.whole()


def test_a_replay_and_a_recording_that_are_told_to_end(tmp_path: Path) -> None:
    """The replay ends its turns, writes them and says that it was interrupted; the recording has
    them too."""
    turns = tuple(
        TurnSpec(40 + 44 * i, 40, kept_turn=i - 1 if i else None, kept_tokens=44 * i)
        for i in range(50)
    )
    trace, seen = tmp_path / "long.jsonl", tmp_path / "seen.jsonl"
    write_trace(trace, [Session(f"s{number}", turns, "long", "recorded") for number in range(2)])
    with served(tmp_path, "record", "-o", seen) as s:
        url = f"http://127.0.0.1:{s.ports[1]}"
        play = ("replay", trace, "--workers", "2", "--url", url, "-o", "out")
        client = start(*play, cwd=tmp_path, mark=s.mark)
        folder = tmp_path / "out/cells"
        wait_until(lambda: _turns(folder) >= 4, "four turns", process=client)
        client.send_signal(signal.SIGTERM)
        _, err = client.communicate(timeout=60)
        assert client.returncode == 130, err
        assert "running turn(s) may end" in err
        kept = [turn for cell in folder.iterdir() for turn in turns_in(cell)]
        assert {turn["status"] for turn in kept} == {"ok"}
        time.sleep(0.2)
        s.gateway.send_signal(signal.SIGTERM)
        _, err = s.gateway.communicate(timeout=60)
        assert s.gateway.returncode == 0, err
        recorded = load_trace(seen)
        assert sum(len(session.turns) for session in recorded) == len(kept)
    wait_until(lambda: marked(s.mark) == [], "every process to end")


def _turns(folder: Path) -> int:
    return sum(len(turns_in(cell)) for cell in folder.iterdir()) if folder.exists() else 0


def _status(port: int) -> int:
    """HTTP status of a further turn."""
    text = b'{"model": "m", "messages": [{"role": "user", "content": "x"}], "max_tokens": 1}'
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(text)}"
        client.sendall(head.encode() + b"\r\n\r\n" + text)
        return int(client.recv(100).split()[1])
