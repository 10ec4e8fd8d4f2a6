"""Processes of a soak, and what can be done to them: engines, the gateway, odd clients."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

READY_S = 120.0
UNKNOWN = "unknown: "
PAGE = os.sysconf("SC_PAGE_SIZE")
MISBEHAVIOURS = (
    "silent",
    "stall",
    "status-500",
    "status-429",
    "status-503",
    "cut",
    "half-chunk",
    "malformed",
    "wrong-usage",
    "no-usage",
    "metrics-gone",
    "metrics-lie",
)
"""What engines are told to do wrong, as `harness.live.faulty` names it."""
REASONS = {
    r"the engine failed: the connection was closed": "cut, half-chunk, killed",
    r"the engine failed: connection lost: .*": "cut, half-chunk, killed",
    r"the engine failed: cannot reach .*: .*": "killed, stopped",
    r"the engine failed: the stream ended early": "cut, malformed",
    r"the engine failed: the stream held something that is no JSON": "malformed",
    r"the engine failed: the engine was silent for \d+ s": "silent, stall, stopped",
    r"the engine failed: the engine answered 503": "status-503",
    r"the engine failed: no answer in \d+ s": "silent, stopped, killed",
    r"this engine answers 500, as it was told to": "status-500",
}
"""Why a session may fail, and the faults that make it so."""


def reason_of(error: str | None) -> str:
    """A session's error with the faults that explain it; else `UNKNOWN` and the error."""
    for pattern, faults in REASONS.items():
        if error is not None and re.fullmatch(pattern, error):
            return f"{re.sub(r'https?://[^ ]+:', 'a replica:', error)} ({faults})"
    return f"{UNKNOWN}{error or 'nothing was said'}"


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return int(found.getsockname()[1])


def fetch(url: str, body: Any = None, timeout_s: float = 10.0) -> Any:
    """GET or POST JSON; None: no answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=timeout_s) as answer:
            page = answer.read()
    except (OSError, urllib.error.URLError):
        return None
    try:
        return json.loads(page)
    except ValueError:
        return page.decode("utf-8", "replace")


@dataclass(slots=True)
class Program:
    """One process of ours, in a session of its own."""

    name: str
    arguments: list[str]
    url: str
    ready: str
    log: Path
    environment: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "agentsched", *self.arguments],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                env=os.environ | self.environment,
            )

    def wait(self) -> None:
        """Until it answers.

        Raises:
            RuntimeError: it does not, or has ended.
        """
        until = time.monotonic() + READY_S
        while time.monotonic() < until:
            if self.process is None or self.process.poll() is not None:
                break
            if fetch(self.url + self.ready, timeout_s=2.0) is not None:
                return
            time.sleep(0.2)
        raise RuntimeError(f"{self.name} did not start; its log: {self.log.read_text()[-2000:]}")

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    def send(self, number: int) -> None:
        if self.process is not None and self.process.poll() is None:
            os.kill(self.process.pid, number)

    def kill(self) -> None:
        self.send(signal.SIGKILL)
        if self.process is not None:
            self.process.wait()

    def stop(self, wait_s: float = 20.0) -> int | None:
        """Ask it to end; its exit status, or None if it had to be killed."""
        if self.process is None:
            return None
        self.send(signal.SIGCONT)
        self.send(signal.SIGTERM)
        try:
            return self.process.wait(wait_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return None


def footprint(pid: int) -> dict[str, int]:
    """Resident bytes of a process and of its children, its open files, how many they are."""
    children = _children(pid)
    return {
        "rss": resident(pid),
        "children_rss": sum(resident(child) for child in children),
        "fds": len(os.listdir(f"/proc/{pid}/fd")),
        "processes": 1 + len(children),
    }


def resident(pid: int) -> int:
    """Bytes of a process that are in memory."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * PAGE


def _children(pid: int) -> list[int]:
    listed = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in listed]


