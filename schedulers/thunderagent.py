"""ThunderAgent: sessions have places; a replica that is too full pauses the smallest.

active(L)    = tokens of reasoning sessions + w * tokens of acting ones
remaining(L) = capacity(L) - active(L) - 100 * sessions(L)

A new session goes to the replica with the least active tokens among those where it fits, and
waits if none, or if others wait. A known session with a place stays on its replica unchecked.
Every 5 s, first resume, then pause:
resume   waiting sessions by class (returning, new, idle), each smallest first, by `short_first`
pause    while remaining < 0: the smallest acting session; none left: mark the smallest reasoning
         one, to be paused when its turn ends

Paper: ThunderAgent, arXiv 2602.13692, with the rules of its published code. `thunderagent` is
that code with its known defects repaired, the fair baseline: every repair is a setting, and
`thunderagent-as-shipped` has them all off.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from heapq import heappop, heappush
from random import Random
from typing import ClassVar

from schedulers import events as ev
from schedulers.accounts import Account, Accounts, TokenEstimate
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import (
    NO_ANNOTATIONS,
    Command,
    Hold,
    Pause,
    Reject,
    Resume,
    Route,
    WakeAt,
)
from schedulers.pools import by_id, serving
from schedulers.short_first import BUFFER_TOKENS, Queued, queue_class, short_first_plan
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView

Annotations = Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class ThunderAgentConfig:
    interval_s: float = 5.0
    "Time between two rounds of resuming and pausing. Code, scheduler_interval; paper 5.1."
    acting_weight: float = 1.0
    "Weight of acting sessions' tokens. Code, acting_token_weight."
    decay: bool = False
    """Let acting tokens halve every second when room is computed for resuming (never for
    pausing). Off is the code's default; the paper's f(t) = 2^-t has it on."""
    buffer_tokens: int = BUFFER_TOKENS
    "Code, BUFFER_PER_PROGRAM."
    shared_tokens: bool = False
    """Subtract text that sessions share, by the engine's KV gauge. The code has the formula and
    never updates it, so it is off."""
    forced_resume_s: float = 1800.0
    "A turn that waited this long is let in whatever the room. Code."
    honour_release: bool = True
    "Whether a closed session leaves the books; false plays agents that never call release."
    finish_on_all_exits: bool = True
    "Repair: a failed or abandoned turn ends as a finished one does."
    idle_ttl_s: float = 600.0
    "Repair: an acting session unseen for this long leaves the books; 0: never. Dynamo's port."
    lease_idle_s: float = 60.0
    """Repair: while a turn waits that fits nowhere, sessions unseen for this long leave the books,
    longest first; 0: never. Those that never call release would keep others out until
    `idle_ttl_s`. As a third party's lease variant, which has 30 s; 60 s is our choice, above the
    longest tool call of mini-swe-agent."""
    count_future_pauses: bool = True
    "Repair: marking stops once the marked sessions' tokens will make enough room."
    count_in_flight: bool = True
    "Repair: a session acts only when its last parallel turn has ended."
    failover: bool = True
    "Repair: sessions of a lost replica are placed anew, failed dispatches tried again."
    aging_s: float = 120.0
    """Repair: a session queued this long goes before all others, and where it does not fit, the
    roomiest replica is kept for it; 0: never. Smallest first starves large prompts (our choice)."""

    def __post_init__(self) -> None:
        if self.interval_s <= 0 or self.forced_resume_s <= 0:
            raise ValueError("interval_s and forced_resume_s must be positive")
        if self.buffer_tokens < 0 or self.acting_weight < 0:
            raise ValueError("buffer_tokens and acting_weight must not be negative")


class ThunderAgent(AdmissionScheduler):
    name = "thunderagent"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, phase, capacity",
        holds=True,
        fidelity="source code read",
        reference="ThunderAgent, arXiv 2602.13692, code at a7eef77; known defects repaired",
    )
    Config = ThunderAgentConfig
    resume_annotations: ClassVar[Annotations] = NO_ANNOTATIONS
    config: ThunderAgentConfig

    def __init__(self, config: ThunderAgentConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.accounts = Accounts(self.config.buffer_tokens, self.config.acting_weight)
        self.estimate = TokenEstimate()
        self._prompt_bytes: dict[str, int] = {}
        self._next_tick: int | None = None
        self._first_tick: int | None = None
        self._deadlines: list[tuple[int, str]] = []
        self._counts = dict.fromkeys(("paused", "marked", "resumed", "forced", "expired"), 0)

    def counters(self) -> dict[str, float]:
        return {name: float(count) for name, count in self._counts.items()}

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterator[Command]:
        match event:
            case ev.TurnArrived(now, turn):
                yield from self._arrived(turn, now, cluster)
            case ev.DispatchFailed(now, turn):
                yield from self._dispatch_failed(turn, now, cluster)
            case ev.TurnFinished(now, session, turn_id):
                self.learn(turn_id, event)
                yield from self._turn_ended(session, now, cluster)
            case ev.TurnFailed(now, session, turn_id) | ev.ClientGone(now, session, turn_id):
                self._prompt_bytes.pop(turn_id, None)
                if self.config.finish_on_all_exits:
                    yield from self._turn_ended(session, now, cluster)
            case ev.SessionClosed(_, session) if session in self.accounts.all:
                if self.config.honour_release:
                    self.accounts.close(self.accounts.all[session])
            case ev.ReplicaLost(now, replica) if self.config.failover:
                for account in self.accounts.on(replica):
                    self.accounts.enqueue(account, now)
            case ev.Timer(now):
                if self._next_tick is not None and now >= self._next_tick:
                    self._next_tick = None
                    yield from self.tick(now, cluster)
                yield from self._force(now, cluster)
        yield from self._keep_ticking(event.now, cluster)

    # A turn comes and ends.

    def _arrived(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        account = self.accounts.all.get(turn.session)
        known = account is not None
        if account is None:
            before = cluster.sessions[turn.session].turns_finished
            account = self.accounts.open(turn.session, before)
        account.step += 1
        account.tokens = self.estimate(turn.prompt)
        account.reasoning, account.last_seen = True, now
        self._prompt_bytes[turn.id] = turn.prompt.bytes
        if account.replica is not None:
            yield from self._stay(account, turn, now, cluster)
        elif known:
            yield from self._wait(account, turn, now, "session is paused")
        else:
            yield from self._first_place(account, turn, now, cluster)

    def _stay(
        self, account: Account, turn: Turn, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        home = by_id(serving(cluster), account.replica)
        if home is not None:
            yield Route(turn.id, home.id, annotations=self.stay_annotations(account, now))
        elif self.config.failover:
            self.accounts.enqueue(account, now)
            yield from self.displaced(account, turn, now, cluster)
        else:
            yield Reject(turn.id, "its replica does not answer")

    def stay_annotations(self, account: Account, now: int) -> Annotations:
        """What a turn of a session with a place is dispatched with."""
        return NO_ANNOTATIONS

    def displaced(
        self, account: Account, turn: Turn, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        """A turn of a queued session whose replica is lost."""
        yield from self._wait(account, turn, now, "its replica is lost")

    def _first_place(
        self, account: Account, turn: Turn, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        replica = None if self.accounts.queue else self.roomiest(account, now, cluster)
        if replica is not None:
            self.accounts.place(account, replica.id)
            yield Route(turn.id, replica.id, why="new session, least active tokens")
        else:
            why = "others wait" if self.accounts.queue else "no replica has room"
            self.accounts.enqueue(account, now)
            yield from self._wait(account, turn, now, why)

    def roomiest(self, account: Account, now: int, cluster: ClusterView) -> ReplicaView | None:
        """Where a new session goes: least active tokens among the replicas where it fits."""
        needed = account.tokens + self.config.buffer_tokens
        fitting = [r for r in serving(cluster) if self.remaining(r, cluster) >= needed]
        return min(fitting, key=lambda r: self.accounts.active(r, cluster), default=None)

    def _wait(self, account: Account, turn: Turn, now: int, why: str) -> Iterator[Command]:
        yield Hold(turn.id, why=why)
        if account.waiting_since is None:
            account.waiting_since = now
            account.deadline = now + round(self.config.forced_resume_s * NS)
            heappush(self._deadlines, (account.deadline, account.session))
            if self._deadlines[0] == (account.deadline, account.session):
                yield WakeAt(account.deadline)

    def _dispatch_failed(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        account = self.accounts.all.get(turn.session)
        if account is None:
            yield from self._arrived(turn, now, cluster)
        elif not self.config.failover:
            yield Reject(turn.id, "its replica does not answer")
        elif account.replica is not None:
            yield from self._stay(account, turn, now, cluster)
        else:
            yield from self.displaced(account, turn, now, cluster)

    def learn(self, turn_id: str, event: ev.TurnFinished) -> None:
        """The usage of a finished turn is the session's context."""
        self.estimate.learn(self._prompt_bytes.pop(turn_id, 0), event.usage)
        if account := self.accounts.all.get(event.session):
            account.tokens = event.usage.total

    def _turn_ended(self, session: str, now: int, cluster: ClusterView) -> Iterator[Command]:
        account = self.accounts.all.get(session)
        if account is None:
            return
        account.last_seen = now
        view = cluster.sessions[session]
        if not view.waiting:
            account.waiting_since = None
        if self.config.count_in_flight and (view.in_flight or view.waiting):
            return
        account.reasoning, account.acting_since = False, now
        if account.marked and account.replica is not None:
            yield from self.pause(account, now, cluster, "its turn ended, it was marked")

    # The round every five seconds.

    def _keep_ticking(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Ticks are a whole number of intervals after the first event, while sessions are open."""
        if self._next_tick is not None or not cluster.sessions:
            return
        interval = round(self.config.interval_s * NS)
        if self._first_tick is None:
            self._first_tick = now
        self._next_tick = now + interval - (now - self._first_tick) % interval
        yield WakeAt(self._next_tick)

    def tick(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        yield from self._expire(now, cluster)
        yield from self.resume_waiting(now, cluster)
        for replica in serving(cluster):
            yield from self.relieve(replica, now, cluster)

    def _expire(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        if self.config.idle_ttl_s > 0:
            for account in self._unseen(self.config.idle_ttl_s, now):
                yield from self._drop(account, now, cluster, "unseen for too long")
        if self.config.lease_idle_s > 0:
            yield from self._end_leases(now, cluster)

    def _end_leases(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        unseen = [a for a in self._unseen(self.config.lease_idle_s, now) if a.replica is not None]
        unseen.sort(key=lambda a: a.last_seen, reverse=True)
        waiting = [_queued(a) for a in self.accounts.queue.values() if a.reasoning]
        buffer = self.config.buffer_tokens
        while unseen:
            room = list(self._rooms(now, cluster).items())
            if len(short_first_plan(waiting, room, buffer)) == len(waiting):
                return
            yield from self._drop(unseen.pop(), now, cluster, "unseen while others wait")

    def _unseen(self, seconds: float, now: int) -> list[Account]:
        limit = now - round(seconds * NS)
        return [a for a in self.accounts.all.values() if not a.reasoning and a.last_seen <= limit]

    def _drop(
        self, account: Account, now: int, cluster: ClusterView, why: str
    ) -> Iterator[Command]:
        """Off the books; its next turn is a new session's, to the rules."""
        if account.replica is not None:
            yield from self.pause(account, now, cluster, why)
        self.accounts.close(account)
        self._counts["expired"] += 1

    def _rooms(self, now: int, cluster: ClusterView) -> dict[str, int]:
        return {
            r.id: int(self.resume_room(r, now, cluster))
            for r in serving(cluster)
            if r.capacity_tokens is not None
        }

    def resume_waiting(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        room = self._rooms(now, cluster)
        yield from self._resume_aged(room, now, cluster)
        queued = [_queued(a) for a in self.accounts.queue.values()]
        for session, replica in short_first_plan(
            queued, list(room.items()), self.config.buffer_tokens
        ):
            if self.may_join(cluster.replica(replica)):
                yield from self.resume(
                    self.accounts.all[session], replica, cluster, "there is room"
                )

    def may_join(self, replica: ReplicaView) -> bool:
        """Whether one more session may be resumed there, room apart."""
        return True

    def _resume_aged(
        self, room: dict[str, int], now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        """Serve those who waited too long, oldest first; takes what they need from `room`."""
        if self.config.aging_s <= 0:
            return
        limit = now - round(self.config.aging_s * NS)
        aged = [a for a in self.accounts.queue.values() if _waits_since(a, now) <= limit]
        kept_free = False
        for account in sorted(aged, key=lambda a: _waits_since(a, now)):
            replica = max(room, key=lambda name: room[name], default=None)
            if replica is None:
                return
            needed = account.tokens + self.config.buffer_tokens
            if needed <= room[replica]:
                room[replica] -= needed
                yield from self.resume(account, replica, cluster, "waited long")
            elif not kept_free:
                del room[replica]
                kept_free = True

    def relieve(self, replica: ReplicaView, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Pause until the replica is safe."""
        excess = self.excess(replica, cluster)
        buffer = self.config.buffer_tokens
        here = self.accounts.on(replica.id)
        for account in sorted((a for a in here if not a.reasoning), key=lambda a: a.tokens):
            if excess <= 0:
                return
            excess -= self.config.acting_weight * account.tokens + buffer
            yield from self.pause(account, now, cluster, "replica is too full")
        if self.config.count_future_pauses:
            excess -= sum(self.accounts.tokens(a, cluster) + buffer for a in here if a.marked)
        busy = [a for a in here if a.reasoning and not a.marked]
        for account in sorted(busy, key=lambda a: self.accounts.tokens(a, cluster)):
            if excess <= 0:
                return
            account.marked = True
            self._counts["marked"] += 1
            # As shipped, marking frees nothing yet, so it goes on until all are marked.
            if self.config.count_future_pauses:
                excess -= self.accounts.tokens(account, cluster) + buffer

    def excess(self, replica: ReplicaView, cluster: ClusterView) -> float:
        """Tokens that must leave the replica in this round."""
        return -self.remaining(replica, cluster)

    def remaining(self, replica: ReplicaView, cluster: ClusterView) -> float:
        return self._left(replica, self.accounts.active(replica, cluster), cluster)

    def resume_room(self, replica: ReplicaView, now: int, cluster: ClusterView) -> float:
        if not self.config.decay:
            return self.remaining(replica, cluster)
        return self._left(replica, self.accounts.active_decayed(replica, cluster, now), cluster)

    def _left(self, replica: ReplicaView, active: float, cluster: ClusterView) -> float:
        shared = self.accounts.shared(replica, cluster) if self.config.shared_tokens else 0.0
        return self.accounts.remaining(replica, active, shared)

    def _force(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Let in the turns that have waited too long, whatever the room."""
        passed = False
        while self._deadlines and self._deadlines[0][0] <= now:
            deadline, session = heappop(self._deadlines)
            passed = True
            account = self.accounts.queue.get(session)
            if account is None or account.waiting_since is None or account.deadline != deadline:
                continue
            replica = self.forced_place(account, now, cluster)
            if replica is not None:
                self._counts["forced"] += 1
                yield from self.resume(account, replica, cluster, "waited too long, forced in")
            else:
                account.deadline = now + round(self.config.interval_s * NS)
                heappush(self._deadlines, (account.deadline, session))
        if passed and self._deadlines:
            yield WakeAt(self._deadlines[0][0])

    def forced_place(self, account: Account, now: int, cluster: ClusterView) -> str | None:
        """Its origin if that is healthy, else the replica with the fewest sessions."""
        replicas = serving(cluster)
        if not replicas or by_id(replicas, account.origin) is not None:
            return account.origin if replicas else None
        return min(replicas, key=lambda r: len(self.accounts.on(r.id))).id

    # Places. A session that was closed without release is on the books alone.

    def resume(
        self, account: Account, replica: str, cluster: ClusterView, why: str
    ) -> Iterator[Command]:
        self.accounts.place(account, replica)
        self._counts["resumed"] += 1
        session = cluster.sessions.get(account.session)
        if session is not None and (session.lifecycle == "paused" or session.waiting):
            yield Resume(account.session, replica, annotations=self.resume_annotations, why=why)

    def pause(
        self, account: Account, now: int, cluster: ClusterView, why: str
    ) -> Iterator[Command]:
        self.accounts.enqueue(account, now)
        self._counts["paused"] += 1
        session = cluster.sessions.get(account.session)
        if session is not None and session.lifecycle == "active":
            yield Pause(account.session, why=why)


def _queued(account: Account) -> Queued:
    kind = queue_class(account.step, account.reasoning)
    return Queued(account.session, kind, account.queued_tokens, account.tokens)


def _waits_since(account: Account, now: int) -> int:
    return now if account.waiting_since is None else account.waiting_since
