"""Harbor itself and its agents, real commands in sandboxes, real HTTP; only the model is scripted.

Skipped unless AGENTSCHED_HARBOR_PYTHON names an interpreter that has Harbor, and bubblewrap works;
the test of Claude Code also needs AGENTSCHED_CLAUDE to name its program.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from agentsched import UsageError
from harness.live.emulated_answers import read_script
from tests.agents.stage import Cell, play
from tests.live.rig import run
from workloads.agents.bubblewrap import bubblewrap_version
from workloads.agents.harbor import TerminalBench, TerminalBenchStandin

PYTHON = os.environ.get("AGENTSCHED_HARBOR_PYTHON")
CLAUDE = os.environ.get("AGENTSCHED_CLAUDE")


def _missing() -> str | None:
    if PYTHON is None:
        return "AGENTSCHED_HARBOR_PYTHON names no interpreter with Harbor"
    try:
        bubblewrap_version()
    except UsageError as error:
        return error.message
    return None


pytestmark = [
    pytest.mark.skipif(_missing() is not None, reason=_missing() or ""),
    pytest.mark.timeout(400),
]


def played(folder: Path, sessions: int, **settings: Any) -> Cell:
    driver, found = TerminalBenchStandin(), list[Cell]()
    settings["python"] = PYTHON
    driver.check(settings)
    script = driver.script(folder, settings)
    assert script is not None

    async def inside() -> None:
        tasks = driver.tasks(settings, sessions=sessions, seed=0)
        answers = read_script(script)
        found.append(
            await play(folder, tasks, workers=2, driver=driver, settings=settings, script=answers)
        )

    run(inside, limit_s=300.0)
    return found[0]


def marks(cell: Cell) -> dict[str, list[tuple[float, str]]]:
    """What each agent logged of its tools: seconds since the cell began, and which end."""
    zero = json.loads((cell.folder / "clock.json").read_text())["zero_unix_ns"]
    found: dict[str, list[tuple[float, str]]] = defaultdict(list)
    for line in (cell.folder / "events.jsonl").read_text().splitlines():
        event = json.loads(line)
        if event["kind"] in ("tool_started", "tool_ended"):
            found[event["session"]].append(((event["time_ns"] - zero) / 1e9, event["kind"]))
    return found


def check_agreement(cell: Cell) -> None:
    """The agent starts its tools after the gateway's answer, and asks again after they end."""
    starts: list[float] = []
    ends: list[float] = []
    logged = marks(cell)
    for session in cell.statuses:
        turns = cell.turns_of(session)
        for turn, following in pairwise(turns):
            after, before = turn.finished / 1e9, following.arrived / 1e9
            within = [m for m in logged[session] if after - 0.05 <= m[0] <= before + 0.05]
            if not within:
                continue  # Terminus asks whether it is sure: nothing is typed
            starts.append(min(at for at, kind in within if kind == "tool_started") - after)
            ends.append(before - max(at for at, kind in within if kind == "tool_ended"))
    assert len(starts) >= 3 * len(cell.statuses)
    assert min(*starts, *ends) > -0.05
    assert median(starts) < 0.5  # on a machine that does nothing else it is below 0.05
    assert median(ends) < 0.5


@pytest.mark.parametrize("parser", ["json", "xml"])
def test_terminus_solves_the_stand_ins(tmp_path: Path, parser: str) -> None:
    cell = played(tmp_path, 3, agent="terminus-2", parser=parser)
    assert set(cell.statuses.values()) == {"finished"}
    assert cell.played.facts["agent_reward_mean"] == 1.0
    for session in cell.statuses:
        trajectory = json.loads(
            (cell.folder / session / "trial" / "agent" / "trajectory.json").read_text()
        )
        assert trajectory["schema_version"].startswith("ATIF")
        assert not (cell.folder / session / "work").exists()
    check_agreement(cell)


@pytest.mark.skipif(CLAUDE is None, reason="AGENTSCHED_CLAUDE names no program")
def test_claude_code_solves_the_stand_ins(tmp_path: Path) -> None:
    cell = played(tmp_path, 3, agent="claude-code", agent_program=CLAUDE)
    assert set(cell.statuses.values()) == {"finished"}
    assert cell.played.facts["agent_reward_mean"] == 1.0
    check_agreement(cell)


def test_an_unreachable_task_set_and_a_task_that_needs_its_image(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot get the task set none-of-this-name"):
        TerminalBench().tasks(
            {"python": PYTHON, "dataset": "none-of-this-name@1"}, sessions=None, seed=0
        )
    task = tmp_path / "tasks" / "one"
    for name, text in {
        "task.toml": "[agent]\ntimeout_sec = 30.0\n",
        "instruction.md": "x\n",
        "environment/Dockerfile": "FROM x\nRUN make\n",
        "tests/test.sh": "#!/bin/bash\n",
    }.items():
        (task / name).parent.mkdir(parents=True, exist_ok=True)
        (task / name).write_text(text)
    driver = TerminalBench()
    settings = {"python": PYTHON, "environment": "bubblewrap", "tasks": str(tmp_path / "tasks")}

    async def inside() -> None:
        tasks = driver.tasks(settings, sessions=None, seed=0)
        cell = await play(tmp_path, tasks, workers=1, driver=driver, settings=settings)
        assert cell.statuses == {"one": "failed"}
        assert "ignore_run" in (cell.folder / "sessions.jsonl").read_text()

    run(inside, limit_s=120.0)
