"""What Harbor leaves of a trial, as plain facts. Standard library only.

Source: Harbor's TrialResult and its trajectory format ATIF (versions 0.26 and 1.8).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from agentsched import InputError
from workloads.agents.claude_code import ToolMark

DEADLINES = frozenset({"AgentTimeoutError"})
"""What Harbor calls an agent that ran into its task's deadline."""
KEPT_CHARS = 1000
"""Of an error's message; trial.log has it whole. Our choice."""
_PHASES = ("environment_setup", "agent_setup", "agent_execution", "verifier")


def trial_facts(folder: Path) -> dict[str, Any]:
    """Facts of a trial's folder: reward, tokens, turns, seconds of each phase, what went wrong.

    Unknown ones are left out.

    Raises:
        InputError: there is no result, or it is damaged.
    """
    path = folder / "result.json"
    try:
        result = json.loads(path.read_bytes())
    except OSError as error:
        raise InputError(
            f"no result of Harbor: {error.strerror}", "see trial.log beside it", file=path
        ) from None
    except ValueError as error:
        raise InputError(f"not JSON: {error}", "see trial.log beside it", file=path) from None
    if not isinstance(result, dict):
        raise InputError("not a result of Harbor", "see trial.log beside it", file=path)
    facts: dict[str, Any] = {
        "task": result.get("task_name"),
        "reward": _at(result, "verifier_result", "rewards", "reward"),
        "agent_version": _at(result, "agent_info", "version"),
        "input_tokens": _at(result, "agent_result", "n_input_tokens"),
        "cached_tokens": _at(result, "agent_result", "n_cache_tokens"),
        "output_tokens": _at(result, "agent_result", "n_output_tokens"),
        "turns": _at(result, "agent_result", "metadata", "n_episodes"),
        "summaries": _at(result, "agent_result", "metadata", "summarization_count"),
        "error": _at(result, "exception_info", "exception_type"),
        "error_message": _brief(_at(result, "exception_info", "exception_message")),
    }
    facts |= {f"{phase}_s": _seconds(result.get(phase)) for phase in _PHASES}
    return {
        name: value
        for name, value in {**facts, **_trajectory_facts(folder)}.items()
        if value is not None
    }


def _trajectory_facts(folder: Path) -> dict[str, Any]:
    """Of the agent's trajectory, where it left one."""
    path = folder / "agent" / "trajectory.json"
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return {}
    steps = found.get("steps") if isinstance(found, dict) else None
    if not isinstance(steps, list):
        return {}
    agent = [s for s in steps if isinstance(s, dict) and s.get("source") == "agent"]
    calls = sum(len(s.get("tool_calls") or ()) for s in agent)
    return {
        "trajectory": str(path.relative_to(folder.parent)),
        "agent_steps": len(agent),
        "tool_calls": calls,
    }


def mini_swe_marks(path: Path) -> list[ToolMark]:
    """Starts and ends of the tools in a trajectory of mini-swe-agent, in order.

    A message holds when it was made: the model's at the start of its tools, a tool's at its end.
    Tools of one turn run one after another and are told of as one.
    """
    try:
        found = json.loads(path.read_bytes())
    except (OSError, ValueError):
        return []
    messages = found.get("messages") if isinstance(found, dict) else None
    marks: list[ToolMark] = []
    for message in messages if isinstance(messages, list) else []:
        at, role = _at(message, "extra", "timestamp"), _at(message, "role")
        if isinstance(at, bool) or not isinstance(at, (int, float)):
            continue
        if role == "assistant":
            marks.append(ToolMark("tool_started", round(at * 1e9), "bash", ""))
        elif role == "tool" and marks:
            if marks[-1].kind == "tool_ended":
                del marks[-1]
            marks.append(ToolMark("tool_ended", round(at * 1e9), "bash", ""))
    return marks


def _brief(message: Any) -> str | None:
    """What an agent's program said of its own end, where it did; else the message's start."""
    if not isinstance(message, str):
        return None
    for line in message.splitlines():
        try:
            said = json.loads(line.removeprefix("stdout: "))
        except ValueError:
            continue
        if isinstance(said, dict) and isinstance(said.get("result"), str):
            return str(said["result"])[:KEPT_CHARS]
    return message[:KEPT_CHARS]


def _at(found: Any, *names: str) -> Any:
    for name in names:
        if not isinstance(found, Mapping):
            return None
        found = found.get(name)
    return found


def _seconds(timing: Any) -> float | None:
    try:
        start, end = (datetime.fromisoformat(timing[k]) for k in ("started_at", "finished_at"))
    except (KeyError, TypeError, ValueError):
        return None
    return round((end - start).total_seconds(), 6)
