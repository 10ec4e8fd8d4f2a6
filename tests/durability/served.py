"""An emulator and a command before it that serves, as processes; and callers of theirs."""

from __future__ import annotations

import json
import socket
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from scripts._soak import fetch, free_port
from tests.durability.processes import start, wait_until

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
def served(folder: Path, *command: str | Path, **extra: str) -> Iterator[Served]:
    ports, mark = [free_port() for _ in range(3)], f"signals {folder}"
    engine = start(
        *("emulate", "--topology", "1x1xh100", "--port", str(ports[0])), cwd=folder, mark=mark
    )
    backend = ("--backend", f"http://127.0.0.1:{ports[0]}", "--wait", "60")
    port = ("--port", str(ports[1]), "--admin-port", str(ports[2]))
    gateway = start(*command, *backend, *port, cwd=folder, mark=mark, **extra)
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


def ask(port: int, text: str = "x") -> int:
    """HTTP status of a turn."""
    messages = [{"role": "user", "content": text}]
    body = json.dumps({"model": "m", "messages": messages, "max_tokens": 1}).encode()
    with socket.create_connection(("127.0.0.1", port), timeout=30) as client:
        head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        return int(client.recv(100).split()[1])
