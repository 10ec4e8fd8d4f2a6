"""Headroom: a session runs to its end on one replica, and everything is weighed in seconds.

    rank     young sessions (less than a quarter of a usual session's turns done) in order of
             arrival, then the others, most turns done first; an aged turn goes before all of them
    fits     a turn runs on a replica if its own context, those of sessions of higher rank there,
             those of all running turns and what is kept free for an aged turn fit into the KV
    acting   sessions in a tool call count in full, or by the probability that they are back before
             giving their room away pays (`use_readiness`): within the usual wait for room, plus the
             seconds of computing their KV again x (1 + turns that it would stall)
    turn     home if it fits and no other replica is cheaper; what does not fit moves, if computing
             the KV again elsewhere costs fewer seconds than the wait for room, or waits
    cost     (queued + uncached) / rate + uncached / rate x turns stalled + output x slope x turns
    queue    strictly by rank: nobody of lower rank is let in while a higher one waits for room

Nobody is paused in the background: a session loses its place only when a turn of it arrives and
does not fit. Rates, slope, outputs, tool times and what a shared store saves are all learned from
the turns themselves.

Starvation is bounded by the order: once a turn is aged, its room is kept free on one replica, so it
waits at most for the turns running there and for aged ones before it.
"""

from __future__ import annotations

from bisect import bisect_right, insort
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from schedulers import events as ev
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Pause, Route, WakeAt
from schedulers.pools import by_id, prefillers, serving
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView, SessionView

Rank = tuple[int, int, int, str]
_AGED, _YOUNG, _OLD = 0, 1, 2


@dataclass(frozen=True, slots=True)
class HeadroomConfig:
    """All defaults are our choice, found on seeds 100 and up of the workloads that ship."""

    young_turns: int = 10
    "At most so many turns does every session get early, so that short ones are soon done; 0: none."
    young_share: float = 0.25
    "And at most this share of the mean turns of the sessions that have ended."
    fill: float = 1.0
    "Share of KV up to which a session without KV anywhere is let in."
    move_fill: float = 0.95
    "The same where a session moves to a replica that does not have its KV."
    margin_tokens: int = 256
    "Kept for the output of each turn."
    aging_s: float = 1200.0
    "A turn that waited this long goes before all others, and room is kept for it."
    use_readiness: bool = False
    """Acting sessions count by their probability to be back in time; False: in full. Off, since it
    lost on the design seeds: a forecast that is right on average still lets in too many at once."""
    use_costs: bool = True
    "Moves are weighed in seconds; False: a turn that does not fit at home moves where it fits."
    rebalance: bool = True
    "A turn that fits at home may still move where it is cheaper."
    rebalance_gain: float = 1.0
    "Seconds that such a move must save."
    rank_by_turns: bool = True
    "Old sessions by turns done; False: by arrival."
    rate_tokens_per_s: float = 8000.0
    "Prefill rate of a replica before any was measured."
    tool_history: int = 256
    "Durations kept for each tool."

    def __post_init__(self) -> None:
        if not (0 < self.fill <= 1.5 and 0 < self.move_fill <= 1.5):
            raise ValueError("fill and move_fill must be above 0 and at most 1.5")
        if min(self.young_turns, self.young_share, self.margin_tokens) < 0 or self.aging_s <= 0:
            raise ValueError(
                "young_turns, young_share and margin_tokens must not be negative, aging_s positive"
            )
        if self.rate_tokens_per_s <= 0 or self.tool_history < 1:
            raise ValueError("rate_tokens_per_s and tool_history must be positive")


class ToolTimes:
    """How long each tool took, and with what probability one that still runs ends soon."""

    def __init__(self, kept: int) -> None:
        self._kept = kept
        self._order: dict[str, deque[int]] = {}
        self._sorted: dict[str, list[int]] = {}
        self.forecasts = 0
        self.error = 0.0
        """Sum of squared errors of the forecasts that were kept (Brier)."""

    def add(self, tool: str, duration: int) -> None:
        order = self._order.setdefault(tool, deque())
        ordered = self._sorted.setdefault(tool, [])
        order.append(duration)
        insort(ordered, duration)
        if len(order) > self._kept:
            ordered.pop(bisect_right(ordered, order.popleft()) - 1)

    def back_within(self, tool: str, elapsed: int, ahead: int) -> float:
        """P(T <= elapsed + ahead | T > elapsed), with one success and one failure added."""
        ordered = self._sorted.get(tool, ())
        gone = bisect_right(ordered, elapsed)
        soon = bisect_right(ordered, elapsed + ahead) - gone
        return (soon + 1) / (len(ordered) - gone + 2)

    def judge(self, probability: float, came: bool) -> None:
        self.forecasts += 1
        self.error += (probability - came) ** 2


