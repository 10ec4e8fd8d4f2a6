"""Sandboxes: what they show, what they hide, and that nothing outlives them.

Those that start one are skipped where bubblewrap is missing or may not make namespaces.
"""

from __future__ import annotations

import asyncio
import os
import resource
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from agentsched import UsageError
from workloads.agents.bubblewrap import SandboxSpec, bubblewrap_version, sandbox_argv
from workloads.agents.bubblewrap_inside import KEPT_BYTES
from workloads.agents.bubblewrap_machine import Machine, SandboxError


def _missing() -> str | None:
    try:
        bubblewrap_version()
    except UsageError as error:
        return error.message
    return None


needs_bubblewrap = pytest.mark.skipif(_missing() is not None, reason=_missing() or "")


def test_the_command_line_shares_nothing_but_what_the_spec_names(tmp_path: Path) -> None:
    spec = SandboxSpec(
        tmp_path / "root",
        read_only=[(Path("/opt/tool"), "/opt/tool")],
        writable=[(tmp_path / "app", "/app")],
        environment={"NAME": "value"},
        folder="/app",
    )
    argv = sandbox_argv(spec, ["echo", "a b"])
    assert argv[argv.index("--") + 1 :] == ["echo", "a b"]
    assert {"--unshare-all", "--die-with-parent", "--clearenv"} <= set(argv)
    assert "--share-net" not in argv
    binds = {
        (argv[i + 1], argv[i + 2])
        for i, word in enumerate(argv[: argv.index("--")])
        if word == "--bind"
    }
    assert binds == {(f"{tmp_path}/root", "/"), (f"{tmp_path}/app", "/app")}
    shown = {argv[i + 2] for i, word in enumerate(argv) if word == "--ro-bind"}
    assert "/opt/tool" in shown
    assert not shown & {"/etc", "/etc/shadow", "/home", "/root", "/etc/ssl", "/var", "/run"}
    assert argv[argv.index("NAME") + 1] == "value"


def test_no_bubblewrap_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(UsageError, match="never run outside a sandbox"):
        bubblewrap_version()
    (tmp_path / "bwrap").write_text("#!/bin/sh\necho no namespaces >&2\nexit 1\n")
    (tmp_path / "bwrap").chmod(0o755)
    with pytest.raises(UsageError, match="does not work here: no namespaces"):
        bubblewrap_version()


@asynccontextmanager
async def machine(folder: Path, *reach: str) -> AsyncIterator[Machine]:
    for name in ("root", "app"):
        (folder / name).mkdir()
    spec = SandboxSpec(folder / "root", writable=[(folder / "app", "/app")], folder="/app")
    made = Machine(spec, reach, folder / "log")
    await made.start()
    try:
        yield made
    finally:
        await made.stop()


def inside(folder: Path, act: Callable[[Machine], Coroutine[Any, Any, None]]) -> None:
    async def run() -> None:
        async with machine(folder) as made:
            await act(made)

    asyncio.run(asyncio.wait_for(run(), 60))


@needs_bubblewrap
def test_commands_share_one_machine(tmp_path: Path) -> None:
    async def act(made: Machine) -> None:
        first = await made.execute(
            "echo out; echo err >&2; pwd; (sleep 2; echo late > later) & exit 3"
        )
        assert (first.status, first.stdout, first.stderr) == (3, "out\n/app\n", "err\n")
        named = await made.execute('echo "$A"', environment={"A": "x y"}, folder="/tmp")
        assert named.stdout == "x y\n"
        # What the first command left running is still there, and writes into the folder outside.
        await made.execute("while [ ! -e later ]; do sleep 0.05; done", timeout_s=20)
        assert (tmp_path / "app" / "later").read_text() == "late\n"
        assert "yes" in (await made.execute("id -u; test -d /proc/self && echo yes")).stdout
        assert (await made.execute("cd /nowhere")).status == 1

    inside(tmp_path, act)


@needs_bubblewrap
def test_the_host_is_out_of_reach(tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("s")

    async def act(made: Machine) -> None:
        for command in (
            f"cat {secret}",
            "cat /etc/shadow",
            "echo x > /usr/bin/x",
            f"kill -0 {os.getpid()}",
            "mount -t tmpfs none /mnt",
            "exec 3<>/dev/tcp/192.0.2.1/80",
        ):
            assert (await made.execute(command, timeout_s=10)).status not in (0, 124), command
        assert (await made.execute("cat /proc/net/dev")).stdout.count(":") == 1  # loopback alone

    inside(tmp_path, act)


@needs_bubblewrap
def test_lower_limits_of_whoever_starts_it_stay(tmp_path: Path) -> None:
    async def act(made: Machine) -> None:
        full = await made.execute("head -c 2000000 /dev/zero > big; stat -c %s big; ulimit -c")
        assert full.stdout == "1000000\n0\n"

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, before[1]))
    try:
        inside(tmp_path, act)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@needs_bubblewrap
