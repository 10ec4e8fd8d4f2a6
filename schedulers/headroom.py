"""Headroom: a session runs to its end on one replica, and everything is weighed in seconds.

    room     text that sessions share counts once; capacity is what the engine's gauge shows
    rank     least work left first: tokens of context x turns that it is expected to take yet; an
             aged turn goes before all of them
    acting   a session keeps its room while it is as likely as not to be back within the time that
             computing the replica's whole KV takes
    turn     home if its KV is still there and what runs leaves room: the engine then evicts what
             was used least recently. A turn whose KV is gone must fit beside everyone, or moves, or
             waits, whichever costs fewer seconds
    queue    KV still there first, then by rank, beside everyone who has a place; whoever does not
             fit waits for one replica, whose room nobody behind it takes; a session whose KV has
             been evicted since goes anywhere
    place    the emptiest of the replicas that cost at most a second more than the cheapest
    prefill  elsewhere if that costs less, by half a second where the turn's KV is at home
    cost     (queued + uncached) / rate + uncached / rate x turns stalled + output x slope x turns

If everything fits, nothing is held. Rates, slope, outputs, tool times, turns of a session, capacity
and what a shared store saves are all learned from the turns and the engine's gauges.

Starvation is bounded by the order: once a turn is aged, its room is kept free on one replica, so it
waits at most for the turns running there and for aged ones before it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from random import Random

from schedulers import events as ev
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Pause, Route, WakeAt
from schedulers.headroom_config import HeadroomConfig
from schedulers.headroom_costs import Costs, Sent
from schedulers.headroom_room import Kept, Room, Union
from schedulers.headroom_tools import ToolCalls
from schedulers.headroom_turns import TurnsLeft
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
        self.turns = TurnsLeft(self.config.session_history)
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
                self.tools.forget(name)
                self.turns.ended(cluster.sessions[name].turns_finished)
                context = self._context.pop(name, 0)
                self.room.ended(name, cluster.sessions[name].last_replica, context, now)
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
        if self.config.rank == "work":  # tokens of context held, times the turns yet to come
            rank = round(self.turns.expected(session.turns_finished) * session.tokens)
        else:
            rank = session.turns_finished if self.config.rank == "turns" else 0
        return _OTHER, rank, session.arrived_at, session.id

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
        """Nanoseconds for which KV there is worth its room while a tool runs."""
        return self.costs.sweep(replica, self.room.capacity(replica), self.config.use_store)

    def _keeps(self, session: SessionView, replica: ReplicaView, now: int) -> bool:
        sweep = self._sweep(replica)
        return not self.config.long_tools or self.tools.keeps(session.id, now, sweep)

    def _fits(
        self,
        me: SessionView,
        replica: ReplicaView,
        now: int,
        cluster: ClusterView,
        *,
        everyone: bool = False,
        move: bool = False,
    ) -> bool:
        if replica.capacity_tokens is None:
            return True
        total = self._with(replica, me, now, cluster, everyone or move)
        return total <= (self.config.move_fill if move else 1.0) * self.room.capacity(replica)

    # Turns.

    def _arrived(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        session = cluster.sessions[turn.session]
        home = by_id(serving(cluster), session.home)
        if home is None:
            yield Hold(turn.id, why="no place yet")
            yield from self._let_in(now, cluster)
            return
        if self._fits(session, home, now, cluster, everyone=self.config.keep_while_there):
            target = self._cheaper(session, turn, home, now, cluster) or home
            yield self._route(session, turn, target, now, cluster, "has a place")
            return
        if self.config.keep_while_there and self._goes_on(session, home, now, cluster):
            yield self._route(session, turn, home, now, cluster, "its KV is there")
            return
        elsewhere = self._elsewhere(session, turn, home, now, cluster)
        if elsewhere is not None:
            yield self._route(session, turn, elsewhere, now, cluster, "no room at home, cheaper")
            return
        self._counts["held"] += 1
        yield Hold(turn.id, why="no room beside sessions of higher rank")
        if not session.in_flight:
            yield Pause(session.id, why="waits for room")

    def _goes_on(self, me: SessionView, home: ReplicaView, now: int, cluster: ClusterView) -> bool:
        """Whether its KV is there and what runs leaves room: what it pushes out is the KV that was
        used least recently, and whose that was must fit beside everyone to go on."""
        if not self.room.alive(me.id, home, cluster):
            return False
        capacity = self.room.capacity(home)
        kept = self._kept_for.get(home.id)
        if kept is not None and kept.aged and kept.session != me.id:
            capacity -= kept.tokens
        running = self._beside(home, me, now, cluster, (_RUNNING, 0, 0, ""))
        need = cluster.tokens(me.id) + self.costs.output
        return not running.total or running.total + running.adds(me.id, need) <= capacity

    def _uncached(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        """Tokens to compute there: what was never sent there, and all of the session's own if it
        has been evicted since. A shared store is believed to have of it what it had of others."""
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, replica.id)
        evidence = cluster.evidence(turn.session, replica.id)
        ran = evidence is not None or self.room.ran(turn.session, replica.id)
        if ran and self.room.alive(turn.session, replica, cluster):
            return lacks
        return (turn.prompt.tokens if ran else lacks) * (1 - self.costs.store_share)

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
            if cost < limit and self._fits(me, replica, now, cluster, move=True):
                best, limit = replica, cost
        if best is not None:
            self._counts["rebalanced"] += 1
        return best

    def _elsewhere(
        self, me: SessionView, turn: Turn, home: ReplicaView, now: int, cluster: ClusterView
    ) -> ReplicaView | None:
        """The cheapest other replica with room, if going there costs less than waiting here."""
        others = [replica for replica in serving(cluster) if replica.id != home.id]
        fitting = [r for r in others if self._fits(me, r, now, cluster, move=True)]
        if not fitting:
            return None
        cost, best = min(
            ((self._turn_s(turn, replica, cluster), replica) for replica in fitting),
            key=lambda one: one[0],
        )
        stay = self._wait_s(me, home, now, cluster) + self._turn_s(turn, home, cluster)
        return None if self.config.use_costs and cost >= stay else best

    def _wait_s(
        self, me: SessionView, replica: ReplicaView, now: int, cluster: ClusterView
    ) -> float:
        """Until room comes free: what is lacking over the rate at which ended sessions gave KV
        back there."""
        freed = self.room.freed_per_s(replica.id, now)
        lacking = self._with(replica, me, now, cluster, False) - self.room.capacity(replica)
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
        at_home = session.last_replica == target.id and self.room.alive(session.id, target, cluster)
        gain = self.config.prefill_gain if at_home else 0.0
        uncached = partial(self._uncached, turn, cluster=cluster)
        leg = self.costs.prefiller(target, cluster, uncached, gain)
        at = leg or target
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, at.id)
        if session.last_replica not in (None, target.id):
            self._counts["moved"] += 1
            self._lacked[turn.id] = lacks
        self.room.touched(session.id, target.id, turn.prompt.tokens)
        if leg is not None:
            self.room.touched(session.id, leg.id, turn.prompt.tokens)
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
        for session in sorted(pool, key=lambda one: self._order(one, now, cluster)):
            target = self._place(session, now, cluster)
            if target is None:
                self._keep_room(session, now, cluster)
                patience -= 1
                if not patience or len(self._kept_for) == replicas:
                    return
                continue
            for turn in list(session.waiting):
                yield self._route(session, turn, target, now, cluster, "let in")

    def _order(self, me: SessionView, now: int, cluster: ClusterView) -> tuple[int, bool, Rank]:
        """Aged ones first, then those that have KV to lose by waiting, then by rank."""
        rank, before = self._rank(me, now), by_id(serving(cluster), me.last_replica)
        gone = before is None or not self.room.alive(me.id, before, cluster)
        return rank[0], gone and self.config.there_first, rank

    def _place(self, me: SessionView, now: int, cluster: ClusterView) -> ReplicaView | None:
        """Where it was, if its KV is there and it fits; else, if it gains by it, elsewhere: the
        emptiest of those where it costs at most `rebalance_gain` more than at the cheapest."""
        before = by_id(serving(cluster), me.last_replica)
        everyone = self._rank(me, now)[0] != _AGED
        if before is not None and self.room.alive(me.id, before, cluster):
            if self._fits(me, before, now, cluster, everyone=everyone):
                return before
            return self._elsewhere(me, me.waiting[0], before, now, cluster)
        pool = serving(cluster)
        fitting = [r for r in pool if self._fits(me, r, now, cluster, everyone=everyone)]
        if self.config.use_costs and fitting:
            costs = [self._turn_s(me.waiting[0], replica, cluster) for replica in fitting]
            limit = min(costs) + self.config.rebalance_gain
            fitting = [r for r, cost in zip(fitting, costs, strict=True) if cost <= limit]

        def crowding(replica: ReplicaView) -> tuple[float, int]:
            used = self._with(replica, me, now, cluster, everyone=True)
            return used / self.room.capacity(replica), replica.in_flight

        return min(fitting, key=crowding, default=None)

    def _keep_room(self, me: SessionView, now: int, cluster: ClusterView) -> None:
        """Where its KV is, or most is free, room goes to nobody behind it in the queue."""
        open_ones = [r for r in serving(cluster) if r.id not in self._kept_for]
        target = by_id(serving(cluster), me.last_replica)
        if target is None or not self.room.alive(me.id, target, cluster):
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
