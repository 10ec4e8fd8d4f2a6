"""Turn and session records of real agents: turns as the gateway saw them, tools as the agents did.

A turn is recorded when the next turn of its session has ended, or the session: only then is known
what its tools took. Tool times are those that the agent's client process reports; of an agent that
reports none, what the gateway sees of them: from the end of an answer that starts tools to the
session's next request.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from harness.live.turns import LiveTurn
from harness.sim.driver import Recorder
from results.records import SessionRecord, SessionStatus, TurnRecord, TurnStatus
from schedulers.types import ToolSignal, Usage

ORIGIN = "recorded"
_STATUSES: dict[str, TurnStatus] = {
    "ok": "ok",
    "failed": "failed",
    "rejected": "rejected",
    "client_gone": "client_gone",
}


@dataclass(slots=True)
class _Tool:
    name: str
    started: int
    ended: int | None = None


@dataclass(slots=True)
class _Session:
    workload: str
    parent: str | None
    started: int
    last_seen: int
    turns: int = 0
    """Turns that ended, in whatever way: the number of the next."""
    served: int = 0
    pending: TurnRecord | None = None
    calls: tuple[ToolSignal, ...] = ()
    """Tools that the pending turn's answer started."""
    tools: list[_Tool] = field(default_factory=list)
    """Reported since the pending turn."""
    reports: bool = False
    """Its client process reports tools."""
    replica: str | None = None
    """That served its last turn."""


