"""Durations that a tool call states itself: sleeps and timeouts in its command, or a duration.

Only what a shell would certainly do is read; anything unclear (loops, substitutions, here
documents) states nothing. Commands that are neither sleep nor timeout count as taking no time, so
`cd /repo && sleep 5` states 5 s. Which commands state a duration is our choice; that direct hints
and parsed sleeps come first is TAO's.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from schedulers.types import ToolSignal

_DURATION = re.compile(r"(\d+(?:\.\d*)?|\.\d+)([smhd]?)\Z")
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=")
_WRAPPERS = frozenset({"sudo", "time", "nohup", "exec", "command", "nice", "env", "builtin"})
_SHELLS = frozenset({"bash", "sh", "zsh", "dash"})
_SHELL_C = re.compile(r"-[a-z]*c\Z")
_UNCLEAR = frozenset({"for", "while", "until", "if", "case", "select", "function", "do", "then"})
_UNCLEAR |= {"else", "elif", "wait", "read", "{", "}", "[[", "eval"}
_COMMAND_FIELDS = ("command", "cmd", "bash_command", "script", "keystrokes")
_DURATION_FIELDS = ("duration", "duration_s", "seconds")
_MAX_CHARS = 20_000
"""Longer texts are files being written, not waits."""


@dataclass(frozen=True, slots=True)
class StatedTime:
    """What a call says of its own length, in seconds; None where it says nothing.

    With `limit_s` the call ends by then at the latest, and `duration_s` is only the part that is
    certain (`sleep 5; timeout 60 make` : at least 5, at most 65). Without it `duration_s` is the
    whole.
    """

    duration_s: float | None = None
    limit_s: float | None = None


NOTHING = StatedTime()


class _UnclearError(Exception):
    """The text does something whose length cannot be read off."""


def stated_time(tool: ToolSignal) -> StatedTime:
    """The call's own word on its length: a stated duration, else its command."""
    if tool.hint_s is not None:
        return StatedTime(tool.hint_s)
    if tool.command is None or len(tool.command) > _MAX_CHARS:
        return NOTHING
    text = tool.command.strip()
    if text.startswith("{"):
        try:
            arguments = json.loads(text)
        except (ValueError, RecursionError):
            return NOTHING
        return _from_arguments(arguments)
    return command_time(text)


def command_time(text: str) -> StatedTime:
    """Sleeps and timeouts of a shell command line."""
    try:
        return _line_time(text)
    except _UnclearError:
        return NOTHING


def duration_s(text: str) -> float | None:
    """A duration as sleep(1) writes it (`5`, `0.5`, `2m`, `1h`), in seconds."""
    match = _DURATION.match(text)
    seconds = float(match[1]) * _UNIT_S[match[2]] if match else math.inf
    return seconds if math.isfinite(seconds) else None


def _from_arguments(arguments: Mapping[str, Any]) -> StatedTime:
    batch = arguments.get("commands")
    if isinstance(batch, list):
        # Terminus sends a batch of keystrokes, each with the time to wait after it.
        waits = [item.get("duration") for item in batch if isinstance(item, dict)]
        stated = [float(wait) for wait in waits if wait is not None and _is_duration(wait)]
        return StatedTime(math.fsum(stated)) if batch and len(stated) == len(batch) else NOTHING
    for name in _DURATION_FIELDS:
        if _is_duration(arguments.get(name)):
            return StatedTime(float(arguments[name]))
    for name in _COMMAND_FIELDS:
        if isinstance(arguments.get(name), str):
            return command_time(arguments[name])
    return NOTHING


def _is_duration(value: Any) -> bool:
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return number and math.isfinite(value) and value >= 0


def _line_time(text: str) -> StatedTime:
    """Sum over the commands that run one after the other.

    Raises:
        _UnclearError: nothing can be said.
    """
    total, chain = _Sum(), _Sum()
    pipeline: list[list[str]] = [[]]
    skipped = False
    for kind, token in [*_tokens(text), ("operator", ";")]:
        if kind == "word":
            pipeline[-1].append(token)
        elif token == "|":
            pipeline.append([])
        else:
            if not skipped:
                chain.add(*_pipeline_time(pipeline))
            pipeline = [[]]
            skipped = token == "||"  # what follows runs only if this one fails
            if token in (";", "\n"):
                total.add(chain.stated, chain.limited)
                chain = _Sum()
            elif token == "&":
                chain = _Sum()  # runs in the background: nobody waits for it
    return total.result()


