"""Dynamo's KV router: costs in blocks of 16 tokens worked out by hand."""

from __future__ import annotations

from collections import Counter
from math import exp
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.active_text import ActiveText
from schedulers.dynamo import Dynamo, DynamoConfig
from schedulers.registry import configure
from schedulers.types import PromptRef
from tests.oracles.active_text import ActiveTextOracle
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def start(*names: str, capacity: int = 100_000, **config: Any) -> PlaneDriver:
    return PlaneDriver(Dynamo(configure(Dynamo, config)), mixed(*names, capacity=capacity))


def disaggregated(**config: Any) -> PlaneDriver:
    pool = [
        replica("p0", "prefill"),
        replica("p1", "prefill"),
        replica("d0", "decode"),
        replica("d1", "decode"),
    ]
    return PlaneDriver(Dynamo(configure(Dynamo, config)), pool)


def test_load_pushes_away() -> None:
    driver = start("a", "b")
    driver.place("s", text(("s", 160)))
    (first,) = (one.decode for one in driver.open.values())
    other = "b" if first == "a" else "a"
    # first: raw (160 + 160) / 16 = 20, decode blocks 10 + 10 = 20: 40. other: 10 + 10 = 20.
    assert driver.place("t", text(("t", 160))) == other


def test_overlap_pulls_until_load_outweighs_it() -> None:
    driver = start("a", "b")
    home = driver.place("s", text(("s", 160)))
    driver.finish("s")
    # home: raw 20 - credit 10 = 10, decode 20: 30. Other: 20 + 20 = 40.
    assert driver.place("s", text(("s", 320))) == home
    # Now home has 160 uncached tokens queued and 20 active blocks. A third turn of 320 tokens of
    # the same text: home raw 30 - credit 20 = 10, decode max(20, 20): 30; other: 20 + 20 = 40.
    assert driver.place("t", text(("s", 320))) == home
    # A new text of 160: home raw (160 + 0 + 160) / 16 = 20, decode 30: 50; other 10 + 10.
    assert driver.place("u", text(("u", 160))) != home


def test_partial_blocks_give_no_credit() -> None:
    driver = start("a", "b", active_request_weight=0.5)
    home = driver.place("s", text(("s", 15)))
    driver.first_token("s")
    # 15 of 31 tokens match: no whole block. Home: raw 31 / 16, decode ceil(31 / 16) = 2, half for
    # the active request; other: raw 31 / 16, decode 2. A credit of 15 / 16 would tip it.
    assert driver.place("t", text(("s", 31))) != home


def test_credit_decay_shrinks_the_overlap_of_a_worker_that_is_behind() -> None:
    # a has s cached (256 tokens, 16 blocks) and x queued (320 tokens); another worker is idle.
    # s again on a: raw (320 + 256) / 16 = 36; ahead 320 / 16 = 20, decay 1 / (1 + 20 / 16) =
    # 1 / 2.25, credit 16 / 2.25; decode blocks 16 (s is active already) + 20 = 36.
    driver = start("a", credit_decay=1.0)
    scheduler = driver.scheduler
    driver.place("s", text(("s", 256)))
    driver.first_token("s")
    driver.place("x", text(("x", 320)))
    assert isinstance(scheduler, Dynamo)
    view = driver.view
    b = start("b").view.replicas[0]
    cost = scheduler._cost(driver.open[1].turn, [view.replicas[0], b], view)
    assert cost(view.replicas[0]) == pytest.approx(36 - 16 / 2.25 + 36)


def test_active_request_weight_counts_turns_in_flight() -> None:
    for weight, expected in ((0.0, True), (5.0, False)):
        driver = start("a", "b", active_request_weight=weight)
        home = driver.place("s", text(("s", 32)))
        driver.first_token("s")
        # Home: raw 2 - 2 + decode 2 = 2, plus the weight; other 2 + 2 = 4.
        assert (driver.place("t", text(("s", 32))) == home) is expected


def test_ties_are_broken_at_random_by_the_given_generator() -> None:
    driver = PlaneDriver(Dynamo(rng=Random(7)), mixed("a", "b", "c"))
    twin = Random(7)
    assert driver.place("s", text(("s", 16))) == twin.choice("abc")


def test_temperature_spreads_by_the_softmax_of_normalised_costs() -> None:
    scheduler = Dynamo(DynamoConfig(temperature=0.5), Random(1))
    driver = PlaneDriver(scheduler, mixed("a", "b", "c"))
    costs = {"a": 10.0, "b": 20.0, "c": 30.0}
    drawn = Counter(
        scheduler._select(driver.view.replicas, lambda r: costs[r.id])[0].id for _ in range(6000)
    )
    # (cost - min) / ((max - min) * 0.5): 0, 1, 2.
    total = 1 + exp(-1) + exp(-2)
    for name, weight in (("a", 1.0), ("b", exp(-1)), ("c", exp(-2))):
        assert drawn[name] / 6000 == pytest.approx(weight / total, abs=0.03)


