"""Headroom: who keeps a place, who waits, who goes first, and how long at most."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.advice.levels import play, with_kv
from harness.capacity import Cluster, resolve_cluster
from harness.control.operations import Dispatch
from schedulers.headroom import Headroom
from schedulers.headroom_config import HeadroomConfig
from schedulers.headroom_costs import Costs, Line
from schedulers.headroom_room import Room
from schedulers.headroom_tools import ToolCalls, ToolTimes
from schedulers.headroom_turns import TurnsLeft
from schedulers.types import NS, ReplicaSample, ToolSignal
from scripts.regressions import session
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def driver(*names: str, capacity: int = 10_000, **config: float | str) -> PlaneDriver:
    given = HeadroomConfig(**config)  # type: ignore[arg-type]
    return PlaneDriver(Headroom(given), mixed(*names, capacity=capacity))


def turn(one: PlaneDriver, name: str, tokens: int, output: int = 0) -> str:
    """A whole turn; the replica that served it."""
    place = one.place(name, text((name, tokens)))
    one.first_token(name)
    one.finish(name, output=output)
    return place


def test_new_sessions_go_to_the_emptiest_replica_and_stay() -> None:
    one = driver("r0", "r1")
    assert turn(one, "a", 3000) == "r0"
    assert turn(one, "b", 1000) == "r1"
    assert turn(one, "c", 1000) == "r1"
    assert turn(one, "a", 3500) == "r0"


@pytest.mark.parametrize(("costs", "expected"), [(True, "r0"), (False, "r1")])
def test_a_first_place_is_not_where_the_prompt_stalls_others_for_long(
    costs: bool, expected: str
) -> None:
    """At 8,000 tokens a second 8,000 take 1 s, and 3 s with the two turns in flight on r1: more
    than a second more, though r1 holds 2,000 tokens and r0 4,000."""
    one = driver("r0", "r1", capacity=100_000, use_costs=costs)
    assert turn(one, "a", 4000) == "r0"
    for name in ("b", "c"):
        assert one.place(name, text((name, 1000))) == "r1"
        one.first_token(name)
    assert one.place("d", text(("d", 8000))) == expected


def test_what_does_not_fit_waits_and_gets_in_when_a_session_ends() -> None:
    one = driver("r0")
    one.place("a", text(("a", 6000)))
    one.first_token("a")
    assert not [d for d in one.arrive("b", text(("b", 5000))) if isinstance(d, Dispatch)]
    one.finish("a")
    one.close("a")
    done = one.advance(1)
    assert [d.turn.session for d in done if isinstance(d, Dispatch)] == ["b"]


def test_a_turn_held_beside_another_of_its_session_gets_in() -> None:
    """The session keeps its home meanwhile, and must not be forgotten for that."""
    one = driver("r0")
    one.place("b", text(("b", 6000)))
    one.first_token("b")
    one.place("a", text(("a", 2000)))
    one.first_token("a")
    held = one.arrive("a", text(("a", 5000)))  # 6000 + 5000 tokens do not fit 10,000
    assert not [d for d in held if isinstance(d, Dispatch)]
    one.finish("a")
    one.finish("b")
    one.close("b")
    done = one.advance(1)
    in_flight = {d.turn.session for d in done if isinstance(d, Dispatch)}
    assert in_flight == {"a"} or one.view.sessions["a"].in_flight


def test_the_queue_goes_by_rank_and_takes_no_place_from_sessions_between_turns() -> None:
    """Only the blocker has ended, after 1 turn: the veteran with 5,500 tokens is expected to take 3
    turns more, the newcomer with 5,600 (1 + 0) / 2."""
    one = driver("r0")
    for _ in range(3):
        turn(one, "veteran", 2000)
    turn(one, "novice", 2000)
    one.place("blocker", text(("blocker", 5000)))
    one.first_token("blocker")
    one.arrive("veteran", text(("veteran", 5500)))  # 5,500 + 5,000 do not fit
    one.finish("blocker")
    one.close("blocker")
    one.place("novice", text(("novice", 4500)))
    assert not [d for d in one.advance(1) if isinstance(d, Dispatch)]
    one.first_token("novice")
    one.finish("novice")  # it has a place, so the veteran goes on waiting
    one.arrive("new", text(("new", 5600)))  # nor does this fit beside the novice
    assert not [d for d in one.advance(2) if isinstance(d, Dispatch)]
    assert one.place("novice", text(("novice", 4600))) == "r0"
    one.first_token("novice")
    one.finish("novice")
    one.close("novice")
    done = one.advance(2)
    assert [d.turn.session for d in done if isinstance(d, Dispatch)] == ["new"]


@pytest.mark.parametrize(
    ("rank", "expected"), [("work", "old"), ("turns", "young"), ("arrival", "old")]
)
def test_least_work_left_goes_before_fewest_turns(rank: str, expected: str) -> None:
    """Sessions have ended after 4 and 2 turns. Old has taken 3 and is expected to take (1 + 3) / 2
    more with 5,000 tokens: 10,000; young has taken 1, (3 + 1 + 1) / 3 more with 7,500: 12,500."""
    one = driver("r0", capacity=12_000, rank=rank)
    for _ in range(4):
        turn(one, "ended", 100)
    one.close("ended")
    for _ in range(3):
        turn(one, "old", 1000)
    turn(one, "young", 3000)
    turn(one, "blocker", 7000)
    one.place("blocker", text(("blocker", 11_900)))  # the KV of both is gone
    one.first_token("blocker")
    one.arrive("young", text(("young", 7500)))
    one.arrive("old", text(("old", 5000)))
    one.finish("blocker")
    one.close("blocker")
    done = one.advance(2)
    assert [d.turn.session for d in done if isinstance(d, Dispatch)] == [expected]


def test_turns_left_by_hand() -> None:
    left = TurnsLeft(kept=3)
    assert left.expected(0) == 0
    assert left.expected(5) == 5  # as long again
    for turns in (100, 4, 6, 10):  # the first is forgotten
        left.ended(turns)
    assert left.expected(0) == (4 + 6 + 10 + 0) / 4
    assert left.expected(5) == (1 + 5 + 5) / 3
    assert left.expected(6) == (4 + 6) / 2  # one that took 6 is over
    assert left.expected(20) == 20


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 30), max_size=40), st.integers(0, 40), st.integers(1, 20))
def test_turns_left_as_counted_one_by_one(ended: list[int], done: int, kept: int) -> None:
    left = TurnsLeft(kept)
    for turns in ended:
        left.ended(turns)
        left.expected(done)  # what it remembers of this must not outlive the next end
    more = [turns - done for turns in ended[-kept:] if turns > done] + [done]
    assert left.expected(done) == pytest.approx(sum(more) / len(more))


def test_a_turn_whose_kv_is_there_goes_on_and_whose_was_pushed_out_waits() -> None:
    """Of 10,000 tokens 4,000 are there with c between turns, and 6,400 are needed: c's KV is gone,
    and 4,100 do not fit beside 6,200."""
    one = driver("r0")
    turn(one, "c", 4000)
    turn(one, "a", 5000)
    assert one.place("a", text(("a", 6200))) == "r0"
    one.first_token("a")
    one.finish("a")
    held = one.arrive("c", text(("c", 4100)))
    assert not [d for d in held if isinstance(d, Dispatch)]


def test_what_runs_counts_for_eviction_though_it_was_sent_long_ago() -> None:
    """b was sent before c's turn, and runs: 3,000 of c, 5,000 of b and 3,000 of d are too many."""
    one = driver("r0")
    one.place("b", text(("b", 5000)))
    one.first_token("b")
    turn(one, "c", 3000)
    room = one.scheduler.room  # type: ignore[attr-defined]
    where = one.view.replica("r0")
    assert room.alive("c", where, one.view)
    room.touched("d", "r0", 3000)
    assert not room.alive("c", where, one.view)


