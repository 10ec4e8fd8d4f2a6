"""TraceLab rounds of Claude Code and Codex (github.com/uw-syfi/TraceLab; data CC-BY-4.0).

Input: JSON Lines, one model call a line: session_id, round_index, round_id, provider,
input_tokens_total, prefix_tokens (served by the cache), output_tokens, timing_events[]
{event_type, timestamp}, tools[] {tool_name, emitted_at, result_at, tool_wall_latency_ms}.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.model import Segment, Session, ToolCall
from workloads.readers.chain import Call, parallel, turns_of
from workloads.readers.documents import moment, parts, short_name
from workloads.spill import Groups
from workloads.trace import json_lines
from workloads.trace_fields import MAX_TOKENS, Fields

MAX_LINE_BYTES = 16 << 20
"""Longest round accepted, in bytes: traces that were not sanitized hold tool inputs."""
_OUTPUT = frozenset({"text", "reasoning", "tool_call"})


@dataclass(frozen=True, slots=True)
class TraceLabSettings:
    """How prompts are read. Our choices."""

    shared_tokens: int = 16_000
    """Most tokens of a first prompt that sessions of one provider are taken to share: as many as
    the cache served, up to this."""
    bytes_per_token: float = 4.0


def read_tracelab(path: Path, settings: TraceLabSettings | None = None) -> Iterator[Session]:
    """One session for each session id, its rounds in order of round_index; a round that is there
    twice counts once.

    Tool calls run from the end of the reply to their results and count as parallel, so that the
    turn takes as long as it took. What passes until a person's next message is a wait. Sub-agents
    are sessions of their own: the trace has no link to their parents.

    Raises:
        TraceError: a line lacks a field or holds an impossible value.
    """
    choice = settings or TraceLabSettings()
    with Groups() as groups:
        for line, row in json_lines(path, MAX_LINE_BYTES):
            found = _round(Fields(row, path, line))
            groups.add([found[0]], found)
        for rows in groups:
            yield _session(rows, choice)


def _round(fields: Fields) -> list[Any]:
    """[session, index, id, provider, prompt, cached, output, asked, ended, tools]"""
    session = fields.text("session_id")
    if session is None:
        fields.refuse("session_id", "missing", "every round names its session")
    prompt = fields.count("input_tokens_total", low=0)
    cached = fields.whole("prefix_tokens", default=0, high=MAX_TOKENS) or 0
    if cached > prompt:
        fields.refuse("prefix_tokens", "more than input_tokens_total", "correct the line")
    asked, ended = _times(parts(fields, "timing_events"))
    return [
        session,
        fields.count("round_index", low=0),
        fields.text("round_id"),
        fields.text("provider") or "any",
        max(1, prompt),
        cached,
        max(1, fields.count("output_tokens", low=0)),
        asked,
        ended,
        [_tool(tool, ended) for tool in parts(fields, "tools")],
    ]


def _times(events: Sequence[Fields]) -> tuple[float | None, float | None]:
    """When a person's message for the round came, and when the last of its reply."""
    asked = ended = None
    for event in events:
        kind, at = event.get("event_type"), moment(event, "timestamp")
        if kind == "user_message" and at is not None:
            asked = at if asked is None else max(asked, at)
        elif kind in _OUTPUT and at is not None:
            ended = at if ended is None else max(ended, at)
    return asked, ended


def _tool(tool: Fields, ended: float | None) -> list[Any]:
    """[name, seconds after the reply's end, when it ended]"""
    at = moment(tool, "result_at")
    wall = tool.whole("tool_wall_latency_ms", default=None, high=10**11)
    seconds = (wall or 0) / 1000 if at is None or ended is None else max(0.0, at - ended)
    return [short_name(str(tool.get("tool_name") or ""), "tool"), round(seconds, 3), at]


def _session(rows: Sequence[Sequence[Any]], choice: TraceLabSettings) -> Session:
    seen: set[Any] = set()
    rounds: list[Sequence[Any]] = []
    for row in sorted(rows, key=lambda row: int(row[1])):
        if row[2] is None or row[2] not in seen:
            seen.add(row[2])
            rounds.append(row)
    calls = [
        _call(row, rounds[index + 1] if index + 1 < len(rounds) else None)
        for index, row in enumerate(rounds)
    ]
    tokens = min(calls[0].cached, choice.shared_tokens, calls[0].prompt - 1)
    shared: tuple[Segment, ...] = ()
    if tokens > 0:
        size = round(tokens * choice.bytes_per_token)
        shared = (Segment(f"tracelab/{rounds[0][3]}", tokens, size),)
    return Session(
        id=f"tracelab-{rounds[0][0]}",
        turns=turns_of(calls, shared),
        workload="tracelab",
        origin="recorded",
    )


def _call(row: Sequence[Any], after: Sequence[Any] | None) -> Call:
    *_, prompt, cached, output, _, ended, tools = row
    asked = after[7] if after is not None else None
    ends = [at for at in (ended, *(tool[2] for tool in tools)) if at is not None]
    wait = max(0.0, asked - max(ends)) if asked is not None and ends else 0.0
    calls = [ToolCall(name, seconds) for name, seconds, _ in tools]
    return Call(
        prompt=prompt,
        output=output,
        cached=cached,
        tools=parallel(calls) if after is not None else (),
        wait_s=round(wait, 3),
        visible=not tools,
    )
