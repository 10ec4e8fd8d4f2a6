"""The ledger: all the control plane knows, kept up to date from events; the view policies get."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.control.prefix_index import IDLE_LIMIT, PrefixIndex
from harness.control.records import Attempt, Capacity, ReplicaState, SessionState
from schedulers import events as ev
from schedulers.pools import Pool, prefillers_of, serving_of
from schedulers.types import Evidence, PromptRef, Turn
from schedulers.views import ReplicaView, Role, SessionView


@dataclass(frozen=True, slots=True)
class ReplicaConfig:
    """A replica as configured."""

    id: str
    role: Role
    capacity: Capacity


class Ledger:
    """Sessions, waiting turns, attempts and replicas, with the events' effects on them.

    Args:
        replicas: in configured order; ids must be unique.
        progress: output tokens an attempt has streamed by a time, asked of the driver.
        idle_texts: texts of closed sessions remembered (`PrefixIndex`).
    """

    def __init__(
        self,
        replicas: Sequence[ReplicaConfig],
        progress: Callable[[int, int], int],
        idle_texts: int = IDLE_LIMIT,
    ) -> None:
        self.now = 0
        self._progress = progress
        self.replica_states = {
            r.id: ReplicaState(r.id, i, r.role, r.capacity) for i, r in enumerate(replicas)
        }
        self._replica_list: tuple[ReplicaState, ...] = tuple(self.replica_states.values())
        self._pools: tuple[Pool, Pool] | None = None
        self.session_states: dict[str, SessionState] = {}
        self.unplaced: dict[str, SessionState] = {}
        """Open sessions without a home."""
        self.home_tokens = dict.fromkeys(self.replica_states, 0)
        """Context tokens of the sessions at home on each replica, without output that streams."""
        self.waiting_turns: dict[str, Turn] = {}
        self.undecided: dict[str, None] = {}
        """Waiting turns that the policy has not yet said anything about."""
        self.attempts: dict[int, Attempt] = {}
        self.prefixes = PrefixIndex(idle_texts)

    def record(self, event: ev.Event) -> None:
        """Bring the records up to date with the event."""
        self.now = event.now
        _RECORDERS[type(event)](self, event)

    # The cluster view that policies see (schedulers.views.ClusterView).

    @property
    def replicas(self) -> Sequence[ReplicaView]:
        return self._replica_list

    def pools(self) -> tuple[Pool, Pool]:
        """Replicas that serve and that prefill (schedulers.pools); new when health changes."""
        if self._pools is None:
            everyone = self._replica_list
            self._pools = Pool(serving_of(everyone)), Pool(prefillers_of(everyone))
        return self._pools

    def add_in_flight(self, replica: ReplicaState, turns: int) -> None:
        """So many turns more are in flight on the replica."""
        replica.in_flight += turns
        if self._pools is not None:
            for pool in self._pools:
                pool.changed(replica.id, turns)

    @property
    def sessions(self) -> Mapping[str, SessionView]:
        return self.session_states

    @property
    def waiting(self) -> Mapping[str, Turn]:
        return self.waiting_turns

    def replica(self, replica_id: str) -> ReplicaView:
        return self.replica_states[replica_id]

    def tokens(self, session_id: str) -> int:
        session = self.session_states[session_id]
        tokens = session.tokens
        for number in session.attempts:
            tokens += self._progress(number, self.now)
        return tokens

    def evidence(self, session_id: str, replica_id: str) -> Evidence | None:
        session = self.session_states.get(session_id)
        return session.evidence.get(replica_id) if session else None

    def evidence_of(self, session_id: str) -> Mapping[str, Evidence]:
        """All that is known of the session's KV, by replica."""
        return self.session_states[session_id].evidence

    def cached_tokens(self, prompt: PromptRef, replica_id: str) -> int:
        return self.prefixes.match(prompt, replica_id)

    # Recording events.

    def _record_arrival(self, event: ev.TurnArrived) -> None:
        turn = event.turn
        session = self.session_states.get(turn.session)
        if session is None:
            session = SessionState(turn.session, turn.parent, self.now)
            self.session_states[turn.session] = self.unplaced[turn.session] = session
        self._set_tokens(session, turn.prompt.tokens)
        session.idle_since = None
        session.tools = ()
        self.add_waiting(session, turn, self.now)

    def add_waiting(self, session: SessionState, turn: Turn, since: int) -> None:
        self.waiting_turns[turn.id] = turn
        self.undecided[turn.id] = None
        session.waiting_turns[turn.id] = turn
        session.waiting_times[turn.id] = since

    def remove_waiting(self, session: SessionState, turn_id: str) -> None:
        del self.waiting_turns[turn_id]
        self.undecided.pop(turn_id, None)
        del session.waiting_turns[turn_id]
        del session.waiting_times[turn_id]

    def _record_dispatch_failed(self, event: ev.DispatchFailed) -> None:
        self._end_attempt(event.attempt)
        self.add_waiting(self.session_states[event.turn.session], event.turn, self.now)

    def _record_leg_finished(self, event: ev.LegFinished) -> None:
        attempt = self.attempts[event.attempt]
        self._leave_replica(attempt)
        attempt.serving = attempt.decode
        self.add_in_flight(self.replica_states[attempt.decode], 1)
        self.prefixes.insert(event.session, attempt.turn.prompt, attempt.decode)

    def _record_first_token(self, event: ev.FirstToken) -> None:
        attempt = self.attempts[event.attempt]
        if not attempt.first_token_seen:
            attempt.first_token_seen = True
            if attempt.serving == (attempt.prefill or attempt.decode):
                replica = self.replica_states[attempt.serving]
                replica.queued_prefill_tokens -= attempt.uncached_tokens

    def _record_finished(self, event: ev.TurnFinished) -> None:
        self._end_attempt(event.attempt)
        session = self.session_states[event.session]
        session.turns_finished += 1
        self._set_tokens(session, event.usage.total)
        session.evidence[event.replica] = Evidence(event.usage.total, self.now)
        if session.phase == "acting":
            session.idle_since = self.now

    def _record_failed(self, event: ev.TurnFailed) -> None:
        self._end_attempt(event.attempt)
        session = self.session_states[event.session]
        if session.phase == "acting":
            session.idle_since = self.now

    def _record_client_gone(self, event: ev.ClientGone) -> None:
        session = self.session_states[event.session]
        if event.attempt is not None:
            self._end_attempt(event.attempt)
        elif event.turn_id in self.waiting_turns:
            self.remove_waiting(session, event.turn_id)
        if session.phase == "acting":
            session.idle_since = self.now

    def _record_tools(self, event: ev.ToolStarted) -> None:
        self.session_states[event.session].tools = event.tools

    def _record_closed(self, event: ev.SessionClosed) -> None:
        session = self.session_states[event.session]
        if session.attempts or session.waiting_turns:
            raise AssertionError(f"session {session.id} closed with turns open")
        self.leave_home(session)

    def _record_sampled(self, event: ev.ReplicaSampled) -> None:
        replica = self.replica_states[event.replica]
        replica.sample, replica.sampled_at = event.sample, self.now

    def _record_lost(self, event: ev.ReplicaLost) -> None:
        replica = self.replica_states[event.replica]
        replica.healthy = False
        self._pools = None
        for session_id in list(replica.homes):
            self.pause(self.session_states[session_id])
        self._drop_evidence(event.replica)

    def _record_recovered(self, event: ev.ReplicaRecovered) -> None:
        self.replica_states[event.replica].healthy = True
        self._pools = None

    def _record_kv_events(self, event: ev.KvEvents) -> None:
        if event.cleared:
            self._drop_evidence(event.replica)

    def _record_nothing(self, event: ev.Event) -> None:
        """Timers, plans and hints change no record."""

    def _drop_evidence(self, replica_id: str) -> None:
        self.prefixes.forget(replica_id)
        for session in self.session_states.values():
            session.evidence.pop(replica_id, None)

    def _end_attempt(self, number: int) -> None:
        attempt = self.attempts.pop(number)
        self._leave_replica(attempt)
        self.session_states[attempt.turn.session].attempts.pop(number)

    def _leave_replica(self, attempt: Attempt) -> None:
        replica = self.replica_states[attempt.serving]
        self.add_in_flight(replica, -1)
        prefilling = attempt.serving == (attempt.prefill or attempt.decode)
        if prefilling and not attempt.first_token_seen:
            replica.queued_prefill_tokens -= attempt.uncached_tokens

    def forget_session(self, session_id: str) -> None:
        del self.session_states[session_id]
        self.unplaced.pop(session_id, None)
        self.prefixes.close(session_id)

    def set_home(self, session: SessionState, replica: ReplicaState) -> None:
        if session.home != replica.id:
            self.leave_home(session)
            replica.homes[session.id] = None
            session.home = replica.id
            self.home_tokens[replica.id] += session.tokens
            self.unplaced.pop(session.id, None)
        session.lifecycle, session.paused_at = "active", None

    def leave_home(self, session: SessionState) -> None:
        if session.home is not None:
            del self.replica_states[session.home].homes[session.id]
            self.home_tokens[session.home] -= session.tokens
            self.unplaced[session.id] = session
            session.home = None

    def _set_tokens(self, session: SessionState, tokens: int) -> None:
        if session.home is not None:
            self.home_tokens[session.home] += tokens - session.tokens
        session.tokens = tokens

    def pause(self, session: SessionState) -> None:
        self.leave_home(session)
        session.lifecycle, session.paused_at = "paused", self.now


_RECORDERS: dict[type[ev.Event], Callable[[Ledger, Any], None]] = {
    ev.TurnArrived: Ledger._record_arrival,
    ev.DispatchFailed: Ledger._record_dispatch_failed,
    ev.LegFinished: Ledger._record_leg_finished,
    ev.FirstToken: Ledger._record_first_token,
    ev.TurnFinished: Ledger._record_finished,
    ev.TurnFailed: Ledger._record_failed,
    ev.ClientGone: Ledger._record_client_gone,
    ev.ToolStarted: Ledger._record_tools,
    ev.ToolHint: Ledger._record_nothing,
    ev.SessionClosed: Ledger._record_closed,
    ev.ReplicaSampled: Ledger._record_sampled,
    ev.ReplicaLost: Ledger._record_lost,
    ev.ReplicaRecovered: Ledger._record_recovered,
    ev.KvEvents: Ledger._record_kv_events,
    ev.PlanReady: Ledger._record_nothing,
    ev.Timer: Ledger._record_nothing,
}
