"""Headroom: who keeps a place, who waits, who goes first, and how long at most."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.advice.levels import play, with_kv
from harness.capacity import Cluster, resolve_cluster
from harness.control.operations import Dispatch
from schedulers.headroom import Headroom, HeadroomConfig, Line, ToolTimes
from schedulers.types import NS
from scripts.regressions import session
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def driver(*names: str, capacity: int = 10_000, **config: float) -> PlaneDriver:
    given = HeadroomConfig(margin_tokens=0, **config)  # type: ignore[arg-type]
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


def test_old_sessions_go_by_turns_done() -> None:
    one = driver("r0", young_turns=1)
    for _ in range(3):
        turn(one, "veteran", 2000)
    turn(one, "novice", 2000)
    one.place("blocker", text(("blocker", 5000)))
    one.arrive("novice", text(("novice", 4800)))  # beside 5,000 that run and the veteran's 2,000
    one.arrive("veteran", text(("veteran", 5500)))
    one.first_token("blocker")
    done = one.finish("blocker")
    assert [d.turn.session for d in done if isinstance(d, Dispatch)] == ["veteran"]


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
    one = driver("r0", young_turns=0, aging_s=10)
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


def test_tool_times_by_hand() -> None:
    times = ToolTimes(kept=4)
    for seconds in (9, 1, 2, 3, 4):  # the first is forgotten
        times.add("bash", seconds * NS)
    # Of 1, 2, 3, 4 s, three are longer than 1.5 s, and one of those ends by 2.5 s: (1 + 1)/(3 + 2).
    assert times.back_within("bash", 3 * NS // 2, NS) == pytest.approx(0.4)
    # Nothing known: (0 + 1)/(0 + 2).
    assert times.back_within("python", 0, NS) == 0.5


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
    "wrong", [{"fill": 0}, {"young_turns": -1}, {"aging_s": 0}, {"rate_tokens_per_s": 0}]
)
def test_settings_out_of_range(wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"above 0|negative|positive"):
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
        settings={"aging_s": aging, "young_turns": 1},
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
