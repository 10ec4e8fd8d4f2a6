"""Headroom: a session runs to its end on one replica, and everything is weighed in seconds.

    room     text that sessions share counts once; capacity is what the engine's gauge shows
    rank     fewest turns done first: contexts grow, so they take the least room for a turn; an aged
             turn goes before all of them
    acting   a session keeps its room while it is as likely as not to be back within the time that
             computing the replica's whole KV takes
    turn     home if it fits beside what runs and sessions of higher rank, and no other replica is
             cheaper; what does not fit moves, if computing its KV again costs fewer seconds than
             the wait for room (or stays, if it pushes out less than that), or waits
    queue    by rank, beside everyone who has a place; whoever does not fit waits for one replica,
             whose room nobody of lower rank takes; a session whose KV has been evicted since goes
             anywhere
    cost     (queued + uncached) / rate + uncached / rate x turns stalled + output x slope x turns

Nobody is paused in the background: a session loses its place only when a turn of it arrives and
does not fit. If everything fits, nothing is held. Rates, slope, outputs, tool times, capacity and
what a shared store saves are all learned from the turns and the engine's gauges.

Starvation is bounded by the order: once a turn is aged, its room is kept free on one replica, so it
waits at most for the turns running there and for aged ones before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from schedulers import events as ev
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Pause, Route, WakeAt
from schedulers.headroom_config import HeadroomConfig
from schedulers.headroom_costs import Costs, Sent
from schedulers.headroom_room import Kept, Room, Union
from schedulers.headroom_tools import ToolCalls
from schedulers.pools import by_id, serving
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView, SessionView

Rank = tuple[int, int, int, str]
_RUNNING, _AGED, _OTHER = -1, 0, 1
_PATIENCE = 4
"""Turns without room, a replica, after which the rest of the queue is not looked at."""
_MAKES_ROOM = (ev.Timer, ev.TurnFailed, ev.ClientGone, ev.ReplicaLost, ev.ReplicaRecovered)
"""A turn's end makes none: its session keeps its place."""


