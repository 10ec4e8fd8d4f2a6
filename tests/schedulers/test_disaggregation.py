"""ConServe, AMPD, collocated and full disaggregation, decision by decision."""

from __future__ import annotations

from math import exp
from random import Random
from typing import Any

import pytest

from schedulers.ampd import LAST, Ampd, AmpdConfig
from schedulers.base import Scheduler
from schedulers.collocated import Collocated
from schedulers.conserve import ArrivalRate, ConServe, ConServeConfig
from schedulers.disaggregated import Disaggregated
from schedulers.registry import configure
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def pools(cls: type[Scheduler], *names: str, capacity: int = 100_000, **config: Any) -> PlaneDriver:
    """Replicas p0, p1, ... prefill, d0, d1, ... decode."""
    replicas = [replica(n, "prefill" if n[0] == "p" else "decode", capacity) for n in names]
    return PlaneDriver(cls(configure(cls, config), Random(6)), replicas)


def route(driver: PlaneDriver, session: str, tokens: int) -> tuple[str | None, str]:
    one = driver.dispatch(session, text((session, tokens)))
    return one.prefill, one.decode


def complete(driver: PlaneDriver, session: str, output: int = 0) -> None:
    if driver.oldest(session)[1].prefill is not None:
        driver.leg(session)
    driver.first_token(session)
    driver.finish(session, output=output)


# Collocated.


def test_collocated_sticks_or_spreads() -> None:
    for placement, expected in (("sticky", "a"), ("least-loaded", "b")):
        driver = PlaneDriver(
            Collocated(configure(Collocated, {"placement": placement})), mixed("a", "b")
        )
        driver.place("s", text(("s", 10)))
        driver.finish("s")
        driver.place("t", text(("t", 10)))  # least loaded: a
        assert driver.place("s", text(("s", 20))) == expected


# Full disaggregation.


def test_disaggregated_prefills_where_least_work_is_left() -> None:
    driver = pools(Disaggregated, "p0", "p1", "d0", "d1")
    assert route(driver, "s", 300) == ("p0", "d0")
    # p0: 300 + 50, p1: 50. The leg counts at p0, so d0 and d1 have nothing in flight yet.
    assert route(driver, "t", 50) == ("p1", "d0")
    driver.leg("s")
    # p0: 0 + (400 - 300 cached) = 100, p1: 50 + 400 = 450. d0 1, d1 0.
    assert route(driver, "s", 400) == ("p0", "d1")
    assert driver.scheduler.counters()["kv_transfers"] == 3.0


def test_disaggregated_sticky_decode() -> None:
    driver = pools(Disaggregated, "p0", "d0", "d1", decode="sticky")
    route(driver, "s", 10)
    complete(driver, "s")
    route(driver, "t", 10)
    driver.leg("t")
    assert driver.oldest("t")[1].decode == "d0"
    assert route(driver, "s", 20) == ("p0", "d0")


def test_disaggregated_without_one_of_its_pools() -> None:
    driver = pools(Disaggregated, "p0", "d0")
    driver.lose("p0")
    assert route(driver, "s", 10) == (None, "d0")
    driver = pools(Disaggregated, "p0", "d0")
    driver.lose("d0")
    assert route(driver, "s", 10) == (None, "p0")


# ConServe.


def test_conserve_transfers_once_then_stays_on_the_pinned_decoder() -> None:
    driver = pools(ConServe, "p0", "d0", "d1")
    assert route(driver, "s", 1000) == ("p0", "d0")
    complete(driver, "s", output=100)
    # d0 holds 1,100 of s, d1 nothing.
    assert route(driver, "t", 500) == ("p0", "d1")
    complete(driver, "t")
    assert route(driver, "s", 1500) == (None, "d0")  # although d1 holds less
    complete(driver, "s")
    assert driver.scheduler.counters()["kv_transfers"] == 2.0


def test_conserve_picks_the_least_occupied_share() -> None:
    driver = PlaneDriver(
        ConServe(),
        [replica("p0", "prefill"), replica("d0", "decode", 10_000), replica("d1", "decode", 4000)],
    )
    assert route(driver, "s", 1000) == ("p0", "d0")  # 0 and 0: the first
    assert route(driver, "t", 300) == ("p0", "d1")  # 0.1 > 0
    assert route(driver, "u", 300) == ("p0", "d1")  # 0.1 > 0.075
    assert route(driver, "v", 300) == ("p0", "d0")  # 0.1 < 0.15


