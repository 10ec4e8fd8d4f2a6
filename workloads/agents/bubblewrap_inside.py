"""What runs inside a sandbox: carries out commands and file transfers.

    python bubblewrap_inside.py CONTROL.sock

One connection to the control socket is one request: a line of JSON, then for `put` a tar archive.
    {"op": "exec", "command", "cwd", "env", "timeout_s"} -> {"rc", "stdout", "stderr"}
    {"op": "put", "path"} + tar                          -> {} ; the members are laid below `path`
    {"op": "get", "path"}                                -> {} + tar, or {"error"}
    {"op": "listen", "port"}                             -> {} with a listening socket
A caller that goes away ends its command. `listen` hands out a socket of the sandbox's loopback:
who holds it takes connections from inside, and is the only way out. Standard library only,
Python >= 3.9.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import socketserver
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from contextlib import suppress
from typing import IO, Any, cast

KEPT_BYTES = 4 << 20
"""Of a command's output; the middle of what is longer is left out. Our choice."""
FILE_LIMIT_BYTES = 4 << 30
"""Largest file that a command may write. Our choice."""
TIMED_OUT = 124
"""Exit status of a command that was stopped, as timeout(1) has it."""
GONE = 137


class Request(socketserver.StreamRequestHandler):
    """One request on the control socket."""

    def handle(self) -> None:
        line = self.rfile.readline()
        if not line:
            return
        asked: dict[str, Any] = json.loads(line)
        try:
            if asked["op"] == "exec":
                self._tell(self._execute(asked))
            elif asked["op"] == "listen":
                self._listen(asked["port"])
            elif asked["op"] == "put":
                self._put(asked["path"])
            else:
                self._get(asked["path"])
        except (OSError, tarfile.TarError, ValueError) as error:
            with suppress(OSError):
                self._tell({"error": f"{type(error).__name__}: {error}"})

    def _tell(self, answer: dict[str, Any]) -> None:
        self.wfile.write(json.dumps(answer).encode() + b"\n")

    def _execute(self, asked: dict[str, Any]) -> dict[str, Any]:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as err:
            # Files, not pipes: what a command leaves running must not keep us waiting.
            process = subprocess.Popen(
                ["bash", "-c", asked["command"]],
                cwd=asked.get("cwd") or None,
                env={**os.environ, **(asked.get("env") or {})},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                start_new_session=True,
            )
            status = self._wait(process, asked.get("timeout_s"))
            return {"rc": status, "stdout": _text(out), "stderr": _text(err)}

    def _wait(self, process: subprocess.Popen[bytes], timeout_s: float | None) -> int:
        """The exit status; a command that is too slow, or nobody's any more, is killed."""
        ended = os.pidfd_open(process.pid)
        try:
            left = None if timeout_s is None else max(0.0, timeout_s)
            ready, _, _ = select.select([ended, self.connection], [], [], left)
        finally:
            os.close(ended)
        status = process.poll()
        if status is not None:
            return status if status >= 0 else 128 - status
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        return GONE if ready else TIMED_OUT

    def _listen(self, port: int) -> None:
        with socket.create_server(("127.0.0.1", port), backlog=128) as listener:
            socket.send_fds(self.connection, [b"{}\n"], [listener.fileno()])

    def _put(self, path: str) -> None:
        os.makedirs(path, exist_ok=True)
        with tarfile.open(fileobj=self.rfile, mode="r|") as archive:
            archive.extractall(path)
        self._tell({})

    def _get(self, path: str) -> None:
        if not os.path.exists(path):
            self._tell({"error": f"there is no {path}"})
            return
        self._tell({})
        with tarfile.open(fileobj=cast("IO[bytes]", self.wfile), mode="w|") as archive:
            archive.add(path, arcname=".")


def _limit(what: int, most: int) -> None:
    """Lower a limit of this process and its children; one that is lower already stays."""
    for now in resource.getrlimit(what):
        most = most if now == resource.RLIM_INFINITY else min(most, now)
    resource.setrlimit(what, (most, most))


def _text(file: IO[bytes]) -> str:
    size = file.seek(0, os.SEEK_END)
    file.seek(0)
    if size <= KEPT_BYTES:
        return file.read().decode("utf-8", "replace")
    head = file.read(KEPT_BYTES // 2)
    file.seek(size - KEPT_BYTES // 2)
    left_out = f"\n[{size - KEPT_BYTES} bytes left out]\n"
    return head.decode("utf-8", "replace") + left_out + file.read().decode("utf-8", "replace")


class Control(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    """The control socket."""

    daemon_threads = True
    request_queue_size = 64


def main(arguments: list[str]) -> None:
    """Serve until killed."""
    (control,) = arguments
    _limit(resource.RLIMIT_FSIZE, FILE_LIMIT_BYTES)
    _limit(resource.RLIMIT_CORE, 0)
    # Bound under another name first: the caller connects as soon as it sees the socket.
    with Control(f"{control}.new", Request) as server:
        os.rename(f"{control}.new", control)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        while True:
            time.sleep(3600)


if __name__ == "__main__":
    main(sys.argv[1:])
