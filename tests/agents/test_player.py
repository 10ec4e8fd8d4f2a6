"""The player with client processes of every manner, real HTTP, the real gateway, an emulator."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentsched import AgentschedError, SchedulerError
from tests.agents.stage import Cell, FakeDriver, play
from tests.live.rig import run
from workloads.agents.base import SCRATCH, AgentTask

HANGING = f"1000.{os.getpid():09d}"
"""An argument by which processes of this test run are told from others."""


def played(folder: Path, tasks: list[AgentTask], **how: Any) -> Cell:
    found: list[Cell] = []

    async def inside() -> None:
        found.append(await play(folder, tasks, **how))

    run(inside)
    return found[0]


def task(name: str, **payload: Any) -> AgentTask:
    return AgentTask(name, payload)


def test_turns_as_the_gateway_sees_them_and_tools_as_the_agent_does(tmp_path: Path) -> None:
    tasks = [task(f"t{i}", turns=3, tool_s=0.1) for i in range(4)]
    cell = played(tmp_path, tasks, workers=2, settings={"a": 7})
    assert cell.statuses == {f"t{i}": "finished" for i in range(4)}
    assert cell.played.invalid is None
    assert cell.played.counters["agents.peak_active"] == 2
    assert cell.played.facts["agent_outcomes"] == {"Submitted": 4}
    for name in cell.statuses:
        turns = cell.turns_of(name)
        assert [turn.turn for turn in turns] == [0, 1, 2]
        assert [turn.last for turn in turns] == [False, False, True]
        assert {turn.status for turn in turns} == {"ok"}
        assert {turn.output_tokens for turn in turns} == {8}
        assert turns[0].moved is False
        assert all(turn.replica in ("e0", "e1") for turn in turns)
        for before, after in pairwise(turns):
            gap = (after.arrived - before.finished) / 1e9
            assert 0.1 <= before.tool_s <= gap
            assert before.tool_s + before.wait_s == pytest.approx(gap)
            assert after.tool_end is not None
            assert before.finished < after.tool_end <= after.arrived
            assert before.arrived <= (before.first_token or 0) <= before.finished
            assert after.prompt_tokens > before.prompt_tokens
    session = cell.records.sessions[0]
    assert (session.turns_done, session.turns_total, session.parent) == (3, 3, None)
    ended = lines(cell.folder / "sessions.jsonl")
    assert {line["facts"]["setting"] for line in ended} == {7}
    events = [line["kind"] for line in lines(cell.folder / "events.jsonl")]
    assert events.count("tool_started") == events.count("tool_ended") == 8
    assert events.count("model_started") == 12


def lines(file: Path) -> list[Any]:
    return [json.loads(line) for line in file.read_text().splitlines()]


def test_every_bad_manner_is_its_sessions_own(tmp_path: Path) -> None:
    manners = ("crash", "hang", "fail", "raise", "garbage", "")
    tasks = [task(manner or "good", manner=manner, hang_s=HANGING) for manner in manners]
    tasks += [task(f"after{i}") for i in range(4)]
    settings = {"session_limit_s": 3.0}
    cell = played(tmp_path, tasks, workers=2, settings=settings)
    assert cell.statuses == {
        "crash": "failed",
        "hang": "deadline",
        "fail": "failed",
        "raise": "failed",
        "garbage": "finished",
        "good": "finished",
        **{f"after{i}": "finished" for i in range(4)},
    }
    errors = {session.session: session.error for session in cell.records.sessions}
    assert errors["crash"] == "the client process died (exit status 3)"
    assert errors["hang"] == "stopped after 3 s"
    assert errors["fail"] == "the agent gave up"
    assert errors["raise"] == "KeyError: 'surprise'"
    counters = cell.played.counters
    assert (counters["agents.crashed"], counters["agents.deadline"]) == (1, 1)
    assert counters["agents.restarts"] == 1  # after the crash; the deadline comes last
    assert counters["agents.garbage_lines"] == 1
    logs = "".join(path.read_text() for path in cell.folder.glob("worker-*.log"))
    assert "what an agent prints goes to the log" in logs
    assert "surprise" in logs
    assert not left_over(HANGING)
    for name in ("crash", "hang"):
        assert [turn.status for turn in cell.turns_of(name)] == ["ok"]


def left_over(argument: str) -> bool:
    """Whether a process runs that has this argument."""
    for file in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            found = file.read_bytes().split(b"\0")
        except OSError:
            continue
        if argument.encode() in found:
            return True
    return False


def test_who_fills_the_disk_is_stopped(tmp_path: Path) -> None:
    tasks = [task("greedy", manner="fill"), task("modest", turns=8, tool_s=0.3)]
    settings = {"scratch_limit_mb": 20.0}
    cell = played(tmp_path, tasks, workers=2, settings=settings)
    assert cell.statuses == {"greedy": "failed", "modest": "finished"}
    [error] = [s.error for s in cell.records.sessions if s.session == "greedy"]
    assert error is not None
    assert "the limit is 20 MB" in error
    assert cell.played.counters["agents.stopped_for_disk"] == 1
    assert list((cell.folder / "greedy").iterdir()) == []


def test_cut_short_it_leaves_no_scratch(tmp_path: Path) -> None:
    scratch = tmp_path / "agents" / "greedy" / SCRATCH

    async def inside() -> None:
        tasks = [task("greedy", manner="fill")]
        playing = asyncio.ensure_future(play(tmp_path, tasks, workers=1))
        await asyncio.to_thread(wait_until, lambda: (scratch / "3").exists() or playing.done())
        playing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await playing

    run(inside)
    assert scratch.parent.is_dir()
    assert not scratch.exists()


def test_workers_that_wait_for_new_processes_make_it_invalid(tmp_path: Path) -> None:
    tasks = [task(f"t{i}", manner="crash") for i in range(3)]
    driver = FakeDriver("--slow-start")
    cell = played(tmp_path, tasks, workers=1, driver=driver)
    assert cell.played.counters["agents.restarts"] == 2
    assert cell.played.invalid is not None
    assert "of 1 workers were active while tasks waited" in cell.played.invalid


def test_equal_and_odd_names_become_sessions_of_their_own(tmp_path: Path) -> None:
    tasks = [task("a/b c"), task("a_b_c"), task("../x")]
    cell = played(tmp_path, tasks, workers=1)
    assert set(cell.statuses) == {"a_b_c", "a_b_c~2", "_x"}
    assert len(cell.records.turns) == 6


def test_clients_that_do_not_start_are_an_error_with_their_log(tmp_path: Path) -> None:
    with pytest.raises(AgentschedError) as caught:
        played(tmp_path, [task("t")], workers=1, driver=FakeDriver("--never-ready"))
    assert "died (exit status 1)" in caught.value.message
    assert "cannot find the package `agent`" in caught.value.message


BROKEN = """
from schedulers.round_robin import RoundRobin


