"""Records what passes the gateway as a native trace: tokens, timing, tools; text only on request.

A turn keeps what its prompt has in common with an earlier one of its session. Tool times are what
a gateway can see of them: from the end of an answer to the session's next request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import IO

import orjson

from harness.live.relay import Relay
from harness.live.texts import Node, runs_of
from harness.live.turns import LiveTurn
from schedulers.tool_commands import stated_time
from schedulers.types import PromptRun, ToolSignal, Usage
from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.trace import write_trace

REPLY_START_CHARS = 256
"""Of each answer, kept to tell which of several is quoted in a later prompt."""


@dataclass(slots=True)
class _Turn:
    """A turn that was answered."""

    spec: TurnSpec
    runs: tuple[PromptRun, ...]
    prompt: int
    reply_bytes: int
    reply_start: str
    finished: int
    tools: tuple[ToolSignal, ...] = ()


@dataclass(slots=True)
class _Session:
    id: str
    arrived: int
    parent: str | None
    spawn_turn: int | None
    first_runs: tuple[PromptRun, ...]
    turns: list[_Turn] = field(default_factory=list)


class TraceRecorder:
    """A watcher of the driver and an observer of the gateway.

    Args:
        path: the trace, `.jsonl` or `.jsonl.gz`; written by `save`.
        workload: names the workload in the trace.
        content: file for the text of prompts and answers; None: it is not kept.
    """

    def __init__(self, path: Path, workload: str, content: IO[bytes] | None = None) -> None:
        self._path, self._workload, self._content = path, workload, content
        self._sessions: dict[str, _Session] = {}
        self._names: dict[str, int] = {}
        self._current: dict[str, str] = {}
        self.turns = 0
        self.problem: str | None = None
        """Why the text is not complete (a full disk); None: it is, or none is kept."""

    # Observer

    def answered(self, relay: Relay, usage: Usage) -> None:
        """A turn's answer is complete."""
        live = relay.live
        now = relay.now
        session = self._session(live, relay.path)
        self._close_gap(session, live.arrived)
        spec = _turn_spec(session, relay.path, usage)
        text = relay.reply.text
        size = len(text.encode("utf-8", "replace"))
        start = text[:REPLY_START_CHARS]
        session.turns.append(_Turn(spec, runs_of(relay.path), usage.prompt, size, start, now))
        self.turns += 1
        if self._content is not None and self.problem is None:
            line = {
                "session": session.id,
                "turn": len(session.turns) - 1,
                "request": relay.reading.body,
                "reply": text,
            }
            self._keep(orjson.dumps(line) + b"\n")

    def _keep(self, line: bytes) -> None:
        """Write a turn's text. Its caller gets the answer all the same."""
        assert self._content is not None
        try:
            self._content.write(line)
        except OSError as error:
            self.problem = f"the text of {self._content.name} ends early: {error.strerror}"

    def close_content(self) -> None:
        """No text is kept any more."""
        if self._content is None:
            return
        try:
            self._content.close()
        except OSError as error:
            self.problem = f"the text of {self._content.name} ends early: {error.strerror}"

    def _session(self, live: LiveTurn, path: Sequence[Node]) -> _Session:
        name = live.turn.session
        recorded = self._sessions.get(self._current.get(name, ""))
        if recorded is None:
            # A name that comes back after its session was closed is another session.
            count = self._names[name] = self._names.get(name, 0) + 1
            own = name if count == 1 else f"{name}~{count}"
            above = self._sessions.get(self._current.get(live.turn.parent or "", ""))
            spawned = above is not None and bool(above.turns)
            recorded = self._sessions[own] = _Session(
                own,
                live.arrived,
                above.id if above is not None and spawned else None,
                len(above.turns) - 1 if above is not None and spawned else None,
                runs_of(path),
            )
            self._current[name] = own
        return recorded

    def _close_gap(self, session: _Session, arrived: int) -> None:
        """The session is back: its tools have run until now."""
        if not session.turns:
            return
        last = session.turns[-1]
        gap = max(0, arrived - last.finished) / 1e9
        if not last.tools:
            last.spec = replace(last.spec, wait_s=gap)
            return
        calls = tuple(
            ToolCall(tool.name[:256] or "tool", gap, stated_time(tool).duration_s, index > 0)
            for index, tool in enumerate(last.tools)
        )
        last.spec = replace(last.spec, tools=calls, visible=False)

    # Watcher

    def turn_ended(self, turn: LiveTurn, usage: Usage | None, status: str, now: int) -> None:
        """Answers are seen in `answered`; what failed is no part of a workload."""

    def tools_started(self, session: str, tools: tuple[ToolSignal, ...], now: int) -> None:
        recorded = self._sessions.get(self._current.get(session, ""))
        if recorded is not None and recorded.turns:
            recorded.turns[-1].tools = tools

    def session_closed(self, session: str, reason: str, now: int) -> None:
        if reason != "one-off":  # a conversation that nobody named may go on
            self._current.pop(session, None)

    # The trace

    def sessions(self) -> list[Session]:
        """What was recorded, in order of arrival."""
        shared = self._shared()
        found: list[Session] = []
        for session in self._sessions.values():
            if not session.turns:
                continue
            first = _with_shared(session, shared)
            rest = tuple(turn.spec for turn in session.turns[1:])
            found.append(
                Session(
                    id=session.id,
                    turns=(first, *rest),
                    workload=self._workload,
                    origin="recorded",
                    parent=session.parent,
                    spawn_turn=session.spawn_turn,
                    arrival_s=None if session.parent is not None else session.arrived / 1e9,
                )
            )
        return found

    def save(self, path: Path | None = None) -> int:
        """Write the trace; returns the number of sessions, 0 if there was nothing to write.

        Args:
            path: elsewhere than planned.

        Raises:
            TraceError: it cannot be written.
            UsageError: so says the disk.
        """
        sessions = self.sessions()
        return write_trace(path or self._path, sessions) if sessions else 0

    def _shared(self) -> dict[str, int]:
        """Tokens of each segment that first prompts of other sessions begin with."""
        owner: dict[str, str] = {}
        shared: dict[str, int] = {}
        for session in self._sessions.values():
            for run in session.first_runs:
                first = owner.setdefault(run.segment, session.id)
                if first != session.id:
                    shared[run.segment] = max(shared.get(run.segment, 0), run.tokens)
        return shared


