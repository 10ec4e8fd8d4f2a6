"""ABench sessions (PyPI agentic-bench 0.2, `abench-session-jsonl-v1`; Apache-2.0).

Input: JSON Lines, a session a line: session_id, source {dataset, model}, system_prompt, turns[]
{input_delta[] {role, content}, input_tokens, output_tokens, cached_tokens, pre_gap_ms,
tool_calls}. pre_gap_ms passes from the step before to this one: tools and this turn's generation.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from workloads.model import Session, ToolCall
from workloads.readers.chain import Call, CommonStart, parallel, turns_of
from workloads.readers.documents import find_files, part, parts, short_name, text_of
from workloads.trace import json_lines
from workloads.trace_fields import MAX_SECONDS, MAX_TOKENS, Fields

MAX_LINE_BYTES = 64 << 20
"""Longest session accepted, in bytes: its texts are on the line."""


@dataclass(frozen=True, slots=True)
class ABenchSettings:
    """How the time between steps is split."""

    output_tokens_per_s: float = 140.0
    """Speed of the recording model, taken off pre_gap_ms: the pooled one that agentic-bench 0.2
    fits to the DeepSWE corpus (recording_rates.json)."""


def read_abench(path: Path, settings: ABenchSettings | None = None) -> Iterator[Session]:
    """One session for each line of a file, or of all `.jsonl` files of a folder.

    Tool calls of a turn count as parallel; where none is named, the time is one call named `tool`.
    What two sessions' first prompts start with alike is shared.

    Raises:
        TraceError: a line lacks a field or holds an impossible value.
    """
    choice = settings or ABenchSettings()
    start = CommonStart("abench/start")
    for file in find_files(path, "*.jsonl"):
        yield from _sessions(file, start, choice)


def _sessions(path: Path, start: CommonStart, choice: ABenchSettings) -> Iterator[Session]:
    for line, row in json_lines(path, MAX_LINE_BYTES):
        fields = Fields(row, path, line)
        name, turns = fields.text("session_id"), parts(fields, "turns")
        if name is None or not turns:
            fields.refuse("turns", "session_id or turns are missing", "every line has both")
        calls = _calls(turns, choice)
        opening = text_of(row.get("system_prompt")) + text_of(turns[0].get("input_delta"))
        dataset = short_name(str(part(fields, "source").get("dataset") or ""), "session")
        yield Session(
            id=f"abench-{name}",
            turns=turns_of(calls, start.share(opening.encode("utf-8", "replace"), calls[0].prompt)),
            workload=f"abench-{dataset}",
            origin="recorded",
        )


def _calls(turns: Sequence[Fields], choice: ABenchSettings) -> list[Call]:
    calls: list[Call] = []
    for index, turn in enumerate(turns):
        prompt = turn.count("input_tokens", low=0)
        cached = turn.whole("cached_tokens", default=0, high=MAX_TOKENS) or 0
        after = turns[index + 1] if index + 1 < len(turns) else None
        calls.append(
            Call(
                prompt=max(1, prompt),
                output=max(1, turn.count("output_tokens", low=0)),
                cached=min(cached, prompt),
                tools=_tools(turn, after, choice) if after is not None else (),
                new_bytes=len(text_of(turn.get("input_delta")).encode("utf-8", "replace")),
            )
        )
    return calls


def _tools(turn: Fields, after: Fields, choice: ABenchSettings) -> tuple[ToolCall, ...]:
    gap_ms = after.get("pre_gap_ms") or 0.0
    usable = isinstance(gap_ms, (int, float)) and not isinstance(gap_ms, bool)
    if not usable or not 0 <= gap_ms <= 1000 * MAX_SECONDS:
        after.refuse("pre_gap_ms", f"{str(gap_ms)[:40]} is not allowed", "give milliseconds")
    model = after.count("output_tokens", low=0) / choice.output_tokens_per_s
    seconds = round(max(0.0, gap_ms / 1000 - model), 3)
    names = [_name(call) for call in parts(turn, "tool_calls")] or ["tool"]
    return parallel([ToolCall(name, seconds) for name in names])


def _name(call: Fields) -> str:
    name = call.get("name") or part(call, "function").get("name")
    return short_name(str(name or ""), "tool")