def test_text_that_sessions_share_counts_once() -> None:
    """Three prompts of 4,000 tokens with the same 3,000 before: 3,000 + 3 x 1,000 tokens of 8,000,
    and 200 for the output of each."""
    one = driver("r0", capacity=8000)
    for name in ("a", "b", "c"):
        assert one.place(name, text(("system", 3000), (name, 1000))) == "r0"
    held = one.arrive("d", text(("other", 3000), ("d", 1000)))
    assert not [d for d in held if isinstance(d, Dispatch)]


def test_capacity_follows_the_gauge() -> None:
    """8,000 tokens run and the engine calls that 80 % of its KV: it has 10,000 tokens, whatever it
    said. A tenth of the way with each sample."""
    one = driver("r0", capacity=5000)
    turn(one, "a", 100)
    one.place("a", text(("a", 8000)))
    one.first_token("a")
    room = one.scheduler.room  # type: ignore[attr-defined]
    replica_view = one.view.replica("r0")
    one.sampled("r0", ReplicaSample(running=1, waiting=0, kv_usage=0.8))
    assert room.capacity(replica_view) == pytest.approx(5500)
    one.sampled("r0", ReplicaSample(running=2, waiting=0, kv_usage=0.8))  # not ours alone
    one.sampled("r0", ReplicaSample(running=1, waiting=1, kv_usage=0.8))  # no room in the engine
    assert room.capacity(replica_view) == pytest.approx(5500)
    fixed = Headroom(HeadroomConfig(measure_capacity=False))
    blind = PlaneDriver(fixed, mixed("r0", capacity=5000))
    blind.place("a", text(("a", 8000)))
    blind.first_token("a")
    blind.sampled("r0", ReplicaSample(running=1, waiting=0, kv_usage=0.8))
    assert fixed.room.capacity(blind.view.replica("r0")) == 5000


