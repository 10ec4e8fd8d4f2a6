"""The simulation driver: timelines worked out by hand, and what must hold for any workload."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SchedulerError
from harness.capacity import resolve_cluster
from harness.sim import liveness
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import Fault, SimSettings
from harness.sim.tools import ToolPool, parallel_groups
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Abort, Command, Hold, Reject, Route, Solve, WakeAt
from schedulers.events import (
    DispatchFailed,
    Event,
    PlanReady,
    SessionClosed,
    Timer,
    ToolHint,
    ToolStarted,
    TurnArrived,
)
from schedulers.registry import create, names
from schedulers.types import NS
from schedulers.views import ClusterView, Role
from tests.harness.simulated import MS, Records, play
from workloads.model import Segment, Session, ToolCall, TurnSpec

INFO = SchedulerInfo("test", "nothing", True, "inferred", "none")


class ToFirst(AdmissionScheduler):
    """Routes everything to the first replica and remembers the events."""

    name = "to-first"
    info = INFO

    def __init__(self) -> None:
        super().__init__()
        self.seen: list[Event] = []

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        self.seen.append(event)
        for turn in list(cluster.waiting.values()):
            yield Route(turn.id, cluster.replicas[0].id)


def session(name: str, *turns: TurnSpec, **more: object) -> Session:
    return Session(name, turns, "test", "generated", **more)  # type: ignore[arg-type]


TWO_TURNS = session(
    "a",
    TurnSpec(new_tokens=32, output_tokens=3, tools=(ToolCall("bash", 0.5), ToolCall("ls", 0.25))),
    TurnSpec(new_tokens=13, output_tokens=2, kept_turn=0, kept_tokens=35),
)


def test_a_session_to_the_nanosecond() -> None:
    """Turn 0: 32 tokens of prefill = 42 ms, two more tokens at 10 ms: ends at 62 ms. Tools one
    after the other: 750 ms. Turn 1: 48 tokens of prompt, of which 32 = 2 blocks are cached (the
    third block was not full: 32 + 3 - 1 tokens written); 16 new = 26 ms, then 10 ms."""
    scheduler = ToFirst()
    played = play([TWO_TURNS], scheduler)
    first, second = played.records.turns
    assert (first.arrived, first.dispatched) == (0, 0)
    assert (first.first_token, first.finished) == (42 * MS, 62 * MS)
    assert (first.cached_tokens, first.output_tokens, first.longest_gap) == (0, 3, 10 * MS)
    assert (first.tool_s, first.visible, first.last) == (0.75, False, False)
    assert (second.arrived, second.tool_end) == (812 * MS, 812 * MS)
    assert (second.first_token, second.finished) == (838 * MS, 848 * MS)
    assert (second.prompt_tokens, second.cached_tokens) == (48, 32)
    assert (second.visible, second.last, second.moved, second.held) == (True, True, False, False)
    [ended] = played.records.sessions
    assert (ended.status, ended.started, ended.finished) == ("finished", 0, 848 * MS)
    assert played.makespan == 848 * MS
    tools = next(e for e in scheduler.seen if isinstance(e, ToolStarted))
    assert (tools.now, [t.name for t in tools.tools]) == (62 * MS, ["bash", "ls"])


def test_workers_limit_sessions_and_start_the_next_at_once() -> None:
    one = [session(name, TurnSpec(10, 1)) for name in "abc"]  # 20 ms each
    played = play(one, ToFirst(), workers=1)
    assert [s.started for s in played.records.sessions] == [0, 20 * MS, 40 * MS]
    # Two at once share a step: 10 + 10 + 10 = 30 ms for both.
    played = play(one, ToFirst(), workers=2)
    assert [s.finished for s in played.records.sessions] == [30 * MS, 30 * MS, 50 * MS]


def test_open_loop_set_up_and_spread() -> None:
    late = session("late", TurnSpec(10, 1), arrival_s=2.0, setup_s=0.5)
    played = play([late, session("soon", TurnSpec(10, 1))], ToFirst(), workers=None)
    assert {s.session: s.started for s in played.records.sessions} == {"soon": 0, "late": 2 * NS}
    assert {t.session: t.arrived for t in played.records.turns}["late"] == round(2.5 * NS)
    spread = SimSettings(start_spread_s=3.0)
    three = [session(name, TurnSpec(10, 1)) for name in "abc"]
    played = play(three, ToFirst(), workers=3, settings=spread)
    assert [s.started for s in played.records.sessions] == [0, NS, 2 * NS]


def test_a_session_that_would_pass_the_context_limit_ends_and_says_so() -> None:
    played = play([TWO_TURNS, session("b", TurnSpec(40, 9))], ToFirst(), context_limit=49)
    a, b = played.records.sessions
    assert (a.status, a.turns_done, b.status) == ("context_exceeded", 1, "finished")
    assert a.error == "turn 1 needs 50 tokens, the limit is 49"
    over = played.records.turns[1]
    assert (over.status, over.dispatched, over.prompt_tokens) == ("context_exceeded", None, 48)


def test_a_prompt_longer_than_the_kv_cache_is_refused_and_reported() -> None:
    played = play(
        [session("a", TurnSpec(200, 5)), session("b", TurnSpec(20, 5))], ToFirst(), blocks=5
    )
    a, b = played.records.sessions
    assert (a.status, b.status) == ("too_long", "finished")
    assert "exceed the KV cache" in (a.error or "")


def test_deadline_stops_an_agent_in_decode_in_a_tool_and_before_its_first_token() -> None:
    # 20 tokens: first at 30 ms, then one each 10 ms; stopped at 75 ms with 5 tokens.
    decoding = session("a", TurnSpec(20, 20), deadline_s=0.075)
    played = play([decoding], ToFirst())
    [turn], [ended] = played.records.turns, played.records.sessions
    assert (turn.status, turn.output_tokens, turn.finished) == ("client_gone", 5, 75 * MS)
    assert (ended.status, ended.finished, played.makespan) == ("deadline", 75 * MS, 75 * MS)
    in_tool = session("a", TurnSpec(20, 1, tools=(ToolCall("x", 9),)), TurnSpec(5, 1), deadline_s=1)
    played = play([in_tool, session("b", TurnSpec(20, 1))], ToFirst())
    assert [(s.session, s.status) for s in played.records.sessions] == [
        ("a", "deadline"),
        ("b", "finished"),
    ]
    waiting = session("a", TurnSpec(20, 1), deadline_s=0.001)
    played = play([waiting], ToFirst())
    assert played.records.turns[0].first_token is None
    assert played.plane.ledger.replica("r0").in_flight == 0


def test_tool_slots_make_calls_wait_their_turn() -> None:
    turns = (TurnSpec(10, 1, tools=(ToolCall("x", 1.0),)), TurnSpec(10, 1))
    both = [session("a", *turns), session("b", *turns)]
    free = play(both, ToFirst(), workers=2)
    assert sorted(t.arrived for t in free.records.turns if t.turn == 1) == [1030 * MS, 1030 * MS]
    tight = play(both, ToFirst(), workers=2, settings=SimSettings(tool_slots=1))
    assert sorted(t.arrived for t in tight.records.turns if t.turn == 1) == [1030 * MS, 2030 * MS]


def test_tool_pool_and_groups() -> None:
    calls = (ToolCall("a", 2), ToolCall("b", 1, parallel=True), ToolCall("c", 3))
    assert [[c.name for c in group] for group in parallel_groups(calls)] == [["a", "b"], ["c"]]
    assert ToolPool(None).start(list(calls), 5) == 5 + 3 * NS
    # One slot: 2 + 1 + 3 s one after the other; two: a on one, b then c on the other.
    assert ToolPool(1).start(list(calls), 0) == 6 * NS
    assert ToolPool(2).start(list(calls), 0) == 4 * NS


def test_sub_agents_start_with_their_turn_and_end_with_a_parent_that_fails() -> None:
    parent = session("p", TurnSpec(10, 1, wait_s=1.0), TurnSpec(10, 1))
    child = session("c", TurnSpec(10, 1), parent="p", spawn_turn=0)
    played = play([parent, child], ToFirst())
    assert {s.session: s.started for s in played.records.sessions} == {"p": 0, "c": 20 * MS}
    never = session("n", TurnSpec(10, 1), parent="c2", spawn_turn=0)
    late = session("c2", TurnSpec(10, 1), parent="p", spawn_turn=1)
    played = play([parent, late, never], ToFirst(), context_limit=9)
    assert {s.session: s.status for s in played.records.sessions} == {
        "p": "context_exceeded",
        "c2": "failed",
        "n": "failed",
    }


def test_without_release_the_scheduler_never_hears_of_the_end() -> None:
    scheduler = ToFirst()
    play([TWO_TURNS], scheduler, settings=SimSettings(release=False))
    assert not any(isinstance(e, SessionClosed) for e in scheduler.seen)
    scheduler = ToFirst()
    play([TWO_TURNS], scheduler, settings=SimSettings(true_tool_hints=True))
    assert [e.eta_s for e in scheduler.seen if isinstance(e, ToolHint)] == [0.75]


class HoldsForEver(AdmissionScheduler):
    name = "holds-for-ever"
    info = INFO

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, TurnArrived):
            yield Hold(event.turn.id)
            yield WakeAt(event.now + NS)


def test_a_scheduler_that_never_serves_a_turn_fails_its_cell() -> None:
    with pytest.raises(SchedulerError, match=r"`holds-for-ever` .* left 1 turn\(s\) waiting"):
        play([TWO_TURNS], HoldsForEver(), settings=SimSettings(starvation_limit_s=60))


class Stuck(AdmissionScheduler):
    """Gets nowhere, in one of several ways."""

    name = "stuck"
    info = INFO

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.attempts = 0

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, TurnArrived) and self.how.startswith("refuses"):
            yield Reject(event.turn.id, "no", 0.0 if self.how == "refuses at once" else 1.0)
        elif isinstance(event, (TurnArrived, DispatchFailed)):
            yield Route(event.turn.id, "r0") if self.how == "aborts" else Hold(event.turn.id)
            if self.how == "aborts":
                self.attempts += 1
                yield Abort(self.attempts)
        if self.how == "wakes" and isinstance(event, (TurnArrived, Timer)):
            yield WakeAt(event.now)
        if self.how in ("plans", "plans badly") and isinstance(event, (TurnArrived, PlanReady)):
            yield Solve(1, 0, str if self.how == "plans" else (1).__truediv__)
        while self.how == "thinks":
            pass


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ("refuses", r"refused 1 turn\(s\) over and over, for 60 s"),
        ("refuses at once", "over and over, with more than .* steps at one instant"),
        ("aborts", "on Abort: dispatched turn a/0 101 times"),
        ("wakes", r"left 1 turn\(s\) waiting with more than .* steps at one instant"),
        ("plans", r"left 1 turn\(s\) waiting for 60 s"),
        ("plans badly", "on Solve: its solver raised ZeroDivisionError"),
        ("thinks", "on TurnArrived turn a/0: took over 0.2 s to decide"),
    ],
)
def test_a_scheduler_that_gets_nowhere_fails_its_cell(
    how: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(liveness, "STEPS_AT_ONCE", 1_000)
    limits = SimSettings(starvation_limit_s=60, decision_limit_s=0.2, planner_latency_ms=500)
    with pytest.raises(SchedulerError, match=words) as caught:
        play([TWO_TURNS], Stuck(how), settings=limits)
    assert "scheduler `stuck` at" in caught.value.message


class Refuses(AdmissionScheduler):
    name = "refuses"
    info = INFO

    def __init__(self, retry_after_s: float | None) -> None:
        super().__init__()
        self.retry_after_s = retry_after_s

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, TurnArrived):
            if event.now < NS:
                yield Reject(event.turn.id, "busy", self.retry_after_s)
            else:
                yield Route(event.turn.id, "r0")


def test_refused_turns_come_again_when_told_when_and_else_end_the_session() -> None:
    played = play([session("a", TurnSpec(10, 1))], Refuses(2.0))
    assert [(t.status, t.arrived) for t in played.records.turns] == [("ok", 2 * NS)]
    played = play([session("a", TurnSpec(10, 1))], Refuses(None))
    assert played.records.sessions[0].status == "rejected"


def test_a_lost_replica_hands_its_turns_over_and_a_recovered_one_is_used_again() -> None:
    faults = (Fault(0.030, "r0", "lost"), Fault(0.5, "r0", "recovered"))
    turns = (TurnSpec(100, 5, tools=(ToolCall("x", 1.0),)), TurnSpec(10, 5))
    played = play(
        [session(name, *turns) for name in "abcd"],
        create("round-robin"),
        workers=4,
        replicas=2,
        settings=SimSettings(faults=faults),
    )
    assert [s.status for s in played.records.sessions] == ["finished"] * 4
    first = [t for t in played.records.turns if t.turn == 0]
    assert {t.replica for t in first} == {"r1"}
    assert sorted(t.attempts for t in first) == [1, 1, 2, 2]
    assert {t.replica for t in played.records.turns if t.turn == 1} == {"r0", "r1"}
    # Lost after the first token: the client saw an error, the agent sent the turn again.
    once = (Fault(0.125, "r0", "lost"),)
    played = play(
        [session("a", TurnSpec(100, 5))],
        create("round-robin"),
        replicas=2,
        settings=SimSettings(faults=once, retry_delay_s=2.0),
    )
    [turn] = played.records.turns
    assert (turn.status, turn.replica, turn.arrived) == ("ok", "r1", 2_125 * MS)


TOOLS = st.lists(
    st.builds(
        ToolCall,
        st.sampled_from(["bash", "edit"]),
        st.floats(0, 20),
        st.none() | st.floats(0, 20),
        st.booleans(),
    ),
    max_size=2,
).map(tuple)
SHARED = st.sampled_from([(), (Segment("tools", 40, 160),)])


@st.composite
def workloads(draw: st.DrawFn) -> list[Session]:
    sessions: list[Session] = []
    for number in range(draw(st.integers(1, 8))):
        turns: list[TurnSpec] = []
        for index in range(draw(st.integers(1, 5))):
            new, output = draw(st.integers(1, 300)), draw(st.integers(1, 60))
            kept_turn = draw(st.none() | st.integers(0, index - 1)) if index else None
            kept = 0
            if kept_turn is not None:
                before = turns[kept_turn]
                whole = before.prompt_tokens + before.output_tokens
                kept = draw(st.sampled_from([whole, whole // 2]))
            shared = draw(SHARED) if kept_turn is None else ()
            turns.append(TurnSpec(new, output, kept_turn, kept, shared, tools=draw(TOOLS)))
        parent = draw(st.sampled_from([None, None, *(s.id for s in sessions)]))
        deadline = draw(st.sampled_from([None, None, None, 3.0]))
        sessions.append(
            session(
                f"s{number}",
                *turns,
                parent=parent,
                spawn_turn=0 if parent else None,
                deadline_s=deadline,
            )
        )
    return sessions


@st.composite
def fault_plans(draw: st.DrawFn) -> tuple[Fault, ...]:
    if not draw(st.booleans()):
        return ()
    at = draw(st.floats(0, 30))
    return (
        Fault(at, "r1", "lost"),
        Fault(at + draw(st.floats(0.1, 20)), "r1", "recovered"),
        Fault(draw(st.floats(0, 30)), "r0", "metrics-stop"),
    )


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(names()),
    workloads(),
    fault_plans(),
    st.integers(1, 6),
    st.sampled_from([(), ("prefill", "decode")]),
    st.booleans(),
)
def test_every_session_ends_and_every_block_comes_back(
    name: str,
    sessions: list[Session],
    faults: tuple[Fault, ...],
    workers: int,
    roles: tuple[Role, ...],
    async_scheduling: bool,
) -> None:
    """Under every scheduler, with replicas dying: every session finishes or says why not, no
    turn is lost or served twice, the books are empty, and it all happens again the same way."""

    def once() -> tuple[int, list[object]]:
        played = play(
            sessions,
            create(name, seed=3),
            workers=workers,
            replicas=2,
            blocks=150,
            settings=SimSettings(faults=faults),
            roles=roles,
            params=EngineParams(null_blocks=0, async_scheduling=async_scheduling),
        )
        ended = {s.session: s for s in played.records.sessions}
        assert len(ended) == len(played.records.sessions) == len(sessions)
        for one in sessions:
            record = ended[one.id]
            done = [t for t in played.records.turns if t.session == one.id and t.status == "ok"]
            assert [t.turn for t in done] == list(range(record.turns_done))
            if record.status == "finished":
                assert record.turns_done == len(one.turns)
            else:
                assert record.error
            for turn, spec in zip(done, one.turns, strict=False):
                assert turn.prompt_tokens == spec.prompt_tokens
                assert turn.output_tokens == spec.output_tokens
                assert turn.cached_tokens is not None
                assert turn.cached_tokens < turn.prompt_tokens
                assert turn.dispatched is not None
                assert turn.first_token is not None
                assert turn.arrived <= turn.dispatched < turn.first_token <= turn.finished
        ledger = played.plane.ledger
        assert not ledger.attempts
        assert not ledger.waiting
        for replica in ledger.replicas:
            assert (replica.in_flight, replica.queued_prefill_tokens) == (0, 0)
        for engine in played.engines.values():
            engine.advance(played.makespan + NS)
            assert engine.state().held_blocks == 0
        return played.makespan, [played.records.turns, played.records.decisions]

    assert once() == once()


def test_the_oracle_bound_is_told_every_tool_end_without_being_asked_for() -> None:
    recorder = Records()
    outcome = simulate(
        [TWO_TURNS],
        workers=1,
        scheduler=create("oracle-tools"),
        cluster=resolve_cluster("qwen3-32b", "4x2xh100"),
        settings=SimSettings(),
        engine=EngineParams(),
        recorder=recorder,
    )
    assert outcome.counters["predicted_calls_tao_progress"] == 1
    assert outcome.counters["tools_without_truth"] == 0
    assert outcome.counters["prediction_mae_s_tao_all"] == 0
