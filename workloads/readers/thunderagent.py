"""ThunderAgent's step profiles (github.com/ThunderAgent-org/ThunderAgent, `step_profiles.csv`).

Input: CSV, a line a finished step: program_id, step_id (from 1), prefill_s (dispatch to first
token, queueing included), decode_s, pause_s, tool_call_s (end of the step before to arrival),
kv_hit_rate, completed_at. Lines of programs alternate.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentsched import TraceError
from workloads.model import Session, ToolCall
from workloads.readers.chain import Call, turns_of
from workloads.readers.documents import short_name
from workloads.readers.lines import text_lines
from workloads.spill import Groups
from workloads.trace_fields import Fields

HEADER = (
    "program_id",
    "step_id",
    "prefill_s",
    "decode_s",
    "pause_s",
    "tool_call_s",
    "kv_hit_rate",
    "completed_at",
)


@dataclass(frozen=True, slots=True)
class ThunderAgentSettings:
    """What the profile does not say: how long prompts and replies were. All are our choices."""

    first_tokens: int = 2000
    """First prompt."""
    new_tokens: int = 500
    """Tokens that a later turn adds besides the reply before."""
    output_tokens_per_s: float = 40.0
    """Replies are as long as decode_s at this speed."""


def read_thunderagent(
    path: Path, settings: ThunderAgentSettings | None = None
) -> Iterator[Session]:
    """One session for each program, in the order in which their first steps finished.

    Turns and tool times are recorded; token counts are made up from the settings. A program id
    that was used again after its release starts another session, `ID+2`.

    Raises:
        TraceError: not this file, or a line holds an impossible value.
    """
    choice = settings or ThunderAgentSettings()
    with Groups() as groups:
        for line, cells in _lines(path):
            groups.add([cells[0]], [line, *cells])
        for rows in groups:
            yield from _sessions(path, rows, choice)


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    for line, text in text_lines(path):
        cells = next(csv.reader([text]))
        if line == 1:
            if tuple(cells) != HEADER:
                raise TraceError(
                    f"the header is not {','.join(HEADER)}",
                    "name a step_profiles.csv",
                    file=path,
                    line=1,
                )
            continue
        if len(cells) != len(HEADER) or not cells[0]:
            raise TraceError(
                f"{len(cells)} cells", f"a line has {len(HEADER)}", file=path, line=line
            )
        yield line, cells


def _sessions(path: Path, rows: list[list[Any]], choice: ThunderAgentSettings) -> Iterator[Session]:
    runs: list[list[Fields]] = []
    for row in rows:
        fields = Fields(dict(zip(HEADER, map(_value, row[1:]), strict=True)), path, row[0])
        step = fields.count("step_id", low=1)
        if step == 1 or not runs:
            runs.append([])
        runs[-1].append(fields)
    name = short_name(str(rows[0][1]), "program")
    for number, steps in enumerate(runs, 1):
        yield Session(
            id=name if number == 1 else f"{name}+{number}",
            turns=turns_of(_calls(steps, choice)),
            workload="thunderagent",
            origin="recorded",
        )


def _calls(steps: list[Fields], choice: ThunderAgentSettings) -> list[Call]:
    calls: list[Call] = []
    prompt = choice.first_tokens
    for index, fields in enumerate(steps):
        decode = fields.seconds("decode_s", default=0.0) or 0.0
        output = max(1, round(decode * choice.output_tokens_per_s))
        after = steps[index + 1] if index + 1 < len(steps) else None
        tools: tuple[ToolCall, ...] = ()
        if after is not None:
            tools = (ToolCall("tool", after.seconds("tool_call_s", default=0.0) or 0.0),)
        calls.append(Call(prompt, output, tools=tools))
        prompt += output + choice.new_tokens
    return calls


def _value(text: str) -> str | int | float | None:
    if not text:
        return None
    try:
        return int(text) if text.isascii() and text.isdigit() and len(text) < 16 else float(text)
    except ValueError:
        return text
