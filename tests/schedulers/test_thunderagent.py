"""ThunderAgent, rule by rule, with the books worked out in the comments.

Capacity is 1,000 tokens a replica unless said; every session costs its tokens plus 100. The
helper sets the estimate's ratio to four bytes a token, which is what the prompts have.
"""

from __future__ import annotations

from typing import Any

import pytest

from schedulers.accounts import TokenEstimate
from schedulers.commands import Command, Hold, Pause, Reject, Resume, Route
from schedulers.registry import configure
from schedulers.thunderagent import ThunderAgent, ThunderAgentConfig
from schedulers.thunderagent_as_shipped import AsShippedConfig, ThunderAgentAsShipped
from schedulers.thunderagent_decay import ThunderAgentDecay
from schedulers.types import ReplicaSample, Usage
from tests.schedulers.fake_cluster import Driver, FakeCluster, prompt


def start(
    cls: type[ThunderAgent] = ThunderAgent,
    replicas: int = 1,
    capacity: int = 1000,
    **settings: Any,
) -> Driver:
    scheduler = cls(configure(cls, settings))
    scheduler.estimate = TokenEstimate(ratio=4.0)
    return Driver(scheduler, FakeCluster({f"r{i}": capacity for i in range(replicas)}))


def places(commands: list[Command]) -> list[tuple[str, str]]:
    """Routes and resumes as (session, replica)."""
    found = []
    for one in commands:
        if isinstance(one, Route):
            found.append((one.turn_id.split("/")[0], one.decode))
        elif isinstance(one, Resume):
            found.append((one.session, one.replica))
    return found


def paused(commands: list[Command]) -> list[str]:
    return [one.session for one in commands if isinstance(one, Pause)]


def held(commands: list[Command]) -> bool:
    return any(isinstance(one, Hold) for one in commands)


def marked(driver: Driver) -> set[str]:
    accounts = driver.scheduler.accounts.all  # type: ignore[attr-defined]
    return {name for name, account in accounts.items() if account.marked}


# Admission of new sessions.


def test_new_sessions_take_the_least_active_tokens_where_they_fit() -> None:
    driver = start(replicas=2)
    assert places(driver.arrive("a", 300)) == [("a", "r0")]  # 0 and 0: the first
    assert places(driver.arrive("b", 300)) == [("b", "r1")]  # 300 > 0
    assert places(driver.arrive("c", 100)) == [("c", "r0")]  # 300 and 300: the first
    # r0 holds 400 + 2 * 100, remaining 400; r1 holds 300 + 100, remaining 600.
    assert places(driver.arrive("d", 300)) == [("d", "r1")]  # 300 < 400
    # r1 remaining 200; 300 + 100 fits exactly into r0's 400.
    assert places(driver.arrive("e", 300)) == [("e", "r0")]
    # r0 remaining 0, r1 200: 101 + 100 fits nowhere.
    assert held(driver.arrive("f", 101))


def test_a_new_session_queues_behind_others_even_if_it_fits() -> None:
    driver = start()
    driver.arrive("a", 300)
    assert held(driver.arrive("large", 800))
    assert held(driver.arrive("small", 10))


def test_unknown_capacity_has_room_for_everything() -> None:
    driver = Driver(ThunderAgent(), FakeCluster({"r0": None}))
    assert places(driver.arrive("a", 10**9)) == [("a", "r0")]


def test_known_sessions_stay_unchecked() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 300)
    driver.finish("a", output=100)
    assert places(driver.arrive("a", 50_000)) == [("a", "r0")]


# The tick: resume.


