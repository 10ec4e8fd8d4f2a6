"""Programs on a leash, as the process that owns them sees them; and what a dead owner left."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness.live.engines import leash
from harness.live.engines.kinds import home

_LEASH = Path(leash.__file__)
_ISOLATED = ("PYTHONPATH", "PYTHONHOME", "PYTHONWARNINGS", "VIRTUAL_ENV", "AGENTSCHED_HOME")
"""Of our environment; they would confuse a program that has an environment of its own."""


def notes_folder() -> Path:
    """Notes of what runs now; one file each."""
    return home() / "running"


class LeashedProcess:
    """A program with all that it starts, from `start` to `stop`. Its output goes to `log`.

    Nothing of it outlives this process, even if that is killed. Any program will do, not only
    engines.

    Args:
        env: set on top of our environment.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        env: Mapping[str, str],
        log: Path,
        grace_s: float = 15.0,
    ) -> None:
        self.name, self.log = name, log
        self._argv, self._env, self._grace_s = list(argv), dict(env), grace_s
        self._leash: subprocess.Popen[bytes] | None = None
        self._note = notes_folder() / f"{os.getpid()}-{secrets.token_hex(6)}.json"

    def start(self) -> None:
        """Start it; returns at once.

        Raises:
            OSError: the log cannot be written.
        """
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self._note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        env = {k: v for k, v in os.environ.items() if k not in _ISOLATED}
        env |= {**self._env, leash.TOKEN: self._note.stem, "PYTHONUNBUFFERED": "1"}
        with self.log.open("ab") as output:
            self._leash = subprocess.Popen(
                [
                    *(sys.executable, "-I", str(_LEASH), "--note", str(self._note)),
                    *("--owner", str(os.getpid()), "--grace", str(self._grace_s)),
                    *("--", *self._argv),
                ],
                env=env,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,  # Ctrl-C is for us; we stop it in order
            )

    @property
    def exit_code(self) -> int | None:
        """None while it runs, or before it was started."""
        return None if self._leash is None else self._leash.poll()

    @property
    def running(self) -> bool:
        return self._leash is not None and self._leash.poll() is None

    def ask_to_stop(self) -> None:
        """Begin its end without waiting for it."""
        if self.running:
            assert self._leash is not None
            self._leash.terminate()

    def stop(self) -> None:
        """End it and all it started; returns when they are gone. May be called twice."""
        if self._leash is None:
            return
        self.ask_to_stop()
        try:
            self._leash.wait(self._grace_s + 30)
        except subprocess.TimeoutExpired:
            self._leash.kill()
            self._leash.wait()
        if self._note.exists():  # the leash was killed: end what it held
            end_noted(self._note)

    def last_lines(self, count: int = 20) -> list[str]:
        """The end of its log."""
        return last_lines(self.log, count)


def last_lines(file: Path, count: int) -> list[str]:
    """The last lines of a text file that are not blank; none if it cannot be read."""
    try:
        with file.open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(log.tell() - 65_536, 0))
            text = log.read().decode("utf-8", "replace")
    except OSError:
        return []
    return [line.rstrip() for line in text.splitlines() if line.strip()][-count:]


def sweep() -> list[int]:
    """End what owners that are gone left running. Only ours: each process is checked against the
    note that its leash wrote. Returns the pids that were killed."""
    killed: list[int] = []
    for note in sorted(notes_folder().glob("*.json")):
        with contextlib.suppress(OSError, json.JSONDecodeError):
            facts = json.loads(note.read_text("ascii"))
            if not _is(facts.get("owner")) and not _is(facts.get("leash")):
                killed += end_noted(note)
    return killed


def leftovers() -> int:
    """How many programs of owners that are gone are noted as running."""
    count = 0
    for note in notes_folder().glob("*.json"):
        with contextlib.suppress(OSError, json.JSONDecodeError):
            facts = json.loads(note.read_text("ascii"))
            orphaned = not _is(facts.get("owner")) and not _is(facts.get("leash"))
            count += orphaned and bool(_members(facts))
    return count


def end_noted(note: Path) -> list[int]:
    """Kill the processes of a note, and remove it. Returns their pids."""
    try:
        facts = json.loads(note.read_text("ascii"))
    except (OSError, json.JSONDecodeError):
        note.unlink(missing_ok=True)
        return []
    killed: list[int] = []
    quiet = 0
    deadline = time.monotonic() + 10
    while quiet < 2 and time.monotonic() < deadline:
        members = _members(facts)
        # One that forks while all are listed, and ends, can hide its child once.
        quiet = 0 if members else quiet + 1
        for pid in members:
            with contextlib.suppress(PermissionError):
                leash.kill(pid, signal.SIGKILL)
        killed += [pid for pid in members if pid not in killed]
        time.sleep(0.05)
    note.unlink(missing_ok=True)
    return killed


def _members(facts: Mapping[str, Any]) -> list[int]:
    """Living processes of a note: by the mark in their environment, or by their session where they
    have overwritten that (a process that sets its title does)."""
    if facts.get("boot") != leash.boot():
        return []
    token = str(facts.get("token", ""))
    mark = f"{leash.TOKEN}={token}".encode() if token else None
    program, began = facts.get("program") or (0, 0)
    # A new process under the old number would have started another session.
    session = program if program and leash.started(program) in (None, began) else None
    found = []
    for stat in leash.processes():
        same_session = stat.session == session and stat.started >= began
        if stat.alive and (same_session or mark in _environ(stat.pid)):
            found.append(stat.pid)
    return found


def _environ(pid: int) -> list[bytes]:
    try:
        return Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return []


def _is(process: Any) -> bool:
    """Whether the process [pid, start] is still the one it was."""
    return bool(process) and leash.started(process[0]) == process[1] and process[1] is not None