class Line:
    """Least squares of y on x, fading with a window of `keep` samples."""

    def __init__(self, keep: int = 512) -> None:
        self._fade = 1 - 1 / keep
        self.n = self.x = self.y = self.xx = self.xy = 0.0

    def add(self, x: float, y: float) -> None:
        for name, value in (("n", 1.0), ("x", x), ("y", y), ("xx", x * x), ("xy", x * y)):
            setattr(self, name, getattr(self, name) * self._fade + value)

    @property
    def slope(self) -> float:
        """Never negative; 0 until x has varied."""
        spread = self.n * self.xx - self.x * self.x
        if self.n < 8 or spread <= 1e-9 * max(1.0, self.xx):
            return 0.0
        return max(0.0, (self.n * self.xy - self.x * self.y) / spread)


@dataclass(slots=True)
class Sent:
    """A dispatch on its way."""

    at: int
    prefiller: str
    uncached: int
    ahead: int
    """Prefill tokens queued before it."""
    alongside: int
    """Turns in flight at the decoder then."""
    first_token: int | None = None


class Costs:
    """What turns cost, in seconds, as far as turns have shown it."""

    def __init__(self, config: HeadroomConfig) -> None:
        self._default = config.rate_tokens_per_s
        self._rates: dict[str, float] = {}
        self._decode: dict[str, Line] = {}
        self.output = 200.0
        """Mean output tokens of a turn; the first value is a guess that soon fades."""
        self.store_share = 0.0
        """Share of what a moved turn lacked that it found cached all the same: a shared store."""
        self._sent: dict[str, Sent] = {}

    def rate(self, replica: str) -> float:
        """Prefill tokens a second."""
        return self._rates.get(replica, self._default)

    def prefill_s(self, tokens: float, replica: str) -> float:
        return tokens / self.rate(replica)

    def turn_s(self, uncached: float, replica: ReplicaView, own: bool) -> float:
        """Seconds of a turn on a replica, and of the turns that it makes wait there.

        Args:
            own: one of the turns in flight there is the turn itself.
        """
        others = replica.in_flight - own
        prefill = self.prefill_s(uncached, replica.id)
        queued = self.prefill_s(replica.queued_prefill_tokens, replica.id)
        line = self._decode.get(replica.id)
        slope = line.slope if line is not None else 0.0
        return queued + prefill * (1 + others) + self.output * slope * others

    def sent(self, turn: str, sent: Sent) -> None:
        self._sent[turn] = sent

    def first_token(self, turn: str, now: int) -> None:
        sent = self._sent.get(turn)
        if sent is None or sent.first_token is not None:
            return
        sent.first_token = now
        seconds, tokens = (now - sent.at) / NS, sent.uncached + sent.ahead
        if tokens >= 1024 and seconds > 0:
            before = self._rates.get(sent.prefiller, tokens / seconds)
            self._rates[sent.prefiller] = 0.9 * before + 0.1 * tokens / seconds

    def finished(self, event: ev.TurnFinished, moved_without: int | None) -> None:
        sent = self._sent.pop(event.turn_id, None)
        output = event.usage.output
        self.output += 0.02 * (output - self.output)
        if sent is not None and sent.first_token is not None and output > 1:
            line = self._decode.setdefault(event.replica, Line())
            line.add(sent.alongside, (event.now - sent.first_token) / NS / (output - 1))
        if moved_without and event.usage.cached is not None:
            known = event.usage.prompt - moved_without
            share = min(1.0, max(0.0, (event.usage.cached - known) / moved_without))
            self.store_share += 0.1 * (share - self.store_share)

    def dropped(self, turn: str) -> None:
        self._sent.pop(turn, None)


