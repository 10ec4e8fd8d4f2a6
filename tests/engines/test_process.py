"""Nothing outlives its owner: stopped, crashed, killed, or its leash killed with it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from harness.live.engines import leash, process
from harness.live.engines.process import LeashedProcess, last_lines, leftovers, sweep
from tests.cli.command import ROOT

DAEMON = """
import os, subprocess, sys, time
daemon = "import os, time; os.fork() and os._exit(0); time.sleep(99)"
subprocess.Popen([sys.executable, "-c", daemon], env={"WHO": sys.argv[1]})
print("up", flush=True)
time.sleep(float(sys.argv[2]))
"""
"""Starts a child that leaves the tree and has no mark of ours, then waits."""


def alive(mark: str) -> list[int]:
    """Processes with `mark` in their command line or environment."""
    found = []
    for stat in leash.processes():
        for name in ("cmdline", "environ"):
            try:
                text = Path(f"/proc/{stat.pid}/{name}").read_bytes()
            except OSError:
                continue
            if stat.alive and mark.encode() in text and stat.pid != os.getpid():
                found.append(stat.pid)
                break
    return found


def until(condition: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.fixture
def mark() -> Iterator[str]:
    """A word that only the processes of one test have."""
    name = f"mark-{os.getpid()}-{time.monotonic_ns()}"
    yield name
    for pid in alive(name):
        leash.kill(pid, signal.SIGKILL)


def leashed(tmp_path: Path, mark: str, seconds: float = 99, **settings: float) -> LeashedProcess:
    argv = [sys.executable, "-c", DAEMON, mark, str(seconds)]
    return LeashedProcess("p", argv, {}, tmp_path / "p.log", **settings)


def is_up(tmp_path: Path) -> bool:
    return last_lines(tmp_path / "p.log", 1) == ["up"]


def test_stop_ends_all_that_was_started(tmp_path: Path, mark: str) -> None:
    one = leashed(tmp_path, mark)
    assert one.exit_code is None
    assert not one.running
    one.start()
    assert until(lambda: is_up(tmp_path))
    assert one.running
    assert until(lambda: len(alive(mark)) >= 3)  # leash, program, its daemon
    one.stop()
    assert alive(mark) == []
    assert not one.running
    one.stop()
    assert list(process.notes_folder().iterdir()) == []


def test_the_end_of_the_program_ends_its_children(tmp_path: Path, mark: str) -> None:
    one = leashed(tmp_path, mark, seconds=0.2)
    one.start()
    assert until(lambda: not one.running)
    assert one.exit_code == 0
    assert alive(mark) == []


def test_orphans_that_end_are_taken_in(tmp_path: Path) -> None:
    """Three children of a child that is gone end while the program runs: none stays a zombie."""
    log = tmp_path / "p.log"
    program = "(for i in 1 2 3; do (sleep 0.3; echo ended) & done); sleep 99"
    one = LeashedProcess("p", ["/bin/sh", "-c", program], {}, log)
    one.start()
    try:
        assert until(lambda: last_lines(log, 3) == ["ended"] * 3)
        note = json.loads(next(process.notes_folder().glob("*.json")).read_text("ascii"))
        held = note["leash"][0]
        assert until(
            lambda: [s.pid for s in leash.processes() if s.parent == held] == [note["program"][0]]
        )
        assert one.running
    finally:
        one.stop()


def test_a_program_that_does_not_listen_is_killed(tmp_path: Path, mark: str) -> None:
    program = "import signal, sys, time; signal.signal(15, signal.SIG_IGN); print('up', flush=True)"
    argv = [sys.executable, "-c", f"{program}; time.sleep(99)", mark]
    one = LeashedProcess("p", argv, {}, tmp_path / "p.log", grace_s=0.3)
    one.start()
    assert until(lambda: is_up(tmp_path))
    one.stop()
    assert alive(mark) == []
    assert one.exit_code == 128 + signal.SIGTERM  # that is what it was told


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    one = LeashedProcess("p", ["/nowhere/engine"], {}, tmp_path / "p.log")
    one.start()
    assert until(lambda: not one.running)
    assert one.exit_code == 127
    assert one.last_lines() == ["cannot start /nowhere/engine: No such file or directory"]
    one.stop()


OWNER = """
import sys, time
from pathlib import Path
from harness.live.engines.process import LeashedProcess
program, mark, log = sys.argv[1:4]
LeashedProcess("p", [sys.executable, "-c", program, mark, "99"], {}, Path(log)).start()
time.sleep(99)
"""


def owner(tmp_path: Path, mark: str) -> subprocess.Popen[bytes]:
    """A process of its own that holds a leashed program."""
    argv = [sys.executable, "-c", OWNER, DAEMON, mark, str(tmp_path / "p.log")]
    held = subprocess.Popen(argv, env={**os.environ, "PYTHONPATH": str(ROOT)})
    assert until(lambda: is_up(tmp_path) and len(list(notes())) == 1)
    return held


def notes() -> Iterator[Path]:
    return process.notes_folder().glob("*.json")


def test_nothing_is_left_when_the_owner_is_killed(tmp_path: Path, mark: str) -> None:
    held = owner(tmp_path, mark)
    held.kill()
    held.wait()
    assert until(lambda: not alive(mark)), alive(mark)
    assert list(notes()) == []


def test_a_killed_leash_is_swept_up_later(tmp_path: Path, mark: str) -> None:
    held = owner(tmp_path, mark)
    (note,) = notes()
    facts = json.loads(note.read_text("ascii"))
    assert sweep() == []  # its owner lives: not ours to end
    assert leftovers() == 0
    leash.kill(facts["leash"][0], signal.SIGKILL)
    held.kill()
    held.wait()
    # The program dies with its leash; its daemon goes on, without a mark, in the same session.
    assert until(lambda: leash.started(facts["program"][0]) is None)
    assert until(lambda: len(alive(mark)) == 1)
    assert until(lambda: leftovers() == 1)
    assert len(sweep()) == 1
    assert until(lambda: not alive(mark))
    assert list(notes()) == []
    assert leftovers() == 0


def test_others_are_left_alone(tmp_path: Path, mark: str) -> None:
    """A note whose numbers now belong to somebody else, and one of another boot."""
    stranger = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(99)", mark],
                                start_new_session=True)  # fmt: skip
    try:
        process.notes_folder().mkdir(parents=True)
        began = leash.started(stranger.pid)
        assert began is not None
        facts = {"boot": leash.boot(), "owner": [1, -1], "leash": [1, -1], "token": "t"}
        reused = {**facts, "program": [stranger.pid, began - 1]}
        other_boot = {**facts, "program": [stranger.pid, began], "boot": "another"}
        for name, note in (("a", reused), ("b", other_boot)):
            (process.notes_folder() / f"{name}.json").write_text(json.dumps(note), "ascii")
        (process.notes_folder() / "c.json").write_text("no json", "ascii")
        assert sweep() == []
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()


def test_a_leash_that_is_killed_under_a_living_owner(tmp_path: Path, mark: str) -> None:
    one = leashed(tmp_path, mark)
    one.start()
    assert until(lambda: is_up(tmp_path) and bool(list(notes())))
    (note,) = notes()
    leash.kill(json.loads(note.read_text("ascii"))["leash"][0], signal.SIGKILL)
    assert until(lambda: not one.running)
    one.stop()
    assert until(lambda: not alive(mark))
    assert list(notes()) == []