def test_conserve_prefiller_by_queue_over_throughput() -> None:
    driver = pools(ConServe, "p0", "p1", "d0")
    scheduler = driver.scheduler
    assert isinstance(scheduler, ConServe)
    # p0 is measured: 1,000 tokens in 0.5 s, 2,000 a second; p1 is taken to make 8,000.
    assert route(driver, "s", 1000) == ("p0", "d0")
    driver.advance(0.5)
    driver.leg("s")
    assert scheduler.throughput("p0") == pytest.approx(2000.0)
    # p0: 1,000 / 2,000 = 0.5 s; p1: 1,000 / 8,000 = 0.125 s.
    assert route(driver, "t", 1000) == ("p1", "d0")
    assert route(driver, "u", 1000) == ("p1", "d0")  # 2,000 / 8,000 = 0.25 s
    # A queued leg is timed from the end of the one before: t at 0.2 s, u 0.1 s later.
    driver.advance(0.2)
    driver.leg("t")
    assert scheduler.throughput("p1") == pytest.approx(5000.0)
    driver.advance(0.1)
    driver.leg("u")
    assert scheduler.throughput("p1") == pytest.approx(0.2 * 10_000 + 0.8 * 5000)


def test_conserve_waits_for_room_first_come_first_served() -> None:
    driver = pools(ConServe, "p0", "d0", capacity=1000)
    route(driver, "s", 600)
    driver.arrive("t", text(("t", 500)))
    driver.arrive("u", text(("u", 10)))  # would fit, but t is first
    assert list(driver.view.waiting) == ["t/0", "u/0"]
    complete(driver, "s")
    assert list(driver.view.waiting) == ["t/0", "u/0"]  # s still holds its 600
    driver.close("s")
    assert list(driver.view.waiting) == []


def test_conserve_needs_one_decoder_with_room_for_prompt_and_reserve() -> None:
    driver = pools(ConServe, "p0", "d0", "d1", capacity=1000, reserve_tokens=100)
    assert route(driver, "s", 500) == ("p0", "d0")  # 500 + 100 held
    assert route(driver, "t", 500) == ("p0", "d1")
    # 800 tokens are free in all, 400 on each: 300 + 100 fits, 301 + 100 does not.
    assert route(driver, "u", 300) == ("p0", "d0")
    driver.arrive("v", text(("v", 301)))
    assert list(driver.view.waiting) == ["v/0"]


def test_conserve_holds_while_tokens_arrive_faster_than_they_are_prefilled() -> None:
    driver = pools(ConServe, "p0", "d0", prefill_tokens_per_s=100.0)
    route(driver, "s", 900)  # 900 tokens / 10 s = 90 a second
    driver.arrive("t", text(("t", 200)))  # 110 a second
    assert list(driver.view.waiting) == ["t/0"]
    # 110 * exp(-0.9 / 10) = 100.5, * exp(-1 / 10) = 99.5: admitted at the look after 1 s.
    driver.advance(0.9)
    assert list(driver.view.waiting) == ["t/0"]
    driver.advance(0.1)
    assert list(driver.view.waiting) == []


def test_arrival_rate_fades() -> None:
    rate = ArrivalRate(10.0)
    rate.add(1000, 0)
    assert rate.at(0) == 100.0
    assert rate.at(5_000_000_000) == pytest.approx(100 * exp(-0.5))
    rate.add(500, 5_000_000_000)
    assert rate.at(5_000_000_000) == pytest.approx(100 * exp(-0.5) + 50)


def test_conserve_starts_again_when_the_decoder_is_lost() -> None:
    driver = pools(ConServe, "p0", "d0", "d1")
    route(driver, "s", 100)
    complete(driver, "s")
    driver.lose("d0")
    assert route(driver, "s", 200) == ("p0", "d1")


def test_conserve_prefills_on_the_decoder_when_the_prefiller_is_lost() -> None:
    driver = pools(ConServe, "p0", "d0")
    route(driver, "s", 100)
    driver.lose("p0")  # its leg fails and comes back: pinned, prefilled there
    assert [(d.prefill, d.decode) for d in driver.open.values()] == [(None, "d0")]
    assert route(driver, "t", 100) == (None, "d0")


def test_conserve_unpins_idle_conversations() -> None:
    driver = pools(ConServe, "p0", "d0", capacity=1000)
    route(driver, "s", 900)
    complete(driver, "s")
    driver.arrive("t", text(("t", 900)))
    driver.advance(599.0)
    assert list(driver.view.waiting) == ["t/0"]
    driver.advance(1.0)
    assert list(driver.view.waiting) == []


def test_conserve_forgets_a_waiting_turn_whose_client_left() -> None:
    driver = pools(ConServe, "p0", "d0", capacity=1000)
    route(driver, "s", 900)
    driver.arrive("t", text(("t", 900)))
    driver.arrive("u", text(("u", 50)))
    driver.client_gone("t")
    assert list(driver.view.waiting) == []


def test_conserve_refuses_nonsense() -> None:
    with pytest.raises(ValueError, match="positive"):
        ConServeConfig(retry_s=0.0)


