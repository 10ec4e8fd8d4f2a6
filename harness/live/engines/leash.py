"""Holds one program and everything it starts; when its owner is gone, so are they.

Run as a script of its own (standard library only, Linux):

    python -I leash.py --note FILE --owner PID --grace SECONDS -- PROGRAM ARGUMENT...

The program runs in a session of its own. Its orphans come to the leash (a child subreaper), which
ends them all when the program ends, when it is told to (SIGTERM, SIGINT), or when the process that
started it is gone, however that ended. Should the leash itself be killed, the program dies with it
(PR_SET_PDEATHSIG), and the note says what its children were: `sweep` ends those that are left.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_LOOK_S = 0.1
TOKEN = "AGENTSCHED_LEASH"
"""Environment variable that marks all processes of one leash."""


class Stat:
    """What /proc tells of one process."""

    def __init__(self, pid: int) -> None:
        """Raises OSError if there is no such process."""
        text = Path(f"/proc/{pid}/stat").read_text("ascii", "replace")
        fields = text.rpartition(")")[2].split()
        self.pid = pid
        self.state = fields[0]
        self.parent, self.session = int(fields[1]), int(fields[3])
        self.started = int(fields[19])
        """In clock ticks since boot: with the pid, a name that no other process has."""

    @property
    def alive(self) -> bool:
        return self.state not in "ZX"


def processes() -> Iterator[Stat]:
    """All there are, those that vanish meanwhile left out."""
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                yield Stat(int(entry))
            except OSError:
                continue


def started(pid: int) -> int | None:
    """When a process began, in ticks since boot; None: there is none."""
    try:
        stat = Stat(pid)
    except OSError:
        return None
    return stat.started if stat.alive else None


def boot() -> str:
    """Names this boot of the machine: pids mean nothing in another one."""
    return Path("/proc/sys/kernel/random/boot_id").read_text("ascii").strip()


def descendants(root: int) -> list[int]:
    """Children, their children and so on of a process."""
    children: dict[int, list[int]] = {}
    for stat in processes():
        if stat.alive:
            children.setdefault(stat.parent, []).append(stat.pid)
    found, waiting = [], [root]
    while waiting:
        below = children.get(waiting.pop(), [])
        found += below
        waiting += below
    return found


def kill(pid: int, number: int) -> None:
    """Send a signal; a process that is gone already is as good."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def _prctl(option: int, value: int) -> None:
    ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0)


def _die_with_leash() -> None:
    _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class _Leash:
    def __init__(self, owner: int, grace_s: float, note: Path) -> None:
        self._owner, self._grace_s, self._note = owner, grace_s, note
        self._told = False

    def run(self, command: list[str]) -> int:
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._tell)
        try:
            program = subprocess.Popen(
                command, start_new_session=True, preexec_fn=_die_with_leash, close_fds=True
            )
        except OSError as error:
            print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
            return 127
        self._write_note(program.pid)
        while program.poll() is None and not self._told and os.getppid() == self._owner:
            self._reap(program.pid)
            time.sleep(_LOOK_S)
        code = program.poll()
        self._end_all(program)
        self._note.unlink(missing_ok=True)
        return code if code is not None and code >= 0 else 128 + abs(code or signal.SIGTERM)

    def _tell(self, number: int, frame: FrameType | None) -> None:
        self._told = True

    def _write_note(self, program: int) -> None:
        note = {
            "boot": boot(),
            "owner": [self._owner, started(self._owner)],
            "leash": [os.getpid(), started(os.getpid())],
            "program": [program, started(program)],
            "token": os.environ.get(TOKEN, ""),
        }
        part = self._note.with_suffix(".part")
        part.write_text(json.dumps(note), "ascii")
        part.replace(self._note)

    def _end_all(self, program: subprocess.Popen[bytes]) -> None:
        """Ask the program, then kill what is left."""
        if program.poll() is None:
            program.terminate()
        deadline = time.monotonic() + self._grace_s
        while time.monotonic() < deadline and program.poll() is None:
            time.sleep(_LOOK_S)
        quiet = 0
        for _ in range(1000):  # each round may show children of those killed in the last
            left = descendants(os.getpid())
            # One that forks while all are listed, and ends, can hide its child once.
            quiet = 0 if left else quiet + 1
            if quiet == 2:
                break
            for pid in left:
                kill(pid, signal.SIGKILL)
            time.sleep(0.02)
            program.poll()
            self._reap(program.pid)

    def _reap(self, program: int) -> None:
        """Take in orphans that ended; the program's own end is Popen's to take."""
        # Asked of the kernel: to read all of /proc ten times a second takes 4 % of a core.
        with contextlib.suppress(ChildProcessError):
            while True:
                ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                if ended is None or ended.si_pid == program:
                    return
                os.waitpid(ended.si_pid, os.WNOHANG)


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--note", type=Path, required=True)
    parser.add_argument("--owner", type=int, required=True)
    parser.add_argument("--grace", type=float, required=True)
    parser.add_argument("command", nargs="+")
    given = parser.parse_args()
    return _Leash(given.owner, given.grace, given.note).run(given.command)


if __name__ == "__main__":
    sys.exit(main())
