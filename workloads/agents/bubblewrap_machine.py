"""A sandbox that stays up, like a container: commands run in it one after another.

Processes that a command leaves behind (a terminal multiplexer, a server) live on until the
machine stops. Files go in and out through the sandbox, never around it, so that links laid by an
agent lead to nothing of the host. Needs nothing but the standard library.
"""

from __future__ import annotations

import asyncio
import io
import json
import os
import shutil
import signal
import socket
import tarfile
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from agentsched import AgentschedError, UsageError
from workloads.agents import bubblewrap_inside
from workloads.agents.bubblewrap import (
    SandboxSpec,
    find_bubblewrap,
    prepare_root,
    python_inside,
    sandbox_argv,
)

_CONTROL = "/run/agentsched/control.sock"
START_TIMEOUT_S = 60.0
"""Our choice: generous, for machines with many sandboxes starting at once."""


class SandboxError(AgentschedError):
    """A sandbox did not start, or died."""


@dataclass(frozen=True, slots=True)
class Finished:
    """How a command ended."""

    status: int
    """124: it was too slow and was killed."""
    stdout: str
    stderr: str


class Machine:
    """One sandbox.

    Args:
        spec: what it shows; the root folder gets what programs expect of one.
        reach: base URLs (http, with a port) that processes inside may reach, each under its port
            on their loopback; nothing else.
        log: file for what the sandbox itself complains about.

    Raises:
        UsageError: bubblewrap is missing, or an address cannot be relayed.
    """

    def __init__(self, spec: SandboxSpec, reach: Sequence[str], log: Path) -> None:
        self._spec, self._log = spec, log
        self._program = find_bubblewrap()
        self._outside = [_address(url) for url in reach]
        self._control: int | None = None
        self._process: asyncio.subprocess.Process | None = None
        self._forwarders: list[asyncio.Server] = []
        self._carriers: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        """Bring the sandbox up.

        Raises:
            SandboxError: it did not come up; shows why.
        """
        prepare_root(self._spec.root)
        socket_path = self._spec.root / _CONTROL.lstrip("/")
        socket_path.parent.mkdir(exist_ok=True)
        socket_path.unlink(missing_ok=True)
        python, mounts = python_inside()
        script = Path(bubblewrap_inside.__file__)
        spec = replace(
            self._spec,
            read_only=[*mounts, *self._spec.read_only, (script, "/run/inside.py")],
        )
        command = [python, "-I", "-S", "/run/inside.py", _CONTROL]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *sandbox_argv(spec, command, self._program),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        await self._until_up(socket_path)
        # Held on to: processes inside could lay a link to a socket of the host under its name,
        # and the names of sockets must be shorter than those of folders may be.
        self._control = os.open(socket_path, os.O_PATH | os.O_NOFOLLOW)
        for address in self._outside:
            listener = await asyncio.to_thread(_listener, self._path(), address[1])
            forward = partial(self._forward, address)
            self._forwarders.append(await asyncio.start_server(forward, sock=listener))

    def _path(self) -> str:
        if self._control is None:
            raise SandboxError("the sandbox is not up", "start it first")
        return f"/proc/self/fd/{self._control}"

    async def _until_up(self, control: Path) -> None:
        assert self._process is not None
        deadline = asyncio.get_running_loop().time() + START_TIMEOUT_S
        while not control.exists():
            late = asyncio.get_running_loop().time() > deadline
            if late or self._process.returncode is not None:
                said = self._log.read_text(errors="replace")[-1000:].strip()
                await self.stop()
                raise SandboxError(
                    f"the sandbox did not come up: {said or 'it said nothing'}",
                    f"see {self._log}",
                )
            await asyncio.sleep(0.01)

    async def execute(
        self,
        command: str,
        *,
        folder: str | None = None,
        environment: Mapping[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Finished:
        """Run a command with bash. Cancelling the call kills it.

        Raises:
            SandboxError: the sandbox is gone.
        """
        asked = {
            "op": "exec",
            "command": command,
            "cwd": folder or self._spec.folder,
            "env": dict(environment or {}),
            "timeout_s": timeout_s,
        }
        answer, _ = await self._ask(asked, None)
        if "error" in answer:
            return Finished(126, "", str(answer["error"]))
        return Finished(answer["rc"], answer["stdout"], answer["stderr"])

    async def put(self, source: Path, target: str) -> None:
        """Copy a file to the path `target`, or what a folder holds into the folder `target`.

        Raises:
            SandboxError: it could not be written.
        """
        if source.is_dir():
            path, name = target, "."
        else:
            path, name = str(PurePosixPath(target).parent), PurePosixPath(target).name
        archive = await asyncio.to_thread(_packed, source, name)
        answer, _ = await self._ask({"op": "put", "path": path}, archive)
        self._complain(answer, target)

    async def get(self, source: str, target: Path) -> None:
        """Copy a file to the path `target`, or what a folder holds into the folder `target`.

        Raises:
            SandboxError: there is nothing at `source`.
        """
        answer, archive = await self._ask({"op": "get", "path": source}, None)
        self._complain(answer, source)
        await asyncio.to_thread(_unpack, archive, target)

    async def stop(self) -> None:
        """End everything in the sandbox; may be called twice."""
        process, self._process = self._process, None
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
        while self._forwarders:
            self._forwarders.pop().close()
        for carrier in list(self._carriers):
            carrier.cancel()
        await asyncio.gather(*self._carriers, return_exceptions=True)
        control, self._control = self._control, None
        if control is not None:
            os.close(control)

    def _complain(self, answer: Mapping[str, Any], path: str) -> None:
        if "error" in answer:
            raise SandboxError(f"{path} in the sandbox: {answer['error']}", f"see {self._log}")

    async def _ask(
        self, asked: Mapping[str, Any], body: bytes | None
    ) -> tuple[dict[str, Any], bytes]:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path(), limit=64 << 20)
        except OSError as error:
            raise SandboxError(f"the sandbox is gone: {error}", f"see {self._log}") from None
        try:
            writer.write(json.dumps(asked).encode() + b"\n")
            if body is not None:
                writer.write(body)
                writer.write_eof()
            await writer.drain()
            line = await reader.readline()
            if not line:
                raise SandboxError("the sandbox died", f"see {self._log}")
            rest = await reader.read() if asked["op"] == "get" else b""
            return json.loads(line), rest
        except ConnectionError as error:
            raise SandboxError(f"the sandbox died: {error}", f"see {self._log}") from None
        finally:
            writer.close()

    async def _forward(
        self,
        address: tuple[str, int],
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
    ) -> None:
        """One connection from inside to an address."""
        task = asyncio.current_task()
        assert task is not None
        self._carriers.add(task)
        try:
            far_reader, far_writer = await asyncio.open_connection(*address)
            both = [
                asyncio.ensure_future(_carry(reader, far_writer)),
                asyncio.ensure_future(_carry(far_reader, writer)),
            ]
            try:
                await asyncio.gather(*both)
            finally:
                for carrier in both:
                    carrier.cancel()
                far_writer.close()
        except (OSError, asyncio.CancelledError):
            pass
        finally:
            writer.close()
            self._carriers.discard(task)


async def _carry(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    with suppress(OSError):
        writer.write_eof()


def _listener(control: str, port: int) -> socket.socket:
    """A socket that takes connections to the sandbox's own loopback."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(control)
        connection.sendall(json.dumps({"op": "listen", "port": port}).encode() + b"\n")
        answer, passed, _, _ = socket.recv_fds(connection, 65536, 1)
    if not passed:
        raise SandboxError(
            f"no port {port} in the sandbox: {answer.decode()}", "see the log of the sandbox"
        )
    return socket.socket(fileno=passed[0])


def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    if parts.scheme != "http" or parts.hostname is None:
        raise UsageError(f"{url} cannot be reached from inside a sandbox", "give http://HOST:PORT")
    return parts.hostname, parts.port or 80


def _packed(source: Path, name: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        archive.add(source, arcname=name, filter=_as_root)
    return buffer.getvalue()


def _as_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = ""
    return member


def _unpack(archive: bytes, target: Path) -> None:
    """Lay an archive at `target`; what would lead out of it, and devices, are left out."""
    with tarfile.open(fileobj=io.BytesIO(archive)) as members:
        for member in members:
            if member.isdev():
                continue
            if member.name == "." and member.isfile():
                target.parent.mkdir(parents=True, exist_ok=True)
                content = members.extractfile(member)
                assert content is not None
                with target.open("wb") as file:
                    shutil.copyfileobj(content, file)
                continue
            with suppress(tarfile.FilterError):
                members.extract(member, target, filter="data")
