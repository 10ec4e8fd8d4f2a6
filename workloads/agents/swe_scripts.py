"""Scripted completions: what a model might say to a task, so that agents run without one.

A script is JSON Lines as the emulator reads them: the n-th line of a task answers the prompt with
n - 1 earlier answers in it. Lines come from recorded trajectories of mini-swe-agent, or, for the
stand-in tasks, are made here and really solve them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentsched import InputError
from workloads.agents.swe_standin import TEST_COMMAND, StandIn

Line = dict[str, Any]
SUBMIT = "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT && cat patch.txt"
"""What mini-swe-agent's own configuration tells the model to end with."""
MATCH_CHARS = 200
"""Of a recorded task's text, enough to tell it from others."""


def standin_script(task: StandIn, *, text: bool = False) -> list[Line]:
    """The answers to one stand-in task, from a look at the files to the submitted patch.

    Args:
        text: commands stand in the text, as mini-swe-agent's text-based models write them,
            instead of in tool calls.
    """
    path, test = task.module, "tests/test_core.py"
    replace = (
        "python3 - <<'EOF'\n"
        "from pathlib import Path\n"
        f"path = Path({path!r})\n"
        f"path.write_text(path.read_text().replace({task.fix.old!r}, {task.fix.new!r}))\n"
        "EOF"
    )
    steps: list[tuple[str, list[str]]] = [
        (
            "THOUGHT: I look at what there is before I touch anything.",
            ["ls -la && git log --oneline | head", "cat README.md"],
        ),
        ("THOUGHT: The package is small; I read it and its tests.", [f"cat {path}", f"cat {test}"]),
        (
            "THOUGHT: I reproduce the problem by running the tests, which should fail now.",
            [f"sleep 0.3; {TEST_COMMAND}"],
        ),
        (f"THOUGHT: The fault is in {path}. I look at the lines once more.", [f"nl -ba {path}"]),
        ("THOUGHT: I change only what the report is about.", [replace]),
        (
            "THOUGHT: Now the tests should pass.",
            [f"sleep 0.2 && {TEST_COMMAND}"],
        ),
        ("THOUGHT: I make the patch.", [f"git diff -- {path} > patch.txt"]),
        ("THOUGHT: I check the patch before I submit it.", ["cat patch.txt"]),
        ("THOUGHT: It holds what I changed and nothing else. I submit it.", [SUBMIT]),
    ]
    form = _fenced if text else _line
    return [form(task.title, thought, commands) for thought, commands in steps]


def _line(task: str, content: str, commands: Sequence[str]) -> Line:
    calls = [{"name": "bash", "arguments": {"command": command}} for command in commands]
    return {"task": task, "content": content, "tool_calls": calls}


def _fenced(task: str, content: str, commands: Sequence[str]) -> Line:
    command = " && ".join(commands)
    return {"task": task, "content": f"{content}\n\n```mswea_bash_command\n{command}\n```"}


def recorded_scripts(folder: Path) -> Iterator[Line]:
    """Lines of all trajectories of mini-swe-agent (`*.traj.json`) in a folder and those below it.

    Raises:
        InputError: there are none, or one is no trajectory.
    """
    files = sorted(folder.rglob("*.traj.json")) if folder.is_dir() else []
    if not files:
        raise InputError(
            "holds no trajectories of mini-swe-agent (*.traj.json)",
            "give a folder that `mini-extra swebench -o` or an earlier run wrote",
            file=folder,
        )
    seen: set[str] = set()
    for file in files:
        lines = list(trajectory_script(file))
        if lines and lines[0]["task"] not in seen:  # of a task done twice, the first
            seen.add(lines[0]["task"])
            yield from lines


def trajectory_script(file: Path) -> Iterator[Line]:
    """The answers of one recorded trajectory (format mini-swe-agent-1.1), with their lengths.

    Raises:
        InputError: it is no trajectory.
    """
    messages = _messages(file)
    task = next((_text(m) for m in messages if m.get("role") == "user"), "")
    for message in messages:
        if message.get("role") != "assistant":
            continue
        yield {
            "task": _statement(task)[:MATCH_CHARS],
            "content": _text(message),
            "tool_calls": list(_calls(file, message)),
            **_tokens(message),
        }


def _messages(file: Path) -> list[Mapping[str, Any]]:
    remedy = "trajectories of mini-swe-agent 2.x are read (format mini-swe-agent-1.1)"
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        messages = found["messages"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError(f"no trajectory: {error}", remedy, file=file) from None
    if not isinstance(messages, list) or not all(isinstance(m, dict) for m in messages):
        raise InputError("`messages` must be a list of objects", remedy, file=file)
    return messages


def _statement(prompt: str) -> str:
    """The task in mini-swe-agent's prompt, without the template around it."""
    _, start, rest = prompt.partition("Consider the following PR description:\n")
    return (rest if start else prompt).partition("\n</pr_description>")[0].strip()


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text", "")) for part in content if isinstance(part, dict))
    return content if isinstance(content, str) else ""


def _calls(file: Path, message: Mapping[str, Any]) -> Iterator[Line]:
    for call in message.get("tool_calls") or ():
        function = call.get("function") if isinstance(call, dict) else None
        if not isinstance(function, dict) or not isinstance(function.get("name"), str):
            raise InputError("a tool call without `function.name`", "record it again", file=file)
        yield {"name": function["name"], "arguments": function.get("arguments") or "{}"}


def _tokens(message: Mapping[str, Any]) -> dict[str, int]:
    try:
        tokens = message["extra"]["response"]["usage"]["completion_tokens"]
    except (KeyError, TypeError):
        return {}
    return {"tokens": tokens} if isinstance(tokens, int) and tokens > 0 else {}


def write_script(path: Path, lines: Iterable[Line]) -> Path:
    """Write a script for the emulator."""
    with path.open("w", encoding="utf-8") as file:
        for line in lines:
            file.write(json.dumps(line) + "\n")
    return path