def _with_shared(session: _Session, shared: dict[str, int]) -> TurnSpec:
    """The first turn, with the text that other sessions begin with told apart."""
    spec = session.turns[0].spec
    segments: list[Segment] = []
    room = spec.prompt_tokens
    for run in session.first_runs:
        tokens = min(run.tokens, shared.get(run.segment, 0), room)
        if tokens <= 0:
            break
        segments.append(Segment(run.segment, tokens, run.bytes * tokens // run.tokens))
        room -= tokens
        if tokens < run.tokens:
            break
    own = sum(run.bytes for run in session.first_runs) - sum(s.bytes for s in segments)
    return replace(spec, new_tokens=room, new_bytes=max(0, own), shared=tuple(segments))


def _turn_spec(session: _Session, path: Sequence[Node], usage: Usage) -> TurnSpec:
    output = max(1, usage.output)
    size = sum(run.bytes for run in runs_of(path))
    if not session.turns:
        prompt = max(1, usage.prompt)
        return TurnSpec(prompt, output, new_bytes=size, visible=True)
    kept_turn, kept, kept_bytes = _kept(session, path, usage.prompt)
    return TurnSpec(
        new_tokens=usage.prompt - kept,
        output_tokens=output,
        kept_turn=kept_turn if kept else None,
        kept_tokens=kept,
        new_bytes=max(0, size - kept_bytes),
        visible=True,
        compaction=kept < session.turns[-1].prompt // 2,
    )


def _kept(session: _Session, path: Sequence[Node], prompt: int) -> tuple[int, int, int]:
    """The earlier turn with most in common, the later of equals: number, tokens, bytes kept."""
    runs = runs_of(path)
    best, kept, size = len(session.turns) - 1, -1, 0
    for index, turn in reversed(list(enumerate(session.turns))):
        tokens, text_bytes = _kept_of(turn, path, runs)
        if tokens > kept:
            best, kept, size = index, tokens, text_bytes
    return best, min(prompt, kept), size


def _kept_of(turn: _Turn, path: Sequence[Node], runs: Sequence[PromptRun]) -> tuple[int, int]:
    """Tokens and bytes that a prompt keeps of one turn's prompt and answer."""
    whole = sum(run.tokens for run in turn.runs)
    size = sum(run.bytes for run in turn.runs)
    same = _common(turn.runs, runs)
    if same < whole:
        # Lengths in the tree may be estimates; the engine's count of the prompt is exact.
        return round(turn.prompt * same / whole), round(size * same / whole)
    quoted = _quoted(path, whole)
    length = min(len(quoted), len(turn.reply_start))
    if not quoted or quoted[:length] != turn.reply_start[:length]:
        return turn.prompt, size
    text_bytes = len(quoted.encode("utf-8", "replace"))
    output = turn.spec.output_tokens
    if text_bytes < turn.reply_bytes:
        output = output * text_bytes // turn.reply_bytes
    return turn.prompt + output, size + text_bytes


def _common(a: Sequence[PromptRun], b: Sequence[PromptRun]) -> int:
    """Tokens two prompts share from the start."""
    total = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine.segment != theirs.segment:
            break
        total += min(mine.tokens, theirs.tokens)
        if mine.tokens != theirs.tokens:
            break
    return total


def _quoted(path: Sequence[Node], start: int) -> str:
    """What the model is quoted with right after the first `start` tokens."""
    passed = 0
    quoted: list[str] = []
    before: Node | None = None
    for node in path:
        same = before is not None and before.segment == node.segment
        own = node.tokens - (before.tokens if same and before is not None else 0)
        if passed >= start:
            if node.role != "assistant":
                break
            quoted.append(node.text)
        passed += own
        before = node
    return "".join(quoted)