class Broken(RoundRobin):
    def choose(self, turn, cluster):
        raise KeyError("lost")
"""


def test_a_broken_scheduler_ends_the_cell_and_its_clients(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text(BROKEN)
    tasks = [task("a", turns=3), task("b", turns=3)]
    with pytest.raises(SchedulerError, match="lost"):
        played(
            tmp_path,
            tasks,
            workers=2,
            driver=FakeDriver(HANGING),
            scheduler=f"{tmp_path}/broken.py:Broken",
        )
    assert not left_over(HANGING)


def test_in_front_of_another_router_our_proxy_sees_the_turns(tmp_path: Path) -> None:
    cell = played(tmp_path, [task("t", turns=3, tool_s=0.1)], workers=1, through_router=True)
    turns = cell.turns_of("t")
    assert [turn.status for turn in turns] == ["ok"] * 3
    assert {turn.replica for turn in turns} == {None}
    assert turns[0].tool_s >= 0.1
    [session] = cell.records.sessions
    assert session.started <= turns[0].arrived <= turns[-1].finished <= session.finished


def test_interrupted_it_leaves_nothing_running(tmp_path: Path) -> None:
    """As Ctrl-C does to the process of a cell: it is killed, and its clients are told nothing."""
    script = (
        "import asyncio, sys, pathlib\n"
        "from tests.agents.stage import play\n"
        "from workloads.agents.base import AgentTask\n"
        "folder = pathlib.Path(sys.argv[1])\n"
        "payload = {'manner': 'hang', 'hang_s': sys.argv[2]}\n"
        "tasks = [AgentTask('a', payload), AgentTask('b', payload)]\n"
        "asyncio.run(play(folder, tasks, workers=2))\n"
    )
    root = Path(__file__).parents[2]
    harness = subprocess.Popen([sys.executable, "-c", script, str(tmp_path), HANGING], cwd=root)
    try:
        wait_until(lambda: all((tmp_path / "agents" / name / "hanging").exists() for name in "ab"))
    finally:
        harness.kill()
        harness.wait()
    wait_until(lambda: not left_over(HANGING))


def wait_until(true: Any) -> None:
    end = time.monotonic() + 20
    while not true():
        assert time.monotonic() < end, "did not happen in time"
        time.sleep(0.05)
