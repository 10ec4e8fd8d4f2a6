"""Disks that are full or cannot be written, and clocks that jump."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from harness.live.clock import LoopClock
from harness.live.eventlog import verify
from results.store import RunStore
from tests.cli.command import agentsched, tiny_spec
from tests.durability.processes import emulated_spec
from tests.durability.served import ask, served
from tests.live.rig import chat, post, rig, run
from workloads.trace import load_trace


@contextmanager
def mounted(folder: Path, options: str) -> Iterator[Path]:
    """A small file system of its own at the folder."""
    folder.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no file system can be mounted here: {getattr(error, 'stderr', error)}")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "-l", str(folder)], check=True)


def test_a_full_disk_fails_the_run_in_words_and_is_gone_on_with(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    with mounted(tmp_path / "disk", "size=64k") as disk:
        filler = disk / "filler"
        filler.write_bytes(b"x" * (36 << 10))
        done = agentsched("run", spec, "-o", disk / "out", cwd=tmp_path)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        again = agentsched("run", spec, "-o", disk / "out", cwd=tmp_path)
        assert again.returncode == 0, again.stderr
        (state,) = RunStore.read(disk / "out").states()
        assert state.status == "done"


def test_a_read_only_disk_is_refused_in_words(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    with mounted(tmp_path / "disk", "size=1m,ro") as disk:
        done = agentsched("run", spec, "-o", disk / "out", cwd=tmp_path)
        assert done.returncode in (1, 2)
        assert "Read-only file system" in done.stderr
        assert "try: " in done.stderr


def test_a_full_disk_under_a_live_cell(tmp_path: Path) -> None:
    """It fails in words, and the same command goes on."""
    spec = emulated_spec(tmp_path)
    with mounted(tmp_path / "disk", "size=64k") as disk:
        filler = disk / "filler"
        filler.write_bytes(b"x" * (36 << 10))
        done = agentsched("run", spec, "-o", disk / "out", cwd=tmp_path)
        assert done.returncode == 1
        assert "No space left on device" in done.stderr
        assert "try: " in done.stderr
        filler.unlink()
        subprocess.run(["mount", "-o", "remount,size=8m", str(disk)], check=True)
        again = agentsched("run", spec, "-o", disk / "out", cwd=tmp_path)
        assert again.returncode in (0, 3), again.stderr  # 3: this client may have been too slow
        (state,) = RunStore.read(disk / "out").states()
        assert state.status == "done"


def test_a_full_disk_under_a_recording(tmp_path: Path) -> None:
    """Turns go on; in the end the recording is in the temporary folder, and that is said."""
    spare = tmp_path / "spare"
    spare.mkdir()
    with mounted(tmp_path / "disk", "size=4k,nr_inodes=8") as disk:
        command = ("record", "-o", disk / "seen.jsonl", "--record-content", disk / "text.jsonl")
        with served(tmp_path, *command, TMPDIR=str(spare)) as s:
            (disk / "filler").write_bytes(b"x" * (4 << 10))
            for number in range(6):
                assert ask(s.ports[1], f"task {number} " + "word " * 600) == 200
            s.gateway.send_signal(signal.SIGTERM)
            _, err = s.gateway.communicate(timeout=60)
        assert s.gateway.returncode == 1
        assert "No space left on device; the recording is in" in " ".join(err.split())
        assert "Traceback" not in err
    (kept,) = spare.glob("agentsched-recording-*/seen.jsonl")
    assert sum(len(session.turns) for session in load_trace(kept)) == 6


def test_a_full_disk_under_the_log_of_serve(tmp_path: Path) -> None:
    with mounted(tmp_path / "disk", "size=4k") as disk:
        with served(tmp_path, "serve", "--event-log", disk / "events.jsonl") as s:
            for number in range(40):
                assert ask(s.ports[1], f"task {number}") == 200
            s.gateway.send_signal(signal.SIGTERM)
            _, err = s.gateway.communicate(timeout=60)
        assert s.gateway.returncode == 1
        assert "ends early: No space left on device" in " ".join(err.split())
        # What it holds is a log as far as it goes.
        count, difference = verify(disk / "events.jsonl")
        assert difference is None
        assert count > 0


def test_a_full_disk_under_a_gateways_log_does_not_end_turns(tmp_path: Path) -> None:
    """The event log is for looking at afterwards; callers need their answers now."""
    with mounted(tmp_path / "disk", "size=8k") as disk:

        async def test() -> None:
            async with rig(event_log=disk / "events.jsonl") as r:
                text = "word " * 400
                for number in range(60):
                    got = await post(r.client, "/v1/chat/completions", chat(text=text))
                    assert got.status == 200, number
                    os.sync()

        run(test)


def test_a_wall_clock_that_jumps_back_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """All times of turns come from the monotonic clock."""
    hour, real = 3600.0, time.time

    async def test() -> None:
        async with rig() as r:
            before = r.served.driver.clock.now
            monkeypatch.setattr(time, "time", lambda: real() - hour)
            monkeypatch.setattr(time, "time_ns", lambda: int((real() - hour) * 1e9))
            for _ in range(3):
                got = await post(r.client, "/v1/chat/completions", chat())
                assert got.status == 200
                assert float(got.headers["x-agentsched-pause-ms"]) >= 0
            assert isinstance(r.served.driver.clock, LoopClock)
            assert before < r.served.driver.clock.now < before + int(600e9)

    run(test)
