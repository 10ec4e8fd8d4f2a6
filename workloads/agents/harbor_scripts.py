"""Scripted answers that solve the stand-in tasks, in the words of each agent.

Source of the formats: Terminus 2's prompt templates (Harbor), Claude Code's tool Bash,
mini-swe-agent's tool bash and its end mark.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from workloads.agents.harbor_standin import StandinTask

Line = Mapping[str, Any]
"""A line of a script for `agentsched emulate`."""

WAIT_S = 0.4
"""How long Terminus is told to wait after a command; slow ones get `SLOW_WAIT_S`. Our choice."""
SLOW_WAIT_S = 3.0
_SLOW = ("make", "sleep")
_DONE = "The task is done."


def script_lines(agent: str, tasks: Sequence[StandinTask], *, parser: str = "json") -> list[Line]:
    """Answers that lead an agent through every task.

    Args:
        agent: `terminus-2`, `claude-code` or `mini-swe-agent`.
        parser: Terminus's reply format, `json` or `xml`.
    """
    words: Mapping[str, Callable[[StandinTask], Iterator[Line]]] = {
        "terminus-2": lambda task: _terminus(task, parser),
        "claude-code": _claude_code,
        "mini-swe-agent": _mini_swe_agent,
    }
    return [{"task": task.name, **line} for task in tasks for line in words[agent](task)]


def _terminus(task: StandinTask, parser: str) -> Iterator[Line]:
    reply = _terminus_json if parser == "json" else _terminus_xml
    for number, step in enumerate(task.steps):
        yield {"content": reply(f"Step {number + 1} of {len(task.steps)}.", step, False)}
    for _ in range(2):  # Terminus asks whether it is sure
        yield {"content": reply(_DONE, (), True)}


def _wait(command: str) -> float:
    return SLOW_WAIT_S if command.startswith(_SLOW) else WAIT_S


def _terminus_json(plan: str, commands: Sequence[str], done: bool) -> str:
    typed = [{"keystrokes": command + "\n", "duration": _wait(command)} for command in commands]
    return json.dumps(
        {"analysis": "As expected.", "plan": plan, "commands": typed, "task_complete": done},
        indent=2,
    )


def _terminus_xml(plan: str, commands: Sequence[str], done: bool) -> str:
    # Terminus takes what stands between its tags as it is: nothing is escaped.
    typed = "".join(
        f'<keystrokes duration="{_wait(command)}">{command}\n</keystrokes>\n'
        for command in commands
    )
    return (
        f"<response>\n<analysis>As expected.</analysis>\n<plan>{plan}</plan>\n"
        f"<commands>\n{typed}</commands>\n"
        f"<task_complete>{'true' if done else 'false'}</task_complete>\n</response>"
    )


def _claude_code(task: StandinTask) -> Iterator[Line]:
    for number, step in enumerate(task.steps):
        calls = [
            {"name": "Bash", "arguments": {"command": command, "description": "Work on the task"}}
            for command in step
        ]
        yield {"content": f"Step {number + 1} of {len(task.steps)}.", "tool_calls": calls}
    yield {"content": _DONE}


def _mini_swe_agent(task: StandinTask) -> Iterator[Line]:
    for number, step in enumerate(task.steps):
        call = {"name": "bash", "arguments": {"command": f"cd /app && {' && '.join(step)}"}}
        yield {"content": f"Step {number + 1} of {len(task.steps)}.", "tool_calls": [call]}
    end = {"name": "bash", "arguments": {"command": "echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT"}}
    yield {"content": _DONE, "tool_calls": [end]}