def test_resume_takes_classes_in_order_and_places_the_largest_on_the_roomiest() -> None:
    driver = start(replicas=2, capacity=2000)
    driver.arrive("big0", 1900)
    driver.arrive("big1", 1700)
    assert held(driver.arrive("n1", 500))
    assert held(driver.arrive("n2", 300))
    assert held(driver.arrive("n3", 1300))
    driver.finish("big0")
    driver.finish("big1")
    driver.close("big0")
    driver.close("big1")
    # Room 2000 + 2000. New, smallest first: n2 400, n1 600, n3 1400: 2400 in all. Placed largest
    # first on the roomiest (ties the first): n3 on r0 (left 600), n1 on r1 (1400), n2 on r1.
    assert places(driver.advance(5.0)) == [("n3", "r0"), ("n1", "r1"), ("n2", "r1")]


def test_returning_sessions_go_before_new_and_idle_ones() -> None:
    driver = start(capacity=1000)
    for name in ("back", "idle"):
        driver.arrive(name, 200)
        driver.finish(name)
        driver.arrive(name, 200)
        driver.finish(name)
    driver.arrive("grow", 300)
    driver.cluster.streamed["grow"] = 800
    # Held: 200 + 200 + 1100 + 300 = 1800: pause back (200, first of equals): 1500; idle: 1200;
    # then grow is marked: its tokens come back when its turn ends.
    assert paused(driver.advance(5.0)) == ["back", "idle"]
    assert held(driver.arrive("new", 100))
    assert held(driver.arrive("back", 400))
    assert paused(driver.finish("grow", output=800)) == ["grow"]
    # Room 1000: back 400 + 100 (returning), new 100 + 100, idle 200 + 100; grow 1100 does not fit.
    # They fill it exactly; placed by size: back, idle, new.
    assert places(driver.advance(5.0)) == [("back", "r0"), ("idle", "r0"), ("new", "r0")]


def test_decay_makes_room_for_resuming_but_is_ignored_when_pausing() -> None:
    for cls, expected in ((ThunderAgentAsShipped, []), (ThunderAgentDecay, [("new", "r0")])):
        driver = start(cls)
        driver.arrive("a", 700)
        driver.advance(2.0)
        driver.finish("a")
        assert held(driver.arrive("new", 600))
        # At 5 s a has acted for 3 s. Undecayed room: 1000 - 800 = 200 < 700. Decayed:
        # 1000 - (700 / 8 + 100) = 812 >= 700.
        commands = driver.advance(3.0)
        assert places(commands) == expected
        # Then the books, undecayed, hold 700 + 600 + 200 = 1500 > 1000: a is paused at once.
        assert paused(commands) == (["a"] if expected else [])


# The tick: pause and mark.


def test_pauses_the_smallest_acting_session_until_it_is_safe() -> None:
    driver = start()
    for name, tokens in (("a", 200), ("b", 100), ("c", 150)):
        driver.arrive(name, tokens)
    driver.finish("a")
    driver.finish("b")
    driver.cluster.streamed["c"] = 395
    # Steps of 20: c counts 150 + 380 = 530. Held 200 + 100 + 530 + 300 = 1130: b (100 + 100)
    # goes, 930 is safe.
    assert paused(driver.advance(5.0)) == ["b"]


def test_a_replica_that_is_exactly_full_is_left_alone() -> None:
    driver = start()
    driver.arrive("a", 200)
    driver.finish("a")
    driver.arrive("c", 220)
    # 200 + 220 + 200 of buffers and 380 streamed: 1000. A part of a step of 20 does not count.
    driver.cluster.streamed["c"] = 395
    assert paused(driver.advance(5.0)) == []
    driver.cluster.streamed["c"] = 400
    assert paused(driver.advance(5.0)) == ["a"]


def test_a_session_paused_in_a_tick_is_not_resumed_in_the_same() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 600)
    driver.finish("a", output=500)  # 1100 on r0; r1 is empty, but takes only 1000
    first = driver.advance(5.0)
    assert paused(first) == ["a"]
    assert places(first) == []


def overfull(cls: type[ThunderAgent]) -> Driver:
    """Reasoning only: 400 + 300 + 100 + 300 of buffers, then the first streams 300 more."""
    driver = start(cls)
    for name, tokens in (("a", 400), ("b", 200), ("c", 100)):
        driver.arrive(name, tokens)
    driver.cluster.streamed["a"] = 300  # 700 + 200 + 100 + 300 = 1300, 300 too many
    driver.advance(5.0)
    return driver