def test_turns_queue_while_every_worker_is_behind() -> None:
    driver = start("a", "b", queue_threshold=2.0, batch_tokens=100)
    driver.place("s", text(("s", 201)))
    driver.place("t", text(("t", 200)))  # the other worker: exactly 200, not above
    driver.place("u", text(("u", 10)))  # goes there: 210
    assert len(driver.view.waiting) == 0
    driver.arrive("v", text(("v", 10)))
    driver.arrive("w", text(("w", 10)))
    assert list(driver.view.waiting) == ["v/0", "w/0"]
    driver.first_token("s")
    # One worker is at 0 again: both go there, first come first.
    assert list(driver.view.waiting) == []
    assert [one.turn.session for one in driver.open.values()][-2:] == ["v", "w"]
    assert driver.scheduler.counters()["queued"] == 2.0


def test_last_come_first_served_queue() -> None:
    driver = start("a", queue_threshold=2.0, batch_tokens=100, queue_policy="lcfs")
    driver.place("s", text(("s", 201)))
    driver.arrive("v", text(("v", 300)))
    driver.arrive("w", text(("w", 300)))
    driver.first_token("s")
    # w first; its 300 tokens close the door again.
    assert list(driver.view.waiting) == ["v/0"]


def test_a_queued_turn_whose_client_left_is_forgotten() -> None:
    driver = start("a", queue_threshold=2.0, batch_tokens=100)
    driver.place("s", text(("s", 201)))
    driver.arrive("v", text(("v", 10)))
    driver.client_gone("v")
    driver.arrive("w", text(("w", 10)))
    driver.first_token("s")
    assert [one.turn.session for one in driver.open.values()] == ["s", "w"]


def test_busy_workers_are_no_candidates_and_all_busy_is_a_refusal() -> None:
    driver = start("a", "b", capacity=1000, busy_decode_share=0.5)
    home = driver.place("s", text(("s", 501)))
    driver.first_token("s")
    # Cached on home, but 501 > 500 active tokens make it busy.
    other = driver.place("t", text(("s", 510)))
    assert other != home
    driver.arrive("u", text(("u", 10)))
    assert [one.turn.session for one in driver.refused] == ["u"]


def test_busy_by_prefill_tokens() -> None:
    driver = start("a", "b", busy_prefill_tokens=100)
    driver.place("s", text(("s", 101)))
    driver.place("t", text(("t", 101)))
    driver.arrive("u", text(("u", 10)))
    assert [one.turn.session for one in driver.refused] == ["u"]
    driver.first_token("s")
    assert driver.place("v", text(("v", 10))) == driver.oldest("s")[1].decode


def test_pools_prefill_by_load_and_decode_by_active_blocks() -> None:
    driver = disaggregated()
    first = driver.dispatch("s", text(("s", 1600)))
    second = driver.dispatch("t", text(("t", 160)))
    # Each other worker is empty.
    assert first.prefill != second.prefill
    assert first.decode != second.decode
    # Prefill: 100 + 10 + decode 110 against 10 + 10 + 20. Decode: 110 blocks against 20.
    third = driver.dispatch("u", text(("u", 160)))
    assert (third.prefill, third.decode) == (second.prefill, second.decode)
    driver.leg("s")
    # first.prefill is empty again; its decode worker still has 100 blocks.
    fourth = driver.dispatch("v", text(("v", 160)))
    assert (fourth.prefill, fourth.decode) == (first.prefill, second.decode)


@pytest.mark.parametrize(
    ("cached", "prompt", "bypassed"),
    # Whole blocks of 16 are cached on the decode worker.
    [
        (1600, 3632, True),  # eff 2032 < 2048, 2032 / 3632 = 0.559 < 0.7
        (1600, 3648, False),  # eff 2048 is not below 2048
        (320, 1040, True),  # eff 720, 0.692
        (304, 1040, False),  # eff 736, 0.708
    ],
)
def test_conditional_disaggregation_by_length(cached: int, prompt: int, bypassed: bool) -> None:
    driver = disaggregated(bypass="isl")
    home = driver.dispatch("s", text(("s", cached)))
    assert home.prefill is not None  # nothing cached: eff / prompt = 1
    driver.leg("s")
    driver.first_token("s")
    driver.finish("s")
    again = driver.dispatch("s", text(("s", prompt)))
    assert again.decode == home.decode
    assert (again.prefill is None) is bypassed


def test_conditional_disaggregation_by_prefill_load() -> None:
    driver = disaggregated(bypass="prefill-load", busy_prefill_tokens=10_000)
    # Not busy: remote, whatever the length.
    assert driver.dispatch("s", text(("s", 160))).prefill is not None
    driver = disaggregated(bypass="isl-or-load", queue_threshold=0.0)
    driver.dispatch("s", text(("s", 160)))
    driver.dispatch("t", text(("t", 160)))
    # With queue_threshold 0 the limit is 0, and both prefill workers have work ahead.
    assert driver.dispatch("u", text(("u", 160))).prefill is None
    assert driver.scheduler.counters()["bypassed"] == 1.0


prompts = st.lists(st.tuples(st.sampled_from("ab"), st.integers(1, 4)), min_size=1, max_size=3).map(
    lambda runs: text(*runs)
)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(prompts, st.booleans()), max_size=20))
def test_active_text_counts_shared_stretches_once(steps: list[tuple[PromptRef, bool]]) -> None:
    fast, slow = ActiveText(), ActiveTextOracle()
    for prompt, leave in steps:
        expected = fast.with_prompt(prompt)
        fast.add(prompt)
        slow.prompts.append(prompt)
        assert fast.tokens == slow.tokens == expected
        if leave:
            gone = slow.prompts.pop(0)
            fast.remove(gone)
            assert fast.tokens == slow.tokens
