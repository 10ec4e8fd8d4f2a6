"""Claude Code under observation: settings whose hooks tell of tools, and who listens to them.

Claude Code calls a hook before and after each tool (PreToolUse, PostToolUse) with a JSON object:
session_id, tool_name, tool_use_id, and duration_ms afterwards. `HookServer` gets it over HTTP,
which takes milliseconds. From a container, which does not reach this machine's loopback, a command
leaves it in a folder (`HookFolder`), in a file named after its time, so that calls of parallel
tools never mix; the command is a process, and tells late by the time that starting it takes.

Source: Claude Code's documentation of hooks, settings and environment variables.
"""

from __future__ import annotations

import json
import re
import shlex
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from workloads.agents.loopback import LoopbackServer, QuietHandler

SESSION_HEADER = "X-Claude-Code-Session-Id"
"""Names a session; sub-agents send it too, with an id of their own beside it."""

_MOST_OUTPUT = "CLAUDE_CODE_MAX_OUTPUT_TOKENS"
_EVENTS = {
    "PreToolUse": "tool_started",
    "PostToolUse": "tool_ended",
    "PostToolUseFailure": "tool_ended",
}
HOOK_TIMEOUT_S = 10
"""After which Claude Code goes on without a hook's answer. Our choice."""
HOOK_LIMIT_BYTES = 256 << 20
"""A hook carries its tool's input and output; one that says it is longer is refused. Our choice."""
_FILE_NAME = re.compile(r"(\d{16,20})-\d+\.json")


@dataclass(frozen=True, slots=True)
class ToolMark:
    """A tool starts or ends."""

    kind: Literal["tool_started", "tool_ended"]
    time_ns: int
    name: str
    id: str


def hook_settings(url: str) -> dict[str, Any]:
    """Settings for `claude --settings` whose hooks are posted to a URL.

    Args:
        url: as Claude Code reaches it.
    """
    return _settings({"type": "http", "url": url})


def file_hook_settings(folder: str) -> dict[str, Any]:
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
    return _settings({"type": "command", "command": command})


def _settings(hook: Mapping[str, Any]) -> dict[str, Any]:
    limited = {**hook, "timeout": HOOK_TIMEOUT_S}
    return {"hooks": {event: [{"matcher": "*", "hooks": [limited]}] for event in _EVENTS}}


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


class HookServer(LoopbackServer):
    """Gets hooks over HTTP.

    Args:
        notice: told of each tool's start and end, by several threads; the tool waits meanwhile.
    """

    def __init__(self, notice: Callable[[ToolMark], None]) -> None:
        class Handler(QuietHandler):
            def answer(self) -> None:
                now = time.time_ns()
                length = self.headers.get("content-length", "")
                if not length.isdecimal() or int(length) > HOOK_LIMIT_BYTES:
                    self.send_error(411 if not length.isdecimal() else 413)
                    return
                mark = _read_mark(self.rfile.read(int(length)), now)
                if mark is not None:
                    notice(mark)
                self.send_response(200 if mark is not None else 400)
                self.send_header("content-length", "0")  # no decision: the tool goes ahead
                self.end_headers()

        super().__init__(Handler)


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
            mark = _mark(found, time_ns)
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


def _read_mark(body: bytes, time_ns: int) -> ToolMark | None:
    try:
        return _mark(json.loads(body), time_ns)
    except ValueError:
        return None


def _mark(found: Any, time_ns: int) -> ToolMark | None:
    if not isinstance(found, dict):
        return None
    event, name, use = (found.get(k) for k in ("hook_event_name", "tool_name", "tool_use_id"))
    if event == "PreToolUse":
        return ToolMark("tool_started", time_ns, str(name), str(use))
    if event in _EVENTS:
        return ToolMark("tool_ended", time_ns, str(name), str(use))
    return None
