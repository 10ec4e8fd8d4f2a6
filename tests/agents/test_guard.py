"""The guard of a client process: whatever happens, nothing that it started is left over."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness.live.agents import guard

pytestmark = pytest.mark.skipif(
    not Path("/proc/self/stat").exists(), reason="orphans are found in /proc, which is Linux's"
)

GUARD = [sys.executable, "-S", guard.__file__]
DAEMON = "setsid sh -c 'echo $$ > {pid}; sleep 1000' & wait_for=1; sleep 0.3; {then}"
"""Leaves a process in a session of its own, as tools that start servers do."""


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except FileNotFoundError:
        return False
    return state != "Z"


def wait_until(true: object, seconds: float = 10.0) -> None:
    assert callable(true)
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.02)


def daemon_of(file: Path) -> int:
    wait_until(lambda: file.exists() and file.read_text().strip())
    return int(file.read_text())


@pytest.mark.parametrize("code", [0, 7])
def test_status_and_streams_pass_and_daemons_die(tmp_path: Path, code: int) -> None:
    script = DAEMON.format(pid=tmp_path / "pid", then=f"cat; exit {code}")
    done = subprocess.run(
        [*GUARD, "sh", "-c", script], input=b"through", capture_output=True, timeout=30
    )
    assert (done.returncode, done.stdout) == (code, b"through")
    assert not alive(daemon_of(tmp_path / "pid"))


def test_a_signal_of_the_command_is_its_status() -> None:
    done = subprocess.run([*GUARD, "sh", "-c", "kill -9 $$"], timeout=30)
    assert done.returncode == 128 + 9


def test_told_to_end_it_kills_all(tmp_path: Path) -> None:
    script = DAEMON.format(pid=tmp_path / "pid", then="trap '' TERM INT; sleep 1000")
    running = subprocess.Popen([*GUARD, "sh", "-c", script])
    daemon = daemon_of(tmp_path / "pid")
    running.send_signal(signal.SIGTERM)
    running.wait(timeout=10)
    assert not alive(daemon)


@pytest.mark.parametrize("command_ends", [False, True])
def test_told_again_while_it_turns_to_the_killing(tmp_path: Path, command_ends: bool) -> None:
    """As with Ctrl-C, which guards hear as well as the harness, which then tells them itself."""
    then = "exit 0" if command_ends else "sleep 1000"
    script = DAEMON.format(pid=tmp_path / "pid", then=then)
    code = (
        "import os, signal, sys\n"
        "from harness.live.agents import guard\n"
        "set_handler, told = signal.signal, []\n"
        "def signals(number, handler):\n"
        "    if handler is signal.SIG_IGN and not told:\n"
        "        told.append(number)\n"
        "        os.kill(os.getpid(), signal.SIGINT)\n"
        "    return set_handler(number, handler)\n"
        "signal.signal = signals\n"
        "sys.exit(guard.main(sys.argv[1:]))\n"
    )
    root = Path(__file__).parents[2]
    running = subprocess.Popen([sys.executable, "-c", code, "sh", "-c", script], cwd=root)
    daemon = daemon_of(tmp_path / "pid")
    if not command_ends:
        running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=30) == (0 if command_ends else 128 + 9)
    assert not alive(daemon)


def test_when_the_harness_is_killed_everything_dies(tmp_path: Path) -> None:
    script = DAEMON.format(pid=tmp_path / "pid", then="sleep 1000")
    code = (
        "import subprocess, sys; p = subprocess.Popen(sys.argv[1:]); print(p.pid, flush=True); "
        "p.wait()"
    )
    harness = subprocess.Popen(
        [sys.executable, "-c", code, *GUARD, "sh", "-c", script], stdout=subprocess.PIPE
    )
    assert harness.stdout is not None
    guarding = int(harness.stdout.readline())
    daemon = daemon_of(tmp_path / "pid")
    os.kill(harness.pid, signal.SIGKILL)
    harness.wait()
    harness.stdout.close()
    wait_until(lambda: not alive(guarding) and not alive(daemon))


def test_no_file_grows_beyond_the_limit(tmp_path: Path) -> None:
    file = tmp_path / "big"
    script = f"dd if=/dev/zero of={file} bs=4096 count=100 2>/dev/null"
    done = subprocess.run([*GUARD, "--files", "10000", "sh", "-c", script], timeout=30)
    assert done.returncode != 0
    assert file.stat().st_size <= 10000