def test_marking_stops_when_the_marked_will_free_enough() -> None:
    # c frees 200, b 300: 500 >= 300. a stays.
    driver = overfull(ThunderAgent)
    assert marked(driver) == {"c", "b"}
    # The next round counts them: nothing more is marked.
    driver.advance(5.0)
    assert marked(driver) == {"c", "b"}


def test_as_shipped_marks_every_reasoning_session() -> None:
    driver = overfull(ThunderAgentAsShipped)
    assert marked(driver) == {"a", "b", "c"}
    # And each is paused as its turn ends, though c and b alone had been enough.
    assert [paused(driver.finish(name)) for name in "cba"] == [["c"], ["b"], ["a"]]


def test_a_marked_session_that_is_resumed_is_marked_no_more() -> None:
    driver = overfull(ThunderAgent)
    assert paused(driver.finish("c")) == ["c"]
    assert paused(driver.finish("b")) == ["b"]
    # 400 + 300 + 100 = 800 on r0 with the streamed 300: room 200; c needs 200 and gets it.
    assert places(driver.advance(5.0)) == [("c", "r0")]
    assert marked(driver) == set()


def test_acting_weight_discounts_acting_sessions() -> None:
    driver = start(acting_weight=0.5)
    driver.arrive("a", 800)
    driver.finish("a")
    # 400 + 100 held: 400 + 100 more fit.
    assert places(driver.arrive("b", 400)) == [("b", "r0")]


def test_shared_tokens_by_the_engines_gauge() -> None:
    driver = start(shared_tokens=True)
    driver.arrive("a", 400)
    driver.arrive("b", 300)
    assert held(driver.arrive("c", 100))  # 1000 - 700 - 200 = 100 < 200
    driver.sampled("r0", ReplicaSample(kv_usage=0.5))
    # 700 counted, 500 held: 200 shared. 1000 - (700 - 200 + 200) = 300 >= 200.
    assert places(driver.advance(5.0)) == [("c", "r0")]


# Waiting too long.


def test_forced_in_after_1800_seconds_on_its_origin_whatever_the_room() -> None:
    driver = start(replicas=2, aging_s=0.0)
    driver.arrive("x", 900)
    driver.arrive("a", 300)
    driver.finish("a")
    driver.arrive("y", 500)
    # y is on r1 with a: 300 + 500 + 200 = 1000. y grows: a is paused.
    driver.cluster.streamed["y"] = 100
    assert paused(driver.advance(5.0)) == ["a"]
    assert held(driver.arrive("a", 300))
    assert places(driver.advance(1799.9)) == []
    assert places(driver.advance(0.2)) == [("a", "r1")]
    assert driver.scheduler.counters()["forced"] == 1.0


def test_a_new_session_is_forced_onto_the_replica_with_the_fewest_sessions() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 400)
    driver.arrive("b", 500)
    driver.arrive("c", 200)  # r0: 400 < 500
    assert held(driver.arrive("new", 900))
    assert places(driver.advance(1800.0)) == [("new", "r1")]


# Exits, parallel turns, expiry, loss.


def test_a_failed_turn_ends_like_a_finished_one_but_not_as_shipped() -> None:
    for cls, acting in ((ThunderAgent, True), (ThunderAgentAsShipped, False)):
        for end in ("fail", "client_gone"):
            driver = start(cls)
            driver.arrive("a", 600)
            getattr(driver, end)("a")
            driver.arrive("b", 200)
            driver.cluster.streamed["b"] = 100
            # 600 + 300 + 200 = 1100, 100 too many. An acting a is paused. As shipped it reasons
            # for ever: both are marked, and nothing is ever freed.
            commands = driver.advance(5.0)
            assert paused(commands) == (["a"] if acting else [])
            assert marked(driver) == (set() if acting else {"a", "b"})


