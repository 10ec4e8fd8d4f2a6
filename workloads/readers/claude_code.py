"""Claude Code session logs: `~/.claude/projects/PROJECT/SESSION.jsonl` and its sub-agents'.

Input: JSON Lines, one record a line: type, timestamp, sessionId, uuid, isSidechain, agentId,
message {id, model, usage, content}. A reply is written as several records of one message id, a
content block each. Sub-agents' records stand in files of their own (`SESSION/subagents/agent-ID
.jsonl` with `agent-ID.meta.json`, or `agent-ID.jsonl` beside the session), or, in older logs, in
the session's file, marked `isSidechain`. Formats as written by Claude Code 2.1 and as read by
github.com/uw-syfi/TraceLab (scripts/extract_claude_rounds.py).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from agentsched import TraceError
from workloads.model import Segment, Session
from workloads.readers.chain import turns_of
from workloads.readers.claude_code_log import AgentLog, Logs
from workloads.readers.documents import read_document, short_name
from workloads.trace import json_lines

MAX_LINE_BYTES = 64 << 20
"""Longest record accepted, in bytes: a tool result with pictures takes megabytes."""


@dataclass(frozen=True, slots=True)
class ClaudeCodeSettings:
    """How prompts are read. All are our choices."""

    shared_tokens: int = 16_000
    """Most tokens of tool definitions and system prompt that sessions are taken to share. A log
    does not mark them; what the cache served of a session's first prompt is the least they can be,
    and of a resumed session's it holds the conversation too."""
    bytes_per_token: float = 4.0


def read_claude_code(path: Path, settings: ClaudeCodeSettings | None = None) -> Iterator[Session]:
    """Each session of a log file or a folder of them, followed by its sub-agents.

    A prompt is the input tokens of a message's usage, cached ones included. Tool calls run from
    the end of the reply to their results; those of one reply count as parallel, so that the turn
    takes as long as it took. What passes between reply or results and a person's next message is a
    wait. Replies of Claude Code itself (model `<synthetic>`) are no turns. A sub-agent's parent is
    the agent that made the tool call named in its meta file, or whose result names the sub-agent;
    failing both, the session, at the last turn that ended before the sub-agent began.

    Raises:
        TraceError: a line is no record, or the log has no turns.
    """
    choice = settings or ClaudeCodeSettings()
    found = False
    for main in _main_files(path):
        for session in _family(main, choice):
            found = True
            yield session
    if not found:
        raise TraceError("no model call is in the log", "name a log with replies", file=path)


def _main_files(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    for file in sorted(path.rglob("*.jsonl")):
        if not file.name.startswith("agent-") and "subagents" not in file.parts:
            yield file


def _family(main: Path, choice: ClaudeCodeSettings) -> Iterator[Session]:
    logs = Logs()
    _read(main, logs)
    for file in _agent_files(main):
        _read(file, logs)
        meta = file.with_suffix(".meta.json")
        if meta.is_file():
            call = read_document(meta).text("toolUseId")
            logs.started_by(file.stem.removeprefix("agent-"), call)
    name = f"claude-code-{short_name(main.name.split('.')[0], 'session')}"
    for agent, parent, spawn in logs.tree():
        yield Session(
            id=name if agent.id is None else f"{name}/{agent.id}",
            turns=turns_of(agent.calls(), _shared(agent, choice)),
            workload="claude-code",
            origin="recorded",
            parent=None if parent is None else _named(name, parent),
            spawn_turn=spawn,
        )


def _named(session: str, agent: AgentLog) -> str:
    return session if agent.id is None else f"{session}/{agent.id}"


def _shared(agent: AgentLog, choice: ClaudeCodeSettings) -> tuple[Segment, ...]:
    """Equal kinds of agents of one version start alike, for as long as the cache served."""
    first = agent.turns[0]
    tokens = min(first.cached, choice.shared_tokens, first.prompt - 1)
    if tokens < 1:
        return ()
    kind = short_name(f"claude-code/{agent.version or 'any'}/{agent.kind or 'main'}", "claude-code")
    return (Segment(kind, tokens, round(tokens * choice.bytes_per_token)),)


def _agent_files(main: Path) -> Iterator[Path]:
    own = main.parent / main.name.split(".")[0]
    if own.is_dir():
        yield from sorted(own.rglob("agent-*.jsonl"))
    for file in sorted(main.parent.glob("agent-*.jsonl")):
        if _session_of(file) == own.name:
            yield file


def _session_of(file: Path) -> str | None:
    for _, record in json_lines(file, MAX_LINE_BYTES):
        if record.get("sessionId") is not None:
            return str(record["sessionId"])
    return None


def _read(file: Path, logs: Logs) -> None:
    agent = file.stem.removeprefix("agent-") if file.stem.startswith("agent-") else None
    for line, record in json_lines(file, MAX_LINE_BYTES):
        logs.add(record, file, line, agent)