def test_processes_inside_cannot_put_themselves_in_its_place(tmp_path: Path) -> None:
    async def act(made: Machine) -> None:
        done = await made.execute("cd /run/agentsched && rm control.sock && ln -s /x control.sock")
        assert done.status == 0
        assert (await made.execute("echo still here")).stdout == "still here\n"

    inside(tmp_path, act)


@needs_bubblewrap
def test_slow_and_abandoned_commands_end(tmp_path: Path) -> None:
    async def act(made: Machine) -> None:
        slow = await made.execute("echo begun; sleep 1000", timeout_s=0.3)
        assert (slow.status, slow.stdout) == (124, "begun\n")
        task = asyncio.ensure_future(made.execute("sleep 1001"))
        for _ in range(200):
            if "yes" in (await made.execute(_ASLEEP)).stdout:
                break
        task.cancel()
        for _ in range(200):
            if "yes" not in (await made.execute(_ASLEEP)).stdout:
                return
        raise AssertionError("the command outlives its caller")

    inside(tmp_path, act)


_ASLEEP = (
    "for c in /proc/[0-9]*/cmdline; do tr '\\0' ' ' < $c 2>/dev/null; echo; done "
    "| grep -qx 'sleep 1001 ' && echo yes; true"
)


@needs_bubblewrap
def test_long_output_is_cut_in_the_middle(tmp_path: Path) -> None:
    async def act(made: Machine) -> None:
        command = f"echo first; head -c {2 * KEPT_BYTES} /dev/zero | tr '\\0' x; echo; echo last"
        found = await made.execute(command)
        assert found.stdout.startswith("first\nx")
        assert found.stdout.endswith("x\nlast\n")
        # 2 KEPT_BYTES and the words around them (6 + 1 + 5 bytes), of which KEPT_BYTES stay.
        assert f"[{KEPT_BYTES + 12} bytes left out]" in found.stdout

    inside(tmp_path, act)


@needs_bubblewrap
def test_files_go_in_and_out_but_links_lead_nowhere(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "sub").mkdir(parents=True)
    (source / "sub" / "run.sh").write_text("#!/bin/sh\necho ran\n")
    (source / "sub" / "run.sh").chmod(0o755)

    async def act(made: Machine) -> None:
        await made.put(source, "/tests")
        await made.put(source / "sub" / "run.sh", "/deep/er/other")
        assert (await made.execute("/tests/sub/run.sh; /deep/er/other")).stdout == "ran\nran\n"
        await made.execute(
            "echo a > a; ln -s /etc/passwd outside; mkfifo pipe; mkdir d; echo b > d/b"
        )
        await made.get("/app", tmp_path / "back")
        found = {str(p.relative_to(tmp_path / "back")) for p in (tmp_path / "back").rglob("*")}
        assert found == {"a", "d", "d/b"}
        await made.get("/app/a", tmp_path / "new" / "copy")
        assert (tmp_path / "new" / "copy").read_text() == "a\n"
        with pytest.raises(SandboxError, match="there is no /nothing"):
            await made.get("/nothing", tmp_path / "x")

    inside(tmp_path, act)


@needs_bubblewrap
def test_nothing_but_what_it_may_is_reached_each_under_its_own_port(tmp_path: Path) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = (await reader.readline()).decode().split()[1]
        body = asked.encode() * 100_000
        writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body)
        await writer.drain()
        writer.close()

    async def run() -> None:
        server = await asyncio.start_server(answer, "127.0.0.1", 0)
        hooks = await asyncio.start_server(answer, "127.0.0.1", 0)
        other = await asyncio.start_server(answer, "127.0.0.1", 0)
        ports = [each.sockets[0].getsockname()[1] for each in (server, hooks)]
        async with machine(tmp_path, *(f"http://127.0.0.1:{port}" for port in ports)) as made:
            look = (
                "import urllib.request as u; print(len(u.urlopen('http://127.0.0.1:{}/ab').read()))"
            )
            for port in ports:
                found = await made.execute(f'python3 -c "{look.format(port)}"')
                assert found.stdout == "300000\n", found.stderr
            closed = other.sockets[0].getsockname()[1]
            assert "refused" in (await made.execute(f'python3 -c "{look.format(closed)}"')).stderr
        for each in (server, hooks, other):
            each.close()
            await each.wait_closed()

    asyncio.run(asyncio.wait_for(run(), 60))


@needs_bubblewrap
def test_a_machine_that_cannot_start_or_has_stopped_says_so(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "root").mkdir()
        spec = SandboxSpec(tmp_path / "root", writable=[(tmp_path / "none", "/app")])
        with pytest.raises(SandboxError, match="none"):
            await Machine(spec, [], tmp_path / "log").start()
        stopped = Machine(SandboxSpec(tmp_path / "root"), [], tmp_path / "log2")
        await stopped.start()
        await stopped.stop()
        await stopped.stop()
        with pytest.raises(SandboxError, match="not up"):
            await stopped.execute("true")

    asyncio.run(asyncio.wait_for(run(), 60))
    with pytest.raises(UsageError, match="cannot be reached from inside"):
        Machine(SandboxSpec(tmp_path), ["https://example.invalid"], tmp_path / "log3")
