"""Terminal-Bench through Harbor, as far as it goes without Harbor: settings, tasks, results."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import replace
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from agentsched import InputError, UsageError
from harness.live.emulated_answers import read_script
from harness.live.tool_signals import ToolCallParts, signals
from workloads.agents.base import AgentTask, Assignment
from workloads.agents.claude_code import HookFolder, HookServer, ToolMark, file_hook_settings
from workloads.agents.harbor import TerminalBench, TerminalBenchStandin
from workloads.agents.harbor_recipe import read_dockerfile
from workloads.agents.harbor_results import mini_swe_marks, trial_facts
from workloads.agents.harbor_settings import read_settings, shown_folders
from workloads.agents.harbor_standin import STANDIN_TASKS, write_task
from workloads.agents.harbor_trial import trial_config


def task_folder(folder: Path, name: str, toml: str = "[agent]\ntimeout_sec = 90.0\n") -> Path:
    path = folder / name
    path.mkdir(parents=True)
    (path / "task.toml").write_text(toml)
    (path / "instruction.md").write_text("Do it.\n")
    return path


# Settings.


@pytest.mark.parametrize(
    ("given", "match"),
    [
        ({"agents": "x"}, "no setting `agents`"),
        ({"agent": "codex"}, "agent: `codex`"),
        ({"parser": "yaml"}, "parser: `yaml`"),
        ({"repeats": 0}, "repeats"),
        ({"repeats": True}, "repeats: True"),
        ({"filter": 3}, "filter: 3"),
        ({"timeout_multiplier": "2"}, "timeout_multiplier"),
        ({"agent": "claude-code", "environment": "docker"}, "loopback"),
    ],
)
def test_wrong_settings_are_named(given: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        read_settings(given)


def test_what_is_missing_is_said_with_how_to_get_it(tmp_path: Path) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)
    for driver in (TerminalBench(), TerminalBenchStandin()):
        with pytest.raises(UsageError, match="has no Harbor") as caught:
            driver.check({"python": str(bare)})
        assert "pip install harbor" in caught.value.remedy
    with pytest.raises(UsageError, match="has no Harbor"):
        TerminalBench().check({"python": str(tmp_path / "none")})
    bare.write_text("#!/bin/sh\necho 1.2.3\n")
    with pytest.raises(UsageError, match="nothing can be installed") as caught:
        TerminalBenchStandin().check(
            {"python": str(bare), "agent": "claude-code", "agent_program": str(tmp_path / "none")}
        )
    assert "npm install" in caught.value.remedy


def test_programs_in_packages_and_environments_are_shown_whole(tmp_path: Path) -> None:
    package = tmp_path / "lib" / "node_modules"
    (package / ".bin").mkdir(parents=True)
    (package / "tool").mkdir()
    (package / "tool" / "cli").write_text("")
    (package / ".bin" / "tool").symlink_to("../tool/cli")
    assert shown_folders(package / ".bin" / "tool") == [str(package)]
    venv, base = tmp_path / "venv", tmp_path / "base"
    (venv / "bin").mkdir(parents=True)
    (base / "bin").mkdir(parents=True)
    (venv / "bin" / "agent").write_text("")
    (venv / "pyvenv.cfg").write_text(f"home = {base}/bin\nversion = 3.12\n")
    assert shown_folders(venv / "bin" / "agent") == sorted([str(venv), str(base)])
    assert shown_folders(Path("/usr/bin/env")) == []


# Tasks.


def test_tasks_of_a_folder(tmp_path: Path) -> None:
    for name in ("b", "a", "c"):
        task_folder(tmp_path, name)
    (tmp_path / "README").write_text("no task")
    settings = {"tasks": str(tmp_path), "exclude": "c", "repeats": 2, "timeout_multiplier": 2}
    tasks = TerminalBench().tasks(settings, sessions=None, seed=1)
    assert sorted(task.id for task in tasks) == ["a", "a@2", "b", "b@2"]
    # (90 s for the agent + 600 s, Harbor's default, for the verifier) x 2
    assert {task.timeout_s for task in tasks} == {1380.0}
    assert tasks[0].payload == {"task": {"path": str(tmp_path / tasks[0].id)}}
    assert len(TerminalBench().tasks(settings, sessions=7, seed=1)) == 7
    with pytest.raises(UsageError, match="no task is left"):
        TerminalBench().tasks({**settings, "filter": "x*"}, sessions=None, seed=1)


@pytest.mark.parametrize(
    ("toml", "match"),
    [
        ("[agent\n", "task.toml: not TOML"),
        ("[agent]\ntimeout_sec = 'long'\n", r"task.toml, field `agent.timeout_sec`"),
        ("[verifier]\ntimeout_sec = -1\n", r"task.toml, field `verifier.timeout_sec`"),
    ],
)
def test_damaged_tasks_are_named(tmp_path: Path, toml: str, match: str) -> None:
    task_folder(tmp_path, "a", toml)
    with pytest.raises(InputError, match=match):
        TerminalBench().tasks({"tasks": str(tmp_path)}, sessions=None, seed=0)


def test_a_task_without_an_instruction_and_a_missing_folder(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="no such folder"):
        TerminalBench().tasks({"tasks": str(tmp_path / "none")}, sessions=None, seed=0)
    (task_folder(tmp_path, "a") / "instruction.md").unlink()
    with pytest.raises(InputError, match=r"instruction\.md"):
        TerminalBench().tasks({"tasks": str(tmp_path)}, sessions=None, seed=0)


def test_the_real_task_set_comes_from_harbors_loader(tmp_path: Path) -> None:
    python = tmp_path / "python"
    listed = {"tasks": [{"id": "t/one", "task": {"name": "t/one", "ref": "1"}}]}
    python.write_text(f"#!/bin/sh\necho '{json.dumps(listed)}'\n")
    python.chmod(0o755)
    settings = {"python": str(python)}
    [task] = TerminalBench().tasks(settings, sessions=None, seed=0)
    assert (task.id, task.payload) == ("t/one", {"task": {"name": "t/one", "ref": "1"}})
    for answer in (
        'echo \'{"error": "no network"}\'',
        "case $* in *version*) echo 1;; *) exit 3;; esac",
    ):
        python.write_text(f"#!/bin/sh\n{answer}\n")
        with pytest.raises(UsageError, match="cannot get the task set") as caught:
            TerminalBench().tasks(settings, sessions=None, seed=0)
        assert "terminal-bench-standin" in caught.value.remedy


# Stand-ins.


def test_stand_ins_are_solved_by_their_solutions_only(tmp_path: Path) -> None:
    assert len(STANDIN_TASKS) == 8
    for task in STANDIN_TASKS:
        folder = tmp_path / task.name
        write_task(task, folder)
        app = folder / "environment" / "files"
        check = [sys.executable, str(folder / "tests" / "check.py")]
        before = subprocess.run(check, cwd=app, capture_output=True, check=False)
        assert before.returncode != 0, task.name
        solve = (folder / "solution" / "solve.sh").read_text().replace("cd /app", f"cd {app}")
        subprocess.run(["bash", "-c", solve], check=True, capture_output=True)
        subprocess.run(check, cwd=app, check=True)
        assert task.name in (folder / "instruction.md").read_text()
        recipe = read_dockerfile((folder / "environment" / "Dockerfile").read_text())
        assert (recipe.copies, recipe.left_out) == ([("files/", "/app/")], [])


@pytest.mark.parametrize(
    "settings",
    [
        {"agent": "terminus-2"},
        {"agent": "terminus-2", "parser": "xml"},
        {"agent": "claude-code"},
        {"agent": "mini-swe-agent"},
    ],
)
def test_scripts_hold_the_commands_that_solve_the_tasks(
    tmp_path: Path, settings: dict[str, Any]
) -> None:
    script = TerminalBenchStandin().script(tmp_path, settings)
    assert script is not None
    book = read_script(script)
    for task in STANDIN_TASKS:
        lines = book.by_task[task.name]
        commands: list[str] = []
        for line in lines:
            calls = [ToolCallParts(name=n, arguments=a) for n, a in line.calls]
            for signal in signals(calls, line.content):
                text = signal.command or ""
                commands.append(json.loads(text)["command"] if calls else text)
        for step in task.steps:
            for command in step:
                assert any(command in one for one in commands), (task.name, command)
        if settings["agent"] == "terminus-2":  # the wait for the model's duration is read
            hints = [s.hint_s for line in lines for s in signals([], line.content)]
            assert all(hint is not None and hint > 0 for hint in hints)
            assert "task_complete" in lines[-1].content


# One trial.


def assigned(folder: Path) -> Assignment:
    return Assignment("s 1", AgentTask("t", {}), "http://10.0.0.5:8300", None, "m", str(folder), {})


def test_every_agent_names_the_session_and_the_gateway(tmp_path: Path) -> None:
    task = {"path": "/tasks/t"}
    terminus = trial_config(assigned(tmp_path), read_settings({"max_turns": 3}), task)
    options = terminus["agent"]["kwargs"]
    assert options["api_base"] == "http://10.0.0.5:8300/v1"
    assert options["llm_call_kwargs"]["extra_headers"] == {"x-agentsched-session": "s 1"}
    assert options["max_turns"] == 3
    assert terminus["environment"] == {"type": "docker", "kwargs": {"auto_mounting": True}}
    assert terminus["trials_dir"] == str(tmp_path)

    containers = read_settings(
        {"agent": "claude-code", "gateway_host": "host.docker.internal", "verify": False}
    )
    claude = trial_config(assigned(tmp_path), containers, task)
    assert claude["agent"]["base_url"] == "http://host.docker.internal:8300"
    headers = claude["agent"]["env"]["ANTHROPIC_CUSTOM_HEADERS"]
    assert headers == "X-Claude-Code-Session-Id: s 1"
    assert "PreToolUse" in claude["agent"]["kwargs"]["config"]["hooks"]
    assert claude["verifier"] == {"disable": True}

    program = tmp_path / "bin" / "mini-swe-agent"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    sandboxed = read_settings(
        {"agent": "mini-swe-agent", "environment": "bubblewrap", "agent_program": str(program)}
    )
    mini = trial_config(assigned(tmp_path), sandboxed, task)
    assert mini["agent"]["base_url"] == "http://127.0.0.1:8300/v1"
    assert mini["agent"]["kwargs"]["session_id_headers"] == ["x-agentsched-session"]
    environment = mini["environment"]["kwargs"]
    assert environment["reach"] == ["http://10.0.0.5:8300"]
    assert environment["links"] == {"mini-swe-agent": str(program)}
    assert str(program.parent) in environment["programs"]

    sandboxed = replace(sandboxed, agent="claude-code")
    hooks = "http://127.0.0.1:9999"
    claude = trial_config(assigned(tmp_path), sandboxed, task, hooks)
    assert claude["environment"]["kwargs"]["reach"] == ["http://10.0.0.5:8300", hooks]
    [hook] = claude["agent"]["kwargs"]["config"]["hooks"]["PostToolUse"][0]["hooks"]
    assert (hook["type"], hook["url"]) == ("http", hooks)


def test_hooks_over_http_are_marks_timed_when_they_come() -> None:
    found: list[ToolMark] = []
    server = HookServer(found.append)
    connection = HTTPConnection(server.url.removeprefix("http://"), timeout=10)

    def post(body: bytes) -> int:
        connection.request("POST", "/", body, {"content-type": "application/json"})
        with connection.getresponse() as answer:
            assert answer.read() == b""  # no word of whether the tool may run
            return answer.status

    try:
        before = time.time_ns()
        for event in ("PreToolUse", "PostToolUse", "PreToolUse", "PostToolUseFailure"):
            told = {"hook_event_name": event, "tool_name": "Bash", "tool_use_id": "u1"}
            assert post(json.dumps(told).encode()) == 200
        assert post(b'{"hook_event_name": "Stop"}') == 400
        assert post(b"[") == 400
        assert post(b"[]") == 400
        connection.putrequest("POST", "/")
        connection.endheaders()
        assert connection.getresponse().status == 411
    finally:
        connection.close()
        server.close()
    kinds = ["tool_started", "tool_ended"]
    assert [(mark.kind, mark.name, mark.id) for mark in found] == [
        (kind, "Bash", "u1") for kind in (*kinds, *kinds)
    ]
    times = [before, *(mark.time_ns for mark in found), time.time_ns()]
    assert times == sorted(times)


def test_hooks_of_claude_code_write_what_is_read(tmp_path: Path) -> None:
    folder = tmp_path / "with space"
    folder.mkdir()
    hooks = HookFolder(folder)
    assert hooks.new() == []
    settings = file_hook_settings(str(folder))["hooks"]

    def fire(event: str, use: str) -> None:
        command = settings[event][0]["hooks"][0]["command"]
        told = {"hook_event_name": event, "tool_name": "Bash", "tool_use_id": use}
        told["tool_input"] = {"command": "echo \"'$(x)\\n\n"}  # type: ignore[assignment]
        subprocess.run(["sh", "-c", command], input=json.dumps(told).encode(), check=True)

    fire("PreToolUse", "u1")
    fire("PreToolUse", "u2")
    fire("PostToolUse", "u1")
    (folder / "1796000000000000000-1.json").write_text('{"hook_event_')  # not whole yet
    (folder / "notes.json").write_text("{}")
    marks = hooks.new()
    assert [(m.kind, m.id) for m in marks] == [
        ("tool_started", "u1"),
        ("tool_started", "u2"),
        ("tool_ended", "u1"),
    ]
    assert marks[0].time_ns < marks[1].time_ns < marks[2].time_ns
    fire("PostToolUseFailure", "u2")
    assert [(m.kind, m.id, m.name) for m in hooks.new()] == [("tool_ended", "u2", "Bash")]
    assert hooks.new() == []


# Results.


def test_facts_of_a_trial(tmp_path: Path) -> None:
    trial = tmp_path / "trial"
    (trial / "agent").mkdir(parents=True)
    result = {
        "task_name": "t",
        "agent_info": {"name": "terminus-2", "version": "2.0.0"},
        "agent_result": {
            "n_input_tokens": 100,
            "n_cache_tokens": 60,
            "n_output_tokens": 7,
            "metadata": {"n_episodes": 3, "summarization_count": 0},
        },
        "verifier_result": {"rewards": {"reward": 1.0}},
        "exception_info": None,
        "agent_execution": {
            "started_at": "2026-01-01T00:00:00Z",
            "finished_at": "2026-01-01T00:01:02.5Z",
        },
        "verifier": {"started_at": "2026-01-01T00:01:03Z", "finished_at": None},
    }
    (trial / "result.json").write_text(json.dumps(result))
    steps = [
        {"source": "user"},
        {"source": "agent", "tool_calls": [{}, {}]},
        {"source": "agent", "tool_calls": None},
    ]
    (trial / "agent" / "trajectory.json").write_text(json.dumps({"steps": steps}))
    assert trial_facts(trial) == {
        "task": "t",
        "agent_version": "2.0.0",
        "reward": 1.0,
        "input_tokens": 100,
        "cached_tokens": 60,
        "output_tokens": 7,
        "turns": 3,
        "summaries": 0,
        "agent_execution_s": 62.5,
        "trajectory": "trial/agent/trajectory.json",
        "agent_steps": 2,
        "tool_calls": 2,
    }
    said = (
        'Command failed\nstdout: {"type":"result","result":"API Error: 400 too long"}\nstderr: None'
    )
    error = {"exception_type": "UnknownApiError", "exception_message": said}
    (trial / "result.json").write_text(json.dumps({**result, "exception_info": error}))
    facts = trial_facts(trial)
    assert (facts["error"], facts["error_message"]) == (
        "UnknownApiError",
        "API Error: 400 too long",
    )


@pytest.mark.parametrize("content", [None, "", "{", "[]"])
def test_damaged_results_are_named(tmp_path: Path, content: str | None) -> None:
    if content is not None:
        (tmp_path / "result.json").write_text(content)
    with pytest.raises(InputError, match=r"result\.json"):
        trial_facts(tmp_path)


def test_tool_times_of_a_mini_swe_trajectory(tmp_path: Path) -> None:
    path = tmp_path / "t.json"
    assert mini_swe_marks(path) == []
    messages = [
        {"role": "system"},
        {"role": "assistant", "extra": {"timestamp": 10.0}},
        {"role": "tool", "extra": {"timestamp": 10.5}},
        {"role": "tool", "extra": {"timestamp": 11.0}},  # the second tool of the same turn
        {"role": "assistant", "extra": {"timestamp": 12.0}},
        {"role": "exit", "extra": {}},
    ]
    path.write_text(json.dumps({"messages": messages}))
    marks = [(m.kind, m.time_ns / 1e9) for m in mini_swe_marks(path)]
    assert marks == [("tool_started", 10.0), ("tool_ended", 11.0), ("tool_started", 12.0)]


def test_dockerfiles_are_followed_as_far_as_they_go() -> None:
    recipe = read_dockerfile(
        "FROM x\n# RUN no\nWORKDIR /srv\nENV A=1 B='two words'\nCOPY a b \\\n  data/\n"
        "COPY one /two\nWORKDIR app\nCMD sleep\n"
    )
    assert recipe.folder == "/srv/app"
    assert recipe.environment == {"A": "1", "B": "two words"}
    assert recipe.copies == [("a", "/srv/data/"), ("b", "/srv/data/"), ("one", "/two")]
    assert recipe.left_out == []
    needs = read_dockerfile('FROM x\nRUN apt-get install y\nCOPY --from=x /a /b\nCOPY ["a", "b"]\n')
    assert len(needs.left_out) == 3