@dataclass(slots=True)
class Stage:
    """The engines and the gateway in front of them.

    Args:
        folder: for their logs.
        options: further arguments of `agentsched serve`.
    """

    folder: Path
    replicas: int
    scheduler: str
    options: list[str] = field(default_factory=list)
    engines: list[Program] = field(default_factory=list)
    gateway: Program = field(init=False)
    admin: str = field(init=False)

    def __post_init__(self) -> None:
        for index in range(self.replicas):
            port = free_port()
            command = ["emulate", "--topology", "1x1xh100", "--port", str(port), "--misbehave"]
            command += ["--kv-blocks", "4000"]
            log, url = self.folder / f"engine-{index}.log", f"http://127.0.0.1:{port}"
            self.engines.append(Program(f"engine {index}", command, url, "/metrics", log))
        port, admin = free_port(), free_port()
        command = ["serve", "--scheduler", self.scheduler, "--port", str(port)]
        command += ["--admin-port", str(admin), *self.options]
        for engine in self.engines:
            command += ["--backend", engine.url]
        self.admin = f"http://127.0.0.1:{admin}"
        url, log = f"http://127.0.0.1:{port}", self.folder / "gateway.log"
        checked = {"AGENTSCHED_CHECK": "1"}
        self.gateway = Program("gateway", command, url, "/v1/models", log, checked)

    def start(self) -> None:
        for engine in self.engines:
            engine.start()
        for engine in self.engines:
            engine.wait()
        self.gateway.start()
        self.gateway.wait()

    def stop(self) -> dict[str, int | None]:
        """End all; exit statuses by name."""
        return {each.name: each.stop() for each in (self.gateway, *self.engines)}

    def gauge(self, name: str) -> float | None:
        """A metric of the gateway without further labels."""
        page = fetch(f"{self.admin}/metrics")
        for line in page.splitlines() if isinstance(page, str) else ():
            if line.startswith(f"agentsched_{name}{{"):
                return float(line.rpartition(" ")[2])
        return None


@dataclass(slots=True)
class Faults:
    """Draws what goes wrong next, the same for the same seed, each kind as often as the others."""

    stage: Stage
    seed: int
    length_s: float
    """How long a fault lasts."""
    happened: dict[str, int] = field(default_factory=dict)
    _order: list[str] = field(default_factory=list)
    _mending: list[tuple[float, Callable[[], None]]] = field(default_factory=list)
    _open: list[tuple[float, socket.socket]] = field(default_factory=list)
    _rng: random.Random = field(init=False)

    def __post_init__(self) -> None:
        self._rng = random.Random(f"soak {self.seed}")

    def next(self) -> str:
        """Let something go wrong; what."""
        if not self._order:
            self._order = [*MISBEHAVIOURS, "killed", "stopped", "vanish", "slow-loris", "crowd"]
            self._rng.shuffle(self._order)
        kind, engine = self._order.pop(), self._rng.choice(self.stage.engines)
        if kind == "killed":
            engine.kill()
            self._later(self.length_s, engine.start)
        elif kind == "stopped":
            engine.send(signal.SIGSTOP)
            self._later(self.length_s, lambda: engine.send(signal.SIGCONT))
        elif kind in ("vanish", "slow-loris", "crowd"):
            self._clients(kind)
        else:
            fetch(f"{engine.url}/misbehave", {"kind": kind, "for_s": self.length_s})
        self.happened[kind] = self.happened.get(kind, 0) + 1
        return kind

    def mend(self, *, everything: bool = False) -> None:
        """End the faults whose time has come."""
        now = time.monotonic()
        due = [m for m in self._mending if everything or m[0] <= now]
        self._mending = [m for m in self._mending if m not in due]
        for _, action in due:
            action()
        gone = [s for s in self._open if everything or s[0] <= now]
        self._open = [s for s in self._open if s not in gone]
        for _, client in gone:
            client.close()

    def _later(self, delay_s: float, action: Callable[[], None]) -> None:
        self._mending.append((time.monotonic() + delay_s, action))

    def _clients(self, kind: str) -> None:
        host, _, port = self.stage.gateway.url.removeprefix("http://").partition(":")
        for number in range({"vanish": 20, "slow-loris": 20, "crowd": 100}[kind]):
            body = json.dumps(
                {
                    "model": "emulated",
                    "messages": [{"role": "user", "content": f"{kind} {number} " * 20}],
                    "max_tokens": 100 if kind == "vanish" else 4,
                    "stream": True,
                }
            ).encode()
            head = f"POST /v1/chat/completions HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}"
            data = head.encode() + b"\r\n\r\n" + body
            try:
                client = socket.create_connection((host, int(port)), timeout=5.0)
                client.sendall(data[:30] if kind == "slow-loris" else data)
            except OSError:
                continue
            stay = self._rng.uniform(0.0, self.length_s) if kind == "vanish" else self.length_s
            self._open.append((time.monotonic() + stay, client))
