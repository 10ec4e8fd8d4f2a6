"""Claude Code under observation: settings whose hooks write down tools, and what they wrote.

Claude Code calls a hook before and after each tool (PreToolUse, PostToolUse), with JSON on its
standard input: session_id, tool_name, tool_use_id, and duration_ms afterwards. Ours keeps each
call in a file named after its time, so that calls of parallel tools never mix.

Source: Claude Code's documentation of hooks, settings and environment variables.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

SESSION_HEADER = "X-Claude-Code-Session-Id"
"""Names a session; sub-agents send it too, with an id of their own beside it."""

_MOST_OUTPUT = "CLAUDE_CODE_MAX_OUTPUT_TOKENS"
_EVENTS = {
    "PreToolUse": "tool_started",
    "PostToolUse": "tool_ended",
    "PostToolUseFailure": "tool_ended",
}
_FILE_NAME = re.compile(r"(\d{16,20})-\d+\.json")


@dataclass(frozen=True, slots=True)
class ToolMark:
    """A tool starts or ends."""

    kind: Literal["tool_started", "tool_ended"]
    time_ns: int
    name: str
    id: str


def hook_settings(folder: str) -> dict[str, Any]:
    """Settings for `claude --settings` whose hooks write to a folder.

    Args:
        folder: existing, as Claude Code sees it.
    """
    # Bash alone, as a hook holds up the tool: its clock is in microseconds, before the input.
    script = (
        f"t=${{EPOCHREALTIME/[.,]/}}000; IFS= read -r l; "
        f'printf %s "$l" > {shlex.quote(folder)}/$t-$$.json; exit 0'
    )
    command = f"exec bash -c {shlex.quote(script)}"
    hook = {"type": "command", "command": command, "timeout": 10}
    return {"hooks": {event: [{"matcher": "*", "hooks": [hook]}] for event in _EVENTS}}


def environment(session: str, max_output_tokens: int | None = None) -> dict[str, str]:
    """Environment of a Claude Code that names its session and talks to nobody else.

    Args:
        max_output_tokens: asked for with each turn; None: Claude Code's default.
    """
    most = {} if max_output_tokens is None else {_MOST_OUTPUT: str(max_output_tokens)}
    return most | {
        "ANTHROPIC_CUSTOM_HEADERS": f"{SESSION_HEADER}: {session}",
        "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
        "DISABLE_AUTOUPDATER": "1",
        "IS_SANDBOX": "1",
    }


class HookFolder:
    """Reads what the hooks wrote, each file once."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._seen: set[str] = set()

    def new(self) -> list[ToolMark]:
        """Marks not given before, oldest first; files that are not whole yet come later."""
        marks: list[ToolMark] = []
        for path, time_ns in self._files():
            try:
                found = json.loads(path.read_bytes())
            except (OSError, ValueError):
                continue
            self._seen.add(path.name)
            mark = _mark(found, time_ns) if isinstance(found, dict) else None
            if mark is not None:
                marks.append(mark)
        return marks

    def _files(self) -> Iterator[tuple[Path, int]]:
        if not self._folder.is_dir():
            return
        for path in sorted(self._folder.iterdir()):
            match = _FILE_NAME.fullmatch(path.name)
            if match and path.name not in self._seen:
                yield path, int(match[1])


def _mark(found: Mapping[str, Any], time_ns: int) -> ToolMark | None:
    event, name, use = (found.get(k) for k in ("hook_event_name", "tool_name", "tool_use_id"))
    if event == "PreToolUse":
        return ToolMark("tool_started", time_ns, str(name), str(use))
    if event in _EVENTS:
        return ToolMark("tool_ended", time_ns, str(name), str(use))
    return None
