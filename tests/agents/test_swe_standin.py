"""The stand-in tasks are real: their tests fail before the fix, pass after it, and the scripts
lead from the one to the other."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from agentsched import InputError
from harness.live.emulated_answers import read_script
from workloads.agents.swe_scripts import (
    recorded_scripts,
    standin_script,
    trajectory_script,
    write_script,
)
from workloads.agents.swe_standin import StandIn, standin_tasks

TASKS = standin_tasks()


def lay_out(task: StandIn, folder: Path) -> None:
    for path, text in task.files.items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_text(text)
    subprocess.run("git init -q && git add -A", shell=True, cwd=folder, check=True)


@pytest.mark.parametrize("task", TASKS, ids=[task.id for task in TASKS])
def test_its_script_solves_it(task: StandIn, tmp_path: Path) -> None:
    lay_out(task, tmp_path)
    codes: dict[str, int] = {}
    for line in standin_script(task):
        for call in line["tool_calls"]:
            command = call["arguments"]["command"].replace("sleep 0.", "sleep 0.00")
            done = subprocess.run(
                ["bash", "-c", command], cwd=tmp_path, capture_output=True, text=True, timeout=60
            )
            codes[command] = done.returncode
            output = done.stdout
    tests = [code for command, code in codes.items() if "unittest" in command]
    assert tests == [1, 0], "the tests fail at first and pass in the end"
    first, _, patch = output.partition("\n")
    assert first == "COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"
    assert patch.startswith(f"diff --git a/{task.module}")
    assert patch.count("diff --git") == 1


def test_titles_tell_the_tasks_apart() -> None:
    assert len(TASKS) == 8
    for task in TASKS:
        assert [other.id for other in TASKS if task.title in other.problem] == [task.id]


def test_the_emulator_reads_the_scripts(tmp_path: Path) -> None:
    lines = [line for task in TASKS for line in standin_script(task)]
    script = read_script(write_script(tmp_path / "s.jsonl", lines))
    assert len(script) == 8 * 9
    assert script[0].task == TASKS[0].title
    assert script[0].calls[1] == ("bash", '{"command":"cat README.md"}')


def trajectory(statement: str) -> dict[str, object]:
    """As mini-swe-agent 2.4 writes it, without what is not read."""
    prompt = (
        "<pr_description>\nConsider the following PR description:\n"
        f"{statement}\n</pr_description>\n\n<instructions>\n..."
    )
    call = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": '{"c": 1}'}}
    usage = {"usage": {"completion_tokens": 17, "prompt_tokens": 5}}
    return {
        "trajectory_format": "mini-swe-agent-1.1",
        "messages": [
            {"role": "system", "content": "You are helpful"},
            {"role": "user", "content": prompt},
            {
                "role": "assistant",
                "content": "look",
                "tool_calls": [call],
                "extra": {"response": usage},
            },
            {"role": "tool", "tool_call_id": "1", "content": "nothing"},
            {"role": "assistant", "content": None, "tool_calls": None},
            {"role": "exit", "content": "bye"},
        ],
    }


def test_recorded_trajectories_become_scripts(tmp_path: Path) -> None:
    for name, statement in (("a", "It breaks"), ("b", "x" * 500), ("c", "It breaks")):
        file = tmp_path / name / f"{name}.traj.json"
        file.parent.mkdir()
        file.write_text(json.dumps(trajectory(statement)))
    assert list(trajectory_script(tmp_path / "a" / "a.traj.json")) == [
        {
            "task": "It breaks",
            "content": "look",
            "tool_calls": [{"name": "bash", "arguments": '{"c": 1}'}],
            "tokens": 17,
        },
        {"task": "It breaks", "content": "", "tool_calls": []},
    ]
    script = read_script(write_script(tmp_path / "s.jsonl", recorded_scripts(tmp_path)))
    assert [line.task for line in script] == ["It breaks"] * 2 + ["x" * 200] * 2
    assert script[0].calls == (("bash", '{"c": 1}'),)
    assert script[0].tokens == 17


def test_what_is_no_trajectory_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="holds no trajectories"):
        list(recorded_scripts(tmp_path))
    (tmp_path / "x.traj.json").write_text("[]")
    with pytest.raises(InputError, match=r"x\.traj\.json"):
        list(recorded_scripts(tmp_path))
