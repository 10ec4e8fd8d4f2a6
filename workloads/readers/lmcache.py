"""LMCache agent traces (github.com/LMCache/lmcache-agent-trace): mini-swe-agent and Magentic-One.

Input: JSON Lines, one model call a line: workload, session, turn, t (s), input_tokens,
shared_prefix_tokens, new_input_tokens, output_tokens, logged_input_tokens.

The time between two calls is model and tool time together. It is split by the fastest model call
that the data itself shows: over the mini-swe-agent calls, grouped by output length, the 5 %
quantile of that time is 0.2 s + output / 147 tokens/s. What is left of a gap is tool time, which
makes it an upper bound; where nothing is left it is 0.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.trace import json_lines
from workloads.trace_fields import MAX_TOKENS, Fields


@dataclass(frozen=True, slots=True)
class LmcacheSettings:
    """How gaps and prompts are read. All are our choices."""

    first_token_s: float = 0.2
    """Model time before the first token: intercept of the 5 % line described above."""
    output_tokens_per_s: float = 147.0
    """Model speed: slope of the same line."""
    template_tokens: int = 1200
    """System prompt and instructions that all mini-swe-agent sessions share, in tokens. The log
    does not mark it; the shortest first prompt has 1,247. Approximate."""
    bytes_per_token: float = 4.0


@dataclass(frozen=True, slots=True)
class _Call:
    at_s: float
    prompt: int
    shared: int
    output: int


def read_lmcache(path: Path, settings: LmcacheSettings | None = None) -> Iterator[Session]:
    """Sessions of an LMCache agent trace, in file order.

    mini-swe-agent prompts are append-only, own outputs included. Magentic-One prompts keep what
    the log says they share with the call before. Calls logged with an empty prompt (38 of
    Magentic-One's) have no known size: they are left out, and their time becomes a wait.

    Raises:
        TraceError: a line lacks a field or holds an impossible value.
    """
    choice = settings or LmcacheSettings()
    for (workload, session), rows in groupby(_rows(path), key=lambda row: row[:2]):
        calls = [row[2] for row in rows]
        turns = _turns(workload, calls, choice)
        if turns:
            yield Session(
                id=f"{workload}-{session}",
                turns=turns,
                workload=f"lmcache-{workload}",
                origin="recorded",
            )


def _rows(path: Path) -> Iterator[tuple[str, str, _Call]]:
    for line, row in json_lines(path):
        fields = Fields(row, path, line)
        workload, session = fields.text("workload"), fields.text("session")
        at_s = fields.seconds("t", default=None)
        if workload is None or session is None or at_s is None:
            fields.refuse("session", "workload, session or t is missing", "every line states them")
        prompt = fields.count("input_tokens", low=0)
        shared = fields.whole("shared_prefix_tokens", default=0, high=MAX_TOKENS) or 0
        if shared > prompt:
            fields.refuse("shared_prefix_tokens", "more than input_tokens", "correct the line")
        output = fields.count("output_tokens", low=0)
        yield workload, session, _Call(at_s, prompt, shared, max(1, output))


def _turns(workload: str, calls: list[_Call], choice: LmcacheSettings) -> tuple[TurnSpec, ...]:
    mini = workload == "mini-swe-agent"
    turns: list[TurnSpec] = []
    previous: _Call | None = None
    for index, call in enumerate(calls):
        if call.prompt == 0:
            previous = None
            continue
        tools, wait = _between(calls, index, "bash" if mini else "agent", choice)
        kept = _kept(previous, call, append_only=mini)
        shared = _template(call, choice) if mini and kept == 0 else ()
        turns.append(
            TurnSpec(
                new_tokens=call.prompt - kept - sum(part.tokens for part in shared),
                output_tokens=call.output,
                kept_turn=len(turns) - 1 if kept else None,
                kept_tokens=kept,
                shared=shared,
                tools=tools,
                wait_s=wait,
            )
        )
        previous = call
    return tuple(turns)


def _kept(previous: _Call | None, call: _Call, *, append_only: bool) -> int:
    if previous is None:
        return 0
    whole = previous.prompt + previous.output
    if append_only and call.shared >= previous.prompt and call.prompt >= whole:
        return whole
    return min(call.shared, whole)


def _template(call: _Call, choice: LmcacheSettings) -> tuple[Segment, ...]:
    tokens = min(choice.template_tokens, call.prompt - 1)
    if tokens < 1:
        return ()
    size = round(tokens * choice.bytes_per_token)
    return (Segment("mini-swe-agent/template", tokens, size),)


def _between(
    calls: list[_Call], index: int, tool: str, choice: LmcacheSettings
) -> tuple[tuple[ToolCall, ...], float]:
    """Tool calls and waiting between a call and the next one that has a prompt."""
    if index + 1 == len(calls):
        return (), 0.0
    gap = calls[index + 1].at_s - calls[index].at_s
    model = choice.first_token_s + calls[index].output / choice.output_tokens_per_s
    tools = (ToolCall(tool, round(max(0.0, gap - model), 3)),)
    later = index + 1
    while later < len(calls) and calls[later].prompt == 0:
        later += 1
    if later == len(calls):
        return tools, 0.0
    return tools, round(max(0.0, calls[later].at_s - calls[index + 1].at_s), 3)
