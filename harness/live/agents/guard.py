"""Stands between the harness and one client process, so that nothing of it is left over.

Run as a program: `python guard.py [--files BYTES] COMMAND...`. It starts the command with its own
standard streams and ends when the command has, with its exit status; but first it kills whatever
the command has started and left, daemons in sessions of their own included: orphans become
children of the guard (Linux's child subreaper). When told to (SIGTERM, SIGINT, SIGHUP), or when
whoever started it is gone, it kills all of that at once. Where there is no /proc it can kill the
command's process group only.

It is run by path and needs the standard library alone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
"""From linux/prctl.h."""
POLL_S = 0.5
"""Where the kernel does not tell of the parent's death: how often to look. Our choice."""
SWEEPS = 100
"""How often it kills what the killed have started meanwhile before it gives up. Our choice."""
ENDINGS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


class ToldToEnd(BaseException):
    """The guard is to end everything."""


def main(arguments: list[str]) -> int:
    """Guard a command; returns its exit status, as a shell gives it."""
    limit = None
    if arguments[:1] == ["--files"]:
        limit, arguments = int(arguments[1]), arguments[2:]
    parent = os.getppid()
    for number in ENDINGS:
        signal.signal(number, _tell)
    status, group = 128 + signal.SIGKILL, None
    try:
        _adopt_orphans()
        if os.getppid() != parent:  # it went before it was watched
            return status
        if limit is not None:
            _limit_files(limit)
        # A group of its own, so that what is meant for the terminal's group passes it by.
        command = subprocess.Popen(arguments, start_new_session=True)
        group = command.pid  # and `command` lives on: one that is collected buries its process
        status = _wait(group, parent)
    except ToldToEnd:
        pass
    finally:
        with suppress(ToldToEnd):  # told just now, after the command's end
            _turn_deaf()
        kill_descendants(group)
    return status


def _tell(number: int, frame: object) -> None:
    """Raise once and never again: Ctrl-C is followed by the harness's own word, and a second
    exception would get in the way of the killing."""
    _turn_deaf()
    raise ToldToEnd


def _turn_deaf() -> None:
    for number in ENDINGS:
        signal.signal(number, signal.SIG_IGN)


def _adopt_orphans() -> None:
    if sys.platform == "linux":
        libc = ctypes.CDLL(None, use_errno=True)
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGTERM, 0, 0, 0)
        libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _limit_files(size: int) -> None:
    """No file that the command or what it starts writes grows beyond this."""
    import resource

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    allowed = size if hard == resource.RLIM_INFINITY else min(size, hard)
    resource.setrlimit(resource.RLIMIT_FSIZE, (allowed, allowed))


def _wait(command: int, parent: int) -> int:
    """The command's exit status; orphans that end meanwhile are buried."""
    waits = 0 if sys.platform == "linux" else os.WNOHANG
    while True:
        pid, status = os.waitpid(-1, waits)
        if pid == command:
            code = os.waitstatus_to_exitcode(status)
            return code if code >= 0 else 128 - code
        if pid == 0:
            time.sleep(POLL_S)
            if os.getppid() != parent:
                raise ToldToEnd


def kill_descendants(group: int | None) -> None:
    """Kill all processes below this one, however deep, and those they start meanwhile.

    Args:
        group: process group that is all there is to kill where there is no /proc.
    """
    if not Path("/proc/self/stat").exists():
        if group is not None:
            _kill(-group)
        return
    for _ in range(SWEEPS):
        found = _descendants(os.getpid())
        if not found:
            return
        for pid in found:
            _kill(pid)
        _bury()
        time.sleep(0.02)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        return


def _bury() -> None:
    try:
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
    except ChildProcessError:
        return


def _descendants(root: int) -> list[int]:
    below: dict[int, list[int]] = {}
    for pid, parent in _processes():
        below.setdefault(parent, []).append(pid)
    found: list[int] = []
    waiting = [root]
    while waiting:
        children = below.get(waiting.pop(), [])
        found += children
        waiting += children
    return found


def _processes() -> list[tuple[int, int]]:
    """(pid, parent) of all processes."""
    found: list[tuple[int, int]] = []
    for name in os.listdir("/proc"):
        if not name.isdecimal():
            continue
        try:
            stat = Path("/proc", name, "stat").read_text(errors="replace")
        except OSError:  # it has ended meanwhile
            continue
        # The command's name stands in parentheses and may hold anything.
        found.append((int(name), int(stat.rpartition(")")[2].split()[1])))
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