def test_parallel_turns_keep_a_session_reasoning_until_the_last_ends() -> None:
    for cls, first_end_pauses in ((ThunderAgent, False), (ThunderAgentAsShipped, True)):
        driver = start(cls)
        driver.arrive("a", 300)
        driver.arrive("a", 300)
        driver.finish("a", output=700)
        # 1000 + 100 > 1000 while the second turn still runs.
        assert paused(driver.advance(5.0)) == (["a"] if first_end_pauses else [])


def test_idle_sessions_leave_the_books_after_600_seconds() -> None:
    driver = start(lease_idle_s=0.0)
    driver.arrive("a", 800)
    driver.finish("a")
    assert held(driver.arrive("b", 100))
    assert paused(driver.advance(595.0)) == []
    commands = driver.advance(5.0)
    assert paused(commands) == ["a"]
    assert places(commands) == [("b", "r0")]
    # It comes back as a new session, though not in the class of new ones: it has a second turn.
    assert held(driver.arrive("a", 900))
    assert driver.scheduler.accounts.all["a"].step == 2  # type: ignore[attr-defined]


def test_as_shipped_never_forgets_what_is_not_released() -> None:
    kept = start(ThunderAgentAsShipped, honour_release=False)
    released = start(ThunderAgentAsShipped)
    for driver in (kept, released):
        driver.arrive("a", 800)
        driver.finish("a")
        driver.close("a")
        driver.arrive("b", 500)
    assert places([command for _, command in released.log])[-1] == ("b", "r0")
    # The ghost's 900 tokens stay: b waits 1,800 s.
    assert places(kept.advance(1799.0)) == []
    assert places(kept.advance(1.0)) == [("b", "r0")]


def test_a_ghost_can_be_paused_and_resumed_on_the_books_alone() -> None:
    driver = start(ThunderAgentAsShipped, honour_release=False)
    driver.arrive("a", 300)
    driver.finish("a")
    driver.close("a")
    driver.arrive("b", 400)
    driver.cluster.streamed["b"] = 300
    assert paused(driver.advance(5.0)) == []  # a's place is taken, but there is no session a
    assert driver.scheduler.counters()["paused"] == 1.0


def test_failover_places_the_sessions_of_a_lost_replica_anew() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 300)
    driver.arrive("b", 300)
    commands = driver.lose("r0")
    assert held(commands)
    assert places(driver.advance(5.0)) == [("a", "r1")]


def test_as_shipped_refuses_turns_of_a_lost_replica_until_it_is_back() -> None:
    driver = start(ThunderAgentAsShipped, replicas=2)
    driver.arrive("a", 300)
    driver.arrive("b", 300)
    assert [type(c) for c in driver.lose("r0") if isinstance(c, (Hold, Reject))] == [Reject]
    assert any(isinstance(c, Reject) for c in driver.arrive("a", 300))
    driver.recover("r0")
    assert places(driver.arrive("a", 300)) == [("a", "r0")]


def test_a_failed_dispatch_is_tried_again_where_the_session_has_its_place() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 300)
    assert places(driver.dispatch_failed("a")) == [("a", "r0")]


def test_no_healthy_replica_means_waiting() -> None:
    driver = start()
    driver.lose("r0")
    assert held(driver.arrive("a", 10))
    assert places(driver.advance(1801.0)) == []
    driver.recover("r0")
    assert places(driver.advance(5.0)) == [("a", "r0")]


# Large prompts in a burst.


def burst(cls: type[ThunderAgent]) -> float:
    """One large prompt among small ones that keep coming; when it is let in, in seconds."""
    driver = start(cls)
    for i in range(5):
        driver.arrive(f"s0.{i}", 100)
    driver.arrive("large", 700)
    for round_number in range(1, 100):
        # Two small sessions leave every 5 s and two others arrive: room for the large never comes.
        for i in range(2):
            driver.arrive(f"s{round_number}.{i}", 100)
        small = [s.id for s in driver.cluster.sessions.values() if s.in_flight and s.id != "large"]
        for name in small[:2]:
            driver.finish(name)
            driver.close(name)
        if ("large", "r0") in places(driver.advance(5.0)):
            return driver.now / 1e9
    return float("inf")


