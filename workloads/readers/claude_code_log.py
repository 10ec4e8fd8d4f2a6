"""The records of one Claude Code session, gathered into agents and the tree they form."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workloads.model import ToolCall
from workloads.readers.chain import Call, parallel
from workloads.readers.documents import (
    command_name,
    moment,
    part,
    short_name,
    stated_sleep,
    text_of,
)
from workloads.trace_fields import MAX_TOKENS, Fields

SPAWNING = frozenset({"Task", "Agent"})
"""Tools that start a sub-agent."""
_COUNTS = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")


@dataclass(slots=True)
class _Use:
    """A tool call of a reply."""

    name: str
    hint_s: float | None
    ended: float | None = None


@dataclass(slots=True)
class Message:
    """One reply of the model, from all its records; times in seconds since 1970."""

    number: int
    """Turn of its agent."""
    asked: float | None
    """When a person's message for it came; None after a tool result."""
    prompt: int = 0
    cached: int = 0
    output: int = 0
    ended: float = 0.0
    final: bool = False
    compaction: bool = False
    uses: dict[str, _Use] = field(default_factory=dict)


@dataclass(slots=True)
class AgentLog:
    """One agent of a session: the main one, whose id is None, or a sub-agent."""

    id: str | None
    kind: str | None = None
    version: str | None = None
    began: float | None = None
    """Time of its first record."""
    start: int | None = None
    """Hash of its first message's text."""
    turns: list[Message] = field(default_factory=list)
    _by_id: dict[str, Message] = field(default_factory=dict)
    _asked: float | None = None
    _compaction: bool = False

    def reply(self, message_id: str) -> Message:
        """The message of an id, new or under way."""
        found = self._by_id.get(message_id)
        if found is None:
            found = Message(len(self.turns), self._asked, compaction=self._compaction)
            self._asked, self._compaction = None, False
            self._by_id = {**dict(list(self._by_id.items())[-8:]), message_id: found}
            self.turns.append(found)
        return found

    def said(self, at: float | None, *, compaction: bool) -> None:
        """A person's message, or a summary in place of the conversation."""
        self._asked = at
        self._compaction |= compaction

    def calls(self) -> list[Call]:
        """The turns as the trace needs them."""
        return [
            self._call(message, self.turns[index + 1] if index + 1 < len(self.turns) else None)
            for index, message in enumerate(self.turns)
        ]

    def _call(self, message: Message, after: Message | None) -> Call:
        tools = [
            ToolCall(use.name, round(max(0.0, use.ended - message.ended), 3), use.hint_s)
            for use in message.uses.values()
            if use.ended is not None
        ]
        idle_from = max([message.ended, *(use.ended or 0.0 for use in message.uses.values())])
        wait = 0.0
        if after is not None and after.asked is not None:
            wait = round(max(0.0, after.asked - idle_from), 3)
        return Call(
            prompt=max(1, message.prompt),
            output=max(1, message.output),
            cached=message.cached,
            tools=parallel(tools) if after is not None else (),
            wait_s=wait,
            visible=message.final,
            compaction=message.compaction,
        )