@dataclass(slots=True)
class TurnBook:
    """A watcher of the gateway's driver (`harness.live.turns.Watcher`) that keeps records.

    Args:
        workload: names the workload in the records.
    """

    workload: str
    turns: int = 0
    """Recorded so far."""
    _recorder: Recorder | None = None
    _shift: int = 0
    _replicas: bool = True
    _sessions: dict[str, _Session] = field(default_factory=dict)
    _closed: bool = False
    _assigned: set[str] = field(default_factory=set)
    """Sessions that a client process was given; others are sub-agents."""
    _strangers: frozenset[str] = frozenset()

    def open(
        self,
        recorder: Recorder,
        *,
        shift: int = 0,
        replicas: bool = True,
        strangers: frozenset[str] = frozenset(),
    ) -> None:
        """Begin.

        Args:
            shift: nanoseconds to add to the gateway's times.
            replicas: the gateway's replicas are the cell's (not a router before them).
            strangers: sessions that somebody else records.
        """
        self._recorder, self._shift, self._replicas = recorder, shift, replicas
        self._strangers = strangers

    # What the player tells. Times are the cell's.

    def assigned(self, session: str, now: int, workload: str = "") -> None:
        """A client process takes the session up.

        Args:
            workload: of the session, in a mix of several; empty: that of the book.
        """
        self._assigned.add(session)
        self._sessions[session] = _Session(workload or self.workload, None, now, now)

    def tool_started(self, session: str, name: str, at: int) -> None:
        """A tool of the session started."""
        found = self._sessions.get(session)
        if found is not None:
            found.reports = True
            found.tools.append(_Tool(name, at))

    def tool_ended(self, session: str, name: str, at: int) -> None:
        """The oldest open tool of this name ended; of any name if none has it."""
        found = self._sessions.get(session)
        open_tools = [t for t in found.tools if t.ended is None] if found is not None else []
        same = [tool for tool in open_tools if tool.name == name] or open_tools
        if same:
            same[0].ended = at

    def ended(self, session: str, status: SessionStatus, error: str | None, now: int) -> list[str]:
        """The client process is done with the session, or was stopped.

        Returns:
            Sub-agents of it, which end with it.
        """
        self._assigned.discard(session)
        found = self._sessions.get(session) or _Session(self.workload, None, now, now)
        self._flush(found, now, last=True)
        self._record_session(session, found, status, now, error)
        found.last_seen = now
        children = [n for n, s in self._sessions.items() if s.parent == session and n != session]
        for child in children:
            self._end_unassigned(child)
        return children

    def close(self) -> None:
        """The cell is over: record what is left, and nothing more."""
        self._closed = True
        for name, session in list(self._sessions.items()):
            self._flush(session, session.last_seen, last=True)
            if session.parent is not None:
                self._end_unassigned(name)
        self._sessions.clear()

    @property
    def unclosed(self) -> int:
        """Sessions that have ended, but are open at the gateway."""
        return sum(
            1 for name, s in self._sessions.items() if s.turns and name not in self._assigned
        )

    # Watcher: what the gateway's driver tells.

    def turn_ended(self, turn: LiveTurn, usage: Usage | None, status: str, now: int) -> None:
        if self._closed:
            return
        shift = self._shift
        now += shift
        name = turn.turn.session
        if name in self._strangers:
            return
        session = self._sessions.get(name)
        if session is None:  # a sub-agent, or a side call that names no session
            arrived, parent = turn.arrived + shift, turn.turn.parent or ""
            family = self._sessions.get(parent)
            workload = self.workload if family is None else family.workload
            session = _Session(workload, parent, arrived, now)
            self._sessions[name] = session
        record = self._record_of(session, turn, usage, status, now, shift)
        tool_end = self._flush(session, record.arrived, last=False)
        session.pending = replace(record, tool_end=tool_end)
        session.turns += 1
        session.last_seen = now
        session.calls = ()
        if record.status == "ok":
            session.served += 1
            session.replica = record.replica

    def _record_of(
        self,
        session: _Session,
        turn: LiveTurn,
        usage: Usage | None,
        status: str,
        now: int,
        shift: int,
    ) -> TurnRecord:
        dispatched, first = turn.dispatched, turn.first_token
        arrived = turn.arrived
        replica = turn.replica if self._replicas else None
        held = dispatched is not None and dispatched > arrived
        if dispatched is None and status != "ok":
            held = now - shift > arrived
        return TurnRecord(
            session=turn.turn.session,
            turn=session.turns,
            workload=session.workload,
            status=_STATUSES.get(status, "failed"),
            arrived=arrived + shift,
            dispatched=None if dispatched is None else dispatched + shift,
            first_token=None if first is None else first + shift,
            finished=now,
            replica=replica,
            prefill_replica=turn.prefill if self._replicas else None,
            attempts=turn.attempts,
            prompt_tokens=usage.prompt if usage is not None else turn.turn.prompt.tokens,
            cached_tokens=usage.cached if usage is not None else None,
            output_tokens=usage.output if usage is not None else 0,
            visible=True,
            last=False,
            held=held,
            moved=status == "ok" and session.replica is not None and replica != session.replica,
            tool_end=None,
            tool_s=0.0,
            wait_s=0.0,
            longest_gap=None,
            error=None if status == "ok" else f"the gateway saw it end as {status}",
        )

    def tools_started(self, session: str, tools: tuple[ToolSignal, ...], now: int) -> None:
        found = self._sessions.get(session)
        if found is not None and found.pending is not None:
            found.calls = tools
            found.pending = replace(found.pending, visible=False)

    def session_closed(self, session: str, reason: str, now: int) -> None:
        if session not in self._assigned and reason != "idle":
            self._end_unassigned(session)

    # Records.

    def _end_unassigned(self, name: str) -> None:
        """A sub-agent has ended, or a session that its client process is done with is closed."""
        session = self._sessions.pop(name, None)
        if session is None:
            return
        self._flush(session, session.last_seen, last=True)
        if session.parent is not None:
            self._record_session(name, session, "finished", session.last_seen, None)

    def _record_session(
        self, name: str, session: _Session, status: SessionStatus, now: int, error: str | None
    ) -> None:
        assert self._recorder is not None
        self._recorder.session(
            SessionRecord(
                session=name,
                workload=session.workload,
                origin=ORIGIN,
                parent=session.parent or None,
                status=status,
                started=session.started,
                finished=now,
                turns_done=session.served,
                turns_total=session.turns,
                error=error,
            )
        )

    def _flush(self, session: _Session, until: int, *, last: bool) -> int | None:
        """Record the pending turn; what came after it lasted until the given time.

        Returns:
            When its tools ended; None if it had none.
        """
        pending, session.pending = session.pending, None
        tools, session.tools = session.tools, []
        if pending is None:
            return None
        gap = max(0, until - pending.finished)
        if session.reports:
            busy, tool_end = _busy(tools, pending.finished, pending.finished + gap)
        elif session.calls:
            busy, tool_end = gap, until
        else:
            busy, tool_end = 0, None
        assert self._recorder is not None
        self._recorder.turn(
            replace(
                pending,
                last=last,
                visible=pending.visible or last,
                tool_s=busy / 1e9,
                wait_s=0.0 if last else max(0, gap - busy) / 1e9,
            )
        )
        self.turns += 1
        return tool_end


def _busy(tools: Sequence[_Tool], start: int, end: int) -> tuple[int, int | None]:
    """Nanoseconds between start and end in which a tool ran, and when the last one ended."""
    spans = sorted(
        (max(start, tool.started), min(end, end if tool.ended is None else tool.ended))
        for tool in tools
    )
    busy, reached = 0, start
    for begin, stop in spans:
        busy += max(0, stop - max(begin, reached))
        reached = max(reached, stop)
    return busy, max((stop for _, stop in spans), default=None)
