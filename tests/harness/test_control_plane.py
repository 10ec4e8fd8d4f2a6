"""The control plane: records, checks, and what policies may see."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Iterable
from itertools import repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SchedulerError
from harness.control.ledger import ReplicaConfig
from harness.control.operations import Cancel, Dispatch, Operation, Refuse
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from results.records import DecisionRecord
from schedulers import events as ev
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Abort, Command, Hold, Pause, Reject, Resume, Route, Solve, WakeAt
from schedulers.types import Evidence, PromptRef, PromptRun, ToolSignal, Turn, Usage
from schedulers.views import ClusterView, KeptClusterView

INFO = SchedulerInfo("test", "nothing", True, "inferred", "none")
Decide = Callable[[ev.Event, ClusterView], Iterable[Command]]


class Scripted(AdmissionScheduler):
    name = "scripted"
    info = INFO

    def __init__(self, decide: Decide) -> None:
        super().__init__()
        self.decide = decide

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        return self.decide(event, cluster)


def turn(session: str, index: int = 0, tokens: int = 100, shared: int = 0) -> Turn:
    runs = [PromptRun("tools", shared, shared * 4)] if shared else []
    runs.append(PromptRun(f"{session}#0", tokens, tokens * 4))
    return Turn(f"{session}/{index}", session, index, PromptRef(tuple(runs), index))


def plane_with(decide: Decide, log: list[DecisionRecord] | None = None) -> ControlPlane:
    replicas = [
        ReplicaConfig("r0", "mixed", Capacity(1000, share=0.5)),
        ReplicaConfig("r1", "mixed", Capacity(None)),
    ]
    return ControlPlane(
        Scripted(decide),
        replicas,
        lambda _attempt, _now: 7,
        log.append if log is not None else None,
    )


def route_to(replica: str) -> Decide:
    def decide(event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, (ev.TurnArrived, ev.DispatchFailed)):
            yield Route(event.turn.id, replica)

    return decide


def hold_all(event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
    if isinstance(event, ev.TurnArrived):
        yield Hold(event.turn.id, why="full")


def test_a_turn_from_arrival_to_close() -> None:
    log: list[DecisionRecord] = []
    plane = plane_with(route_to("r0"), log)
    view = plane.ledger
    [operation] = plane.handle(ev.TurnArrived(5, turn("a", shared=50)))
    assert operation == Dispatch(1, turn("a", shared=50), "r0", None, {})
    session, replica = view.sessions["a"], view.replica("r0")
    assert (session.phase, session.home, session.in_flight) == ("reasoning", "r0", 1)
    assert list(replica.sessions) == ["a"]
    assert replica.capacity_tokens == 500  # half of the reported 1000
    assert view.replica("r1").capacity_tokens is None
    assert (replica.in_flight, replica.queued_prefill_tokens) == (1, 150)
    assert view.tokens("a") == 150 + 7  # prompt estimate + what the driver says was streamed

    plane.handle(ev.FirstToken(6, "a", "a/0", 1, "r0"))
    assert (replica.in_flight, replica.queued_prefill_tokens) == (1, 0)
    plane.handle(ev.TurnFinished(9, "a", "a/0", 1, "r0", Usage(150, 0, 30)))
    assert (session.phase, session.idle_since, session.tokens) == ("acting", 9, 180)
    assert view.evidence("a", "r0") == Evidence(180, 9)
    assert view.evidence("a", "r1") is None
    plane.handle(ev.ToolStarted(9, "a", (ToolSignal("bash"),)))
    assert session.tools == (ToolSignal("bash"),)

    # Another session shares the 50 tokens of tools; only its own 100 count as queued prefill.
    plane.handle(ev.TurnArrived(10, turn("b", shared=50)))
    assert replica.queued_prefill_tokens == 100
    assert view.cached_tokens(turn("c", shared=80).prompt, "r0") == 50
    assert view.cached_tokens(turn("c", shared=80).prompt, "r1") == 0

    plane.handle(ev.SessionClosed(11, "a", "finished"))
    assert "a" not in view.sessions
    assert list(replica.sessions) == ["b"]
    assert [(d.time, d.command, d.session) for d in log] == [(5, "route", "a"), (10, "route", "b")]


def test_hold_pause_resume() -> None:
    plane = plane_with(hold_all)
    view = plane.ledger
    assert plane.handle(ev.TurnArrived(1, turn("a"))) == []
    session = view.sessions["a"]
    assert (session.lifecycle, session.paused_at, session.waiting_since) == ("paused", 1, 1)

    def resume(event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        yield Resume("a", "r1", why="room")
        assert cluster.sessions["a"].lifecycle == "active"  # carried out before the next command
        yield Pause("a", why="changed my mind")

    plane.scheduler = Scripted(resume)
    [operation] = plane.handle(ev.Timer(4))
    assert isinstance(operation, Dispatch)
    assert operation.decode == "r1"
    # The running request goes on, the place is gone.
    assert (session.in_flight, session.home, session.lifecycle) == (1, None, "paused")
    assert (session.last_replica, list(view.replica("r1").sessions)) == ("r1", [])


def test_dispatch_failed_turn_needs_a_decision_again() -> None:
    plane = plane_with(route_to("r0"))
    plane.handle(ev.TurnArrived(0, turn("a")))
    plane.scheduler = Scripted(route_to("r1"))
    [operation] = plane.handle(ev.DispatchFailed(3, turn("a"), 1, "r0", "refused"))
    assert isinstance(operation, Dispatch)
    assert (operation.attempt, operation.decode) == (2, "r1")
    r0 = plane.ledger.replica("r0")
    assert (r0.in_flight, r0.queued_prefill_tokens, list(r0.sessions)) == (0, 0, [])


def test_two_legs_move_the_turn_from_prefill_to_decode_replica() -> None:
    def decide(event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, ev.TurnArrived):
            yield Route(event.turn.id, "r1", prefill="r0")

    plane = plane_with(decide)
    plane.handle(ev.TurnArrived(0, turn("a")))
    r0, r1 = plane.ledger.replica("r0"), plane.ledger.replica("r1")
    assert (r0.in_flight, r0.queued_prefill_tokens, r1.in_flight) == (1, 100, 0)
    plane.handle(ev.LegFinished(2, "a", "a/0", 1, "r0"))
    assert (r0.in_flight, r0.queued_prefill_tokens, r1.in_flight) == (0, 0, 1)
    assert r1.queued_prefill_tokens == 0
    plane.handle(ev.FirstToken(3, "a", "a/0", 1, "r1"))
    plane.handle(ev.TurnFinished(4, "a", "a/0", 1, "r1", Usage(100, 100, 5)))
    assert (r0.queued_prefill_tokens, r1.queued_prefill_tokens, r1.in_flight) == (0, 0, 0)


def test_lost_replica_pauses_its_sessions_and_drops_evidence() -> None:
    plane = plane_with(route_to("r0"))
    view = plane.ledger
    plane.handle(ev.TurnArrived(0, turn("a")))
    plane.handle(ev.TurnFinished(2, "a", "a/0", 1, "r0", Usage(100, None, 5)))
    plane.handle(ev.ReplicaLost(3, "r0", "fault"))
    assert (view.sessions["a"].home, view.sessions["a"].lifecycle) == (None, "paused")
    assert view.evidence("a", "r0") is None
    assert view.cached_tokens(turn("a").prompt, "r0") == 0
    with pytest.raises(SchedulerError, match="r0, which is lost"):
        plane.handle(ev.TurnArrived(4, turn("a", 1)))


def test_abort_and_reject() -> None:
    plane = plane_with(route_to("r0"))
    plane.handle(ev.TurnArrived(0, turn("a")))
    plane.scheduler = Scripted(lambda event, cluster: [Abort(1, "too slow")])
    assert plane.handle(ev.Timer(1)) == [Cancel(1, "too slow")]
    plane.scheduler = Scripted(lambda event, cluster: [Reject("b/0", "full", 2.0)])
    assert plane.handle(ev.TurnArrived(3, turn("b"))) == [Refuse(turn("b"), "full", 2.0)]
    assert plane.ledger.sessions["b"].phase == "acting"


BROKEN: list[tuple[str, Decide]] = [
    ("neither routed, held nor rejected", lambda event, cluster: []),
    ("unknown replica 'nowhere'", route_to("nowhere")),
    ("raised ZeroDivisionError", lambda event, cluster: [Hold("a/0")] if 1 // 0 else []),
    ("turn 'x' is not waiting", lambda event, cluster: [Hold("x")]),
    ("served already", lambda event, cluster: [Route("a/0", "r0"), Route("a/0", "r1")]),
    ("unknown session 'z'", lambda event, cluster: [Pause("z")]),
    ("paused already", lambda event, cluster: [Hold("a/0"), Pause("a")]),
    (
        "active and waits for nothing",
        lambda event, cluster: [Route("a/0", "r0"), Resume("a", "r0")],
    ),
    ("in the past", lambda event, cluster: [Hold("a/0"), WakeAt(3)]),
    ("cannot be aborted", lambda event, cluster: [Hold("a/0"), Abort(9)]),
    ("is not a command", lambda event, cluster: ["route it"]),  # type: ignore[list-item]
    ("annotation 'evil'", lambda event, cluster: [Route("a/0", "r0", None, {"evil": 1})]),
    (
        "annotation 'priority' is 'high'",
        lambda event, cluster: [Route("a/0", "r0", None, {"priority": "high"})],
    ),
    ("retry_after_s nan", lambda event, cluster: [Reject("a/0", "no", float("nan"))]),
    ("retry_after_s -1", lambda event, cluster: [Reject("a/0", "no", -1)]),
    ("woken at 4e+18", lambda event, cluster: [Hold("a/0"), WakeAt(4e18)]),  # type: ignore[arg-type]
    ("which is no text", lambda event, cluster: [Hold("a/0", why=b"x")]),  # type: ignore[arg-type]
    (
        "which is no function",
        lambda event, cluster: [Hold("a/0"), Solve(1, None, None)],  # type: ignore[arg-type]
    ),
    ("more than 100,000 commands", lambda event, cluster: repeat(Hold("a/0"))),
    ("raised SystemExit: 3", lambda event, cluster: sys.exit(3)),
    (
        "no attribute 'clear'",
        lambda event, cluster: cluster.waiting.clear(),  # type: ignore[attr-defined]
    ),
]


@pytest.mark.parametrize(("problem", "decide"), BROKEN, ids=[p for p, _ in BROKEN])
def test_broken_policies_fail_with_scheduler_event_and_time(problem: str, decide: Decide) -> None:
    plane = plane_with(decide)
    with pytest.raises(SchedulerError) as caught:
        plane.handle(ev.TurnArrived(4_000_000_000, turn("a")))
    message = str(caught.value)
    assert problem in message
    assert "`scripted` at 4.000000 s, on TurnArrived turn a/0" in message
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        ("replica r0", "capacity_tokens", 10**9),
        ("replica r0", "in_flight", 5),
        ("replica r1", "queued_prefill_tokens", -1),
        ("session b", "home", "r9"),
        ("session b", "lifecycle", "paused"),
        ("session b", "idle_since", 1),
    ],
)
def test_what_a_policy_writes_into_the_view_is_found(
    record: str, field: str, value: object
) -> None:
    def meddles(event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, ev.TurnArrived):
            yield Route(event.turn.id, "r0")
        if event.now == 7:
            kind, name = record.split()
            found = cluster.replica(name) if kind == "replica" else cluster.sessions[name]
            setattr(found, field, value)

    plane = plane_with(meddles)
    plane.handle(ev.TurnArrived(5, turn("a")))
    plane.handle(ev.TurnArrived(6, turn("b")))
    plane.handle(ev.TurnFailed(7, "a", "a/0", 1, "r0", "gone"))
    with pytest.raises(SchedulerError, match=f"may only read: {record}: "):
        plane.handle(ev.SessionClosed(8, "a", "failed"))


def test_a_policy_sees_the_view_and_nothing_else() -> None:
    seen: list[str] = []

    def looks(event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        seen.extend(name for name in dir(cluster) if not name.startswith("_"))
        seen.extend(name for name in dir(cluster.replicas[0]) if "capacity" in name)
        yield Hold("a/0")

    plane_with(looks).handle(ev.TurnArrived(5, turn("a")))
    view = [name for name in vars(ClusterView) if not name.startswith("_")]
    # The other four say nothing new: they are kept for policies in large clusters.
    kept = [name for name in vars(KeptClusterView) if not name.startswith("_")]
    assert sorted(seen) == sorted([*view, *kept, "capacity_tokens"])


class Chaotic(AdmissionScheduler):
    """Does anything the contract allows, at random."""

    name = "chaotic"
    info = INFO

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        pick = self.rng.choice
        if isinstance(event, (ev.TurnArrived, ev.DispatchFailed)):
            healthy = self.healthy(cluster)
            if healthy and self.rng.random() < 0.6:
                yield Route(event.turn.id, pick(healthy).id)
            else:
                yield Hold(event.turn.id)
        for session in list(cluster.sessions.values()):
            if self.rng.random() < 0.2 and session.lifecycle == "active":
                yield Pause(session.id)
            elif self.rng.random() < 0.3 and session.lifecycle == "paused":
                healthy = self.healthy(cluster)
                if healthy:
                    yield Resume(session.id, pick(healthy).id)


@settings(max_examples=150, deadline=None)
@given(st.randoms(use_true_random=False), st.integers(10, 120))
def test_books_balance_under_any_policy_and_any_fate(rng: random.Random, steps: int) -> None:
    """In flight and queued work are what open dispatches add up to, at every step, and zero at
    the end; a session is at home on at most one replica; no turn is dispatched twice at once."""
    replicas = [ReplicaConfig(f"r{i}", "mixed", Capacity(1000)) for i in range(3)]
    plane = ControlPlane(Chaotic(rng=random.Random(rng.random())), replicas, lambda a, n: 0)
    view = plane.ledger
    flights: dict[int, Dispatch] = {}
    indices: dict[str, int] = {}
    now = 0

    def feed(event: ev.Event) -> None:
        operations: list[Operation] = plane.handle(event)
        for operation in operations:
            assert isinstance(operation, Dispatch)
            assert operation.turn.id not in {d.turn.id for d in flights.values()}
            flights[operation.attempt] = operation
        for replica in view.replicas:
            mine = [d for d in flights.values() if d.decode == replica.id]
            assert replica.in_flight == len(mine)
            waiting = [a for a in view.attempts.values() if not a.first_token_seen]
            assert replica.queued_prefill_tokens == sum(
                a.uncached_tokens for a in waiting if a.decode == replica.id
            )
            for session in replica.sessions:
                assert view.sessions[session].home == replica.id
        homes = [s for r in view.replicas for s in r.sessions]
        assert len(homes) == len(set(homes))

    for _ in range(steps):
        now += rng.randrange(10)
        choice = rng.random()
        busy = {d.turn.session for d in flights.values()} | {
            t.session for t in view.waiting.values()
        }
        if choice < 0.4:
            session = f"s{rng.randrange(6)}"
            if session not in busy:
                indices[session] = indices.get(session, -1) + 1
                feed(ev.TurnArrived(now, turn(session, indices[session], 10 + 5 * len(indices))))
        elif flights:
            attempt, flight = rng.choice(sorted(flights.items()))
            name, turn_id = flight.turn.session, flight.turn.id
            if choice < 0.6 and not view.attempts[attempt].first_token_seen:
                feed(ev.FirstToken(now, name, turn_id, attempt, flight.decode))
            elif choice < 0.9:
                del flights[attempt]
                usage = Usage(flight.turn.prompt.tokens, None, 3)
                feed(ev.TurnFinished(now, name, turn_id, attempt, flight.decode, usage))
            else:
                del flights[attempt]
                feed(ev.DispatchFailed(now, flight.turn, attempt, flight.decode, "refused"))
    for attempt, flight in sorted(flights.items()):
        del flights[attempt]
        feed(ev.TurnFailed(now, flight.turn.session, flight.turn.id, attempt, flight.decode, "end"))
    while flights:  # pausing and resuming may have sent out what had waited
        attempt, flight = flights.popitem()
        feed(ev.TurnFailed(now, flight.turn.session, flight.turn.id, attempt, flight.decode, "end"))
    assert all(r.in_flight == r.queued_prefill_tokens == 0 for r in view.replicas)
