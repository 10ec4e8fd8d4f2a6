"""Runs a program that must not outlive its parent: python guard.py COMMAND...

The parent holds the other end of standard input. When that closes, because the parent asks for the
end or because it was killed, the program and all it started are ended. Only the standard library,
and run by its path, so that it starts in a few hundredths of a second.
"""

from __future__ import annotations

import ctypes
import os
import select
import signal
import subprocess
import sys
import time

GRACE_S = 3.0
"""From asking the program to end until it is killed. Our choice."""
POLL_S = 0.1
PR_SET_PDEATHSIG = 1


def main(command: list[str]) -> int:
    """The exit code of the program; the group is empty of it afterwards."""
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the parent, which ends us
    if os.getpgrp() != os.getpid():
        os.setpgid(0, 0)
    parent = os.getppid()
    child = subprocess.Popen(command, stdin=subprocess.DEVNULL, preexec_fn=_die_with_guard)
    try:
        # A fork of the parent may hold the other end open, so its number is looked at as well.
        while child.poll() is None and os.getppid() == parent:
            if _closed(sys.stdin.fileno()):
                break
    finally:
        code = _end(child)
    return code


def _die_with_guard() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


def _closed(stdin: int) -> bool:
    """Wait a moment; whether the parent let go of standard input."""
    ready, _, _ = select.select([stdin], [], [], POLL_S)
    return bool(ready) and not os.read(stdin, 1024)


def _end(child: subprocess.Popen[bytes]) -> int:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the group's is meant for the others
    os.killpg(os.getpgrp(), signal.SIGTERM)
    until = time.monotonic() + GRACE_S
    while child.poll() is None and time.monotonic() < until:
        time.sleep(POLL_S / 4)
    code = child.poll()
    if code is None or _others():
        sys.stderr.flush()
        os.killpg(os.getpgrp(), signal.SIGKILL)  # us too
    return code if code is not None and code >= 0 else 1


def _others() -> bool:
    """Whether processes of our group are left beside us. Linux; elsewhere it is not looked."""
    if not os.path.isdir("/proc/self"):
        return False
    for name in os.listdir("/proc"):
        if name.isdigit() and int(name) != os.getpid():
            try:
                with open(f"/proc/{name}/stat", "rb") as stat:
                    fields = stat.read().rpartition(b")")[2].split()
            except OSError:
                continue  # it has ended
            if fields[0] != b"Z" and int(fields[2]) == os.getpgrp():
                return True
    return False


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
