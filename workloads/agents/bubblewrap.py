"""Sandboxes for what agents run, on machines without containers: bubblewrap's arguments.

Inside, a process sees the host's programs (/usr and its like) read-only, a few harmless files of
/etc, and a folder of its own as everything else. It has its own process table, no capabilities,
and no network but a loopback of its own: what it may reach outside are Unix sockets bound into it
(`workloads.agents.bubblewrap_machine`).

Source: bwrap(1), version 0.8. Needs nothing but the standard library.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from agentsched import UsageError

_PROGRAMS = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32")
_ETC = tuple(
    """
    alternatives bash.bashrc ca-certificates fonts ld.so.cache ld.so.conf ld.so.conf.d localtime
    magic mime.types nsswitch.conf os-release pki/tls/certs profile profile.d protocols python3
    python3.11 python3.12 python3.13 services shells ssl/certs ssl/openssl.cnf terminfo timezone
    """.split()  # noqa: SIM905
)
"""What programs look for in /etc and is no secret of the host. Our choice."""

_PASSWD = "root:x:0:0:root:/root:/bin/bash\nnobody:x:65534:65534:nobody:/:/usr/sbin/nologin\n"
_GROUP = "root:x:0:\ntty:x:5:\nnogroup:x:65534:\n"
_HOSTS = "127.0.0.1 localhost sandbox\n::1 localhost\n"

PATH_INSIDE = "/root/.local/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class SandboxSpec:
    """What a sandbox shows to the processes in it."""

    root: Path
    """Existing folder of this sandbox alone; becomes /. What is written outside the mounts below
    lands here."""
    read_only: Sequence[tuple[Path, str]] = ()
    """Host path, path inside."""
    writable: Sequence[tuple[Path, str]] = ()
    """Host path (exists), path inside."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """All that the processes get; nothing is inherited."""
    folder: str = "/"
    """Where processes start; must exist inside."""


def find_bubblewrap() -> str:
    """Path of the `bwrap` program.

    Raises:
        UsageError: it is not installed.
    """
    found = shutil.which("bwrap")
    if found is None:
        raise UsageError(
            "bubblewrap is not installed, and agents' commands never run outside a sandbox",
            "install it (Debian, Ubuntu: apt-get install bubblewrap), or use containers",
        )
    return found


def bubblewrap_version() -> str:
    """Version of bubblewrap, tried out on `true`.

    Raises:
        UsageError: it is missing, or this machine does not let it make namespaces.
    """
    program = find_bubblewrap()
    version = subprocess.run([program, "--version"], capture_output=True, text=True, check=False)
    tried = subprocess.run(
        [
            program,
            "--unshare-all",
            "--ro-bind",
            "/",
            "/",
            "--proc",
            "/proc",
            "--dev",
            "/dev",
            "true",
        ],
        capture_output=True,
        text=True,
        check=False,
    )
    if tried.returncode != 0:
        raise UsageError(
            f"bubblewrap does not work here: {tried.stderr.strip() or tried.returncode}",
            "allow unprivileged user namespaces (sysctl kernel.unprivileged_userns_clone=1, or "
            "AppArmor's setting), or use containers",
        )
    return version.stdout.strip().removeprefix("bubblewrap").strip()


def prepare_root(root: Path) -> None:
    """Give an empty root folder what programs expect of one: users, hosts, /tmp."""
    for name in ("etc", "root", "run", "tmp", "var/tmp", "home"):
        (root / name).mkdir(parents=True, exist_ok=True)
    for name in ("tmp", "var/tmp"):
        (root / name).chmod(0o1777)
    for name, text in (("passwd", _PASSWD), ("group", _GROUP), ("hosts", _HOSTS)):
        (root / "etc" / name).write_text(text)


def sandbox_argv(spec: SandboxSpec, command: Sequence[str], program: str = "bwrap") -> list[str]:
    """The command line that runs `command` in a sandbox.

    The sandbox dies with the process that starts it, and everything in it with the sandbox.
    """
    argv = [program, "--unshare-all", "--die-with-parent", "--new-session", "--clearenv"]
    argv += ["--cap-drop", "ALL", "--hostname", "sandbox", "--uid", "0", "--gid", "0"]
    argv += ["--bind", str(spec.root), "/"]
    for path in _PROGRAMS:
        if os.path.islink(path):
            # A root that was used before has it already.
            if not os.path.islink(f"{spec.root}{path}"):
                argv += ["--symlink", os.readlink(path), path]
        elif os.path.isdir(path):
            argv += ["--ro-bind", path, path]
    for name in _ETC:
        if os.path.exists(f"/etc/{name}"):
            argv += ["--ro-bind", f"/etc/{name}", f"/etc/{name}"]
    argv += ["--proc", "/proc", "--dev", "/dev"]
    for host, inside in spec.read_only:
        argv += ["--ro-bind", str(host), inside]
    for host, inside in spec.writable:
        argv += ["--bind", str(host), inside]
    values = {"PATH": PATH_INSIDE, "HOME": "/root", "LANG": "C.UTF-8", **spec.environment}
    for name, value in values.items():
        argv += ["--setenv", name, value]
    return [*argv, "--chdir", spec.folder, "--", *command]


def python_inside() -> tuple[str, list[tuple[Path, str]]]:
    """An interpreter that runs inside a sandbox, and the mounts that it needs there."""
    executable = Path(getattr(sys, "_base_executable", sys.executable)).resolve()
    prefix = Path(sys.base_prefix).resolve()
    if any(prefix.is_relative_to(path) for path in _PROGRAMS):
        return str(executable), []
    return str(executable), [(prefix, str(prefix))]