class Logs:
    """All agents of one session."""

    def __init__(self) -> None:
        self._agents: dict[str | None, AgentLog] = {None: AgentLog(None)}
        self._called: dict[str, tuple[AgentLog, int]] = {}
        """The agent and turn of every tool call that may start a sub-agent."""
        self._by: dict[str, str] = {}
        """The tool call that started a sub-agent."""
        self._uses: dict[str, _Use] = {}
        """Tool calls under way."""
        self._asked: dict[int, list[str]] = {}
        """Tool calls that start a sub-agent, by the hash of what they start it with."""
        self._chain: dict[str, str] = {}
        """The sub-agent of a record in an older log, by uuid."""

    def started_by(self, agent: str, call: str | None) -> None:
        """A sub-agent was started by a tool call."""
        if call is not None:
            self._by.setdefault(agent, call)

    def add(self, record: dict[str, Any], file: Path, line: int, agent: str | None) -> None:
        """One record; `agent` is the sub-agent whose file it stands in.

        Raises:
            TraceError: a field has a wrong type.
        """
        kind = record.get("type")
        if kind not in ("user", "assistant", "system"):
            return
        fields = Fields(record, file, line)
        at = moment(fields, "timestamp")
        log = self._agent(fields, agent)
        if log.began is None:
            log.began = at
        log.version = log.version or _text(fields, "version")
        log.kind = log.kind or _text(fields, "attributionAgent")
        if kind == "system":
            if fields.get("subtype") == "compact_boundary":
                log.said(at, compaction=True)
        elif kind == "assistant":
            self._assistant(log, fields, at)
        else:
            self._user(log, fields, at)

    def tree(self) -> Iterator[tuple[AgentLog, AgentLog | None, int | None]]:
        """(agent, parent, turn of the parent), parents first; agents without turns left out."""
        children: dict[str | None, list[tuple[AgentLog, int]]] = {}
        for log in self._agents.values():
            if log.id is not None and log.turns:
                parent, turn = self._parent(log)
                children.setdefault(parent.id, []).append((log, turn))
        main = self._agents[None]
        if not main.turns:
            yield from ((log, None, None) for found in children.values() for log, _ in found)
            return
        yield main, None, None
        above = [main]
        while above:
            parent = above.pop(0)
            for log, turn in children.get(parent.id, ()):
                yield log, parent, turn
                above.append(log)

    def _parent(self, log: AgentLog) -> tuple[AgentLog, int]:
        call = self._by.get(log.id or "")
        if call is None and log.start is not None:
            call = next(iter(self._asked.get(log.start, ())), None)
            self._asked[log.start] = self._asked.get(log.start, [])[1:]
        parent, turn = self._called.get(call or "", (None, 0))
        if parent is not None and parent is not log and parent.turns:
            return parent, turn
        main = self._agents[None]
        before = [m.ended <= (log.began or 0.0) for m in main.turns]
        return main, max(0, before.count(True) - 1)

    def _agent(self, fields: Fields, agent: str | None) -> AgentLog:
        name = agent
        if fields.get("isSidechain") is True and name is None:
            name = _text(fields, "agentId") or self._older(fields)
        if name not in self._agents:
            self._agents[name] = AgentLog(short_name(name or "", "agent"))
        return self._agents[name]

    def _older(self, fields: Fields) -> str:
        """Older logs name no sub-agent: the chain of parents leads to its first record."""
        uuid, above = _text(fields, "uuid") or "", _text(fields, "parentUuid")
        name = self._chain.get(above or "", f"agent-{uuid[:8]}")
        self._chain[uuid] = name
        return name

    def _assistant(self, log: AgentLog, fields: Fields, at: float | None) -> None:
        message = part(fields, "message")
        name = _text(message, "id")
        if name is None or message.get("model") == "<synthetic>":
            return
        reply = log.reply(name)
        _count(reply, part(message, "usage"))
        reply.ended = max(reply.ended, at or 0.0)
        reply.final |= message.get("stop_reason") == "end_turn"
        for block in _blocks(message):
            if block.get("type") == "tool_use" and isinstance(block.get("id"), str):
                use = _use(block)
                reply.uses[block["id"]] = use
                self._uses[block["id"]] = use
                if block.get("name") in SPAWNING:
                    self._called[block["id"]] = (log, reply.number)
                    self._asked.setdefault(_start(block), []).append(block["id"])

    def _user(self, log: AgentLog, fields: Fields, at: float | None) -> None:
        message = part(fields, "message")
        results = [b for b in _blocks(message) if b.get("type") == "tool_result"]
        for block in results:
            use = self._uses.pop(str(block.get("tool_use_id")), None)
            if use is not None:
                use.ended = at
            result = fields.get("toolUseResult")
            if isinstance(result, dict) and isinstance(result.get("agentId"), str):
                self.started_by(result["agentId"], str(block.get("tool_use_id")))
        if results:
            return
        if log.start is None:
            log.start = hash(text_of(message.get("content")))
        if fields.get("isMeta") is not True:
            log.said(at, compaction=fields.get("isCompactSummary") is True)


def _use(block: dict[str, Any]) -> _Use:
    name, given = str(block.get("name") or "tool"), block.get("input")
    command = given.get("command") if isinstance(given, dict) else None
    if name == "Bash" and isinstance(command, str):
        return _Use(command_name(command), stated_sleep(command))
    return _Use(short_name(name, "tool"), None)


def _start(block: dict[str, Any]) -> int:
    given = block.get("input")
    return hash(str(given.get("prompt"))) if isinstance(given, dict) else 0


def _count(reply: Message, usage: Fields) -> None:
    """Later records of a reply know more than earlier ones; none knows less but placeholders."""
    given = [usage.whole(name, default=0, high=MAX_TOKENS) or 0 for name in _COUNTS]
    output = usage.whole("output_tokens", default=0, high=MAX_TOKENS) or 0
    if (output, sum(given)) >= (reply.output, reply.prompt):
        reply.prompt, reply.cached, reply.output = sum(given), given[2], output


def _blocks(message: Fields) -> list[dict[str, Any]]:
    content = message.get("content")
    found = content if isinstance(content, list) else []
    return [block for block in found if isinstance(block, dict)]


def _text(fields: Fields, name: str) -> str | None:
    value = fields.get(name)
    return value if isinstance(value, str) else None