# AMPD. T_pre of 1,000 new tokens without history: 0.066 + 0.057 + 0.00441 = 0.12741 s.


def test_ampd_binds_to_the_decoder_with_the_least_memory_in_use() -> None:
    driver = pools(Ampd, "p0", "d0", "d1")
    assert route(driver, "s", 1000)[1] == "d0"
    assert route(driver, "t", 100)[1] == "d1"
    assert route(driver, "u", 100)[1] == "d1"  # 1,000 against 100
    complete(driver, "s")
    assert route(driver, "s", 2000)[1] == "d0"


def test_ampd_is_local_while_the_stall_is_bearable() -> None:
    # harm = 0.12741 / 200 = 0.00064 s <= 0.05; T_local 0.127 <= T_remote 0.127 + 0.011.
    driver = pools(Ampd, "p0", "d0")
    assert route(driver, "s", 1000) == (None, "d0")


@pytest.mark.parametrize(("itl", "expected"), [(0.049, None), (0.050, "p0")])
def test_ampd_goes_remote_when_latency_between_tokens_would_rise_too_far(
    itl: float, expected: str | None
) -> None:
    driver = pools(Ampd, "p0", "d0")
    route(driver, "w", 1000)
    driver.first_token("w")
    driver.advance(itl * 100)
    driver.finish("w", output=101)
    # Mean output is now 101. T_pre of 100 tokens is 0.066 + 0.0057 + 0.00004 = 0.07174 s, harm
    # 0.07174 / 101 = 0.00071: 0.04971 <= 0.05 < 0.05071.
    assert route(driver, "s", 100) == (expected, "d0")


def test_ampd_itl_window_is_ten_seconds() -> None:
    driver = pools(Ampd, "p0", "d0")
    route(driver, "w", 1000)
    driver.first_token("w")
    driver.advance(10.0)
    driver.finish("w", output=101)  # 0.1 s a token
    assert route(driver, "s", 100)[0] == "p0"
    driver.advance(10.5)
    assert route(driver, "t", 100)[0] is None


def test_ampd_goes_remote_when_the_decoder_has_more_queued() -> None:
    driver = pools(Ampd, "p0", "d0")
    route(driver, "w", 1000)  # local: 0.057 s queued on d0
    # T_local = 0.057 + 0.127, T_remote = 0.127 + 0.001 + 0.010.
    assert route(driver, "s", 1000) == ("p0", "d0")


def test_ampd_takes_the_least_ttft_when_nothing_meets_it() -> None:
    # Objective 0.1 s; ITL is broken, so local is not chosen by the first rule.
    driver = pools(Ampd, "p0", "d0", ttft_objective_s=0.1, itl_objective_s=0.0)
    # T_local 0.127 <= T_remote 0.138 > 0.1: local.
    assert route(driver, "s", 1000) == (None, "d0")
    # T_local 0.184 > T_remote 0.138: remote.
    assert route(driver, "t", 1000) == ("p0", "d0")


def test_ampd_prefers_the_prefill_worker_of_least_time() -> None:
    driver = pools(Ampd, "p0", "p1", "d0", itl_objective_s=0.0)
    assert route(driver, "s", 1000) == ("p0", "d0")
    assert route(driver, "t", 1000) == ("p1", "d0")
    driver.leg("s")
    driver.leg("t")
    # p1 has t's history: 200 new tokens there against 1,200 on p0.
    assert route(driver, "t", 1200) == ("p1", "d0")


def test_ampd_incremental_prefill_costs_grow_with_history() -> None:
    driver = pools(Ampd, "p0", "d0")
    route(driver, "s", 1000)
    complete(driver, "s")
    one = driver.dispatch("s", text(("s", 2000)))
    # 0.066 + 0.057 + 0.00441 * (4 - 1) = 0.13623 s; slack 2 - 0.13623 = 1.86377 s.
    assert one.annotations == {"priority": 1864}


def test_ampd_puts_turns_that_cannot_make_it_last() -> None:
    driver = pools(Ampd, "p0", "d0", ttft_objective_s=0.1)
    assert driver.dispatch("s", text(("s", 1000))).annotations == {"priority": LAST}


def test_ampd_error_rate_turns_decisions_round() -> None:
    driver = pools(Ampd, "p0", "d0", error_rate=1.0)
    assert route(driver, "s", 1000) == ("p0", "d0")  # would be local
    twin = Random(6)
    driver = pools(Ampd, "p0", "d0", error_rate=0.5)
    for i in range(20):
        flipped = twin.random() < 0.5
        assert route(driver, f"s{i}", 1000)[0] == ("p0" if flipped else None)
        complete(driver, f"s{i}")
    with pytest.raises(ValueError, match="error_rate"):
        AmpdConfig(error_rate=1.5)