class Headroom(AdmissionScheduler):
    name = "headroom"
    info = SchedulerInfo(
        family="admission",
        observes="contexts, shared text, turns done, first tokens, tool times, capacity, KV gauge",
        holds=True,
        fidelity="inferred",
        reference="our own; docs/headroom.md",
    )
    Config = HeadroomConfig
    config: HeadroomConfig

    def __init__(self, config: HeadroomConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.costs = Costs(self.config.rate_tokens_per_s)
        self.tools = ToolCalls(self.config.tool_history)
        self.room = Room(self.config.measure_capacity, self.config.share_text)
        self._lacked: dict[str, int] = {}
        """Turn that moved -> prompt tokens that its new replica was not known to have."""
        self._context: dict[str, int] = {}
        """Session -> tokens of context when its last turn ended."""
        self._kept_for: dict[str, Kept] = {}
        """Replica -> whom of the queue its room is kept for."""
        self._everyone: dict[str, Union] = {}
        """Replica -> what all that keep a place there take; of this event only."""
        self._next_tick: int | None = None
        self._counts = dict.fromkeys(("held", "moved", "rebalanced", "aged"), 0)

    def counters(self) -> dict[str, float]:
        found = {name: float(count) for name, count in self._counts.items()}
        return found | self.tools.counters()

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterator[Command]:
        now = event.now
        self._everyone.clear()
        match event:
            case ev.TurnArrived(_, turn):
                self.tools.ended(turn.session, now)
                self.room.prompted(turn)
                yield from self._arrived(turn, now, cluster)
            case ev.DispatchFailed(_, turn):
                self.costs.dropped(turn.id)
                yield from self._arrived(turn, now, cluster)
            case ev.FirstToken(_, _, turn_id):
                self.costs.first_token(turn_id, now)
            case ev.TurnFinished():
                self._finished(event, now)
            case ev.TurnFailed(_, _, turn_id) | ev.ClientGone(_, _, turn_id):
                self.costs.dropped(turn_id)
                self._lacked.pop(turn_id, None)
            case ev.ToolStarted(_, session, tools):
                home = cluster.sessions[session].home
                sweep = self._sweep(cluster.replica(home)) if home is not None else 0
                self.tools.started(session, tools, now, sweep)
            case ev.ReplicaLost(_, lost):
                self.room.lost(lost)
            case ev.ReplicaSampled():
                self.room.sampled(event, cluster)
            case ev.SessionClosed(_, name):
                self._closed(name, now, cluster)
                yield WakeAt(now)  # the view still shows the session: look right after this event
                return
        if self._next_tick is not None and now >= self._next_tick:
            self._next_tick = None
        if self._next_tick is None and cluster.waiting:
            self._next_tick = now + NS
            yield WakeAt(self._next_tick)
        if isinstance(event, _MAKES_ROOM) or any(kept.aged for kept in self._kept_for.values()):
            yield from self._let_in(now, cluster)

    # Rank and room.

    def _rank(self, session: SessionView, now: int) -> Rank:
        since = session.waiting_since
        if since is not None and now - since >= self.config.aging_s * NS:
            return _AGED, since, 0, session.id
        turns = session.turns_finished if self.config.rank_by_turns else 0
        return _OTHER, turns, session.arrived_at, session.id

    def _with(
        self, replica: ReplicaView, me: SessionView, now: int, cluster: ClusterView, everyone: bool
    ) -> float:
        """Tokens on the replica with this session beside those it must leave alone: those that
        run, those of higher rank (or everyone), and whom of the queue room is kept for. 0 if there
        is nobody else: then whatever it needs must do."""
        need = cluster.tokens(me.id) + self.costs.output
        if everyone and me.home != replica.id:
            base = self._everyone.get(replica.id)
            if base is None:
                base = self._everyone[replica.id] = self._beside(replica, me, now, cluster, None)
        else:
            rank = None if everyone else self._rank(me, now)
            base = self._beside(replica, me, now, cluster, rank)
        waiting, kept = self._kept_for.get(replica.id), 0.0
        if waiting is not None and waiting.session != me.id and (everyone or waiting.aged):
            kept = waiting.tokens
        if not base.total + kept:
            return 0.0
        return base.total + base.adds(me.id, need) + kept

    def _beside(
        self,
        replica: ReplicaView,
        me: SessionView,
        now: int,
        cluster: ClusterView,
        rank: Rank | None,
    ) -> Union:
        """The others' KV there: of those that run, and of those of higher rank."""
        found = self.room.union()
        for name in replica.sessions:
            session = cluster.sessions[name]
            if name == me.id:
                continue
            if session.in_flight or session.waiting:
                tokens = cluster.tokens(name)
                found.add(name, max(tokens, session.tokens + self.costs.output))
            elif (rank is None or self._rank(session, now) < rank) and self._keeps(
                session, replica, now
            ):
                found.add(name, session.tokens)
        return found

    def _sweep(self, replica: ReplicaView) -> int:
        """Nanoseconds that computing the replica's whole KV takes. KV of one session saves its
        prefill, tokens / rate of the whole replica, and costs tokens / capacity of its room while
        a tool runs: it is worth its room for capacity / rate."""
        if replica.capacity_tokens is None:
            return 0
        return round(self.room.capacity(replica) / self.costs.rate(replica.id) * NS)

    def _keeps(self, session: SessionView, replica: ReplicaView, now: int) -> bool:
        return not self.config.long_tools or self.tools.keeps(session.id, now, self._sweep(replica))

    def _fits(
        self,
        me: SessionView,
        replica: ReplicaView,
        now: int,
        cluster: ClusterView,
        *,
        fill: float = 1.0,
        everyone: bool = False,
    ) -> bool:
        if replica.capacity_tokens is None:
            return True
        total = self._with(replica, me, now, cluster, everyone)
        return total <= fill * self.room.capacity(replica)

    # Turns.

    def _arrived(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        session = cluster.sessions[turn.session]
        home = by_id(serving(cluster), session.home)
        if home is None:
            yield Hold(turn.id, why="no place yet")
            yield from self._let_in(now, cluster)
            return
        if self._fits(session, home, now, cluster):
            target = self._cheaper(session, turn, home, now, cluster) or home
            yield self._route(session, turn, target, now, cluster, "has a place")
            return
        elsewhere = self._elsewhere(session, turn, home, now, cluster)
        if elsewhere is not None:
            why = "no room at home, cheaper"
            if self._pushes(session, turn, home, elsewhere, now, cluster):
                elsewhere, why = home, "pushes out less than moving computes"
            yield self._route(session, turn, elsewhere, now, cluster, why)
            return
        self._counts["held"] += 1
        yield Hold(turn.id, why="no room beside sessions of higher rank")
        if not session.in_flight:
            yield Pause(session.id, why="waits for room")

    def _uncached(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        """Tokens to compute there: what was never sent there, and all of the session's own if it
        has been evicted since. A shared store is believed to have what it had for others."""
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, replica.id)
        if cluster.evidence(turn.session, replica.id) is not None:
            return lacks if self.room.alive(turn.session, replica) else turn.prompt.tokens
        return lacks * (1 - self.costs.store_share)

    def _turn_s(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        return self.costs.turn_s(self._uncached(turn, replica, cluster), replica, own=False)

    def _cheaper(
        self, me: SessionView, turn: Turn, home: ReplicaView, now: int, cluster: ClusterView
    ) -> ReplicaView | None:
        """Where the turn costs fewer seconds than at home by more than `rebalance_gain`."""
        if not self.config.rebalance or not self.config.use_costs:
            return None
        # It keeps a place here, so its KV is believed to be here.
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, home.id)
        limit = self.costs.turn_s(lacks, home, own=False) - self.config.rebalance_gain
        if limit <= 0:
            return None
        best = None
        for replica in serving(cluster):
            if replica.id == home.id or replica.in_flight >= home.in_flight:
                continue
            cost = self._turn_s(turn, replica, cluster)
            if cost < limit and self._may_move(me, replica, now, cluster):
                best, limit = replica, cost
        if best is not None:
            self._counts["rebalanced"] += 1
        return best

    def _may_move(
        self, me: SessionView, replica: ReplicaView, now: int, cluster: ClusterView
    ) -> bool:
        return self._fits(me, replica, now, cluster, fill=self.config.move_fill, everyone=True)

    def _elsewhere(
        self, me: SessionView, turn: Turn, home: ReplicaView, now: int, cluster: ClusterView
    ) -> ReplicaView | None:
        """The cheapest other replica with room, if going there costs less than waiting here."""
        fitting = [
            r for r in serving(cluster) if r.id != home.id and self._may_move(me, r, now, cluster)
        ]
        if not fitting:
            return None
        costs = [self._turn_s(turn, replica, cluster) for replica in fitting]
        best = min(range(len(fitting)), key=lambda i: costs[i])
        if self.config.use_costs:
            stay = self._wait_s(me, home, now, cluster) + self._turn_s(turn, home, cluster)
            if costs[best] >= stay:
                return None
        return fitting[best]

    def _pushes(
        self,
        me: SessionView,
        turn: Turn,
        home: ReplicaView,
        other: ReplicaView,
        now: int,
        cluster: ClusterView,
    ) -> bool:
        """Whether to run at home beside the turns that run there, though what it lacks will be
        evicted from sessions between turns and computed again: fewer tokens than a move computes.
        """
        if not self.config.use_costs or not self.room.alive(me.id, home):
            return False
        need, capacity = cluster.tokens(me.id) + self.costs.output, self.room.capacity(home)
        running = self._beside(home, me, now, cluster, (_RUNNING, 0, 0, ""))
        if running.total + running.adds(me.id, need) > capacity:
            return False
        lacking = self._with(home, me, now, cluster, everyone=True) - capacity
        return lacking < self._uncached(turn, other, cluster)

    def _wait_s(
        self, me: SessionView, replica: ReplicaView, now: int, cluster: ClusterView
    ) -> float:
        """Until room comes free: what is lacking over the rate at which ended sessions gave KV
        back there."""
        freed = self.room.freed_per_s(replica.id, now)
        lacking = self._with(replica, me, now, cluster, everyone=False)
        lacking -= self.room.capacity(replica)
        return float("inf") if not freed else max(0.0, lacking) / freed

    def _route(
        self,
        session: SessionView,
        turn: Turn,
        target: ReplicaView,
        now: int,
        cluster: ClusterView,
        why: str,
    ) -> Route:
        uncached = self._uncached(turn, target, cluster)
        leg = self.costs.prefiller(turn, uncached, target, cluster)
        at = leg or target
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, at.id)
        if session.last_replica not in (None, target.id):
            self._counts["moved"] += 1
            self._lacked[turn.id] = lacks
        self.room.touched(session.id, target.id, turn.prompt.tokens)
        self._everyone.clear()
        sent = Sent(now, at.id, lacks, at.queued_prefill_tokens, target.in_flight)
        self.costs.sent(turn.id, sent)
        return Route(turn.id, target.id, leg.id if leg else None, why=why)

    # The queue.

    def _let_in(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Those without a place by rank. Whom nothing fits waits for one replica, whose room nobody
        of lower rank takes."""
        self._kept_for = {}
        self._everyone.clear()
        if not cluster.waiting:
            return
        # One that has a home waits too, if the turn came while another of its turns was running.
        pool = [s for s in cluster.sessions.values() if s.waiting and not s.in_flight]
        replicas = len(serving(cluster))
        patience = _PATIENCE * replicas
        for session in sorted(pool, key=lambda one: self._rank(one, now)):
            target = self._place(session, now, cluster)
            if target is None:
                self._keep_room(session, now, cluster)
                patience -= 1
                if not patience or len(self._kept_for) == replicas:
                    return
                continue
            for turn in list(session.waiting):
                yield self._route(session, turn, target, now, cluster, "let in")

    def _place(self, me: SessionView, now: int, cluster: ClusterView) -> ReplicaView | None:
        """Where it was, if its KV is there and it fits; else, if it gains by it, elsewhere."""
        before = by_id(serving(cluster), me.last_replica)
        everyone = self._rank(me, now)[0] != _AGED
        if before is not None and self.room.alive(me.id, before):
            if self._fits(me, before, now, cluster, everyone=everyone):
                return before
            return self._elsewhere(me, me.waiting[0], before, now, cluster)
        fitting = [
            r for r in serving(cluster) if self._fits(me, r, now, cluster, everyone=everyone)
        ]

        def crowding(replica: ReplicaView) -> tuple[float, int]:
            if replica.capacity_tokens is None:
                return float(replica.in_flight), replica.in_flight
            used = self._with(replica, me, now, cluster, everyone=True)
            return used / self.room.capacity(replica), replica.in_flight

        return min(fitting, key=crowding, default=None)

    def _keep_room(self, me: SessionView, now: int, cluster: ClusterView) -> None:
        """Where its KV is, or most is free, room goes to no session of lower rank."""
        open_ones = [r for r in serving(cluster) if r.id not in self._kept_for]
        target = by_id(serving(cluster), me.last_replica)
        if target is None or not self.room.alive(me.id, target):
            target = min(
                open_ones, key=lambda r: self._with(r, me, now, cluster, False), default=None
            )
        if target is None or target.id in self._kept_for:
            return
        aged = self._rank(me, now)[0] == _AGED
        self._counts["aged"] += aged
        tokens = cluster.tokens(me.id) + self.costs.output
        self._kept_for[target.id] = Kept(me.id, tokens, aged)

    # Tools and ends.

    def _finished(self, event: ev.TurnFinished, now: int) -> None:
        self.costs.finished(event, self._lacked.pop(event.turn_id, None))
        self._context[event.session] = event.usage.total
        self.room.touched(event.session, event.replica, event.usage.total)

    def _closed(self, name: str, now: int, cluster: ClusterView) -> None:
        self.tools.forget(name)
        session = cluster.sessions[name]
        context = self._context.pop(name, 0)
        self.room.ended(name, session.last_replica, context, now)
