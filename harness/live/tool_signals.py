"""Which tools a response starts: tool calls of an API, or commands written in the text.

Text forms: the fenced shell block of mini-swe-agent, and the JSON or XML of Terminus, whose
`duration` says how long the agent will wait.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from schedulers.types import ToolSignal

_FENCE = re.compile(r"```(?:mswea_bash_command|bash|sh)[ \t]*\n(.*?)\n?```", re.DOTALL)
_KEYSTROKES = re.compile(r"<keystrokes([^>]*)>(.*?)</keystrokes>", re.DOTALL)
_DURATION = re.compile(r"""duration\s*=\s*["']([0-9.]+)["']""")
TERMINUS_WAIT_S = 1.0
"""Terminus waits this long after keystrokes for which the model names no duration (Harbor)."""


@dataclass(slots=True)
class ToolCallParts:
    """A tool call as it grows in a stream."""

    id: str = ""
    name: str = ""
    arguments: str = ""


def signals(calls: list[ToolCallParts], text: str) -> tuple[ToolSignal, ...]:
    """The tools that a finished response starts, in order; none if it starts none.

    Args:
        calls: the API's own tool calls.
        text: the response's text, looked at only if there are no calls.
    """
    if calls:
        return tuple(ToolSignal(call.name, call.arguments or None) for call in calls)
    if "```" in text:
        commands = _FENCE.findall(text)
        if len(commands) == 1:  # mini-swe-agent runs a response with exactly one block
            return (ToolSignal("bash", commands[0].strip()),)
    if '"keystrokes"' in text:
        return _terminus_json(text)
    if "<keystrokes" in text:
        return _terminus_xml(text)
    return ()


def _terminus_json(text: str) -> tuple[ToolSignal, ...]:
    start, end = text.find("{"), text.rfind("}")
    try:
        found = json.loads(text[start : end + 1])
    except ValueError:
        return ()
    commands = found.get("commands") if isinstance(found, dict) else None
    if not isinstance(commands, list):
        return ()
    steps = [c for c in commands if isinstance(c, dict) and isinstance(c.get("keystrokes"), str)]
    return _terminus([(c["keystrokes"], _seconds(c.get("duration"))) for c in steps])


def _terminus_xml(text: str) -> tuple[ToolSignal, ...]:
    steps: list[tuple[str, float]] = []
    for attributes, keystrokes in _KEYSTROKES.findall(text):
        duration = _DURATION.search(attributes)
        steps.append((keystrokes, _seconds(float(duration[1]) if duration else None)))
    return _terminus(steps)


def _terminus(steps: list[tuple[str, float]]) -> tuple[ToolSignal, ...]:
    if not steps:
        return ()
    typed = "".join(keystrokes for keystrokes, _ in steps)
    return (ToolSignal("terminal", typed, sum(seconds for _, seconds in steps)),)


def _seconds(value: Any) -> float:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if number and 0 <= value < 1e6 else TERMINUS_WAIT_S
