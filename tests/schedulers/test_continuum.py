"""Continuum's gateway form: reservations, their length, and the order of admission."""

from __future__ import annotations

from math import log
from statistics import correlation
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.continuum import Continuum, ContinuumConfig, Durations, TurnCorrelation
from schedulers.registry import configure
from tests.schedulers.plane_driver import PlaneDriver, mixed, text


def start(*names: str, capacity: int = 1000, **config: Any) -> PlaneDriver:
    scheduler = Continuum(configure(Continuum, config))
    return PlaneDriver(scheduler, mixed(*(names or ("r0",)), capacity=capacity))


def policy(driver: PlaneDriver) -> Continuum:
    assert isinstance(driver.scheduler, Continuum)
    return driver.scheduler


def running(driver: PlaneDriver) -> list[tuple[str, str]]:
    return [(one.turn.session, one.decode) for one in driver.open.values()]


# Length of a reservation.


def known(*seconds: float) -> Durations:
    durations = Durations(window=512)
    for one in seconds:
        durations.add(one)
    return durations


@pytest.mark.parametrize(
    ("durations", "benefit", "expected"),
    [
        ((1.0, 3.0), 4.2, 3.0),  # F(1) B - 1 = 1.1, F(3) B - 3 = 1.2
        ((1.0, 3.0), 4.0, 1.0),  # 1 and 1: the smaller
        ((1.0, 3.0), 1.0, 0.0),  # -0.5 and -2: none
        ((1.0, 3.0), 2.0, 0.0),  # 0 at tau 1 and 0 at tau 0: the smaller
        ((0.0, 2.0), 2.0, 0.0),  # tau 0 covers half: 1 against 2 - 2
        ((1.0, 1.0, 1.0, 9.0), 4.0, 1.0),  # F(1) = 3/4: 3 - 1 = 2; 4 - 9
    ],
)
def test_best_wait(durations: tuple[float, ...], benefit: float, expected: float) -> None:
    assert known(*durations).best_wait(benefit) == expected


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.integers(0, 20).map(float), min_size=1, max_size=20),
    st.floats(0, 30),
    st.integers(1, 8),
)
def test_best_wait_equals_trying_every_candidate(
    seconds: list[float], benefit: float, window: int
) -> None:
    durations = Durations(window)
    for one in seconds:
        durations.add(one)
    latest = seconds[-window:]
    gains = {
        tau: benefit * (sum(d <= tau for d in latest) / len(latest)) - tau for tau in [0.0, *latest]
    }
    best = durations.best_wait(benefit)
    assert gains[best] == pytest.approx(max(gains.values()))


def test_cold_reservations_assume_exponential_tools() -> None:
    scheduler = Continuum()
    # 14,000 tokens: 0.066 + 0.0570 * 14 + 0.00441 * 196 = 1.72836; ln of it.
    assert scheduler.reservation_s("bash", 14_000) == pytest.approx(log(1.72836))
    # 1,000 tokens: 0.12741, not above 1.
    assert scheduler.reservation_s("bash", 1000) == 0.0


def test_more_than_100_durations_of_all_tools_then_of_the_tool_itself() -> None:
    scheduler = Continuum(ContinuumConfig(reload_base_s=4.0, reload_per_1k_s=0.0))
    for _ in range(100):
        scheduler.all_tools.add(1.0)
    assert scheduler.reservation_s("bash", 0) == pytest.approx(log(4.0))
    scheduler.all_tools.add(1.0)
    assert scheduler.reservation_s("bash", 0) == 1.0  # F(1) * 4 - 1 = 3
    own = scheduler.by_tool["bash"] = Durations(512)
    for _ in range(101):
        own.add(2.0)
    assert scheduler.reservation_s("bash", 0) == 2.0
    assert scheduler.reservation_s("other", 0) == 1.0


@settings(max_examples=100, deadline=None)
@given(st.lists(st.integers(1, 12), min_size=1, max_size=10))
def test_eta_is_the_negative_correlation_of_turns_done_and_left(lengths: list[int]) -> None:
    fast = TurnCorrelation()
    pairs = []
    for turns in lengths:
        fast.add(turns)
        pairs += [(k, turns - k) for k in range(1, turns + 1)]
    done, left = zip(*pairs, strict=True)
    if len(set(done)) > 1 and len(set(left)) > 1:
        expected = min(1.0, max(0.0, -correlation(done, left)))
        assert fast.eta() == pytest.approx(expected, abs=1e-9)
    else:
        assert fast.eta() == 1.0


# Places and order.


