"""Dynamo's port of ThunderAgent: its watermarks, ranking, demotion. Capacity 1,000 a replica."""

from __future__ import annotations

from typing import Any

import pytest

from schedulers.accounts import TokenEstimate
from schedulers.commands import Route
from schedulers.dynamo_thunderagent import DynamoThunderAgent, DynamoThunderAgentConfig
from schedulers.registry import configure
from tests.schedulers.fake_cluster import Driver, FakeCluster
from tests.schedulers.test_thunderagent import held, marked, paused, places


def start(replicas: int = 1, **settings: Any) -> Driver:
    scheduler = DynamoThunderAgent(configure(DynamoThunderAgent, settings))
    scheduler.estimate = TokenEstimate(ratio=4.0)
    return Driver(scheduler, FakeCluster({f"r{i}": 1000 for i in range(replicas)}))


def priority(driver: Driver) -> object:
    command = driver.log[-1][1]
    assert isinstance(command, Route)
    return command.annotations.get("priority")


def test_a_new_session_fits_under_95_percent() -> None:
    driver = start()
    assert places(driver.arrive("a", 850)) == [("a", "r0")]  # 850 + 100 = 950
    driver = start()
    assert held(driver.arrive("a", 851))


def test_new_sessions_are_ranked_by_decayed_load() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 300)
    driver.arrive("b", 200)
    driver.finish("a")
    driver.advance(1.0)
    # Decayed: r0 300 / 2 = 150, r1 200 (reasoning). Undecayed r1 would win.
    assert places(driver.arrive("c", 100)) == [("c", "r0")]


@pytest.mark.parametrize(("streamed", "expected"), [(0, []), (20, ["a", "b"])])
def test_pauses_above_95_percent_down_to_80(streamed: int, expected: list[str]) -> None:
    driver = start()
    driver.arrive("a", 50)
    driver.arrive("b", 60)
    driver.finish("a")
    driver.finish("b")
    driver.arrive("c", 540)
    driver.cluster.streamed["c"] = streamed
    # Used 650 + 300 = 950: not above 950. With 20 more 970: 170 must go. a frees 150, b 160.
    assert paused(driver.advance(5.0)) == expected


def test_resumes_only_up_to_85_percent() -> None:
    driver = start()
    driver.arrive("a", 800)
    assert held(driver.arrive("b", 400))
    assert held(driver.arrive("c", 300))
    driver.finish("a")
    driver.close("a")
    # Ceiling 850: c 400, b 500: together 900 > 850.
    assert places(driver.advance(5.0)) == [("c", "r0")]
    # 850 - 400 = 450 < 500, though 950 would hold it.
    assert places(driver.advance(5.0)) == []


def test_resumed_turns_run_earlier() -> None:
    driver = start()
    driver.arrive("a", 800)
    driver.arrive("b", 400)
    driver.finish("a")
    driver.close("a")
    resume = next(c for c in driver.advance(5.0) if places([c]))
    assert resume.annotations == {"priority": -1}  # type: ignore[attr-defined]


def test_between_the_marks_the_next_to_pause_is_demoted_for_a_round_and_a_half() -> None:
    driver = start()
    for name, tokens in (("a", 50), ("b", 200), ("c", 300)):
        driver.arrive(name, tokens)
    driver.finish("a")
    driver.finish("b")
    # Used 550 + 300 = 850: 50 above 800. a's 150 are enough: a is demoted, b is not.
    driver.advance(5.0)
    driver.arrive("a", 50)
    assert priority(driver) == 2
    driver.arrive("b", 200)
    assert priority(driver) is None
    driver.finish("a")
    driver.finish("b")
    driver.close("b")
    driver.advance(7.5)  # used 350 + 200 by now; the demotion is over
    driver.arrive("a", 50)
    assert priority(driver) is None


def test_marking_takes_all_as_in_the_original() -> None:
    driver = start()
    driver.arrive("a", 400)
    driver.arrive("b", 300)
    driver.cluster.streamed["a"] = 200
    driver.advance(5.0)  # 900 + 200 > 950
    assert marked(driver) == {"a", "b"}


def test_forced_in_where_decayed_room_is_largest() -> None:
    driver = start(replicas=2, idle_ttl_s=0.0)
    driver.arrive("a", 600)
    driver.arrive("b", 500)
    driver.finish("a")
    assert held(driver.arrive("new", 400))
    # r0's session has decayed to nothing, r1's still reasons, although r0 holds more undecayed.
    assert places(driver.advance(1800.0)) == [("new", "r0")]


def test_a_displaced_session_is_placed_at_once_or_passes_without_a_place() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 300)
    driver.arrive("b", 300)
    assert places(driver.lose("r0")) == [("a", "r1")]  # 400 + 400 <= 950
    driver = start(replicas=2)
    driver.arrive("a", 600)
    driver.arrive("b", 600)
    assert places(driver.lose("r0")) == [("a", "r1")]  # 700 + 700 > 950: goes, unbooked
    assert set(driver.scheduler.accounts.all) == {"b"}  # type: ignore[attr-defined]
    driver.dispatch_failed("a")
    assert not driver.cluster.sessions["a"].in_flight  # decided as a new one: held


def test_displaced_parallel_turns_go_together_or_wait_together() -> None:
    driver = start(replicas=2)
    driver.arrive("a", 300)
    driver.arrive("a", 300)
    driver.arrive("b", 100)
    driver.lose("r0")
    assert driver.cluster.sessions["a"].in_flight == 2
    driver = start(replicas=2)
    driver.arrive("a", 600)
    driver.arrive("a", 600)
    driver.arrive("b", 600)
    driver.lose("r0")
    # The first passes without a place; by then the books know nothing of a, so the second is
    # judged as a new session, does not fit and waits.
    assert driver.cluster.sessions["a"].in_flight == 1
    assert len(driver.cluster.sessions["a"].waiting) == 1


def test_max_running_counts_reasoning_sessions_only() -> None:
    driver = start(max_running=1)
    driver.arrive("a", 100)
    assert held(driver.arrive("b", 100))
    assert held(driver.arrive("c", 100))
    assert places(driver.advance(5.0)) == []
    driver.finish("a")
    # One of the two, although there is room for both.
    assert places(driver.advance(5.0)) == [("b", "r0")]


def test_refuses_marks_out_of_order() -> None:
    with pytest.raises(ValueError, match="pause_to"):
        DynamoThunderAgentConfig(pause_to=0.9)
