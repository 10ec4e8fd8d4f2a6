"""Weka Claude Code traces (github.com/callanjfox/kv-cache-tester), as one line a request.

Input: JSON Lines: session, agent (`main` or `subN`), turn, t (s), input_tokens,
shared_prefix_tokens, output_tokens, api_s, gap_before_s, stop, input_kind. Beside it
`sessions.jsonl`: session, tool_tokens, system_tokens. All lines of a session stand together; a
sub-agent's first line stands after the request of the main agent that started it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.trace import json_lines
from workloads.trace_fields import MAX_TOKENS, Fields

BLOCK = 64
"""Tokens of a block of the recording: what is shared is known in whole blocks only."""


@dataclass(frozen=True, slots=True)
class WekaSettings:
    """How prompts and gaps are read. All are our choices."""

    append_output: bool = True
    """A prompt that keeps every block of the one before, and has room, keeps its output too: an
    agent sends its own reply back. The recording compares prompts with prompts only."""
    reset_share: float = 0.5
    """A prompt that is shorter than the one before and keeps less than this share is a
    compaction."""
    bytes_per_token: float = 4.0


@dataclass(frozen=True, slots=True)
class Request:
    """One request of a session, as recorded; tokens and seconds."""

    agent: str
    prompt: int
    shared: int
    output: int
    at_s: float
    api_s: float
    gap_s: float | None
    stop: str
    kind: str


def read_weka(path: Path, settings: WekaSettings | None = None) -> Iterator[Session]:
    """Sessions of a Weka trace, each followed by its sub-agents.

    A gap after `tool_use` is a tool call, after `end_turn` a wait (a person); where the stop reason
    is unknown, it is a tool call if a tool result follows. Tool gaps hold permission prompts and
    idle people too: they overstate tool time. The tool of a turn that starts sub-agents is named
    `Task`, others `tool`: the recording has no names. Sessions whose tools and system prompt have
    the same sizes are taken to share them, which is approximate. An output of 0 tokens (a request
    that failed) becomes 1.

    Raises:
        TraceError: a line lacks a field or holds an impossible value.
    """
    choice = settings or WekaSettings()
    prefixes = _prefixes(path.with_name("sessions.jsonl"), choice)
    for name, group in groupby(_rows(path), key=lambda row: row[0]):
        requests = [row[1] for row in group]
        yield from family(name, requests, prefixes.get(name, ()), choice)


def family(
    name: str, requests: list[Request], prefix: tuple[Segment, ...], choice: WekaSettings
) -> Iterator[Session]:
    """The session that requests make up, and its sub-agents after it."""
    by_agent: dict[str, list[Request]] = {}
    spawned: dict[str, int] = {}
    for request in requests:
        if request.agent != "main" and request.agent not in by_agent:
            spawned[request.agent] = max(0, len(by_agent.get("main", ())) - 1)
        by_agent.setdefault(request.agent, []).append(request)
    main = by_agent.pop("main", [])
    session = f"weka-{name}"
    if main:
        yield Session(
            id=session,
            turns=_turns(main, prefix, frozenset(spawned.values()), choice),
            workload="weka-claude-code",
            origin="recorded",
        )
    for agent, own in by_agent.items():
        yield Session(
            id=f"{session}/{agent}",
            turns=_turns(own, (), frozenset(), choice),
            workload="weka-claude-code",
            origin="recorded",
            parent=session if main else None,
            spawn_turn=spawned[agent] if main else None,
        )


def _turns(
    requests: list[Request],
    prefix: tuple[Segment, ...],
    spawning: frozenset[int],
    choice: WekaSettings,
) -> tuple[TurnSpec, ...]:
    turns: list[TurnSpec] = []
    for index, request in enumerate(requests):
        before = requests[index - 1] if index else None
        kept = _kept(before, request, choice)
        fits = not index and request.prompt > sum(part.tokens for part in prefix)
        shared = prefix if fits else ()
        after = requests[index + 1] if index + 1 < len(requests) else None
        tools, wait = _between(request, after, "Task" if index in spawning else "tool")
        turns.append(
            TurnSpec(
                new_tokens=request.prompt - kept - sum(part.tokens for part in shared),
                output_tokens=request.output,
                kept_turn=index - 1 if kept else None,
                kept_tokens=kept,
                shared=shared,
                visible=request.stop == "end_turn" or (after is not None and not tools),
                tools=tools,
                wait_s=wait,
                compaction=before is not None
                and request.prompt < before.prompt
                and request.shared < choice.reset_share * before.prompt,
            )
        )
    return tuple(turns)


def _kept(before: Request | None, request: Request, choice: WekaSettings) -> int:
    if before is None:
        return 0
    whole = before.prompt + before.output
    all_blocks = request.shared >= before.prompt // BLOCK * BLOCK
    if choice.append_output and all_blocks and request.prompt >= whole:
        return whole
    return min(request.shared, whole)


def _between(
    request: Request, after: Request | None, tool: str
) -> tuple[tuple[ToolCall, ...], float]:
    if after is None:
        return (), 0.0
    gap = after.gap_s
    if gap is None:
        gap = max(0.0, after.at_s - request.at_s - request.api_s)
    ran = request.stop == "tool_use" or (not request.stop and "tool_result" in after.kind)
    return ((ToolCall(tool, gap),), 0.0) if ran else ((), gap)


def _prefixes(path: Path, choice: WekaSettings) -> dict[str, tuple[Segment, ...]]:
    """Tool definitions and system prompt of each session; empty without the sessions file."""
    if not path.is_file():
        return {}
    result: dict[str, tuple[Segment, ...]] = {}
    for line, row in json_lines(path):
        fields = Fields(row, path, line)
        name = fields.text("session")
        if name is None:
            fields.refuse("session", "missing", "every line names its session")
        tools, system = (
            fields.whole(key, default=0, high=MAX_TOKENS) or 0
            for key in ("tool_tokens", "system_tokens")
        )
        result[name] = start_of(tools, system, choice)
    return result


def start_of(tools: int, system: int, choice: WekaSettings) -> tuple[Segment, ...]:
    """Shared segments of tool definitions and system prompt, named by their sizes."""
    parts = (("tools", tools), (f"tools-{tools}-system", system))
    return tuple(
        Segment(f"claude-code/{part}-{tokens}", tokens, round(tokens * choice.bytes_per_token))
        for part, tokens in parts
        if tokens
    )


def _rows(path: Path) -> Iterator[tuple[str, Request]]:
    for line, row in json_lines(path):
        fields = Fields(row, path, line)
        session, agent = fields.text("session"), fields.text("agent")
        if session is None or agent is None:
            fields.refuse("session", "session or agent is missing", "every line states both")
        prompt = fields.count("input_tokens", low=1)
        shared = fields.whole("shared_prefix_tokens", default=0, high=MAX_TOKENS) or 0
        if shared > prompt:
            fields.refuse("shared_prefix_tokens", "more than input_tokens", "correct the line")
        yield (
            session,
            Request(
                agent=agent,
                prompt=prompt,
                shared=shared,
                output=max(1, fields.count("output_tokens", low=0)),
                at_s=fields.seconds("t", default=0.0) or 0.0,
                api_s=fields.seconds("api_s", default=0.0) or 0.0,
                gap_s=fields.seconds("gap_before_s", default=None),
                stop=str(fields.get("stop") or ""),
                kind=str(fields.get("input_kind") or ""),
            ),
        )
