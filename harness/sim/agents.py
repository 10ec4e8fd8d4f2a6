"""Simulated agents: what a session does next, and the record of the turn it is in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from results.records import SessionRecord, SessionStatus, TurnRecord, TurnStatus
from schedulers.types import NS, PromptRef, PromptRun, ToolSignal, Turn
from workloads.model import Prompt, PromptBuilder, Session, TurnSpec


@dataclass(slots=True)
class OpenTurn:
    """The turn a session is in, from its arrival to its end."""

    spec: TurnSpec
    prompt: Prompt
    turn: Turn
    arrived: int
    tool_end: int | None
    dispatched: int | None = None
    first_token: int | None = None
    replica: str | None = None
    prefill_replica: str | None = None
    attempts: int = 0
    held: bool = False
    resent: int = 0


@dataclass(slots=True)
class Agent:
    """One session being played."""

    session: Session
    started: int
    bytes_per_token: float
    index: int = 0
    open: OpenTurn | None = None
    last_replica: str | None = None
    tool_end: int | None = None
    ended: bool = False
    attempt: int | None = None
    """The open turn's dispatch, while one is in flight."""
    prompts: Iterator[Prompt] = field(init=False)

    def __post_init__(self) -> None:
        self.prompts = PromptBuilder(self.session, self.bytes_per_token).prompts()

    @property
    def turn_id(self) -> str:
        assert self.open is not None
        return self.open.turn.id

    @property
    def finished(self) -> bool:
        return self.index >= len(self.session.turns)

    def next_turn(self, now: int) -> OpenTurn:
        """Open the session's next turn."""
        spec = self.session.turns[self.index]
        prompt = next(self.prompts)
        runs = tuple(PromptRun(*segment) for segment in prompt.segments)
        turn = Turn(
            f"{self.session.id}/{self.index}",
            self.session.id,
            self.index,
            PromptRef(runs, prompt.assistant_messages),
            self.session.parent,
        )
        self.open = OpenTurn(spec, prompt, turn, now, self.tool_end)
        return self.open

    def resend(self, now: int) -> OpenTurn:
        """The agent sends its failed turn again, as a new request."""
        old = self.open
        assert old is not None
        resent = old.resent + 1
        turn = Turn(
            f"{self.session.id}/{self.index}.{resent}",
            old.turn.session,
            old.turn.index,
            old.turn.prompt,
            old.turn.parent,
        )
        self.open = OpenTurn(old.spec, old.prompt, turn, now, self.tool_end, resent=resent)
        return self.open

    def close_turn(
        self,
        now: int,
        status: TurnStatus,
        *,
        cached: int | None = None,
        output: int = 0,
        longest_gap: int | None = None,
        error: str | None = None,
        prefilled: int | None = None,
        kv_sent: int | None = None,
        kv_received: int | None = None,
    ) -> TurnRecord:
        """The record of the open turn, which ends now."""
        opened = self.open
        assert opened is not None
        spec, ok = opened.spec, status == "ok"
        last = self.index == len(self.session.turns) - 1
        moved = ok and self.last_replica is not None and opened.replica != self.last_replica
        record = TurnRecord(
            session=self.session.id,
            turn=self.index,
            workload=self.session.workload,
            status=status,
            arrived=opened.arrived,
            dispatched=opened.dispatched,
            first_token=opened.first_token,
            finished=now,
            replica=opened.replica,
            prefill_replica=opened.prefill_replica,
            attempts=opened.attempts,
            prompt_tokens=spec.prompt_tokens,
            cached_tokens=cached,
            output_tokens=output,
            visible=spec.visible or last,
            last=last,
            held=opened.held,
            moved=moved,
            tool_end=opened.tool_end,
            tool_s=spec.tool_seconds if ok else 0.0,
            wait_s=spec.wait_s if ok else 0.0,
            longest_gap=longest_gap,
            error=error,
            prefilled=prefilled,
            kv_sent=kv_sent,
            kv_received=kv_received,
        )
        self.open = None
        if ok:
            self.last_replica = opened.replica
            self.index += 1
        return record

    def tool_signals(self, spec: TurnSpec) -> tuple[ToolSignal, ...]:
        """What the response that ends the turn tells of its tools."""
        return tuple(ToolSignal(call.name, None, call.hint_s) for call in spec.tools)

    def record(self, now: int, status: SessionStatus, error: str | None) -> SessionRecord:
        """The record of the session, which ends now."""
        session = self.session
        return SessionRecord(
            session=session.id,
            workload=session.workload,
            origin=session.origin,
            parent=session.parent,
            status=status,
            started=self.started,
            finished=now,
            turns_done=self.index,
            turns_total=len(session.turns),
            error=error,
        )


def nanoseconds(seconds: float) -> int:
    return round(seconds * NS)
