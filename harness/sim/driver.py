"""The simulation driver: agents, engines and the control plane on one virtual clock."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, Protocol

from agentsched import AgentschedError, SchedulerError
from harness.control.operations import Cancel, Dispatch, Operation, Refuse
from harness.control.plane import describe
from harness.sim.agents import Agent, nanoseconds
from harness.sim.clock import Clock, Priority
from harness.sim.liveness import Liveness
from harness.sim.service import Listener, Request, Served, Service
from harness.sim.settings import Fault, SimSettings
from harness.sim.tools import ToolPool, parallel_groups
from harness.sim.watchdog import TooSlow, watchdog
from results.records import (
    DecisionRecord,
    ReplicaRecord,
    SessionRecord,
    SessionStatus,
    TurnRecord,
    TurnStatus,
)
from schedulers import events as ev
from schedulers.base import Scheduler
from schedulers.commands import Solve, WakeAt
from schedulers.types import Usage
from workloads.model import Session, TurnSpec

ABORTS_OF_A_TURN = 100


class Recorder(Protocol):
    """Where records go (results.store.CellWriter)."""

    def turn(self, record: TurnRecord) -> None: ...
    def session(self, record: SessionRecord) -> None: ...
    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


class Books(Protocol):
    """What the driver asks of a ledger."""

    @property
    def sessions(self) -> Mapping[str, Any]: ...
    @property
    def waiting(self) -> Mapping[str, Any]: ...


class Plane(Protocol):
    """A control plane, or several as one (harness.partition)."""

    scheduler: Scheduler

    @property
    def ledger(self) -> Books: ...
    def handle(self, event: ev.Event) -> list[Operation]: ...


class SimDriver:
    """Plays sessions against simulated engines under one control plane.

    Args:
        sessions: those without a parent are taken up in this order.
        workers: sessions active at once (closed loop); None starts each at its `arrival_s`.
        serve: makes the serving side, given the clock and who listens to it.
        progress: called after each ended session with (sessions ended, turns ended).
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        *,
        workers: int | None,
        plane: Plane,
        serve: Callable[[Clock, Listener], Service],
        context_limit: int,
        settings: SimSettings,
        recorder: Recorder,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        self.clock = Clock()
        self.settings = settings
        self.planner_wall_s: list[float] = []
        self._plane = plane
        self._service = serve(self.clock, self)
        self._context_limit = context_limit
        self._recorder = recorder
        self._progress = progress
        self._workers = workers
        self._queue = deque(s for s in sessions if s.parent is None)
        self._children: dict[str, list[Session]] = {}
        for session in sessions:
            if session.parent is not None:
                self._children.setdefault(session.parent, []).append(session)
        self._total = len(sessions)
        self._ended = self._turns = 0
        self._agents: dict[str, Agent] = {}
        self._flights: dict[int, Agent] = {}
        self._unsampled: set[str] = set()
        self._tools = ToolPool(settings.tool_slots)
        self._decision = 0
        """Odd while the policy, or a solver of its, is at work."""
        self._resends = 0
        """Refused turns that will be sent again."""
        self._liveness = Liveness(settings.starvation_limit_s, len(sessions))

    def run(self) -> int:
        """Play everything; returns the makespan in nanoseconds.

        Raises:
            SchedulerError: the policy broke its contract, or left turns waiting for ever.
        """
        self._start_sessions()
        scenario = self.settings.fault_scenario
        drawn = scenario.faults(self._service.fleet.names) if scenario else ()
        for fault in (*self.settings.faults, *drawn):
            self.clock.at(nanoseconds(fault.at_s), Priority.FAULT, partial(self._fault, fault))
        self.clock.at(0, Priority.SAMPLE, self._sample)
        with watchdog(self.settings.decision_limit_s, lambda: self._decision):
            while self._ended < self._total:
                if not self.clock.step():
                    raise self._starved("for ever")
                self._check_progress()
        return self.clock.now

    def service_counters(self) -> dict[str, float]:
        """Totals of KV transfers and the shared store."""
        return self._service.counters()

    def streamed(self, attempt: int, now: int) -> int:
        """Output tokens of a dispatch that its client has received by `now`."""
        # A policy may ask between its Resume and the dispatch that follows from it.
        return self._service.streamed(attempt)

    # Agents.

    def _start_sessions(self) -> None:
        if self._workers is None:
            for session in self._queue:
                self._schedule_start(session, nanoseconds(session.arrival_s or 0.0))
            self._queue.clear()
            return
        count = min(self._workers, len(self._queue))
        for position in range(count):
            delay = self.settings.start_spread_s * position / count
            self._schedule_start(self._queue.popleft(), nanoseconds(delay))

    def _schedule_start(self, session: Session, at: int) -> None:
        self.clock.at(at, Priority.AGENT, partial(self._start, session))

    def _start(self, session: Session) -> None:
        agent = Agent(session, self.clock.now, self.settings.bytes_per_token)
        self._agents[session.id] = agent
        ready = self.clock.now + nanoseconds(session.setup_s)
        if session.deadline_s is not None:
            deadline = ready + nanoseconds(session.deadline_s)
            self.clock.at(deadline, Priority.AGENT, partial(self._stop_agent, agent))
        if ready > self.clock.now:
            self.clock.at(ready, Priority.AGENT, partial(self._arrive, agent))
        else:
            self._arrive(agent)

    def _stop_agent(self, agent: Agent) -> None:
        """The harness's deadline: the agent goes away in the middle of whatever it does."""
        if agent.ended:
            return
        now, opened, attempt = self.clock.now, agent.open, agent.attempt
        error = f"stopped after {agent.session.deadline_s:g} s"
        if opened is not None:
            streamed = 0
            replica = None
            if attempt is not None:
                self._end_flight(attempt)
                streamed = self._service.streamed(attempt)
                replica = self._service.cancel(attempt)
            turn_id = opened.turn.id
            self._record_turn(agent.close_turn(now, "client_gone", output=streamed, error=error))
            self._feed(ev.ClientGone(now, agent.session.id, turn_id, attempt, replica))
        self._end_session(agent, "deadline", error)

    def _arrive(self, agent: Agent) -> None:
        if agent.ended:
            return
        opened = agent.next_turn(self.clock.now)
        spec = opened.spec
        if spec.prompt_tokens + spec.output_tokens > self._context_limit:
            total = spec.prompt_tokens + spec.output_tokens
            error = f"turn {agent.index} needs {total} tokens, the limit is {self._context_limit}"
            self._record_turn(agent.close_turn(self.clock.now, "context_exceeded", error=error))
            self._end_session(agent, "context_exceeded", error)
            return
        self._feed(ev.TurnArrived(self.clock.now, opened.turn))

    def _come_again(self, agent: Agent) -> None:
        self._resends -= 1
        self._resend(agent)

    def _resend(self, agent: Agent) -> None:
        if agent.ended:
            return
        self._feed(ev.TurnArrived(self.clock.now, agent.resend(self.clock.now).turn))

    def _end_session(self, agent: Agent, status: SessionStatus, error: str | None = None) -> None:
        session = agent.session
        agent.ended = True
        self._recorder.session(agent.record(self.clock.now, status, error))
        del self._agents[session.id]
        if status != "finished":
            self._cancel_children(session, agent.index)
        self._ended += 1
        if self.settings.release and session.id in self._plane.ledger.sessions:
            self._feed(ev.SessionClosed(self.clock.now, session.id, status))
        if session.parent is None and self._queue:
            self._start(self._queue.popleft())
        if self._progress is not None:
            self._progress(self._ended, self._turns)

    def _cancel_children(self, session: Session, from_turn: int) -> None:
        """Sub-agents of turns that never happened end with their parent."""
        for child in self._children.get(session.id, ()):
            if child.spawn_turn is not None and child.spawn_turn >= from_turn:
                agent = Agent(child, self.clock.now, self.settings.bytes_per_token)
                error = f"its parent {session.id} ended before starting it"
                self._recorder.session(agent.record(self.clock.now, "failed", error))
                self._ended += 1
                self._cancel_children(child, 0)

    def _spawn_children(self, session: Session, turn: int) -> None:
        for child in self._children.get(session.id, ()):
            if child.spawn_turn == turn:
                self._schedule_start(child, self.clock.now)

    # Operations of the control plane.

    def _feed(self, event: ev.Event) -> None:
        self._decision += 1
        try:
            operations = self._plane.handle(event)
        except TooSlow:
            raise self._error(describe(event), self._too_slow("to decide")) from None
        self._decision += 1
        self._execute(operations)

    def _execute(self, operations: Iterable[Operation]) -> None:
        for operation in operations:
            match operation:
                case Dispatch():
                    self._dispatch(operation)
                case WakeAt(time=at):
                    self.clock.at(at, Priority.TIMER, self._timer)
                case Solve():
                    self._solve(operation)
                case Refuse():
                    self._refuse(operation)
                case Cancel():
                    self._cancel(operation)

    def _dispatch(self, operation: Dispatch) -> None:
        agent = self._agents[operation.turn.session]
        opened = agent.open
        assert opened is not None
        now = self.clock.now
        opened.attempts += 1
        opened.dispatched = now
        opened.held = opened.held or now > opened.arrived
        opened.replica, opened.prefill_replica = operation.decode, operation.prefill
        segments = [(s.id, s.tokens) for s in opened.prompt.segments]
        name, output = opened.prompt.output_segment, opened.spec.output_tokens
        if segments and segments[-1][0] == name:
            segments[-1] = (name, segments[-1][1] + output)
        else:
            segments.append((name, output))
        request = Request(
            attempt=operation.attempt,
            segments=segments,
            prompt_tokens=opened.spec.prompt_tokens,
            output_tokens=output,
            decode=operation.decode,
            prefill=operation.prefill,
            priority=int(operation.annotations.get("priority", 0)),
        )
        agent.attempt = operation.attempt
        self._flights[operation.attempt] = agent
        self._service.submit(request)

    def _timer(self) -> None:
        self._feed(ev.Timer(self.clock.now))

    def _solve(self, command: Solve) -> None:
        began = time.process_time()
        self._decision += 1
        try:
            plan = command.solver(command.snapshot)
        except AgentschedError:
            raise
        except TooSlow:
            raise self._error("Solve", self._too_slow("to plan")) from None
        except (Exception, SystemExit) as error:  # a policy's solver may raise anything
            problem = f"its solver raised {type(error).__name__}: {error}"
            raise self._error("Solve", problem) from error
        self._decision += 1
        self.planner_wall_s.append(time.process_time() - began)
        ready = self.clock.now + round(self.settings.planner_latency_ms * 1e6)
        self.clock.at(ready, Priority.PLAN, partial(self._plan_ready, command.solve_id, plan))

    def _plan_ready(self, solve_id: int, plan: object) -> None:
        self._feed(ev.PlanReady(self.clock.now, solve_id, plan))

    def _refuse(self, operation: Refuse) -> None:
        agent = self._agents[operation.turn.session]
        if operation.retry_after_s is not None:
            at = self.clock.now + nanoseconds(operation.retry_after_s)
            self._resends += 1
            self.clock.at(at, Priority.AGENT, partial(self._come_again, agent))
            return
        self._fail_turn(agent, "rejected", operation.reason)

    def _cancel(self, operation: Cancel) -> None:
        agent = self._end_flight(operation.attempt)
        replica = self._service.cancel(operation.attempt)
        if agent.open is not None and agent.open.attempts > ABORTS_OF_A_TURN:
            problem = f"dispatched turn {agent.turn_id} {agent.open.attempts} times to abort it"
            raise self._error("Abort", problem)
        self._dispatch_failed(agent, operation.attempt, replica, operation.reason)

    def _dispatch_failed(self, agent: Agent, attempt: int, replica: str, reason: str) -> None:
        assert agent.open is not None
        turn = agent.open.turn
        self._feed(ev.DispatchFailed(self.clock.now, turn, attempt, replica, reason))

    def _fail_turn(self, agent: Agent, status: TurnStatus, error: str) -> None:
        self._record_turn(agent.close_turn(self.clock.now, status, error=error))
        ending: SessionStatus = "too_long" if status == "too_long" else "failed"
        self._end_session(agent, "rejected" if status == "rejected" else ending, error)

    # What the service tells (harness.sim.service.Listener).

    def leg_finished(self, attempt: int, replica: str) -> None:
        agent = self._flights[attempt]
        session = agent.session.id
        self._feed(ev.LegFinished(self.clock.now, session, agent.turn_id, attempt, replica))

    def first_token(self, attempt: int, replica: str) -> None:
        agent = self._flights[attempt]
        assert agent.open is not None
        agent.open.first_token = self.clock.now
        session = agent.session.id
        self._feed(ev.FirstToken(self.clock.now, session, agent.turn_id, attempt, replica))

    def refused(self, attempt: int, replica: str, reason: str) -> None:
        agent = self._end_flight(attempt)
        session, turn_id = agent.session.id, agent.turn_id
        self._feed(ev.TurnFailed(self.clock.now, session, turn_id, attempt, replica, reason))
        self._fail_turn(agent, "too_long", reason)

    def unreachable(self, attempt: int, replica: str) -> None:
        self._lose(attempt, replica)

    def finished(self, served: Served) -> None:
        agent = self._end_flight(served.attempt)
        now, opened, session = self.clock.now, agent.open, agent.session
        assert opened is not None
        spec, turn_index = opened.spec, agent.index
        usage = Usage(spec.prompt_tokens, served.cached_tokens, spec.output_tokens)
        record = agent.close_turn(
            now,
            "ok",
            cached=served.cached_tokens,
            output=spec.output_tokens,
            longest_gap=served.longest_gap,
            prefilled=served.prefilled,
            kv_sent=served.sent,
            kv_received=served.received,
        )
        self._record_turn(record)
        turn_id, replica = opened.turn.id, served.replica
        self._feed(ev.TurnFinished(now, session.id, turn_id, served.attempt, replica, usage))
        self._spawn_children(session, turn_index)
        if agent.finished:
            self._end_session(agent, "finished")
            return
        if spec.tools:
            self._feed(ev.ToolStarted(now, session.id, agent.tool_signals(spec)))
            if self.settings.true_tool_hints:
                self._feed(ev.ToolHint(now, session.id, spec.tool_seconds))
        self._run_tools(agent, spec, 0)

    def _end_flight(self, attempt: int) -> Agent:
        agent = self._flights.pop(attempt)
        agent.attempt = None
        return agent

    def _run_tools(self, agent: Agent, spec: TurnSpec, position: int) -> None:
        """Run the turn's tool calls group by group, then the agent's other waiting."""
        if agent.ended:
            return
        groups = parallel_groups(spec.tools)
        now = self.clock.now
        if position < len(groups):
            end = self._tools.start(groups[position], now)
            after = partial(self._run_tools, agent, spec, position + 1)
            self.clock.at(end, Priority.AGENT, after)
            return
        agent.tool_end = now if groups else None
        arrival = now + nanoseconds(spec.wait_s)
        self.clock.at(arrival, Priority.AGENT, partial(self._arrive, agent))

    # Observation, faults, sanity.

    def _sample(self) -> None:
        now = self.clock.now
        for replica, engine in self._service.fleet:
            state = engine.state()
            self._recorder.replica(
                ReplicaRecord(
                    time=now,
                    replica=replica,
                    running=state.running,
                    waiting=state.waiting,
                    kv_used=state.held_blocks / state.total_blocks,
                    kv_cached=state.cached_blocks / state.total_blocks,
                    preemptions=state.preemptions,
                    prefill_tokens=state.prefill_tokens,
                    decode_tokens=state.decode_tokens,
                )
            )
            if replica not in self._unsampled:
                self._feed(ev.ReplicaSampled(now, replica, engine.sample()))
        interval = nanoseconds(self.settings.sampling_interval_s)
        self.clock.at(now + interval, Priority.SAMPLE, self._sample)

    def _fault(self, fault: Fault) -> None:
        now = self.clock.now
        if fault.kind == "recovered":
            self._unsampled.discard(fault.replica)
            self._service.recover(fault.replica)
            self._feed(ev.ReplicaRecovered(now, fault.replica))
        elif fault.kind == "metrics-stop":
            self._unsampled.add(fault.replica)
        elif fault.kind == "metrics-resume":
            self._unsampled.discard(fault.replica)
        elif fault.kind in ("slow", "normal"):
            factor = fault.factor if fault.kind == "slow" else 1.0
            self._service.fleet.slow_down(fault.replica, factor)
        else:
            lost = self._service.lose(fault.replica)
            self._unsampled.add(fault.replica)
            self._feed(ev.ReplicaLost(now, fault.replica, "fault"))
            for attempt in lost:
                self._lose(attempt, fault.replica)

    def _lose(self, attempt: int, replica: str) -> None:
        agent = self._end_flight(attempt)
        opened = agent.open
        assert opened is not None
        if opened.first_token is None:
            self._dispatch_failed(agent, attempt, replica, "replica lost")
            return
        self._feed(
            ev.TurnFailed(
                self.clock.now,
                agent.session.id,
                opened.turn.id,
                attempt,
                replica,
                "replica lost",
            )
        )
        if opened.resent >= self.settings.agent_retries:
            self._fail_turn(agent, "failed", "replica lost")
            return
        delay = nanoseconds(self.settings.retry_delay_s)
        self.clock.at(self.clock.now + delay, Priority.AGENT, partial(self._resend, agent))

    def _record_turn(self, record: TurnRecord) -> None:
        self._turns += 1
        self._recorder.turn(record)

    def _check_progress(self) -> None:
        """What a policy brings about by itself (plans, timers, turns it refused and that come
        again) is no progress."""
        unserved = self._plane.ledger.waiting or self._resends
        elsewhere = self._flights or self.clock.pending[Priority.AGENT] > self._resends
        problem = self._liveness.problem(self.clock.now, bool(elsewhere) or not unserved)
        if problem is not None:
            raise self._starved(problem)

    def _starved(self, how_long: str) -> SchedulerError:
        waiting = self._plane.ledger.waiting
        turn = next(iter(waiting), "none")
        problem = f"left {len(waiting)} turn(s) waiting {how_long} with nothing running"
        if self._resends:
            problem = f"refused {self._resends} turn(s) over and over, {how_long}"
        return self._error("no event", f"{problem} (first: {turn})")

    def _too_slow(self, what: str) -> str:
        return f"took over {self.settings.decision_limit_s:g} s {what} (sim.decision_limit_s)"

    def _error(self, event: str, problem: str) -> SchedulerError:
        return SchedulerError(self._plane.scheduler.name, event, self.clock.now, problem)