def test_large_prompts_starve_as_shipped_and_not_when_repaired() -> None:
    assert burst(ThunderAgentAsShipped) == float("inf")
    # Aged at 120 s; then nobody else enters, and two leave every 5 s.
    assert burst(ThunderAgent) <= 140.0


def test_only_one_replica_is_kept_free_for_those_who_waited_long() -> None:
    driver = start(replicas=2, aging_s=10.0)
    driver.arrive("a", 700)
    driver.arrive("b", 600)
    assert held(driver.arrive("large1", 900))
    assert held(driver.arrive("large2", 800))
    driver.advance(10.0)
    assert held(driver.arrive("small", 50))
    # Room r0 200, r1 300: r1 is kept for large1; large2 fits nowhere; small goes to r0.
    assert places(driver.advance(5.0)) == [("small", "r0")]


# The estimate, the clock.


def test_token_estimate_learns_bytes_per_token() -> None:
    estimate = TokenEstimate()
    assert estimate(prompt("s", 100)) == 80  # 400 bytes / 5
    estimate.learn(400, Usage(100, None, 0))
    assert estimate.ratio == 4.0  # the first sample replaces
    estimate.learn(600, Usage(100, None, 0))
    assert estimate.ratio == pytest.approx(0.2 * 6 + 0.8 * 4)
    estimate.learn(600, Usage(0, None, 5))
    assert estimate.ratio == pytest.approx(4.4)


def test_usage_replaces_the_estimate() -> None:
    driver = start()
    driver.arrive("a", 300)
    driver.finish("a", output=77)
    assert driver.scheduler.accounts.all["a"].tokens == 377  # type: ignore[attr-defined]


def test_ticks_keep_their_phase_and_stop_without_sessions() -> None:
    driver = start()
    driver.advance(1.0)
    driver.arrive("a", 10)
    assert driver.timers[0] == 6_000_000_000
    driver.finish("a")
    driver.close("a")
    driver.advance(20.0)
    assert driver.timers == []
    driver.advance(1.5)
    driver.arrive("b", 10)
    assert driver.timers == [26_000_000_000]  # 22.5 s now; ticks at 1 + 5 k


def test_refuses_an_interval_that_never_ends() -> None:
    with pytest.raises(ValueError, match="interval_s"):
        ThunderAgentConfig(interval_s=0.0)
    assert AsShippedConfig().idle_ttl_s == 0.0


# Sessions that end without saying so.


def test_unseen_sessions_leave_when_a_turn_fits_nowhere_longest_unseen_first() -> None:
    driver = start()
    driver.arrive("a", 300)
    driver.finish("a")
    driver.advance(2.0)
    driver.arrive("b", 300)
    driver.finish("b")
    driver.advance(20.0)
    assert held(driver.arrive("c", 300))  # 1000 - 600 - 200 = 200 < 400
    # At 60 s both are unseen for less than 60 s or just so: a since 0 s, b since 2 s.
    assert places(driver.advance(37.9)) == []
    # At 60 s a leaves: 1000 - 300 - 100 = 600 >= 400. b keeps its place.
    assert places(driver.advance(0.2)) == [("c", "r0")]
    assert driver.scheduler.counters()["expired"] == 1.0
    driver.finish("c")
    assert not held(driver.arrive("b", 300))


def test_nobody_leaves_while_every_waiting_turn_fits_or_where_leases_are_off() -> None:
    driver = start()
    driver.arrive("a", 300)
    driver.finish("a")
    driver.advance(599.0)
    assert driver.scheduler.counters()["expired"] == 0.0
    shipped = start(ThunderAgentAsShipped)
    shipped.arrive("a", 700)
    shipped.finish("a")
    assert held(shipped.arrive("b", 300))
    assert places(shipped.advance(900.0)) == []
