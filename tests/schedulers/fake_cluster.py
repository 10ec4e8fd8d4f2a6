"""A small cluster for scheduler tests: implements the views, carries out commands strictly.

    cluster = FakeCluster({"r0": 1000, "r1": 1000})
    driver = Driver(scheduler, cluster)
    driver.arrive("s1", tokens=300)          # one TurnArrived; returns the commands it led to
    driver.finish("s1", output=20)           # its oldest turn in flight ends
    driver.tools("s1", ToolSignal("bash"))
    driver.advance(5.0)                      # delivers due Timer events on the way

Any breach of the contract is an AssertionError: a turn left undecided, dispatched twice, a resume
of an active session that waits for nothing, a dead or unknown replica, a wake-up in the past.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

from schedulers import events as ev
from schedulers.base import Scheduler
from schedulers.commands import (
    Abort,
    Command,
    Hold,
    Pause,
    Reject,
    Resume,
    Route,
    Solve,
    WakeAt,
)
from schedulers.types import (
    NS,
    Evidence,
    PromptRef,
    PromptRun,
    ReplicaSample,
    ToolSignal,
    Turn,
    Usage,
)
from schedulers.views import Lifecycle, Phase, Role


@dataclass(slots=True)
class FakeReplica:
    id: str
    index: int
    capacity_tokens: int | None
    role: Role = "mixed"
    healthy: bool = True
    in_flight: int = 0
    queued_prefill_tokens: int = 0
    homes: dict[str, None] = field(default_factory=dict)
    sample: ReplicaSample | None = None
    sampled_at: int | None = None

    @property
    def sessions(self) -> Collection[str]:
        return list(self.homes)


@dataclass(slots=True)
class FakeSession:
    id: str
    arrived_at: int
    parent: str | None = None
    lifecycle: Lifecycle = "active"
    home: str | None = None
    last_replica: str | None = None
    turns_finished: int = 0
    waiting_turns: dict[str, tuple[Turn, int]] = field(default_factory=dict)
    attempts: dict[int, tuple[Turn, str]] = field(default_factory=dict)
    evidence: dict[str, Evidence] = field(default_factory=dict)
    paused_at: int | None = None
    idle_since: int | None = None
    tools: tuple[ToolSignal, ...] = ()
    tokens: int = 0

    @property
    def in_flight(self) -> int:
        return len(self.attempts)

    @property
    def phase(self) -> Phase:
        return "reasoning" if self.attempts or self.waiting_turns else "acting"

    @property
    def waiting(self) -> Sequence[Turn]:
        return [turn for turn, _ in self.waiting_turns.values()]

    @property
    def waiting_since(self) -> int | None:
        return next((since for _, since in self.waiting_turns.values()), None)


class FakeCluster:
    """Args:
    capacities: replica id to usable KV tokens (None: unknown), in configured order.
    roles: role of a replica where it is not "mixed".
    """

    def __init__(
        self, capacities: Mapping[str, int | None], roles: Mapping[str, Role] | None = None
    ) -> None:
        self.by_id = {
            name: FakeReplica(name, index, capacity, (roles or {}).get(name, "mixed"))
            for index, (name, capacity) in enumerate(capacities.items())
        }
        self.sessions: dict[str, FakeSession] = {}
        self.streamed: dict[str, int] = {}
        """Output tokens of the turn in flight so far, by session; set it to make progress."""
        self.cached: dict[tuple[str, str], int] = {}
        """Answers of cached_tokens by (first segment of the prompt, replica)."""
        self.attempt_count = 0
        self.prefilling: set[int] = set()
        """Attempts without a first token yet."""

    @property
    def replicas(self) -> Sequence[FakeReplica]:
        return list(self.by_id.values())

    @property
    def waiting(self) -> Mapping[str, Turn]:
        held = [pair for s in self.sessions.values() for pair in s.waiting_turns.values()]
        return {turn.id: turn for turn, _ in sorted(held, key=lambda pair: pair[1])}

    def replica(self, replica_id: str) -> FakeReplica:
        return self.by_id[replica_id]

    def tokens(self, session_id: str) -> int:
        return self.sessions[session_id].tokens + self.streamed.get(session_id, 0)

    def evidence(self, session_id: str, replica_id: str) -> Evidence | None:
        session = self.sessions.get(session_id)
        return session.evidence.get(replica_id) if session else None

    def cached_tokens(self, prompt: PromptRef, replica_id: str) -> int:
        segment = prompt.runs[0].segment if prompt.runs else ""
        return min(prompt.tokens, self.cached.get((segment, replica_id), 0))

    def use(self, replica_id: str) -> int:
        """Context tokens of the sessions that have a place on the replica."""
        return sum(self.tokens(s) for s in self.by_id[replica_id].homes)

    # Carrying out commands.

    def carry_out(self, command: Command, now: int) -> None:
        if isinstance(command, Route):
            turn = self._waiting_turn(command.turn_id)
            session = self.sessions[turn.session]
            assert command.prefill is None or self._usable(command.prefill)
            self._place(session, command.decode)
            self._dispatch(session, turn, command.decode)
        elif isinstance(command, Hold):
            session = self.sessions[self._waiting_turn(command.turn_id).session]
            if session.home is None and session.lifecycle == "active":
                session.lifecycle, session.paused_at = "paused", now
        elif isinstance(command, Pause):
            session = self.sessions[command.session]
            assert session.lifecycle == "active", f"{session.id} is paused already"
            self.unplace(session, now)
        elif isinstance(command, Resume):
            session = self.sessions[command.session]
            waits = session.lifecycle == "paused" or session.waiting_turns
            assert waits, f"{session.id} is active and waits for nothing: double resume"
            self._place(session, command.replica)
            for turn in session.waiting:
                self._dispatch(session, turn, command.replica)
        elif isinstance(command, Reject):
            session = self.sessions[self._waiting_turn(command.turn_id).session]
            del session.waiting_turns[command.turn_id]
            if session.phase == "acting":
                session.idle_since = now
        elif isinstance(command, WakeAt):
            assert command.time >= now, "asks to be woken in the past"
        else:
            assert isinstance(command, (Solve, Abort)), f"{command!r} is not a command"

    def unplace(self, session: FakeSession, now: int) -> None:
        if session.home is not None:
            del self.by_id[session.home].homes[session.id]
        session.home, session.lifecycle, session.paused_at = None, "paused", now

    def _waiting_turn(self, turn_id: str) -> Turn:
        turn = self.waiting.get(turn_id)
        assert turn is not None, f"turn {turn_id} is not waiting: dispatched twice, or unknown"
        return turn

    def _usable(self, replica_id: str) -> FakeReplica:
        assert replica_id in self.by_id, f"no replica {replica_id}"
        assert self.by_id[replica_id].healthy, f"replica {replica_id} is lost"
        return self.by_id[replica_id]

    def _place(self, session: FakeSession, replica_id: str) -> None:
        replica = self._usable(replica_id)
        if session.home is not None and session.home != replica_id:
            del self.by_id[session.home].homes[session.id]
        replica.homes[session.id] = None
        session.home, session.lifecycle, session.paused_at = replica_id, "active", None

    def _dispatch(self, session: FakeSession, turn: Turn, replica_id: str) -> None:
        del session.waiting_turns[turn.id]
        self.attempt_count += 1
        session.attempts[self.attempt_count] = (turn, replica_id)
        session.last_replica = replica_id
        self.by_id[replica_id].in_flight += 1
        self.by_id[replica_id].queued_prefill_tokens += turn.prompt.tokens
        self.prefilling.add(self.attempt_count)

    def end_prefill(self, number: int, turn: Turn, replica_id: str) -> None:
        if number in self.prefilling:
            self.prefilling.remove(number)
            self.by_id[replica_id].queued_prefill_tokens -= turn.prompt.tokens


def prompt(session: str, tokens: int) -> PromptRef:
    return PromptRef((PromptRun(session, tokens, 4 * tokens),))


class Driver:
    """Feeds events to a scheduler and carries out what it yields, one command at a time.

    Solve commands are answered when `plan_delay_s` has passed; None leaves them unanswered in
    `solves`, for the test to answer with `answer`.
    """

    def __init__(
        self, scheduler: Scheduler, cluster: FakeCluster, plan_delay_s: float | None = 0.01
    ) -> None:
        self.scheduler = scheduler
        self.cluster = cluster
        self.now = 0
        self.plan_delay = None if plan_delay_s is None else round(plan_delay_s * NS)
        self.timers: list[int] = []
        self.solves: list[tuple[int, Solve]] = []
        self.log: list[tuple[int, Command]] = []
        """Every command carried out, with its time."""

    def send(self, event: ev.Event) -> list[Command]:
        """Deliver an event that changes no record by itself."""
        return self._deliver(event)

    def arrive(self, session_id: str, tokens: int, parent: str | None = None) -> list[Command]:
        """The session's next turn, with a prompt of that many tokens."""
        session = self.cluster.sessions.get(session_id)
        if session is None:
            session = FakeSession(session_id, self.now, parent)
            self.cluster.sessions[session_id] = session
        index = session.turns_finished + session.in_flight + len(session.waiting_turns)
        turn = Turn(f"{session_id}/{index}", session_id, index, prompt(session_id, tokens), parent)
        session.tokens, session.idle_since, session.tools = tokens, None, ()
        session.waiting_turns[turn.id] = (turn, self.now)
        return self._deliver(ev.TurnArrived(self.now, turn), must_decide=turn)

    def first_token(self, session_id: str) -> list[Command]:
        number, (turn, replica_id) = self._oldest(session_id)
        self.cluster.end_prefill(number, turn, replica_id)
        return self._deliver(ev.FirstToken(self.now, session_id, turn.id, number, replica_id))

    def finish(self, session_id: str, output: int = 0, cached: int | None = None) -> list[Command]:
        """The session's oldest turn in flight ends well."""
        number, turn, replica_id = self._end(session_id)
        usage = Usage(turn.prompt.tokens, cached, output)
        session = self.cluster.sessions[session_id]
        session.turns_finished += 1
        session.tokens = usage.total
        session.evidence[replica_id] = Evidence(usage.total, self.now)
        return self._deliver(
            ev.TurnFinished(self.now, session_id, turn.id, number, replica_id, usage)
        )

    def fail(self, session_id: str, reason: str = "error") -> list[Command]:
        """The session's oldest turn in flight ends badly, for good."""
        number, turn, replica_id = self._end(session_id)
        return self._deliver(
            ev.TurnFailed(self.now, session_id, turn.id, number, replica_id, reason)
        )

    def client_gone(self, session_id: str) -> list[Command]:
        """The client leaves: its waiting turn if it has one, else its oldest turn in flight."""
        session = self.cluster.sessions[session_id]
        if session.waiting_turns:
            turn_id = next(iter(session.waiting_turns))
            del session.waiting_turns[turn_id]
            if session.phase == "acting":
                session.idle_since = self.now
            return self._deliver(ev.ClientGone(self.now, session_id, turn_id, None, None))
        number, turn, replica_id = self._end(session_id)
        return self._deliver(ev.ClientGone(self.now, session_id, turn.id, number, replica_id))

    def dispatch_failed(self, session_id: str, reason: str = "lost") -> list[Command]:
        """The session's oldest dispatch ends before any token: it needs a decision again."""
        number, turn, replica_id = self._end(session_id)
        session = self.cluster.sessions[session_id]
        session.idle_since = None
        session.waiting_turns[turn.id] = (turn, self.now)
        event = ev.DispatchFailed(self.now, turn, number, replica_id, reason)
        return self._deliver(event, must_decide=turn)

    def tools(self, session_id: str, *tools: ToolSignal) -> list[Command]:
        self.cluster.sessions[session_id].tools = tools
        return self._deliver(ev.ToolStarted(self.now, session_id, tools))

    def hint(self, session_id: str, eta_s: float) -> list[Command]:
        return self._deliver(ev.ToolHint(self.now, session_id, eta_s))

    def close(self, session_id: str, reason: str = "done") -> list[Command]:
        session = self.cluster.sessions[session_id]
        assert session.phase == "acting", "closes with turns open"
        if session.home is not None:
            del self.cluster.by_id[session.home].homes[session_id]
            session.home = None
        commands = self._deliver(ev.SessionClosed(self.now, session_id, reason))
        del self.cluster.sessions[session_id]
        return commands

    def lose(self, replica_id: str, reason: str = "crashed") -> list[Command]:
        """The replica goes with its KV; its dispatches fail one by one right after."""
        self.cluster.by_id[replica_id].healthy = False
        for name in list(self.cluster.by_id[replica_id].homes):
            self.cluster.unplace(self.cluster.sessions[name], self.now)
        for session in self.cluster.sessions.values():
            session.evidence.pop(replica_id, None)
        commands = self._deliver(ev.ReplicaLost(self.now, replica_id, reason))
        for session in list(self.cluster.sessions.values()):
            while any(where == replica_id for _, where in session.attempts.values()):
                commands += self.dispatch_failed(session.id, reason)
        return commands

    def recover(self, replica_id: str) -> list[Command]:
        self.cluster.by_id[replica_id].healthy = True
        return self._deliver(ev.ReplicaRecovered(self.now, replica_id))

    def kv_cleared(self, replica_id: str) -> list[Command]:
        for session in self.cluster.sessions.values():
            session.evidence.pop(replica_id, None)
        return self._deliver(ev.KvEvents(self.now, replica_id, cleared=True))

    def sampled(self, replica_id: str, sample: ReplicaSample) -> list[Command]:
        replica = self.cluster.by_id[replica_id]
        replica.sample, replica.sampled_at = sample, self.now
        return self._deliver(ev.ReplicaSampled(self.now, replica_id, sample))

    def answer(self, solve: Solve) -> list[Command]:
        """Solve now and deliver the plan."""
        self.solves = [pair for pair in self.solves if pair[1] is not solve]
        plan = solve.solver(solve.snapshot)
        return self._deliver(ev.PlanReady(self.now, solve.solve_id, plan))

    def advance(self, seconds: float) -> list[Command]:
        """Let time pass; due plans and Timer events are delivered in order, plans first."""
        end = self.now + round(seconds * NS)
        commands: list[Command] = []
        while due := [t for t in (self._next_plan(), *self.timers) if t is not None and t <= end]:
            self.now = min(due)
            if self._next_plan() == self.now:
                commands += self.answer(self.solves[0][1])
            else:
                self.timers.remove(self.now)
                commands += self._deliver(ev.Timer(self.now))
        self.now = end
        return commands

    def _next_plan(self) -> int | None:
        if self.plan_delay is None or not self.solves:
            return None
        return self.solves[0][0] + self.plan_delay

    def _oldest(self, session_id: str) -> tuple[int, tuple[Turn, str]]:
        return next(iter(self.cluster.sessions[session_id].attempts.items()))

    def _end(self, session_id: str) -> tuple[int, Turn, str]:
        number, (turn, replica_id) = self._oldest(session_id)
        session = self.cluster.sessions[session_id]
        del session.attempts[number]
        self.cluster.streamed.pop(session_id, None)
        self.cluster.end_prefill(number, turn, replica_id)
        self.cluster.by_id[replica_id].in_flight -= 1
        if session.phase == "acting":
            session.idle_since = self.now
        return number, turn, replica_id

    def _deliver(self, event: ev.Event, must_decide: Turn | None = None) -> list[Command]:
        commands: list[Command] = []
        decided: set[str] = set()
        for command in self.scheduler.on_event(event, self.cluster):
            if isinstance(command, Resume):
                decided |= {t.id for t in self.cluster.sessions[command.session].waiting}
            elif isinstance(command, (Route, Hold, Reject)):
                decided.add(command.turn_id)
            self.cluster.carry_out(command, self.now)
            if isinstance(command, Solve):
                self.solves.append((self.now, command))
            elif isinstance(command, WakeAt) and command.time not in self.timers:
                self.timers.append(command.time)
            commands.append(command)
            self.log.append((self.now, command))
        if must_decide is not None:
            assert must_decide.id in decided, f"turn {must_decide.id} was left undecided"
        return commands


def tool(name: str, command: str | None = None, hint_s: float | None = None) -> ToolSignal:
    return ToolSignal(name, command, hint_s)


def unexplained(command: Command) -> Command:
    """The command without its words, for comparisons."""
    return (
        replace(command, why="") if isinstance(command, (Route, Hold, Pause, Resume)) else command
    )
