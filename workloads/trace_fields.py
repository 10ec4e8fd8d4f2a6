"""One line of a native trace: checked fields in, a TurnSpec out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from agentsched import TraceError
from workloads.model import Origin, Segment, ToolCall, TurnSpec

MAX_TOKENS = 100_000_000
"""No prompt, output or segment is longer, in tokens; catches swapped and garbage fields."""
MAX_BYTES = 16 * MAX_TOKENS
MAX_SECONDS = 1e8
"""No tool, wait or arrival is longer: about three years, in seconds."""

SESSION_FIELDS = frozenset(
    {"workload", "origin", "parent", "spawn_turn", "arrival_s", "setup_s", "deadline_s"}
)
TURN_FIELDS = frozenset(
    {
        "v",
        "session",
        "turn",
        "kept_turn",
        "kept_tokens",
        "shared",
        "new_tokens",
        "new_bytes",
        "output_tokens",
        "visible",
        "tools",
        "wait_s",
        "compaction",
    }
)
TOOL_FIELDS = frozenset({"name", "seconds", "hint_s", "parallel"})


def is_name(value: object) -> bool:
    """Whether a value can name a session, segment, tool or workload."""
    return isinstance(value, str) and 0 < len(value) <= 256 and value.isprintable()


@dataclass(frozen=True, slots=True)
class SessionFields:
    """What the line of turn 0 says about its session."""

    workload: str
    origin: Origin
    parent: str | None
    spawn_turn: int | None
    arrival_s: float | None
    setup_s: float
    deadline_s: float | None


def parse_turn(
    row: dict[str, Any], lengths: Sequence[int], file: Path, line: int
) -> tuple[SessionFields | None, TurnSpec]:
    """The turn on a line, and its session's fields where it is turn 0.

    Args:
        row: the JSON object.
        lengths: prompt + output tokens of the session's earlier turns.
        file, line: where the line stands, for messages.

    Raises:
        TraceError: a field is missing, unknown, of a wrong type or out of range.
    """
    fields = Fields(row, file, line)
    expected = len(lengths)
    _check_number(fields, expected)
    fields.only(TURN_FIELDS | SESSION_FIELDS if expected == 0 else TURN_FIELDS)
    head = _session_fields(fields) if expected == 0 else None
    kept_turn = fields.whole("kept_turn", default=None, high=MAX_TOKENS)
    kept_tokens = fields.whole("kept_tokens", default=0, high=MAX_TOKENS) or 0
    shared = _shared(fields)
    _check_kept(fields, kept_turn, kept_tokens, shared, lengths)
    turn = TurnSpec(
        new_tokens=fields.count("new_tokens", low=0),
        output_tokens=fields.count("output_tokens", low=1),
        kept_turn=kept_turn,
        kept_tokens=kept_tokens,
        shared=shared,
        new_bytes=fields.whole("new_bytes", default=None, high=MAX_BYTES),
        visible=fields.flag("visible"),
        tools=_tools(fields),
        wait_s=fields.seconds("wait_s", default=0.0) or 0.0,
        compaction=fields.flag("compaction"),
    )
    if not 1 <= turn.prompt_tokens <= MAX_TOKENS:
        fields.refuse(
            "new_tokens",
            f"the prompt has {turn.prompt_tokens} tokens",
            f"a prompt has 1 to {MAX_TOKENS} tokens",
        )
    return head, turn


class Fields:
    """Typed, range-checked access to one JSON object of a trace; `line` is None in a file that is
    one object."""

    def __init__(self, row: dict[str, Any], file: Path, line: int | None, prefix: str = "") -> None:
        self._row, self._file, self._line, self._prefix = row, file, line, prefix

    def refuse(self, name: str, message: str, remedy: str) -> NoReturn:
        """Raise TraceError for a field of this line."""
        raise TraceError(
            message, remedy, file=self._file, line=self._line, field=self._prefix + name
        )

    def sub(self, row: dict[str, Any], prefix: str) -> Fields:
        """An object inside this one."""
        return Fields(row, self._file, self._line, self._prefix + prefix)

    def names(self) -> Sequence[str]:
        """The fields that are there."""
        return list(self._row)

    def get(self, name: str) -> Any:
        """The raw value; None where it is missing."""
        return self._row.get(name)

    def only(self, allowed: frozenset[str]) -> None:
        """Refuse unknown fields; names that start with `x_` are free for the writer's own use."""
        for name in self._row:
            if name not in allowed and not name.startswith("x_"):
                at = name[:80]
                if name in SESSION_FIELDS:
                    self.refuse(at, "stands on a later turn", "give it on the line of turn 0")
                self.refuse(
                    at, "unknown field", "see docs/trace.md; own fields must start with `x_`"
                )

    def count(self, name: str, *, low: int) -> int:
        """A required number of tokens."""
        value = self.whole(name, default=None, low=low, high=MAX_TOKENS)
        if value is None:
            self.refuse(name, "missing", "every turn states it")
        return value

    def whole(self, name: str, *, default: int | None, low: int = 0, high: int) -> int | None:
        """A whole number from `low` to `high`."""
        value = self._row.get(name)
        if value is None:
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            self.refuse(
                name,
                f"{_short(value)} is not allowed",
                f"give a whole number from {low} to {high}",
            )
        return value

    def seconds(self, name: str, *, default: float | None) -> float | None:
        """A finite, non-negative number of seconds."""
        value = self._row.get(name)
        if value is None:
            return default
        usable = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not usable or not (math.isfinite(value) and 0 <= value <= MAX_SECONDS):
            self.refuse(
                name,
                f"{_short(value)} is not allowed",
                f"give seconds as a number from 0 to {MAX_SECONDS:.0f}",
            )
        return float(value)

    def flag(self, name: str) -> bool:
        """True or false; false where missing."""
        value = self._row.get(name, False)
        if not isinstance(value, bool):
            self.refuse(name, f"{_short(value)} is not allowed", "give true or false")
        return value

    def text(self, name: str) -> str | None:
        """A printable name; None where missing."""
        value = self._row.get(name)
        if value is None:
            return None
        if not is_name(value):
            self.refuse(name, f"{_short(value)} is not a name", "use 1 to 256 printable characters")
        return str(value)

    def items(self, name: str) -> list[Any]:
        """A list; empty where missing."""
        value = self._row.get(name, [])
        if not isinstance(value, list):
            self.refuse(name, f"{_short(value)} is not allowed", "give a list")
        return value


