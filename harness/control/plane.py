"""The control plane: asks the policy about each event, checks and carries out its commands.

Sans-IO: a driver (simulation or gateway) feeds events with the time in them and carries out the
operations that come back. The same events give the same operations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isfinite
from typing import Any

from agentsched import AgentschedError, SchedulerError
from harness.control.facade import facade, tampering
from harness.control.ledger import Ledger, ReplicaConfig
from harness.control.operations import Cancel, Dispatch, Operation, Refuse
from harness.control.prefix_index import IDLE_LIMIT
from harness.control.records import Attempt, ReplicaState, SessionState
from results.records import DecisionRecord
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
from schedulers.types import Turn

ANNOTATIONS = frozenset({"priority", "retention_s"})
"""Request fields a policy may set."""

COMMANDS_PER_EVENT = 100_000
"""A policy that yields more than this for one event is taken to be in an endless loop."""


class ContractError(Exception):
    """A command that cannot be carried out; becomes a SchedulerError with its context."""


class ControlPlane:
    """One scheduler in charge of some replicas.

    Args:
        scheduler: the policy.
        replicas: in configured order; ids must be unique.
        progress: output tokens an attempt has streamed by a time, asked of the driver.
        log: receives every carried-out command; None to keep no log.
        max_wait_s: a turn that has waited this long is sent on, whatever the policy says, as soon
            as a replica is up: to its session's home, else where the fewest turns are. None: it
            waits as long as the policy likes.
        idle_texts: texts of closed sessions remembered (`PrefixIndex`).
    """

    def __init__(
        self,
        scheduler: Scheduler,
        replicas: Sequence[ReplicaConfig],
        progress: Callable[[int, int], int],
        log: Callable[[DecisionRecord], None] | None = None,
        *,
        max_wait_s: float | None = None,
        idle_texts: int = IDLE_LIMIT,
    ) -> None:
        self.scheduler = scheduler
        self.forced_admissions = 0
        """Turns sent on because they had waited too long."""
        self._max_wait = None if max_wait_s is None else round(max_wait_s * 1e9)
        self._alarm = -1
        self._forced: dict[str, str] = {}
        """Turns sent on in spite of the policy, and their sessions: it may not have noticed."""
        self.ledger = Ledger(replicas, progress, idle_texts)
        self._view = facade(self.ledger)
        self.capacities = {replica.id: replica.capacity.usable for replica in replicas}
        self._log = log
        self._attempt_count = 0
        self._unchecked = 0
        """Events since the records were last checked."""
        self._operations: list[Operation] = []
        self._event_name = ""

    def handle(self, event: ev.Event) -> list[Operation]:
        """Take in one event; the operations are to be carried out in order, at once.

        Raises:
            SchedulerError: the policy raised or broke the contract.
        """
        self._event_name = type(event).__name__
        self._operations = []
        self._unchecked += 1
        self.ledger.record(event)
        if self._forced:
            self._notice_end(event)
        try:
            for count, command in enumerate(self.scheduler.on_event(event, self._view)):
                if count >= COMMANDS_PER_EVENT:
                    raise ContractError(f"gave more than {COMMANDS_PER_EVENT:,} commands")
                self._carry_out(command)
            if self.ledger.undecided:
                turn_id = next(iter(self.ledger.undecided))
                raise ContractError(f"turn {turn_id} was neither routed, held nor rejected")
            if self._max_wait is not None:
                self._send_overdue(self._max_wait)
            if isinstance(event, ev.SessionClosed):
                self._check_records()
        except ContractError as error:
            raise self._scheduler_error(event, str(error)) from None
        except AgentschedError:
            raise
        except (Exception, SystemExit) as error:
            # A policy may raise anything; its cell alone must fail.
            raise self._scheduler_error(event, f"raised {type(error).__name__}: {error}") from error
        if isinstance(event, ev.SessionClosed):
            self.ledger.forget_session(event.session)
        return self._operations

    # The bound on waiting.

    @property
    def bounded(self) -> bool:
        """Whether turns wait for a limited time only."""
        return self._max_wait is not None

    def _send_overdue(self, limit: int) -> None:
        """Send on what has waited too long, and be woken when the next turn will have."""
        ledger = self.ledger
        while ledger.waiting_turns:
            turn = next(iter(ledger.waiting_turns.values()))  # they are in order of waiting
            session = ledger.session_states[turn.session]
            due = session.waiting_times[turn.id] + limit
            if due > ledger.now:
                if self._alarm != due:
                    self._alarm = due
                    self._operations.append(WakeAt(due))
                return
            replica = self._place_for(session)
            if replica is None:  # whichever comes back brings an event
                return
            ledger.set_home(session, replica)
            self._dispatch(session, turn, replica, None, {})
            self.forced_admissions += 1
            self._forced[turn.id] = turn.session
            why = f"forced: it waited {limit / 1e9:g} s"
            self._note("route", turn.session, turn.id, replica.id, why)

    def _place_for(self, session: SessionState) -> ReplicaState | None:
        """Where an overdue turn goes; None: nowhere."""
        states = self.ledger.replica_states
        usable = [r for r in states.values() if r.healthy and r.role != "prefill"]
        home = states.get(session.home) if session.home is not None else None
        if home is not None and home in usable:
            return home
        return min(usable, key=lambda r: (r.in_flight, r.index), default=None)

    def _notice_end(self, event: ev.Event) -> None:
        """From its end on, a turn that was sent on is like any other."""
        turn = getattr(event, "turn", None)
        self._forced.pop(turn.id if turn is not None else getattr(event, "turn_id", ""), None)
        if isinstance(event, ev.SessionClosed):
            self._forced = {t: s for t, s in self._forced.items() if s != event.session}

    def _check_records(self) -> None:
        """At most one look at a record for each event, so that large clusters do not pay more."""
        open_sessions = len(self.ledger.session_states)
        records = open_sessions + len(self.ledger.replica_states)
        if open_sessions > 1 and self._unchecked < records:
            return
        self._unchecked = 0
        changed = tampering(self.ledger, self.capacities)
        if changed is not None:
            raise ContractError(f"changed what it may only read: {changed}")

    # Carrying out commands.

    def _carry_out(self, command: Command) -> None:
        executor = _EXECUTORS.get(type(command))
        if executor is None:
            raise ContractError(f"{command!r} is not a command")
        if self._forced and self._is_stale(command):
            return
        executor(self, command)

    def _is_stale(self, command: Command) -> bool:
        """Whether the policy speaks of a turn that was sent on without it."""
        if isinstance(command, (Route, Hold, Reject)):
            return command.turn_id in self._forced
        if isinstance(command, Resume) and command.session in self._forced.values():
            session = self.ledger.session_states.get(command.session)
            return session is not None and not session.waiting_turns
        return False

    def _do_route(self, command: Route) -> None:
        turn = self._waiting_turn(command.turn_id)
        decode = self._usable(command.decode)
        prefill = self._usable(command.prefill) if command.prefill is not None else None
        session = self.ledger.session_states[turn.session]
        self.ledger.set_home(session, decode)
        self._dispatch(session, turn, decode, prefill, command.annotations)
        self._note("route", turn.session, turn.id, decode.id, command.why)

    def _do_hold(self, command: Hold) -> None:
        turn = self._waiting_turn(command.turn_id)
        self.ledger.undecided.pop(turn.id, None)
        session = self.ledger.session_states[turn.session]
        if session.home is None and session.lifecycle == "active":
            session.lifecycle, session.paused_at = "paused", self.ledger.now
        self._note("hold", turn.session, turn.id, None, command.why)

    def _do_pause(self, command: Pause) -> None:
        session = self._session(command.session)
        if session.lifecycle == "paused":
            raise ContractError(f"session {session.id} is paused already")
        home = session.home
        self.ledger.pause(session)
        self._note("pause", session.id, None, home, command.why)

    def _do_resume(self, command: Resume) -> None:
        session = self._session(command.session)
        if session.lifecycle == "active" and not session.waiting_turns:
            raise ContractError(f"session {session.id} is active and waits for nothing")
        replica = self._usable(command.replica)
        self.ledger.set_home(session, replica)
        for turn in session.waiting:
            self._dispatch(session, turn, replica, None, command.annotations)
        self._note("resume", session.id, None, replica.id, command.why)

    def _do_reject(self, command: Reject) -> None:
        turn = self._waiting_turn(command.turn_id)
        wait = command.retry_after_s
        if wait is not None and not (_is_number(wait) and wait >= 0):
            raise ContractError(f"rejects turn {turn.id} with retry_after_s {wait!r}")
        session = self.ledger.session_states[turn.session]
        self.ledger.remove_waiting(session, turn.id)
        if session.phase == "acting":
            session.idle_since = self.ledger.now
        self._operations.append(Refuse(turn, command.reason, wait))
        self._note("reject", turn.session, turn.id, None, command.reason)

    def _do_abort(self, command: Abort) -> None:
        attempt = self.ledger.attempts.get(command.attempt)
        if attempt is None or attempt.first_token_seen:
            raise ContractError(f"attempt {command.attempt} cannot be aborted any more")
        self._operations.append(Cancel(command.attempt, command.why))
        self._note("abort", attempt.turn.session, attempt.turn.id, attempt.serving, command.why)

    def _do_wake(self, command: WakeAt) -> None:
        if type(command.time) is not int:
            raise ContractError(f"asks to be woken at {command.time!r}, not whole nanoseconds")
        if command.time < self.ledger.now:
            raise ContractError(f"asks to be woken at {command.time} ns, in the past")
        self._operations.append(command)

    def _do_solve(self, command: Solve) -> None:
        if not callable(command.solver):
            raise ContractError(f"asks for a plan by {command.solver!r}, which is no function")
        self._operations.append(command)

    def _dispatch(
        self,
        session: SessionState,
        turn: Turn,
        decode: ReplicaState,
        prefill: ReplicaState | None,
        annotations: Mapping[str, int | float | str],
    ) -> None:
        if unknown := set(annotations) - ANNOTATIONS:
            raise ContractError(f"annotation {sorted(unknown)[0]!r} is not one a policy may set")
        for name, value in annotations.items():
            if not _is_number(value):
                raise ContractError(f"annotation {name!r} is {value!r}, not a number")
        self.ledger.remove_waiting(session, turn.id)
        first = prefill or decode
        uncached = turn.prompt.tokens - self.ledger.prefixes.match(turn.prompt, first.id)
        self._attempt_count += 1
        number = self._attempt_count
        self.ledger.attempts[number] = Attempt(
            number,
            turn,
            decode.id,
            prefill.id if prefill else None,
            self.ledger.now,
            uncached,
            first.id,
        )
        session.attempts[number] = None
        session.last_replica = decode.id
        self.ledger.add_in_flight(first, 1)
        first.queued_prefill_tokens += uncached
        self.ledger.prefixes.insert(turn.session, turn.prompt, first.id)
        self._operations.append(
            Dispatch(number, turn, decode.id, prefill.id if prefill else None, annotations)
        )

    # Checks.

    def _session(self, session_id: str) -> SessionState:
        session = self.ledger.session_states.get(session_id)
        if session is None:
            raise ContractError(f"names unknown session {session_id!r}")
        return session

    def _waiting_turn(self, turn_id: str) -> Turn:
        turn = self.ledger.waiting_turns.get(turn_id)
        if turn is None:
            raise ContractError(f"turn {turn_id!r} is not waiting (served already, or unknown)")
        return turn

    def _usable(self, replica_id: str) -> ReplicaState:
        replica = self.ledger.replica_states.get(replica_id)
        if replica is None:
            raise ContractError(f"names unknown replica {replica_id!r}")
        if not replica.healthy:
            raise ContractError(f"sends work to replica {replica_id}, which is lost")
        return replica

    def _scheduler_error(self, event: ev.Event, problem: str) -> SchedulerError:
        return SchedulerError(self.scheduler.name, describe(event), self.ledger.now, problem)

    def _note(
        self, command: str, session: str | None, turn: str | None, replica: str | None, why: str
    ) -> None:
        if not isinstance(why, str):
            raise ContractError(f"gives the reason {why!r}, which is no text")
        if self._log is not None:
            self._log(
                DecisionRecord(
                    self.ledger.now, self._event_name, command, session, turn, replica, why
                )
            )


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and isfinite(value)


def describe(event: ev.Event) -> str:
    """An event in a few words, for messages: its name and what it concerns."""
    return " ".join([type(event).__name__, *_subjects(event)])


def _subjects(event: ev.Event) -> Iterator[str]:
    turn = getattr(event, "turn", None)
    if turn is not None:
        yield f"turn {turn.id}"
    for name in ("session", "turn_id", "replica", "solve_id"):
        value = getattr(event, name, None)
        if value is not None:
            yield f"{name.removesuffix('_id')} {value}"


_EXECUTORS: dict[type[Command], Callable[[ControlPlane, Any], None]] = {
    Route: ControlPlane._do_route,
    Hold: ControlPlane._do_hold,
    Pause: ControlPlane._do_pause,
    Resume: ControlPlane._do_resume,
    Reject: ControlPlane._do_reject,
    Abort: ControlPlane._do_abort,
    WakeAt: ControlPlane._do_wake,
    Solve: ControlPlane._do_solve,
}
