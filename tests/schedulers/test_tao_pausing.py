"""Whom TAO pauses, its limits, and what it does when replicas and clients fail, by hand."""

from __future__ import annotations

from schedulers.commands import Route, WakeAt
from schedulers.events import Timer
from tests.schedulers.tao_rig import paused, resumed, setup

# Pausing.


def test_least_valuable_acting_session_loses_its_place() -> None:
    driver, cluster, _ = setup({"r0": 40_000})
    for name in ("old", "warm", "grower"):
        driver.arrive(name, 10_000)
    driver.finish("old")
    driver.advance(3.0)
    driver.finish("warm")
    cluster.streamed["grower"] = 10_000  # 40,300 of 40,000
    commands = driver.advance(2.0)
    # At 5 s: old's credit 10,000 * 2^-0.5 = 7,071: 1; warm's 10,000 * 2^-0.2 = 8,706: 2.
    assert paused(commands) == ["old"]


def test_thunder_order_pauses_the_smallest() -> None:
    for order, expected in (("triplet", "large"), ("thunder", "small")):
        driver, cluster, _ = setup({"r0": 40_000}, pause_order=order)
        driver.arrive("large", 12_000)
        driver.arrive("small", 9000)
        driver.arrive("grower", 10_000)
        driver.finish("large")
        driver.finish("small")
        cluster.sessions["large"].evidence = {}
        cluster.streamed["grower"] = 10_000
        assert paused(driver.advance(5.0)) == [expected]


def test_equal_values_the_longest_idle_first() -> None:
    driver, cluster, _ = setup({"r0": 30_000}, use_cache=False)
    for name in ("b", "a", "grower"):
        driver.arrive(name, 9000)
    driver.finish("b")
    driver.advance(1.0)
    driver.finish("a")
    cluster.streamed["grower"] = 5000
    assert paused(driver.advance(4.0)) == ["b"]


def test_marking_stops_when_future_pauses_make_enough_room() -> None:
    driver, cluster, scheduler = setup({"r0": 30_000})
    for name in ("a", "b", "c"):
        driver.arrive(name, 9000)
    cluster.streamed["a"] = 5000  # 27,000 + 5,000 + 300: over by 2,300; any one is enough
    driver.advance(5.0)
    assert scheduler.counters()["marked"] == 1
    driver.advance(5.0)
    assert scheduler.counters()["marked"] == 1  # what is marked counts at the next tick too
    # Without credit and alike in readiness the smallest footprint is worth least: b, then c.
    assert paused(driver.finish("b")) == ["b"]
    assert paused(driver.finish("c")) == []


def test_paused_session_waits_and_its_tokens_then_decide_the_short_first_order() -> None:
    driver, cluster, scheduler = setup({"r0": 10_000}, planner="short-first", direct=False)
    driver.arrive("a", 4000)
    driver.finish("a", output=100)
    driver.arrive("b", 5500)
    driver.advance(0.2)
    cluster.streamed["b"] = 1000
    assert paused(driver.advance(5.0)) == ["a"]
    driver.arrive("a", 9000)
    frozen = scheduler._freeze(driver.now, cluster)
    assert [(c.queued_tokens, c.tokens) for c in frozen.candidates] == [(4100, 9000)]


def test_marked_session_whose_client_leaves_is_paused_too() -> None:
    driver, cluster, _ = setup({"r0": 10_000})
    driver.arrive("a", 9000)
    cluster.streamed["a"] = 5000
    driver.advance(5.0)
    assert paused(driver.client_gone("a")) == ["a"]


# Limits and failures.


def test_turn_that_waited_too_long_is_forced_in() -> None:
    driver, cluster, scheduler = setup({"r0": 10_000, "r1": 19_000}, forced_after_s=30.0)
    for name, home in (("b", "r1"), ("a", "r0"), ("grower", "r1")):
        driver.arrive(name, 9000)
        assert cluster.sessions[name].home == home
    driver.finish("b")
    cluster.streamed["grower"] = 2000
    assert paused(driver.advance(5.0)) == ["b"]
    driver.arrive("b", 9000)
    driver.arrive("new", 9000)
    assert resumed(driver.advance(29.0)) == []
    # b to where it was; new to the replica with fewest sessions (r0 has one, r1 two).
    assert resumed(driver.advance(1.0)) == [("b", "r1"), ("new", "r0")]
    assert scheduler.counters()["forced"] == 2


def test_idle_session_gives_its_place_away_until_it_returns() -> None:
    driver, cluster, scheduler = setup({"r0": 10_000}, idle_ttl_s=20.0)
    driver.arrive("a", 3000)
    driver.finish("a")
    driver.arrive("busy", 500)
    assert paused(driver.advance(25.0)) == ["a"]
    assert resumed(driver.advance(60.0)) == []  # no candidate: nobody waits for it
    assert scheduler.counters()["expired"] == 1
    assert resumed(driver.arrive("a", 3000)) == [("a", "r0")]
    assert cluster.sessions["a"].in_flight == 1


def test_sessions_of_a_lost_replica_move() -> None:
    driver, cluster, _ = setup({"r0": 10_000, "r1": 10_000})
    driver.arrive("a", 3000)
    assert cluster.sessions["a"].home == "r0"
    driver.lose("r0")
    driver.advance(0.2)
    assert cluster.sessions["a"].home == "r1"
    assert cluster.sessions["a"].in_flight == 1


def test_failed_dispatch_is_tried_again_at_home() -> None:
    driver, cluster, _ = setup({"r0": 10_000})
    driver.arrive("a", 3000)
    commands = driver.dispatch_failed("a")
    assert [type(c) for c in commands] == [Route]
    assert cluster.sessions["a"].in_flight == 1


def test_no_replica_at_all_holds_until_one_is_back() -> None:
    driver, cluster, _ = setup({"r0": 10_000})
    driver.lose("r0")
    driver.arrive("a", 3000)
    driver.advance(10.0)
    driver.recover("r0")
    driver.advance(0.2)
    assert cluster.sessions["a"].in_flight == 1


def test_ticks_stop_with_the_last_session_and_start_again() -> None:
    driver, _, _ = setup({"r0": 10_000})
    driver.arrive("a", 3000)
    driver.finish("a")
    driver.close("a")
    driver.advance(20.0)
    assert driver.timers == []
    assert any(isinstance(c, WakeAt) for c in driver.arrive("b", 100))
    assert not driver.send(Timer(driver.now))


def test_closed_session_is_no_candidate_of_the_event_that_closes_it() -> None:
    driver, cluster, _ = setup({"r0": 10_000})
    driver.arrive("a", 9000)
    driver.finish("a")
    driver.arrive("b", 5000)  # held
    driver.advance(0.2)
    driver.close("a")
    assert resumed(driver.advance(0.2)) == [("b", "r0")]
    assert set(cluster.sessions) == {"b"}
