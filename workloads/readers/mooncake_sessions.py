"""Mooncake rows with sessions: AIPerf's, Dynamo's, and Dynamo's agentic traces.

Input: JSON Lines. AIPerf (`mooncake_trace`): session_id, input_length, output_length, timestamp
(ms, first turn) or delay (ms, before a later turn); a later row holds only what it adds. Dynamo:
the same with hash_ids, each row its whole prompt. Dynamo agentic, version 1: request_id, wait_for
(request ids), tool_wait_ms, prefix_reset besides. Version 2: a header {schema, version,
block_size}, then rows with play_id, not_before_ms and dependencies [{request_id, relation,
delay_ms}]. Sources: aiperf 0.13 (MooncakeTrace), crates dynamo-data-gen 1.3 to 1.6.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from agentsched import UsageError
from workloads.model import Session, ToolCall
from workloads.readers.blocks import (
    BlockCall,
    BlockRules,
    block_ids,
    block_size,
    turns_from_blocks,
)
from workloads.readers.documents import parts, short_name
from workloads.spill import Groups
from workloads.trace import json_lines
from workloads.trace_fields import MAX_SECONDS, MAX_TOKENS, Fields


@dataclass(frozen=True, slots=True)
class MooncakeSessionSettings:
    """What the rows leave open. All are our choices."""

    block_tokens: int = 0
    """Tokens of a block; 0: as the header says, or the power of two that the first prompts fit."""
    prompts: str = "auto"
    """`whole`: a later row holds its whole prompt; `added`: what it adds to the turn before;
    `auto`: whole where it has hash_ids or waits for other rows, added otherwise."""
    delays: str = "tool"
    """What passes between turns: `tool` calls, or a `wait` for a person."""
    append_output: bool = True
    """A prompt that keeps every whole block of the one before, and has room, keeps its reply."""
    bytes_per_token: float = 4.0


@dataclass(frozen=True, slots=True)
class _Row:
    session: str
    request: str
    prompt: int
    output: int
    blocks: list[int | str]
    at_ms: float | None
    delay_ms: float
    tool_ms: float
    after: list[str]
    """Requests that must have ended."""
    added: bool
    anew: bool


def read_mooncake_sessions(
    path: Path, settings: MooncakeSessionSettings | None = None
) -> Iterator[Session]:
    """One session for each session id; a session whose first row waits for another's is its
    sub-agent. Rows without a session id are sessions of one turn.

    That a row waits for the end of a sub-agent is not kept: a trace says how long a turn's tools
    took, not what for.

    Raises:
        TraceError: a line lacks a field or holds an impossible value.
        UsageError: a setting is unknown.
    """
    choice = settings or MooncakeSessionSettings()
    _check(choice)
    scope = short_name(path.name.split(".")[0], "trace")
    size = choice.block_tokens
    with Groups() as groups:
        for line, row in json_lines(path):
            fields = Fields(row, path, line)
            if "schema" in row and "request_id" not in row:
                size = size or fields.count("block_size", low=1)
                continue
            size = size or _size(fields)
            found = _row(fields, line, size or 512, choice)
            above = [f"r {request}" for request in found.after]
            play = [f"p {row['play_id']}"] if "play_id" in row else []
            names = [f"s {found.session}", f"r {found.request}", *play]
            groups.add(names, [getattr(found, name) for name in _Row.__slots__], above)
        rules = BlockRules(scope, size or 512, choice.append_output, choice.bytes_per_token)
        for group in groups:
            yield from _family([_Row(*row) for row in group], rules, choice, path)


def _check(choice: MooncakeSessionSettings) -> None:
    if choice.prompts not in ("auto", "whole", "added"):
        raise UsageError(f"prompts cannot be {choice.prompts!r}", "use auto, whole or added")
    if choice.delays not in ("tool", "wait"):
        raise UsageError(f"delays cannot be {choice.delays!r}", "use tool or wait")


def _size(fields: Fields) -> int:
    prompt, blocks = fields.get("input_length"), fields.get("hash_ids")
    if isinstance(prompt, int) and isinstance(blocks, list):
        return block_size(prompt, len(blocks)) or 0
    return 0


def _row(fields: Fields, line: int, size: int, choice: MooncakeSessionSettings) -> _Row:
    dependencies = parts(fields, "dependencies")
    waits = fields.items("wait_for") if fields.get("wait_for") is not None else []
    after = [str(name) for name in waits]
    after += [d.text("request_id") or "" for d in dependencies]
    sequence = [d for d in dependencies if d.get("relation") in ("sequence", "join")]
    delays = [_ms(d, "delay_ms") or 0.0 for d in sequence]
    agentic = bool(waits or dependencies or fields.get("request_id") is not None)
    prompt = fields.count("input_length", low=0)
    whole = choice.prompts == "whole" or (
        choice.prompts == "auto" and (agentic or bool(fields.get("hash_ids")))
    )
    return _Row(
        session=fields.text("session_id") or fields.text("request_id") or f"request-{line}",
        request=fields.text("request_id") or f"line-{line}",
        prompt=prompt,
        output=max(1, fields.count("output_length", low=0)),
        blocks=block_ids(fields, prompt, size) if whole else [],
        at_ms=_first(_ms(fields, "timestamp"), _ms(fields, "not_before_ms")),
        delay_ms=(_ms(fields, "delay") or 0.0) + max(delays, default=0.0),
        tool_ms=_ms(fields, "tool_wait_ms") or 0.0,
        after=after,
        added=not whole,
        anew=fields.flag("prefix_reset") if fields.get("prefix_reset") is not None else False,
    )


def _first(one: float | None, other: float | None) -> float | None:
    return one if one is not None else other


def _ms(fields: Fields, name: str) -> float | None:
    value = fields.get(name)
    if value is None:
        return None
    usable = isinstance(value, (int, float)) and not isinstance(value, bool)
    if not usable or not 0 <= value <= 1000 * MAX_SECONDS:
        fields.refuse(name, f"{str(value)[:40]} is not allowed", "give milliseconds, 0 or more")
    return float(value)


def _family(
    rows: Sequence[_Row], rules: BlockRules, choice: MooncakeSessionSettings, path: Path
) -> Iterator[Session]:
    by_session: dict[str, list[_Row]] = {}
    place: dict[str, tuple[str, int]] = {}
    for row in rows:
        own = by_session.setdefault(row.session, [])
        place[row.request] = (row.session, len(own))
        own.append(row)
    for name, own in by_session.items():
        above = [place[r] for r in own[0].after if r in place and place[r][0] != name]
        calls = _calls(own, choice, path)
        at_ms = own[0].at_ms
        yield Session(
            id=_scoped(name, rules),
            turns=turns_from_blocks(calls, rules),
            workload=rules.scope,
            origin="recorded",
            parent=_scoped(above[0][0], rules) if above else None,
            spawn_turn=above[0][1] if above else None,
            arrival_s=None if above or at_ms is None else at_ms / 1000,
        )


def _scoped(name: str, rules: BlockRules) -> str:
    return short_name(f"{rules.scope}-{name}", rules.scope)


def _calls(rows: Sequence[_Row], choice: MooncakeSessionSettings, path: Path) -> list[BlockCall]:
    calls: list[BlockCall] = []
    for index, row in enumerate(rows):
        prompt = row.prompt
        if row.added and index:
            prompt += calls[-1].prompt + calls[-1].output
        if not 1 <= prompt <= MAX_TOKENS:
            Fields({}, path, None).refuse(
                "input_length", f"session {row.session!r} has a prompt of {prompt} tokens",
                f"a prompt has 1 to {MAX_TOKENS} tokens",
            )  # fmt: skip
        before = None if index == 0 or row.anew else index - 1
        calls.append(BlockCall(prompt, row.output, row.blocks, before))
    gaps = [*rows[1:], None]
    return [_with_gap(call, gap, choice) for call, gap in zip(calls, gaps, strict=True)]


def _with_gap(call: BlockCall, after: _Row | None, choice: MooncakeSessionSettings) -> BlockCall:
    if after is None:
        return call
    tools: list[ToolCall] = []
    wait = 0.0
    if after.tool_ms:
        tools.append(ToolCall("tool", round(after.tool_ms / 1000, 6)))
    if after.delay_ms and choice.delays == "tool":
        tools.append(ToolCall("tool", round(after.delay_ms / 1000, 6)))
    elif after.delay_ms:
        wait = round(after.delay_ms / 1000, 6)
    return replace(call, tools=tuple(tools), wait_s=wait)