def test_kv_is_gone_once_contexts_used_since_fill_the_replica() -> None:
    one = driver("r0", capacity=10_000)
    where = one.view.replica("r0")
    room = Room(measure=False)
    room.touched("a", "r0", 4000)
    room.touched("b", "r0", 5000)
    assert room.alive("a", where, one.view)  # 9,000 together
    room.touched("c", "r0", 3000)
    assert not room.alive("a", where, one.view)  # 12,000 with what came after it
    assert room.alive("b", where, one.view)
    room.touched("a", "r0", 4000)
    assert not room.alive("b", where, one.view)
    room.lost("r0")
    assert not room.alive("a", where, one.view)


def test_a_session_whose_kv_is_gone_is_let_in_where_room_is() -> None:
    one = driver("r0", "r1")
    assert turn(one, "a", 3000) == "r0"
    assert turn(one, "b", 6000) == "r1"
    assert one.place("c", text(("c", 6000))) == "r0"
    one.first_token("c")
    held = one.arrive("a", text(("a", 5000)))  # beside 6,000 on either
    assert not [d for d in held if isinstance(d, Dispatch)]
    one.finish("c")
    assert one.place("c", text(("c", 9500))) == "r0"
    assert not one.scheduler.room.alive("a", one.view.replica("r0"), one.view)  # type: ignore[attr-defined]
    one.close("b")
    done = one.advance(1)
    assert [(d.turn.session, d.decode) for d in done if isinstance(d, Dispatch)] == [("a", "r1")]


def test_a_long_tool_call_gives_up_the_room() -> None:
    """10,000 tokens of KV at 8,000 tokens a second are worth 1.25 s of a tool call."""
    one = driver("r0")
    turn(one, "a", 6000)
    one.tool("a", "bash")
    one.advance(1)
    assert not [d for d in one.arrive("b", text(("b", 5000))) if isinstance(d, Dispatch)]
    done = one.advance(1)
    assert [d.turn.session for d in done if isinstance(d, Dispatch)] == ["b"]


def test_a_turn_that_fits_nowhere_else_moves_only_where_costs_are_off_or_lower() -> None:
    # r0 holds two sessions that run; the third turn of `a` fits r1 alone. Nothing has ended yet, so
    # the wait for room is unknown, and moving costs less.
    one = driver("r0", "r1")
    assert turn(one, "a", 3000) == "r0"
    assert turn(one, "b", 4000) == "r1"
    assert turn(one, "c", 3000) == "r0"
    one.close("b")
    one.place("c", text(("c", 6000)))
    assert one.place("a", text(("a", 5000))) == "r1"
    assert one.scheduler.counters()["moved"] == 1


def test_an_aged_turn_keeps_its_room_free() -> None:
    one = driver("r0", aging_s=10)
    turn(one, "big", 2000)
    turn(one, "small", 2000)
    one.place("small", text(("small", 3000)))
    one.first_token("small")
    one.arrive("big", text(("big", 9000)))
    one.advance(11)
    done = one.finish("small")
    # Its own next turn would have fitted (3,500 of 10,000), but not beside what is kept for `big`.
    assert [d.turn.session for d in done if isinstance(d, Dispatch)] == ["big"]
    assert not [d for d in one.arrive("small", text(("small", 3500))) if isinstance(d, Dispatch)]


def test_a_prefill_replica_computes_what_would_stall_a_decoder() -> None:
    pools = [replica("p0", "prefill"), replica("d0", "decode")]
    one = PlaneDriver(Headroom(), pools)
    idle = one.dispatch("a", text(("a", 20_000)))
    assert (idle.decode, idle.prefill) == ("d0", None)  # nobody is stalled, and nothing is moved
    one.first_token("a")
    busy = one.dispatch("b", text(("b", 20_000)))
    assert (busy.decode, busy.prefill) == ("d0", "p0")


