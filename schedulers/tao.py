"""TAO: sessions without a place are admitted and placed jointly, by value.

    value of session s on replica n, compared left to right, larger is better:
        cache credit   tokens known to be on n, halved every 10 s
        readiness      1 if a turn waits or its tools end within 1 s (readiness.py)
        footprint      tokens of context
    plan     maximise the sum of values over all placements, within each replica's room
             (tao_plan.py, tao_solver.py), solved off the event loop on a frozen snapshot
    apply    the longest prefix of the plan, most valuable first, that still fits; a plan that
             was late is replaced by the short-first plan, one that is out of date discarded
    pause    every 5 s, on replicas over capacity, the least valuable acting session first, then
             reasoning ones are marked, to be paused when their turn ends

Source: a summary of the paper; no code or text of it was available. What the summary leaves open
is a setting (tao_config.py). docs/tao.md has the whole reading.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from random import Random

from schedulers import events as ev
from schedulers import tao_view as view
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Pause, Resume, Route, Solve, WakeAt
from schedulers.pools import serving, serving_pool
from schedulers.readiness import ReadinessPredictor
from schedulers.short_first import BUFFER_TOKENS, Queued, short_first_plan
from schedulers.tao_config import TaoConfig
from schedulers.tao_outcomes import Outcomes
from schedulers.tao_plan import Plan, Snapshot, make_plan
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView, SessionView


class Outstanding:
    """The one solve that may be under way."""

    __slots__ = ("deadline", "overdue", "snapshot", "solve_id", "started_at")

    def __init__(self, solve_id: int, snapshot: Snapshot, deadline: int) -> None:
        self.solve_id, self.snapshot, self.deadline = solve_id, snapshot, deadline
        self.started_at = snapshot.now
        self.overdue = False


class Tao(AdmissionScheduler):
    name = "tao"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, cache evidence, tool timing, capacity",
        holds=True,
        fidelity="summary only",
        reference="TAO (paper summary); open choices are settings, see docs/tao.md",
    )
    Config = TaoConfig
    config: TaoConfig

    def __init__(self, config: TaoConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.predictor = ReadinessPredictor(self.config)
        self.outcomes = Outcomes()
        self._counts = self.outcomes.counts
        self._queued_tokens: dict[str, int] = {}
        self._epochs: dict[str, int] = {}
        self._marked: dict[str, None] = {}
        self._outstanding: Outstanding | None = None
        self._solve_count = 0
        self._next_tick: int | None = None
        self._last_opportunity: int | None = None
        self._wake_at: int | None = None
        self._wanted = False
        """An opportunity waits for its time, or for the outstanding solve."""

    def counters(self) -> dict[str, float]:
        return self.outcomes.report(self.predictor.log)

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterator[Command]:
        now = event.now
        if cluster.sessions:
            yield from self._start_ticking(now)
        match event:
            case ev.TurnArrived(_, turn):
                yield from self._arrived(turn, now, cluster)
            case ev.DispatchFailed(_, turn):
                yield from self._place_or_hold(turn, now, cluster)
            case ev.TurnFinished(_, session) | ev.TurnFailed(_, session):
                yield from self._turn_ended(session, now, cluster)
            case ev.ClientGone(_, session):
                yield from self._turn_ended(session, now, cluster)
                self._wanted = True
            case ev.ToolStarted(_, session, tools):
                self._new_epoch(session)
                self.predictor.started(session, tools, now)
            case ev.ToolHint(_, session, eta_s):
                self.predictor.hint(session, eta_s, now)
            case ev.SessionClosed(_, session):
                self._forget(session)
                yield WakeAt(now)  # the view still shows the session: plan right after this event
                return
            case ev.ReplicaLost() | ev.ReplicaRecovered():
                self._marked = {s: None for s in self._marked if _has_place(s, cluster)}
                self._wanted = True
            case ev.PlanReady(_, solve_id, plan):
                yield from self._plan_ready(solve_id, plan, now, cluster)
            case ev.Timer():
                yield from self._timer(now, cluster)
        yield from self._plan_if_wanted(now, cluster)

    # Turns and sessions.

    def _arrived(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        self._new_epoch(turn.session)
        self.predictor.completed(turn.session, now)
        yield from self._place_or_hold(turn, now, cluster)

    def _place_or_hold(self, turn: Turn, now: int, cluster: ClusterView) -> Iterator[Command]:
        session = cluster.sessions[turn.session]
        home = serving_pool(cluster).get(session.home)
        if home is not None:
            yield Route(turn.id, home.id, why="has a place")
            return
        target = self._direct(turn, now, cluster)
        if target is not None:
            self._counts["routed_directly"] += 1
            self._queued_tokens.pop(turn.session, None)
            yield Resume(turn.session, target.id, why="nobody else waits and it fits")
            return
        known = session.turns_finished > 0
        yield Hold(turn.id, why="session is paused" if known else "new session waits for a plan")
        self._queued_tokens.setdefault(turn.session, cluster.tokens(turn.session))
        self._wanted = True

    def _direct(self, turn: Turn, now: int, cluster: ClusterView) -> ReplicaView | None:
        """Where the objective puts a session that is the only candidate, if it fits."""
        session = cluster.sessions[turn.session]
        if not self.config.direct:
            return None
        if not view.is_only_candidate(session.id, cluster, now, self.config):
            return None
        need = cluster.tokens(session.id) + BUFFER_TOKENS
        pool = serving_pool(cluster)
        credits = {}
        if not self._short_first:
            credits = view.credits(session.id, pool, now, cluster, self.config)
        best: tuple[int, int, int] | None = None
        # By the most room that each can have: who cannot beat the best is not looked at.
        for most, position in view.most_rooms(pool, cluster, self.config):
            credit = credits.get(position, 0)
            least = need if best is None or credit > best[0] else max(need, best[1])
            if (best is not None and credit < best[0]) or most < least:
                continue
            room = view.room(pool.members[position], cluster, self.config, now)
            value = (credit, room if self.config.spread_ties else 0, -position)
            if need <= room and (best is None or value > best):
                best = value
        return None if best is None else pool.members[-best[2]]

    @property
    def _short_first(self) -> bool:
        return self.config.planner == "short-first"

    def _turn_ended(self, name: str, now: int, cluster: ClusterView) -> Iterator[Command]:
        session = cluster.sessions[name]
        if name in self._marked and session.phase == "acting":
            del self._marked[name]
            yield from self._pause(name, cluster, "its turn ended and it was marked")
        if self.config.acting_weight < 1 or self.config.acting_half_life_s > 0:
            self._wanted = True  # an acting session counts for less: there is more room

    def _pause(self, name: str, cluster: ClusterView, why: str) -> Iterator[Command]:
        self._queued_tokens[name] = cluster.tokens(name)
        self._counts["paused"] += 1
        self._wanted = True
        yield Pause(name, why=why)

    def _new_epoch(self, session: str) -> None:
        self._epochs[session] = self._epochs.get(session, 0) + 1

    def _forget(self, session: str) -> None:
        self.predictor.forget(session)
        self._queued_tokens.pop(session, None)
        self._epochs.pop(session, None)
        self._marked.pop(session, None)
        self._wanted = True

    # Time.

    def _start_ticking(self, now: int) -> Iterator[Command]:
        if self._next_tick is None:
            self._next_tick = now + round(self.config.tick_s * NS)
            yield WakeAt(self._next_tick)

    def _timer(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        outstanding = self._outstanding
        if outstanding is not None and now > outstanding.deadline and not outstanding.overdue:
            outstanding.overdue = True
            self._counts["timeouts"] += 1
            yield from self._apply_short_first(now, cluster)
        if self._next_tick is not None and now >= self._next_tick:
            self._next_tick = None
            yield from self._tick(now, cluster)
            if cluster.sessions:
                yield from self._start_ticking(now)

    def _tick(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        yield from self._force(now, cluster)
        yield from self._expire(now, cluster)
        for replica in serving(cluster):
            yield from self._make_room(replica, now, cluster)
        self._wanted = True

    def _force(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Sessions whose turn waited too long: to where they were, else to the emptiest."""
        pool = serving_pool(cluster)
        replicas = pool.members
        limit = round(self.config.forced_after_s * NS)
        oldest = next(iter(cluster.waiting.values()), None)
        if oldest is None:
            return
        for session in list(cluster.sessions.values()):
            since = session.waiting_since
            if since is None or now - since < limit or session.in_flight or not replicas:
                continue
            target = pool.get(session.last_replica)
            if target is None:
                target = min(replicas, key=lambda replica: len(list(replica.sessions)))
            self._counts["forced"] += 1
            self._queued_tokens.pop(session.id, None)
            yield Resume(session.id, target.id, why="waited too long")

    def _expire(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        if self.config.idle_ttl_s == 0:
            return
        limit = round(self.config.idle_ttl_s * NS)
        for session in list(cluster.sessions.values()):
            idle_since = session.idle_since
            if session.home is not None and idle_since is not None and now - idle_since >= limit:
                self._counts["expired"] += 1
                yield from self._pause(session.id, cluster, "idle too long")

    def _make_room(self, replica: ReplicaView, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Pause acting sessions until the replica is within capacity; if that is not enough,
        mark reasoning ones until it will be when their turns end."""
        if view.room(replica, cluster, self.config) >= 0:
            return
        args = (replica, cluster, now, self.config, self.predictor)
        for session in view.pause_order(*args, acting=True):
            if view.room(replica, cluster, self.config) >= 0:
                return
            yield from self._pause(session.id, cluster, "replica is over capacity")
        room = view.room(replica, cluster, self.config)
        reasoning = list(view.pause_order(*args, acting=False))
        room += sum(_held(s.id, cluster) for s in reasoning if s.id in self._marked)
        for session in reasoning:
            if room >= 0:
                return
            if session.id not in self._marked:
                self._marked[session.id] = None
                self._counts["marked"] += 1
                room += _held(session.id, cluster)

    # Planning.

    def _plan_if_wanted(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """Take the opportunity, unless the last was a moment ago or a solve is under way."""
        if not self._wanted:
            return
        outstanding = self._outstanding
        if outstanding is not None and outstanding.overdue:
            if now - outstanding.started_at > round(self.config.lost_plan_s * NS):
                self._counts["lost_plans"] += 1
                self._outstanding = outstanding = None
        elif outstanding is not None:
            return
        if self._last_opportunity is not None:
            next_at = self._last_opportunity + round(self.config.min_replan_ms * NS / 1000)
            if now < next_at:
                if self._wake_at != next_at:
                    self._wake_at = next_at
                    yield WakeAt(next_at)
                return
        self._wanted = False
        pool = view.candidates(cluster, now, self.config)
        if not pool:
            return
        self._last_opportunity = now
        self._counts["opportunities"] += 1
        least = min(cluster.tokens(one.id) for one in pool) + BUFFER_TOKENS
        room_left: tuple[int, ...] = ()
        if least <= view.most_room(cluster, self.config):
            room_left = view.rooms(cluster, now, self.config)
        if least > max(room_left, default=0):
            self._counts["opportunities_without_room"] += 1
        elif self._short_first or outstanding is not None:
            yield from self._apply_short_first(now, cluster)
        else:
            yield from self._ask(self._freeze(now, cluster, pool, room_left))

    def _freeze(
        self,
        now: int,
        cluster: ClusterView,
        pool: Sequence[SessionView] | None = None,
        room_left: tuple[int, ...] | None = None,
    ) -> Snapshot:
        return view.snapshot(
            cluster,
            now,
            self.config,
            self.predictor,
            self._queued_tokens,
            self._epochs,
            pool,
            room_left,
        )

    def _ask(self, frozen: Snapshot) -> Iterator[Command]:
        self._solve_count += 1
        self._counts["solves"] += 1
        deadline = frozen.now + round(self.config.plan_budget_ms * NS / 1000)
        self._outstanding = Outstanding(self._solve_count, frozen, deadline)
        yield Solve(self._solve_count, frozen, make_plan)
        yield WakeAt(deadline + 1)  # a plan that comes at the deadline is in time

    def _plan_ready(
        self, solve_id: int, plan: Plan, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        outstanding = self._outstanding
        if outstanding is None or outstanding.solve_id != solve_id:
            self._counts["late_plans_dropped"] += 1
            return
        self._outstanding = None
        self.outcomes.add_plan(plan, len(outstanding.snapshot.candidates))
        if outstanding.overdue or now > outstanding.deadline:
            self._counts["late_plans_dropped"] += 1
            if not outstanding.overdue:  # the timer had no chance to say so first
                self._counts["timeouts"] += 1
                yield from self._apply_short_first(now, cluster)
            return
        yield from self._apply(plan, outstanding.snapshot, now, cluster)

    def _apply(
        self, plan: Plan, frozen: Snapshot, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        """Admit the longest prefix that still fits; discard a plan that is out of date."""
        if not plan.placements:
            self._counts["plans_empty"] += 1
            return
        self._counts["planned"] += len(plan.placements)
        self._counts["placements_filled"] += plan.filled
        candidates = {c.session: c for c in frozen.candidates}
        positions = {name: n for n, name in enumerate(frozen.replicas)}
        changed = {
            name
            for name, _ in plan.placements
            if self._changed(name, candidates[name].signature, now, cluster)
        }
        if changed and self.config.discard == "strict":
            self._counts["discarded_changed"] += 1
            self._wanted = True
            return
        self._counts["skipped_changed"] += len(changed)
        admitted = 0
        for name, target in plan.placements:
            if name in changed:
                continue
            replica = serving_pool(cluster).get(target)
            if replica is None or not self._fits(name, replica, now, cluster):
                break
            admitted += 1
            value = candidates[name].value(positions[target])
            yield from self._admit(name, target, f"planned: {view.in_words(value)}")
        self._counts["admitted"] += admitted
        if admitted == 0:
            self._counts["discarded_no_room"] += 1
            self._wanted = True
        else:
            self._counts["plans_applied"] += 1
            self._counts["plans_in_full"] += admitted == len(plan.placements)

    def _changed(
        self, name: str, signature: tuple[object, ...], now: int, cluster: ClusterView
    ) -> bool:
        session = cluster.sessions.get(name)
        return (
            session is None
            or not view.is_candidate(session, now, self.config)
            or view.signature(session, self._epochs.get(name, 0)) != signature
        )

    def _fits(self, name: str, replica: ReplicaView, now: int, cluster: ClusterView) -> bool:
        need = cluster.tokens(name) + BUFFER_TOKENS
        return need <= view.room(replica, cluster, self.config, now)

    def _admit(self, name: str, replica: str, why: str) -> Iterator[Command]:
        self._queued_tokens.pop(name, None)
        yield Resume(name, replica, why=why)

    def _apply_short_first(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        """ThunderAgent's plan on the cluster as it is now."""
        frozen = self._freeze(now, cluster)
        queued = [
            Queued(c.session, c.queue_class, c.queued_tokens, c.tokens) for c in frozen.candidates
        ]
        rooms = list(zip(frozen.replicas, frozen.room, strict=True))
        for placement in short_first_plan(queued, rooms):
            self._counts["admitted_by_short_first"] += 1
            yield from self._admit(placement.session, placement.replica, "short-first plan")


def _has_place(name: str, cluster: ClusterView) -> bool:
    session = cluster.sessions.get(name)
    return session is not None and session.home is not None


def _held(name: str, cluster: ClusterView) -> int:
    """What a session's end gives back to its replica."""
    return cluster.tokens(name) + BUFFER_TOKENS
