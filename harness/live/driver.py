"""The live driver of the control plane: turns, attempts, sessions, timers; sans-IO.

It turns what happens to requests into events, and carries out the operations that come back. Time
comes from a clock (the event loop's, or a virtual one), planning from a `Planner`; the requests
themselves are `TurnClient`s of the gateway.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from agentsched import SchedulerError
from harness.control.operations import Cancel, Dispatch, Operation, Refuse
from harness.control.plane import ControlPlane
from harness.live.clock import Clock
from harness.live.turns import (
    NOBODY,
    DriverSettings,
    LegTimes,
    LiveSession,
    LiveTurn,
    Planner,
    TurnClient,
    Watcher,
)
from harness.sim.clock import Priority
from schedulers import events as ev
from schedulers.commands import Solve, WakeAt
from schedulers.types import PromptRef, ReplicaSample, ToolSignal, Turn, Usage


class LiveDriver:
    """Drives one control plane.

    Args:
        make_plane: makes the plane, given the function that answers its progress questions.
        on_event: sees every event with the operations it led to, and the progress answers given
            meanwhile as (attempt, tokens).
        on_error: is given what the policy broke; the driver feeds it nothing more then, and turns
            that wait fail. Without it the error is raised from whatever fed the event.
    """

    def __init__(
        self,
        make_plane: Callable[[Callable[[int, int], int]], ControlPlane],
        clock: Clock,
        planner: Planner,
        settings: DriverSettings | None = None,
        *,
        on_event: Callable[[ev.Event, list[Operation], list[tuple[int, int]]], None] | None = None,
        watcher: Watcher | None = None,
        on_error: Callable[[SchedulerError], None] | None = None,
    ) -> None:
        self.broken: SchedulerError | None = None
        self.draining = False
        """No turn is taken any more; those that are open may end."""
        self._on_error = on_error
        self.clock = clock
        self.settings = settings or DriverSettings()
        self.sessions: dict[str, LiveSession] = {}
        self.counts: dict[str, int] = {}
        """Totals of what happened, for the metrics."""
        self.legs = LegTimes()
        self._planner = planner
        self._on_event = on_event
        self._watcher = watcher
        self._attempts: dict[int, LiveTurn] = {}
        self._turns: dict[str, LiveTurn] = {}
        self._indexes: dict[str, int] = {}
        self._answers: list[tuple[int, int]] = []
        self._down: set[str] = set()
        self.plane = make_plane(self._progress)
        self._schedule_sweep()

    # Turns.

    def arrive(
        self,
        client: TurnClient,
        session_id: str,
        parent: str | None,
        prompt: PromptRef,
        *,
        one_off: bool = False,
        final: bool = False,
    ) -> LiveTurn:
        """A request came in; its client hears what is decided, maybe before this returns."""
        now = self.clock.now
        session = self.sessions.get(session_id)
        if session is None:
            known_parent = parent if parent in self.sessions else None
            session = LiveSession(session_id, known_parent, now, one_off=one_off)
            session.finished = self._indexes.pop(session_id, 0)
            self.sessions[session_id] = session
        session.last_seen = now
        session.closing = None
        index, name = session.next_turn()
        turn = Turn(name, session_id, index, prompt, session.parent)
        live = LiveTurn(turn, client, now, final)
        session.open[turn.id] = live
        self._turns[turn.id] = live
        return live

    def decide(self, live: LiveTurn) -> None:
        """Ask the policy about a turn that has arrived."""
        self._feed(ev.TurnArrived(live.arrived, live.turn))

    def leg_finished(self, live: LiveTurn) -> bool:
        """The prefill leg ended. False: the policy has other plans, the decode leg is off."""
        attempt, replica = live.attempt, live.replica
        if live.ended or attempt is None or replica is None:
            return False
        now, turn = self.clock.now, live.turn
        live.leg_ended = now
        assert live.dispatched is not None
        self.legs.prefilled(now - live.dispatched)
        self._feed(ev.LegFinished(now, turn.session, turn.id, attempt, replica))
        if live.attempt != attempt or live.ended:
            return False
        live.replica = live.decode
        return True

    def settled(self, live: LiveTurn) -> bool:
        """Whether the answer that comes now is the one the client gets: `first_token` will say so
        too. Not known of a turn in two legs whose first has not ended."""
        wanted = live.attempt is not None and not live.ended
        return wanted and (live.prefill is None or live.leg_ended is not None)

    def first_token(self, live: LiveTurn) -> bool:
        """The client may see the first token. False: the attempt is not wanted any more."""
        attempt = live.attempt
        if live.first_token is not None or attempt is None or live.ended:
            return attempt is not None and not live.ended
        # Where both legs run at once, only the decoder's token may tell that the KV has come.
        if live.prefill is not None and live.leg_ended is None and not self.leg_finished(live):
            return False
        assert live.replica is not None
        live.first_token = now = self.clock.now
        if live.leg_ended is not None:
            self.legs.handed_over(now - live.leg_ended)
        turn = live.turn
        self._feed(ev.FirstToken(now, turn.session, turn.id, attempt, live.replica))
        return live.attempt == attempt and not live.ended

    def finish(self, live: LiveTurn, usage: Usage, tools: tuple[ToolSignal, ...]) -> None:
        """The replica answered to the end."""
        if live.ended:
            return
        now, attempt = self.clock.now, live.attempt
        assert attempt is not None
        assert live.replica is not None
        turn, replica = live.turn, live.replica
        self._end(live, "ok", usage)
        self.sessions[turn.session].finished += 1
        self._feed(ev.TurnFinished(now, turn.session, turn.id, attempt, replica, usage))
        if tools:
            self._feed(ev.ToolStarted(now, turn.session, tools))
            if self._watcher is not None:
                self._watcher.tools_started(turn.session, tools, now)
        if not tools:
            self._close_one_off(turn.session)
        self._close_if_due(turn.session)

    def fail(self, live: LiveTurn, reason: str, *, again: bool) -> None:
        """The dispatch failed. With `again` it is tried again if attempts are left."""
        if live.ended or live.attempt is None:
            return
        now, turn, attempt, replica = self.clock.now, live.turn, live.attempt, live.replica
        assert replica is not None
        if again and live.attempts < self.settings.max_attempts:
            self._attempts.pop(attempt)
            live.attempt = live.replica = live.first_token = None
            self.count("retries")
            self._feed(ev.DispatchFailed(now, turn, attempt, replica, reason))
            return
        client = self._end(live, "failed", None)
        self._feed(ev.TurnFailed(now, turn.session, turn.id, attempt, replica, reason))
        client.fail(reason)
        self._close_one_off(turn.session)
        self._close_if_due(turn.session)

    def give_up(self, live: LiveTurn, reason: str) -> None:
        """The turn has taken too long, wherever it is: its client is told so."""
        if live.ended:
            return
        if live.attempt is not None:
            live.client.withdraw()
            self.fail(live, reason, again=False)
            return
        now, turn = self.clock.now, live.turn
        client = self._end(live, "failed", None)
        self._feed(ev.ClientGone(now, turn.session, turn.id, None, None))
        client.fail(reason)
        self._close_one_off(turn.session)
        self._close_if_due(turn.session)

    def open_turns(self) -> list[LiveTurn]:
        """Those that have arrived and not ended."""
        return list(self._turns.values())

    def gone(self, live: LiveTurn) -> None:
        """The client left."""
        if live.ended:
            return
        now, turn, attempt, replica = self.clock.now, live.turn, live.attempt, live.replica
        self._end(live, "client_gone", None)
        self._feed(ev.ClientGone(now, turn.session, turn.id, attempt, replica))
        self._close_one_off(turn.session)
        self._close_if_due(turn.session)

    def _end(self, live: LiveTurn, status: str, usage: Usage | None) -> TurnClient:
        live.ended = True
        # Client and turn hold each other: let go, so that a turn's text goes with its last user.
        client, live.client = live.client, NOBODY
        now = self.clock.now
        if live.attempt is not None:
            self._attempts.pop(live.attempt, None)
        self._turns.pop(live.turn.id, None)
        session = self.sessions[live.turn.session]
        session.open.pop(live.turn.id, None)
        session.last_seen = now
        if live.final and status in ("ok", "client_gone"):
            session.closing = session.closing or "final"
        self.count(f"turns_{status}")
        if self._watcher is not None:
            self._watcher.turn_ended(live, usage, status, now)
        return client

    # Sessions.

    def hint(self, session: str, eta_s: float) -> bool:
        """The session's tools will end in about `eta_s`; False if there is no such session."""
        if session not in self.plane.ledger.sessions:
            return False
        self._feed(ev.ToolHint(self.clock.now, session, eta_s))
        return True

    def release(self, session: str, reason: str = "released") -> bool:
        """Close the session, once its open turns have ended; False if there is none."""
        known = self.sessions.get(session)
        if known is None:
            return False
        known.closing = known.closing or reason
        self._close_if_due(session)
        return True

    def busy(self, session: str) -> bool:
        known = self.sessions.get(session)
        return known is not None and bool(known.open)

    def _close_one_off(self, session_id: str) -> None:
        """Nobody named the session, and no tool of it runs: nothing says that it goes on."""
        session = self.sessions.get(session_id)
        if session is not None and session.one_off and not session.open:
            session.closing = session.closing or "one-off"

    def _close_if_due(self, session_id: str) -> None:
        session = self.sessions.get(session_id)
        if session is None or session.closing is None or session.open:
            return
        del self.sessions[session_id]
        if session.one_off:
            # It may come back under the same name; its turns go on counting.
            self._indexes[session_id] = session.finished
            if len(self._indexes) > 50_000:
                del self._indexes[next(iter(self._indexes))]
        now = self.clock.now
        if session_id in self.plane.ledger.sessions:
            self._feed(ev.SessionClosed(now, session_id, session.closing))
        self.count("sessions_closed")
        if self._watcher is not None:
            self._watcher.session_closed(session_id, session.closing, now)

    def _schedule_sweep(self) -> None:
        interval = max(1_000_000, int(self.settings.idle_expiry_s * 1e9 / 20))
        self.clock.at(self.clock.now + interval, Priority.TIMER, self._sweep)

    def _sweep(self) -> None:
        limit = self.clock.now - int(self.settings.idle_expiry_s * 1e9)
        for session in list(self.sessions.values()):
            if not session.open and session.last_seen <= limit:
                self.count("sessions_expired")
                self.release(session.id, "idle")
        self._schedule_sweep()

    # Replicas.

    def sampled(self, replica: str, sample: ReplicaSample) -> None:
        if replica not in self._down:
            self._feed(ev.ReplicaSampled(self.clock.now, replica, sample))

    def lost(self, replica: str, reason: str) -> None:
        """The replica is gone; the turns on it fail right after, by their own connections."""
        if replica in self._down:
            return
        self._down.add(replica)
        self.count("replicas_lost")
        self._feed(ev.ReplicaLost(self.clock.now, replica, reason))

    def recovered(self, replica: str) -> None:
        if replica in self._down:
            self._down.discard(replica)
            self._feed(ev.ReplicaRecovered(self.clock.now, replica))

    def kv_changed(self, replica: str, *, cleared: bool) -> None:
        self._feed(ev.KvEvents(self.clock.now, replica, cleared))

    def is_down(self, replica: str) -> bool:
        return replica in self._down

    # The control plane.

    def _progress(self, attempt: int, now: int) -> int:
        live = self._attempts.get(attempt)
        # A policy may ask between its Resume and the dispatch that follows from it.
        tokens = live.client.streamed() if live is not None else 0
        self._answers.append((attempt, tokens))
        return tokens

    def _feed(self, event: ev.Event) -> None:
        if self.broken is not None:
            return
        self._answers = []
        try:
            operations = self.plane.handle(event)
        except SchedulerError as error:
            if self._on_error is None:
                raise
            self._break(error)
            return
        if self._on_event is not None:
            self._on_event(event, operations, self._answers)
        self._execute(operations)

    def _break(self, error: SchedulerError) -> None:
        """The policy is not to be trusted any more: what runs may end, what waits fails."""
        self.broken = error
        for live in list(self._turns.values()):
            if live.attempt is None:
                self._end(live, "failed", None).fail(error.message)
        assert self._on_error is not None
        self._on_error(error)

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
        live = self._turns.get(operation.turn.id)
        if live is None or live.ended:  # it ended while earlier operations were carried out
            return
        live.attempt, live.replica = operation.attempt, operation.prefill or operation.decode
        live.decode, live.prefill, live.leg_ended = operation.decode, operation.prefill, None
        live.dispatched = self.plane.ledger.now  # so a turn that was not held shows no pause
        live.attempts += 1
        self._attempts[operation.attempt] = live
        live.client.dispatch(operation)

    def _timer(self) -> None:
        self._feed(ev.Timer(self.clock.now))

    def _solve(self, command: Solve) -> None:
        def ready(plan: Any) -> None:
            self._feed(ev.PlanReady(self.clock.now, command.solve_id, plan))

        self._planner.solve(command, ready)

    def _refuse(self, operation: Refuse) -> None:
        live = self._turns.get(operation.turn.id)
        if live is None:
            return
        client = self._end(live, "rejected", None)
        client.refuse(operation.reason, operation.retry_after_s)
        self._close_if_due(operation.turn.session)

    def _cancel(self, operation: Cancel) -> None:
        live = self._attempts.pop(operation.attempt, None)
        if live is None or live.ended:
            return
        assert live.replica is not None
        turn, replica = live.turn, live.replica
        live.client.withdraw()
        live.attempt = live.replica = None
        self._feed(
            ev.DispatchFailed(self.clock.now, turn, operation.attempt, replica, operation.reason)
        )

    def count(self, name: str) -> None:
        self.counts[name] = self.counts.get(name, 0) + 1

    def facts(self) -> Mapping[str, int]:
        """Open sessions, turns in flight and waiting."""
        return {
            "sessions": len(self.sessions),
            "in_flight": len(self._attempts),
            "waiting": len(self.plane.ledger.waiting),
        }