@pytest.mark.parametrize(("gain", "expected"), [(0.5, None), (0.0, "p0")])
def test_a_prompt_whose_kv_is_at_home_goes_to_a_prefill_replica_only_for_a_gain(
    gain: float, expected: str | None
) -> None:
    """800 new tokens at 8,000 a second, with one other turn in flight: 0.2 s at home, 0.1 s on p0,
    which has the rest too."""
    one = PlaneDriver(
        Headroom(HeadroomConfig(prefill_gain=gain)),
        [replica("p0", "prefill"), replica("d0", "decode")],
    )
    one.place("other", text(("other", 1000)))
    one.first_token("other")
    assert one.dispatch("a", text(("a", 20_000))).prefill == "p0"
    one.leg("a")
    one.first_token("a")
    one.finish("a")
    assert one.dispatch("a", text(("a", 20_800))).prefill == expected


def test_a_shared_store_makes_room_in_tool_calls_worth_less() -> None:
    """Computing 16,000 tokens takes 2 s at 8,000 a second; a store that has 3/4 saves 1.5 s."""
    costs = Costs(8000.0)
    costs.store_share = 0.75
    view = driver("r0", capacity=16_000).view.replica("r0")
    assert costs.sweep(view, 16_000.0, use_store=True) == NS // 2
    assert costs.sweep(view, 16_000.0, use_store=False) == 2 * NS


def test_tool_times_by_hand() -> None:
    times = ToolTimes(kept=4)
    for seconds in (9, 1, 2, 3, 4):  # the first is forgotten
        times.add("bash", seconds * NS)
    # Of 1, 2, 3, 4 s, three are longer than 1.5 s, and one of those ends by 2.5 s: (1 + 1)/(3 + 2).
    assert times.back_within("bash", 3 * NS // 2, NS) == pytest.approx(0.4)
    # Nothing known: (0 + 1)/(0 + 2).
    assert times.back_within("python", 0, NS) == 0.5


def test_room_is_kept_while_a_call_is_as_likely_as_not_to_end_in_time() -> None:
    calls = ToolCalls(kept=16)
    for seconds in (1, 1, 1, 20, 20, 20, 20, 20):
        calls.started("s", (ToolSignal("bash"),), 0, 5 * NS)
        calls.ended("s", seconds * NS)
    calls.started("s", (ToolSignal("bash"),), 0, 5 * NS)
    # Of 8 calls 3 end within 5 s: (3 + 1)/(8 + 2) = 0.4; within 25 s all: 9/10.
    assert not calls.keeps("s", 0, 5 * NS)
    assert calls.keeps("s", 0, 25 * NS)
    assert not calls.keeps("s", 25 * NS, 25 * NS)
    assert calls.keeps("unknown", 0, NS)
    # Forecasts for 5 s: 1/2, 2/3, 3/4, 4/5, 4/6, 4/7, 4/8, 4/9; the first three came true.
    errors = [(1 / 2) ** 2, (1 / 3) ** 2, (1 / 4) ** 2]
    errors += [(4 / n) ** 2 for n in (5, 6, 7, 8, 9)]
    assert calls.counters()["forecast_brier"] == pytest.approx(sum(errors) / 8)


def test_line_finds_the_slope() -> None:
    line = Line()
    for x in range(20):
        line.add(float(x), 3 + 2 * float(x))
    assert line.slope == pytest.approx(2)
    flat = Line()
    for _ in range(20):
        flat.add(4.0, 7.0)
    assert flat.slope == 0.0


@pytest.mark.parametrize(
    "wrong",
    [
        {"move_fill": 0},
        {"aging_s": 0},
        {"rate_tokens_per_s": 0},
        {"session_history": 0},
        {"rank": "luck"},
    ],
)
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"positive|not one of"):
        HeadroomConfig(**wrong)  # type: ignore[arg-type]


def _cluster() -> Cluster:
    return with_kv(resolve_cluster("qwen3-8b", "1x1xh100"), 6000)


@settings(max_examples=12, deadline=None)
@given(
    sizes=st.lists(st.integers(200, 4000), min_size=6, max_size=16),
    aging=st.sampled_from([2.0, 6.0, 20.0]),
)
def test_nobody_from_the_queue_overtakes_an_aged_turn(sizes: list[int], aging: float) -> None:
    """By the records alone: once a turn has waited `aging_s`, no turn that is not aged itself and
    that waited too is sent on before it."""
    sessions = [session(f"s{i}", n, 50, 150, 3, 1.0) for i, n in enumerate(sizes)]
    _, records = play(
        sessions,
        _cluster(),
        "headroom",
        workers=len(sessions),
        seed=0,
        settings={"aging_s": aging},
    )
    assert {s.status for s in records.sessions} == {"finished"}
    limit = round(aging * NS)
    held = [(t.arrived, t.dispatched) for t in records.turns if t.held and t.dispatched]
    for arrived, sent in held:
        if sent - arrived <= limit:
            continue
        for other_arrived, other_sent in held:
            aged = other_sent - other_arrived >= limit
            assert aged or not arrived + limit < other_sent < sent