class _Sum:
    """Seconds stated and seconds limited, added up; None while no command said any."""

    def __init__(self) -> None:
        self.stated: float | None = None
        self.limited: float | None = None

    def add(self, stated: float | None, limited: float | None) -> None:
        if stated is not None:
            self.stated = (self.stated or 0.0) + stated
        if limited is not None:
            self.limited = (self.limited or 0.0) + limited

    def result(self) -> StatedTime:
        if self.limited is None:
            return StatedTime(self.stated)
        return StatedTime(self.stated, self.limited + (self.stated or 0.0))


def _pipeline_time(commands: list[list[str]]) -> tuple[float | None, float | None]:
    """(stated, limited) of commands that run side by side: the longest of each."""
    times = [_command_time(words) for words in commands]
    stated = [t.duration_s for t in times if t.duration_s is not None and t.limit_s is None]
    limited = [t.limit_s for t in times if t.limit_s is not None]
    return max(stated, default=None), max(limited, default=None)


def _command_time(words: list[str]) -> StatedTime:
    while words and (words[0] in _WRAPPERS or _ASSIGNMENT.match(words[0])):
        words = words[1:]
    if not words:
        return NOTHING
    name, arguments = words[0].rsplit("/", 1)[-1], words[1:]
    if name in _UNCLEAR:
        raise _UnclearError
    if name == "sleep":
        parts = [duration_s(argument) for argument in arguments]
        if not parts or None in parts:
            raise _UnclearError
        return StatedTime(math.fsum(part for part in parts if part is not None))
    if name == "timeout":
        return _timeout_time(arguments)
    if name in _SHELLS and len(arguments) >= 2 and _SHELL_C.match(arguments[0]):
        return _line_time(arguments[1])
    return NOTHING


def _timeout_time(arguments: list[str]) -> StatedTime:
    """`timeout [options] LIMIT command ...`"""
    rest = list(arguments)
    while rest and rest[0].startswith("-"):
        option = rest.pop(0)
        if option in ("-k", "-s", "--kill-after", "--signal") and rest:
            rest.pop(0)
    limit = duration_s(rest[0]) if rest else None
    if limit is None:
        raise _UnclearError
    inner = _command_time(rest[1:])
    if limit == 0:  # no limit at all, as timeout(1) has it
        return inner
    if inner.duration_s is not None and inner.limit_s is None:
        return StatedTime(min(inner.duration_s, limit))
    return StatedTime(None, limit if inner.limit_s is None else min(limit, inner.limit_s))


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    """("word", text) and ("operator", one of ; newline & && | ||), redirections left out."""
    at, redirected = 0, False
    while at < len(text):
        char = text[at]
        if char in " \t\r":
            at += 1
        elif text.startswith("\\\n", at):  # joins two lines
            at += 2
        elif char == "#":
            end = text.find("\n", at)
            at = len(text) if end < 0 else end
        elif char in "()`":
            raise _UnclearError
        elif char in "<>" or text.startswith("&>", at):
            if text.startswith("<<", at):
                raise _UnclearError
            while at < len(text) and text[at] in "<>&|":
                at += 1
            redirected = True
        elif char in ";&|\n":
            both = text[at : at + 2]
            token = both if both in ("&&", "||") else char
            at += 2 if both in ("&&", "||", "|&") else 1
            yield "operator", token
        else:
            at, word = _word(text, at)
            if redirected or (word.isdigit() and at < len(text) and text[at] in "<>"):
                redirected = False
            else:
                yield "word", word


def _word(text: str, at: int) -> tuple[int, str]:
    """The word that starts at `at`, quotes removed, and the position after it."""
    parts: list[str] = []
    while at < len(text) and text[at] not in " \t\r\n;&|<>()":
        char = text[at]
        if char == "'":
            end = text.find("'", at + 1)
            if end < 0:
                raise _UnclearError
            parts.append(text[at + 1 : end])
            at = end + 1
        elif char == '"':
            at, quoted = _double_quoted(text, at + 1)
            parts.append(quoted)
        elif char == "\\":
            parts.append(text[at + 1 : at + 2].strip("\n"))
            at += 2
        elif char == "`" or text.startswith("$(", at):
            raise _UnclearError
        else:
            parts.append(char)
            at += 1
    return at, "".join(parts)


def _double_quoted(text: str, at: int) -> tuple[int, str]:
    parts: list[str] = []
    while at < len(text):
        char = text[at]
        if char == '"':
            return at + 1, "".join(parts)
        if char == "`" or text.startswith("$(", at):
            raise _UnclearError
        if char == "\\" and text[at + 1 : at + 2] in ('"', "\\", "$", "`"):
            at += 1
            char = text[at]
        parts.append(char)
        at += 1
    raise _UnclearError