def _short(value: object) -> str:
    text = str(value) if not isinstance(value, int) or abs(value) < 10**30 else "a huge number"
    return repr(text[:60]) if isinstance(value, str) else text[:60]


def _check_number(fields: Fields, expected: int) -> None:
    turn = fields.whole("turn", default=None, high=MAX_TOKENS)
    if turn is None:
        fields.refuse("turn", "missing", "number the turns of a session 0, 1, 2, ...")
    if turn < expected:
        fields.refuse("turn", f"turn {turn} is there twice", "keep one line a turn")
    if turn > expected:
        after = f"follows turn {expected - 1}" if expected else "comes first"
        fields.refuse(
            "turn", f"turn {turn} {after}", "put the turns of a session in order: 0, 1, 2, ..."
        )


def _session_fields(fields: Fields) -> SessionFields:
    workload, origin = fields.text("workload"), fields.get("origin")
    if workload is None:
        fields.refuse("workload", "missing", "name the workload on the line of turn 0")
    if origin != "recorded" and origin != "generated":
        fields.refuse("origin", f"{_short(origin)} is unknown", "say `recorded` or `generated`")
    parent = fields.text("parent")
    spawn = fields.whole("spawn_turn", default=None, high=MAX_TOKENS)
    if (parent is None) != (spawn is None):
        fields.refuse("spawn_turn", "parent and spawn_turn go together", "give both or neither")
    arrival = fields.seconds("arrival_s", default=None)
    if parent is not None and arrival is not None:
        fields.refuse(
            "arrival_s", "a sub-agent starts with its parent's turn", "leave arrival_s out"
        )
    return SessionFields(
        workload=workload,
        origin=origin,
        parent=parent,
        spawn_turn=spawn,
        arrival_s=arrival,
        setup_s=fields.seconds("setup_s", default=0.0) or 0.0,
        deadline_s=fields.seconds("deadline_s", default=None),
    )


def _shared(fields: Fields) -> tuple[Segment, ...]:
    result: list[Segment] = []
    for index, item in enumerate(fields.items("shared")):
        name = f"shared[{index}]"
        if not (isinstance(item, list) and len(item) == 3):
            fields.refuse(name, "not a segment", "give [id, tokens, bytes]")
        part = fields.sub({"id": item[0], "tokens": item[1], "bytes": item[2]}, prefix=f"{name}.")
        text, size = part.text("id"), part.whole("bytes", default=None, high=MAX_BYTES)
        if text is None or size is None:
            fields.refuse(name, "not a segment", "give [id, tokens, bytes]")
        result.append(Segment(text, part.count("tokens", low=1), size))
    return tuple(result)


def _check_kept(
    fields: Fields,
    kept_turn: int | None,
    kept_tokens: int,
    shared: tuple[Segment, ...],
    lengths: Sequence[int],
) -> None:
    if kept_turn is None:
        if kept_tokens:
            fields.refuse("kept_tokens", "kept tokens of no turn", "name the turn in kept_turn")
        return
    if shared:
        fields.refuse(
            "shared", "a prompt keeps an earlier turn or starts from shared segments, not both",
            "leave kept_turn or shared out",
        )  # fmt: skip
    if kept_turn >= len(lengths):
        fields.refuse(
            "kept_turn", f"turn {kept_turn} is not an earlier turn", "name an earlier turn"
        )
    if kept_tokens > lengths[kept_turn]:
        fields.refuse(
            "kept_tokens",
            f"keeps {kept_tokens} tokens of turn {kept_turn}, which had {lengths[kept_turn]}",
            "keep at most the earlier turn's prompt and output",
        )


def _tools(fields: Fields) -> tuple[ToolCall, ...]:
    calls: list[ToolCall] = []
    for index, item in enumerate(fields.items("tools")):
        name = f"tools[{index}]"
        if not isinstance(item, dict):
            fields.refuse(name, "not a tool call", "give an object with name and seconds")
        part = fields.sub(item, prefix=f"{name}.")
        part.only(TOOL_FIELDS)
        tool, seconds = part.text("name"), part.seconds("seconds", default=None)
        if tool is None or seconds is None:
            fields.refuse(name, "name or seconds is missing", "a tool call states both")
        calls.append(
            ToolCall(
                name=tool,
                seconds=seconds,
                hint_s=part.seconds("hint_s", default=None),
                parallel=part.flag("parallel"),
            )
        )
    return tuple(calls)
