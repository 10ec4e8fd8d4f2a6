"""Servers and clients that are told to end: what runs may end first, unless they are told twice."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import pytest

from tests.durability.processes import marked, start, turns_in, wait_until
from tests.durability.served import Stream, ask, served
from workloads.model import Session, TurnSpec
from workloads.trace import load_trace, write_trace


@pytest.mark.parametrize(
    ("who", "number"), [("gateway", signal.SIGTERM), ("engine", signal.SIGINT)]
)
def test_running_turns_may_end(tmp_path: Path, who: str, number: signal.Signals) -> None:
    with served(tmp_path, "serve") as s:
        process = s.gateway if who == "gateway" else s.engine
        stream = Stream(s.ports[1])
        process.send_signal(number)
        assert process.stderr is not None
        while "running turn(s) may end" not in process.stderr.readline():
            pass
        port = s.ports[1 if who == "gateway" else 0]
        refused = ask(port)
        assert refused == 503  # no further turn is taken
        assert stream.whole()
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err


@pytest.mark.parametrize("who", ["gateway", "engine"])
def test_told_twice_they_end_at_once(tmp_path: Path, who: str) -> None:
    with served(tmp_path, "serve") as s:
        process = s.gateway if who == "gateway" else s.engine
        stream = Stream(s.ports[1])
        process.send_signal(signal.SIGTERM)
        assert process.stderr is not None
        while "running turn(s) may end" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert not stream.whole()


def test_a_replay_and_a_recording_that_are_told_to_end(tmp_path: Path) -> None:
    """The replay ends its turns, writes them and says that it was interrupted; the recording has
    them too."""
    turns = tuple(
        TurnSpec(40 + 44 * i, 40, kept_turn=i - 1 if i else None, kept_tokens=44 * i)
        for i in range(50)
    )
    trace, seen = tmp_path / "long.jsonl", tmp_path / "seen.jsonl"
    write_trace(trace, [Session(f"s{number}", turns, "long", "recorded") for number in range(2)])
    with served(tmp_path, "record", "-o", seen) as s:
        url = f"http://127.0.0.1:{s.ports[1]}"
        play = ("replay", trace, "--workers", "2", "--url", url, "-o", "out")
        client = start(*play, cwd=tmp_path, mark=s.mark)
        folder = tmp_path / "out/cells"
        wait_until(lambda: _turns(folder) >= 4, "four turns", process=client)
        client.send_signal(signal.SIGTERM)
        _, err = client.communicate(timeout=60)
        assert client.returncode == 130, err
        assert "running turn(s) may end" in err
        kept = [turn for cell in folder.iterdir() for turn in turns_in(cell)]
        assert {turn["status"] for turn in kept} == {"ok"}
        time.sleep(0.2)
        s.gateway.send_signal(signal.SIGTERM)
        _, err = s.gateway.communicate(timeout=60)
        assert s.gateway.returncode == 0, err
        recorded = load_trace(seen)
        assert sum(len(session.turns) for session in recorded) == len(kept)
    wait_until(lambda: marked(s.mark) == [], "every process to end")


def _turns(folder: Path) -> int:
    return sum(len(turns_in(cell)) for cell in folder.iterdir()) if folder.exists() else 0
