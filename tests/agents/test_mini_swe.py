"""mini-swe-agent itself, real commands in a sandbox, real HTTP; only the model is scripted.

Skipped where the `agents` extra or bubblewrap is not installed.
"""

from __future__ import annotations

import json
import shutil
from importlib.util import find_spec
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
from workloads.agents.mini_swe import MiniSwe, SweBenchLite, SweBenchStandin


def _missing() -> str | None:
    if find_spec("minisweagent") is None:
        return "mini-swe-agent is not installed (the `agents` extra)"
    if shutil.which("git") is None:
        return "git is not installed"
    try:
        bubblewrap_version()
    except UsageError as error:
        return error.message
    return None


pytestmark = [
    pytest.mark.skipif(_missing() is not None, reason=_missing() or ""),
    pytest.mark.timeout(240),
]


def played(
    folder: Path,
    sessions: int,
    workers: int,
    driver: MiniSwe | None = None,
    script: Path | None = None,
    **settings: Any,
) -> Cell:
    driver, found = driver or SweBenchStandin(), list[Cell]()
    driver.check(settings)
    script = script or driver.script(folder, settings)
    assert script is not None

    async def inside() -> None:
        tasks = driver.tasks(settings, sessions=sessions, seed=0)
        cell = await play(
            folder,
            tasks,
            workers=workers,
            driver=driver,
            settings=settings,
            script=read_script(script),
        )
        found.append(cell)

    run(inside, limit_s=200.0)
    return found[0]


def trajectory(cell: Cell, session: str) -> list[dict[str, Any]]:
    [file] = (cell.folder / session).glob("*/*.traj.json")
    messages: list[dict[str, Any]] = json.loads(file.read_text())["messages"]
    return messages


def test_it_solves_the_standins_and_its_own_log_agrees(tmp_path: Path) -> None:
    cell = played(tmp_path, sessions=4, workers=2)
    assert set(cell.statuses.values()) == {"finished"}
    assert cell.played.facts["agent_outcomes"] == {"Submitted": 4}
    assert cell.played.facts["agent_reward_mean"] == 1.0
    answers: list[float] = []
    tools: list[float] = []
    zero = json.loads((cell.folder / "clock.json").read_text())["zero_unix_ns"] / 1e9
    for session in cell.statuses:
        turns, log = cell.turns_of(session), trajectory(cell, session)
        assert [turn.status for turn in turns] == ["ok"] * 9
        answered = [m["extra"]["timestamp"] for m in log if m["role"] == "assistant"]
        assert len(answered) == len(turns)
        answers += [at - zero - t.finished / 1e9 for at, t in zip(answered, turns, strict=True)]
        # All tools of a turn are logged when the last has ended.
        ends = [
            message["extra"]["timestamp"]
            for message, after in pairwise(log)
            if message["role"] == "tool" and after["role"] != "tool"
        ]
        for end, turn in zip(ends, turns[1:], strict=False):
            assert turn.tool_end is not None
            tools.append(end - zero - turn.tool_end / 1e9)
        assert sum(turn.tool_s for turn in turns) >= 0.5  # it sleeps so long
        assert not (cell.folder / session / "work").exists()
    # What the gateway saw comes first; the agent logs it when it has dealt with it.
    assert min(answers) > -0.05
    assert min(tools) > -0.05
    assert median(answers) < 0.05
    assert median(tools) < 0.05


def test_the_sandbox_has_no_network_and_nothing_of_the_host(tmp_path: Path) -> None:
    from workloads.agents.bubblewrap import prepare_root
    from workloads.agents.mini_swe_environment import SandboxEnvironment

    (tmp_path / "secret").write_text("s")
    root = tmp_path / "root"
    prepare_root(root)
    (root / "testbed").mkdir()
    environment = SandboxEnvironment(root=str(root), timeout=5)

    def does(command: str) -> dict[str, Any]:
        answer: dict[str, Any] = environment.execute({"command": command})
        return answer

    assert does("pwd")["output"] == "/testbed\n"
    assert does(f"cat {tmp_path}/secret")["returncode"] != 0
    assert does("echo x > /usr/x; echo x > /testbed/x; cat /testbed/x")["output"].endswith("x\n")
    assert not Path("/usr/x").exists()
    devices = does("tail -n +3 /proc/net/dev | cut -d: -f1")["output"].split()
    assert devices == ["lo"]
    assert does("env | grep -c -i key")["output"] == "0\n"
    late = does("sleep 30 & sleep 30")
    assert late["returncode"] == -1
    assert "timed out after 5 seconds" in late["exception_info"]
    much = does("head -c 10000000 /dev/zero | tr '\\0' a")["output"]
    assert len(much) < 5_000_000
    assert much.endswith("more bytes of output were dropped]\n")
    environment.cleanup()


def test_an_agent_at_its_step_limit_is_no_failure(tmp_path: Path) -> None:
    cell = played(tmp_path, sessions=1, workers=1, step_limit=3)
    assert cell.statuses == {"standin__interval-merge-1": "finished"}
    assert cell.played.facts["agent_outcomes"] == {"LimitsExceeded": 1}
    assert cell.played.facts["agent_reward_mean"] == 0.0
    assert len(cell.records.turns) == 3


def test_models_without_tool_calls_write_their_commands(tmp_path: Path) -> None:
    cell = played(tmp_path, sessions=1, workers=1, model_class="litellm_textbased")
    assert cell.played.facts["agent_outcomes"] == {"Submitted": 1}
    assert cell.played.facts["agent_reward_mean"] == 1.0


DOCKER = """#!/bin/sh
# Says what it was asked, and runs commands here.
echo "$@" >> {log}
case $1 in
  version) echo 99.0 ;;
  run)
    while [ "$1" != --cidfile ]; do shift; done
    echo box > "$2"
    echo box ;;
  exec)
    while [ "$1" != box ]; do shift; done
    shift
    cd {testbed} && exec "$@" ;;
esac
"""


def test_instances_run_in_their_images(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a stand-in for docker itself: what mini-swe-agent asks of it, and who cleans up."""
    log, programs, testbed = tmp_path / "asked", tmp_path / "bin", tmp_path / "testbed"
    programs.mkdir()
    testbed.mkdir()
    (programs / "docker").write_text(DOCKER.format(log=log, testbed=testbed))
    (programs / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:/usr/local/bin:/usr/bin:/bin")
    instances = [
        {"instance_id": f"psf__requests-{n}", "problem_statement": f"task {n}"} for n in (1, 2)
    ]
    tasks = tmp_path / "tasks.jsonl"
    tasks.write_text("".join(json.dumps(instance) + "\n" for instance in instances))
    submit = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && echo patch"

    def says(task: str, command: str) -> str:
        call = {"name": "bash", "arguments": {"command": command}}
        return json.dumps({"task": task, "content": "go", "tool_calls": [call]}) + "\n"

    script = tmp_path / "script.jsonl"
    script.write_text(says("task 1", submit) + says("task 2", "sleep 60"))
    cell = played(
        tmp_path,
        sessions=2,
        workers=2,
        driver=SweBenchLite(),
        script=script,
        tasks=str(tasks),
        session_limit_s=12,
    )
    assert cell.statuses == {"psf__requests-1": "finished", "psf__requests-2": "deadline"}
    handed = json.loads((cell.folder / "psf__requests-1" / "preds.json").read_text())
    assert handed["psf__requests-1"]["model_patch"] == "patch\n"
    asked = log.read_text()
    assert "docker.io/swebench/sweb.eval.x86_64.psf_1776_requests-1:latest" in asked
    assert "rm -f box" in asked, "the killed session's container is removed"
