"""Alibaba Bailian request traces (github.com/alibaba-edu/qwen-bailian-usagetraces-anon).

Input: JSON Lines in order of time: chat_id, parent_chat_id (-1: none), timestamp (s),
input_length, output_length, type, turn, hash_ids (one a 16-token block of the prompt).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workloads.model import Session, ToolCall
from workloads.readers.blocks import BlockCall, BlockRules, block_ids, turns_from_blocks
from workloads.readers.documents import short_name
from workloads.spill import Groups
from workloads.trace import json_lines
from workloads.trace_fields import Fields

BLOCK = 16
"""Tokens of a block."""
_ROW = ("chat", "parent", "at_s", "prompt", "output", "blocks")


@dataclass(frozen=True, slots=True)
class BailianSettings:
    """How the time between requests is read. All are our choices."""

    first_token_s: float = 0.5
    """Model time before the first token; with output_tokens_per_s, taken off the time between two
    requests of a chat, which the trace gives from arrival to arrival."""
    output_tokens_per_s: float = 50.0
    """Model speed."""
    gaps: str = "wait"
    """What the rest of it is: a `wait` for a person, or a `tool` call (coding agents)."""
    append_output: bool = True
    """A prompt that keeps every whole block of the one before, and has room, keeps its reply."""
    bytes_per_token: float = 4.0


def read_bailian(path: Path, settings: BailianSettings | None = None) -> Iterator[Session]:
    """One session for each chat: the requests that lead back to one root, in order of time.

    A request keeps what its parent's blocks and its own start with alike, also where several go on
    from one parent. One whose parent is not in the file starts a session. First prompts are shared
    segments, a block each.

    Raises:
        TraceError: a line lacks a field, or its blocks do not cover its prompt.
    """
    choice = settings or BailianSettings()
    scope = f"bailian-{short_name(path.name.split('.')[0], 'trace')}"
    rules = BlockRules(scope, BLOCK, choice.append_output, choice.bytes_per_token)
    with Groups() as groups:
        for line, row in json_lines(path):
            found = _row(Fields(row, path, line))
            groups.add([str(found[0])], found, [str(found[1])])
        for rows in groups:
            chats = [dict(zip(_ROW, row, strict=True)) for row in rows]
            yield Session(
                id=f"{scope}-{chats[0]['chat']}",
                turns=turns_from_blocks(_calls(chats, choice), rules),
                workload=scope,
                origin="recorded",
                arrival_s=chats[0]["at_s"],
            )


def _row(fields: Fields) -> list[Any]:
    names = ("chat_id", "parent_chat_id")
    chat, parent = (fields.get(name) for name in names)
    for name, value in zip(names, (chat, parent), strict=True):
        if isinstance(value, bool) or not isinstance(value, int):
            fields.refuse(name, "not a whole number", "every line states it; -1 is no parent")
    at_s = fields.seconds("timestamp", default=None)
    if at_s is None:
        fields.refuse("timestamp", "missing", "give seconds since the start")
    prompt = fields.count("input_length", low=1)
    output = max(1, fields.count("output_length", low=0))
    return [chat, parent, at_s, prompt, output, block_ids(fields, prompt, BLOCK)]


def _calls(chats: Sequence[dict[str, Any]], choice: BailianSettings) -> list[BlockCall]:
    places = {chat["chat"]: index for index, chat in enumerate(chats)}
    calls: list[BlockCall] = []
    for index, chat in enumerate(chats):
        before = places.get(chat["parent"])
        gap = 0.0
        if index + 1 < len(chats):
            model = choice.first_token_s + chat["output"] / choice.output_tokens_per_s
            gap = round(max(0.0, chats[index + 1]["at_s"] - chat["at_s"] - model), 3)
        tools = (ToolCall("tool", gap),) if gap and choice.gaps == "tool" else ()
        calls.append(
            BlockCall(
                prompt=chat["prompt"],
                output=chat["output"],
                blocks=chat["blocks"],
                before=before if before is not None and before < index else None,
                tools=tools,
                wait_s=0.0 if tools else gap,
                visible=choice.gaps == "wait",
            )
        )
    return calls