def test_a_turn_within_the_reservation_passes_and_after_it_waits() -> None:
    # A reload of more than 10 s is worth ln 10 = 2.3 s of waiting and a little more.
    driver = start(reload_base_s=10.0)
    driver.arrive("s", text(("s", 600)))
    driver.finish("s")
    driver.tool("s", "bash")
    driver.arrive("other", text(("other", 500)))
    # Nothing runs and other does not fit: the place of s goes. Not so while something runs:
    assert running(driver) == [("other", "r0")]
    driver.finish("other")
    driver.close("other")
    driver.arrive("s", text(("s", 610)))
    driver.finish("s")
    driver.tool("s", "bash")
    driver.arrive("small", text(("small", 300)))
    driver.arrive("other2", text(("other2", 200)))  # 610 + 300 + 200 > 1000: waits
    driver.advance(2.0)
    driver.arrive("s", text(("s", 620)))
    assert running(driver) == [("small", "r0"), ("s", "r0")]
    driver.finish("s")
    driver.tool("s", "bash")
    driver.advance(3.0)  # over: other2 gets in, s must wait its turn
    assert running(driver) == [("small", "r0"), ("other2", "r0")]
    driver.arrive("s", text(("s", 630)))
    assert running(driver) == [("small", "r0"), ("other2", "r0")]


def test_admission_is_by_first_arrival_and_the_first_blocks_the_rest() -> None:
    driver = start()
    driver.arrive("a", text(("a", 600)))
    driver.advance(1.0)
    driver.arrive("b", text(("b", 500)))
    driver.advance(1.0)
    driver.arrive("c", text(("c", 10)))
    assert running(driver) == [("a", "r0")]
    driver.finish("a")
    driver.close("a")
    assert running(driver) == [("b", "r0"), ("c", "r0")]


def test_an_older_session_goes_before_newer_ones() -> None:
    driver = start()
    driver.arrive("old", text(("old", 400)))
    driver.finish("old")
    driver.advance(0.0)  # no reservation: 400 tokens are worth less than a second
    driver.arrive("young", text(("young", 900)))
    driver.advance(1.0)
    driver.arrive("third", text(("third", 200)))
    driver.arrive("old", text(("old", 410)))
    driver.finish("young")
    driver.close("young")
    assert running(driver) == [("old", "r0"), ("third", "r0")]


def test_places_go_latest_session_first_when_nothing_runs() -> None:
    driver = start(reload_base_s=10.0)
    for name in ("s1", "s2"):
        driver.arrive(name, text((name, 400)))
        driver.finish(name)
        driver.tool(name, "bash")
        driver.advance(0.1)
    driver.arrive("u", text(("u", 500)))
    # s2's place is enough: 1000 - 400 >= 500.
    assert running(driver) == [("u", "r0")]
    assert driver.view.sessions["s1"].home == "r0"
    assert driver.view.sessions["s2"].lifecycle == "paused"


def test_a_prompt_larger_than_any_replica_goes_in_when_nothing_runs() -> None:
    driver = start()
    driver.arrive("huge", text(("huge", 5000)))
    assert running(driver) == [("huge", "r0")]


def test_returns_where_it_was_if_it_fits_there() -> None:
    driver = start("r0", "r1")
    driver.arrive("a", text(("a", 100)))
    driver.arrive("b", text(("b", 50)))
    assert running(driver) == [("a", "r0"), ("b", "r1")]
    driver.finish("a")
    driver.advance(0.0)
    driver.arrive("c", text(("c", 100)))
    assert running(driver)[-1] == ("c", "r0")  # roomiest: 1000 against 950
    driver.arrive("a", text(("a", 120)))
    assert running(driver)[-1] == ("a", "r0")  # its origin fits, though r1 has more room


def test_waiting_after_an_eviction_raises_what_a_place_is_worth() -> None:
    driver = start(reload_base_s=0.0, reload_per_1k_s=0.0, reload_per_1k_squared_s=0.0)
    driver.arrive("s", text(("s", 600)))
    driver.finish("s")
    driver.advance(0.0)
    driver.arrive("t", text(("t", 600)))
    driver.arrive("s", text(("s", 600)))
    driver.advance(4.0)
    driver.finish("t")
    driver.close("t")
    assert running(driver) == [("s", "r0")]
    assert policy(driver).reservation_s("bash", 0) == pytest.approx(log(4.0))


def test_durations_run_from_tool_start_to_the_next_turn() -> None:
    driver = start()
    driver.arrive("s", text(("s", 10)))
    driver.finish("s")
    driver.tool("s", "bash", "python")
    driver.advance(2.5)
    driver.arrive("s", text(("s", 20)))
    assert policy(driver).all_tools.ascending == [2.5]
    assert policy(driver).by_tool["bash"].ascending == [2.5]