class Headroom(AdmissionScheduler):
    name = "headroom"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, turns done, cached prefix, first tokens, tool times, capacity",
        holds=True,
        fidelity="inferred",
        reference="our own; docs/headroom.md",
    )
    Config = HeadroomConfig
    config: HeadroomConfig

    def __init__(self, config: HeadroomConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.costs = Costs(self.config)
        self.tools = ToolTimes(self.config.tool_history)
        self._lacked: dict[str, int] = {}
        """Turn that moved -> prompt tokens that its new replica was not known to have."""
        self._tool_start: dict[str, tuple[str, int, float, int]] = {}
        """Session -> (tool, start, forecast, its deadline)."""
        self._kept_for: tuple[str, str, int] | None = None
        """(aged session, replica, tokens kept free for it there)."""
        self._usual_wait_s = 0.0
        """Recent mean of how long turns of sessions without a place waited."""
        self._ended = self._ended_turns = 0
        self._freed: deque[tuple[int, str, int]] = deque()
        self._next_tick: int | None = None
        self._counts = dict.fromkeys(("held", "moved", "rebalanced", "aged"), 0)

    def counters(self) -> dict[str, float]:
        found = {name: float(count) for name, count in self._counts.items()}
        if self.tools.forecasts:
            found["forecasts"] = float(self.tools.forecasts)
            found["forecast_brier"] = self.tools.error / self.tools.forecasts
        return found

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterator[Command]:
        now = event.now
        match event:
            case ev.TurnArrived(_, turn):
                self._tool_ended(turn.session, now)
                yield from self._arrived(turn, now, cluster)
            case ev.DispatchFailed(_, turn):
                self.costs.dropped(turn.id)
                yield from self._arrived(turn, now, cluster)
            case ev.FirstToken(_, _, turn_id):
                self.costs.first_token(turn_id, now)
            case ev.TurnFinished(_, _, turn_id):
                self.costs.finished(event, self._lacked.pop(turn_id, None))
            case ev.TurnFailed(_, _, turn_id) | ev.ClientGone(_, _, turn_id):
                self.costs.dropped(turn_id)
                self._lacked.pop(turn_id, None)
            case ev.ToolStarted(_, session, tools):
                self._tool_started(session, "+".join(sorted(t.name for t in tools)), now, cluster)
            case ev.SessionClosed(_, name):
                self._closed(name, now, cluster)
                yield WakeAt(now)  # the view still shows the session: look right after this event
                return
        if self._next_tick is None and cluster.waiting:
            self._next_tick = now + NS
            yield WakeAt(self._next_tick)
        elif self._next_tick is not None and now >= self._next_tick:
            self._next_tick = None
        if not isinstance(event, (ev.FirstToken, ev.ReplicaSampled, ev.TurnArrived)):
            yield from self._let_in(now, cluster)

    # Rank and room.

    def _rank(self, session: SessionView, now: int) -> Rank:
        since = session.waiting_since
        if since is not None and now - since >= self.config.aging_s * NS:
            return _AGED, since, 0, session.id
        if session.turns_finished < self._young_turns():
            return _YOUNG, 0, session.arrived_at, session.id
        turns = session.turns_finished if self.config.rank_by_turns else 0
        return _OLD, -turns, session.arrived_at, session.id

    def _young_turns(self) -> float:
        if not self._ended:
            return self.config.young_turns
        usual = self.config.young_share * self._ended_turns / self._ended
        return min(self.config.young_turns, usual)

    def _used(
        self, replica: ReplicaView, me: SessionView, now: int, cluster: ClusterView, everyone: bool
    ) -> float:
        """Tokens on the replica that a session must leave alone: those that run, and those of
        higher rank (or of everyone); acting ones by their probability to be back in time."""
        rank, used = self._rank(me, now), 0.0
        for name in replica.sessions:
            session = cluster.sessions[name]
            if name == me.id:
                continue
            if session.in_flight or session.waiting:
                used += cluster.tokens(name) + self.config.margin_tokens
            elif everyone or self._rank(session, now) < rank:
                used += session.tokens * self._weight(session, replica, now)
        kept = self._kept_for
        if kept is not None and kept[1] == replica.id and kept[0] != me.id:
            used += kept[2]
        return used

    def _worth_s(self, tokens: int, replica: ReplicaView) -> float:
        """Seconds that KV on a replica saves: its prefill, and what that would stall."""
        return self.costs.prefill_s(tokens, replica.id) * (1 + replica.in_flight)

    def _horizon(self, tokens: int, replica: ReplicaView) -> int:
        """Nanoseconds within which a session must be back for its room to be worth keeping."""
        return round((self._usual_wait_s + self._worth_s(tokens, replica)) * NS)

    def _weight(self, session: SessionView, replica: ReplicaView, now: int) -> float:
        started = self._tool_start.get(session.id)
        if not self.config.use_readiness or started is None:
            return 1.0
        tool, at, _, _ = started
        ahead = self._horizon(session.tokens, replica)
        return self.tools.back_within(tool, now - at, ahead)

    def _fits(
        self,
        me: SessionView,
        replica: ReplicaView,
        fill: float,
        now: int,
        cluster: ClusterView,
        everyone: bool = False,
    ) -> bool:
        if replica.capacity_tokens is None:
            return True
        used = self._used(replica, me, now, cluster, everyone)
        need = cluster.tokens(me.id) + self.config.margin_tokens
        return used + need <= fill * replica.capacity_tokens or used == 0

    # Turns.

    def _arrived(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        session = cluster.sessions[turn.session]
        home = by_id(serving(cluster), session.home)
        if home is None:
            yield Hold(turn.id, why="no place yet")
            yield from self._let_in(now, cluster)
            return
        if self._fits(session, home, 1.0, now, cluster):
            target = self._cheaper(session, turn, home, now, cluster) or home
            yield self._route(session, turn, target, now, cluster, "has a place")
            return
        target_ = self._elsewhere(session, turn, home, now, cluster)
        if target_ is not None:
            yield self._route(session, turn, target_, now, cluster, "no room at home, cheaper")
            return
        yield Hold(turn.id, why="no room beside sessions of higher rank")
        if not session.in_flight:
            yield Pause(session.id, why="waits for room")

    def _uncached(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        """Tokens to compute there; a shared store is believed to have what it had for others."""
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, replica.id)
        if cluster.evidence(turn.session, replica.id) is not None:
            return lacks
        return lacks * (1 - self.costs.store_share)

    def _turn_s(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        return self.costs.turn_s(self._uncached(turn, replica, cluster), replica, own=False)

    def _cheaper(
        self, me: SessionView, turn: Turn, home: ReplicaView, now: int, cluster: ClusterView
    ) -> ReplicaView | None:
        """Where the turn costs fewer seconds than at home by more than `rebalance_gain`."""
        if not self.config.rebalance or not self.config.use_costs:
            return None
        limit = self._turn_s(turn, home, cluster) - self.config.rebalance_gain
        best = None
        for replica in serving(cluster):
            if replica.id == home.id or replica.in_flight >= home.in_flight:
                continue
            cost = self._turn_s(turn, replica, cluster)
            if cost < limit and self._fits(
                me, replica, self.config.move_fill, now, cluster, everyone=True
            ):
                best, limit = replica, cost
        if best is not None:
            self._counts["rebalanced"] += 1
        return best

    def _elsewhere(
        self, me: SessionView, turn: Turn, home: ReplicaView, now: int, cluster: ClusterView
    ) -> ReplicaView | None:
        """The cheapest other replica with room, if going there costs less than waiting here."""
        fitting = [
            r
            for r in serving(cluster)
            if r.id != home.id
            and self._fits(me, r, self.config.move_fill, now, cluster, everyone=True)
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

    def _wait_s(
        self, me: SessionView, replica: ReplicaView, now: int, cluster: ClusterView
    ) -> float:
        """Until room comes free: what is lacking over the rate at which sessions that ended left
        KV there in the last ten minutes."""
        window = 600 * NS
        while self._freed and self._freed[0][0] < now - window:
            self._freed.popleft()
        freed = sum(tokens for _, name, tokens in self._freed if name == replica.id)
        used = self._used(replica, me, now, cluster, everyone=False)
        lacking = used + cluster.tokens(me.id) - (replica.capacity_tokens or 0)
        span = min(window, max(now, NS)) / NS
        return float("inf") if not freed else max(0.0, lacking) * span / freed

    def _route(
        self,
        session: SessionView,
        turn: Turn,
        target: ReplicaView,
        now: int,
        cluster: ClusterView,
        why: str,
    ) -> Route:
        prefiller = self._prefiller(turn, target, cluster)
        self._note(session, turn, target, prefiller or target, now, cluster)
        return Route(turn.id, target.id, prefiller.id if prefiller else None, why=why)

    def _prefiller(
        self, turn: Turn, decoder: ReplicaView, cluster: ClusterView
    ) -> ReplicaView | None:
        """A prefill replica, where that is cheaper than stalling the decoder."""
        uncached = self._uncached(turn, decoder, cluster)
        here = self._worth_s(round(uncached), decoder)
        here += self.costs.prefill_s(decoder.queued_prefill_tokens, decoder.id)
        best, least = None, here
        for replica in prefillers(cluster):
            lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, replica.id)
            cost = self.costs.prefill_s(lacks + replica.queued_prefill_tokens, replica.id)
            if cost < least:
                best, least = replica, cost
        return best

    def _note(
        self,
        session: SessionView,
        turn: Turn,
        target: ReplicaView,
        prefiller: ReplicaView,
        now: int,
        cluster: ClusterView,
    ) -> None:
        lacks = turn.prompt.tokens - cluster.cached_tokens(turn.prompt, prefiller.id)
        if session.last_replica not in (None, target.id):
            self._counts["moved"] += 1
            self._lacked[turn.id] = lacks
        self.costs.sent(
            turn.id,
            Sent(now, prefiller.id, lacks, prefiller.queued_prefill_tokens, target.in_flight),
        )

    # The queue.

    def _let_in(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Those without a place, strictly by rank, until one does not fit anywhere."""
        if not cluster.waiting:
            self._kept_for = None
            return
        # One that has a home waits too, if the turn came while another of its turns was running.
        pool = [s for s in cluster.sessions.values() if s.waiting and not s.in_flight]
        self._kept_for = None
        for session in sorted(pool, key=lambda one: self._rank(one, now)):
            target = self._place(session, now, cluster)
            if target is None:
                self._keep_room(session, now, cluster)
                return
            turns, since = list(session.waiting), session.waiting_since
            if since is not None and session.turns_finished:
                self._usual_wait_s += 0.1 * ((now - since) / NS - self._usual_wait_s)
            for turn in turns[:-1]:
                yield self._route(session, turn, target, now, cluster, "let in")
            yield self._route(session, turns[-1], target, now, cluster, "let in")

    def _place(self, me: SessionView, now: int, cluster: ClusterView) -> ReplicaView | None:
        """Where it was, if it fits there; else, for a session with KV nowhere else, or one that
        gains by it, the emptiest replica with room."""
        before = by_id(serving(cluster), me.last_replica)
        if before is not None and self._fits(me, before, 1.0, now, cluster):
            return before
        turn = me.waiting[0]
        if before is not None and self.config.use_costs:
            return self._elsewhere(me, turn, before, now, cluster)
        fill = self.config.fill if me.turns_finished == 0 else self.config.move_fill
        fitting = [r for r in serving(cluster) if self._fits(me, r, fill, now, cluster, True)]

        def crowding(replica: ReplicaView) -> tuple[float, int]:
            capacity = replica.capacity_tokens
            used = self._used(replica, me, now, cluster, everyone=True)
            return (used / capacity if capacity else float(replica.in_flight)), replica.in_flight

        return min(fitting, key=crowding, default=None)

    def _keep_room(self, me: SessionView, now: int, cluster: ClusterView) -> None:
        """For the aged session at the head of the queue: its room on one replica fills up only by
        itself from now on."""
        if self._rank(me, now)[0] != _AGED:
            return
        replicas = serving(cluster)
        target = by_id(replicas, me.last_replica)
        if target is None and replicas:
            target = min(replicas, key=lambda r: self._used(r, me, now, cluster, False))
        if target is not None:
            self._counts["aged"] += 1
            self._kept_for = me.id, target.id, cluster.tokens(me.id) + self.config.margin_tokens

    # Tools and ends.

    def _tool_started(self, session: str, tool: str, now: int, cluster: ClusterView) -> None:
        home = cluster.sessions[session].home
        ahead = 0
        if home is not None:
            ahead = self._horizon(cluster.sessions[session].tokens, cluster.replica(home))
        self._tool_start[session] = tool, now, self.tools.back_within(tool, 0, ahead), now + ahead

    def _tool_ended(self, session: str, now: int) -> None:
        started = self._tool_start.pop(session, None)
        if started is not None:
            tool, at, forecast, deadline = started
            self.tools.judge(forecast, now <= deadline)
            self.tools.add(tool, now - at)

    def _closed(self, name: str, now: int, cluster: ClusterView) -> None:
        self._tool_start.pop(name, None)
        session = cluster.sessions[name]
        self._ended += 1
        self._ended_turns += session.turns_finished
        if session.last_replica is not None:
            self._freed.append((now, session.last_replica, session.tokens))
