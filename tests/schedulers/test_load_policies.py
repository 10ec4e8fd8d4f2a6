"""Policies that look at load: least loaded, LMetric, power of two, random."""

from __future__ import annotations

from random import Random

import pytest

from schedulers.least_loaded import LeastLoaded, LeastLoadedConfig
from schedulers.lmetric import LMetric, LMetricConfig
from schedulers.power_of_two import PowerOfTwo, PowerOfTwoConfig
from schedulers.random_choice import RandomChoice
from schedulers.types import ReplicaSample
from tests.schedulers.plane_driver import PlaneDriver, mixed, text

# Least loaded.


def test_least_in_flight_and_the_first_of_equals() -> None:
    driver = PlaneDriver(LeastLoaded(), mixed("a", "b"))
    assert driver.place("s", text(("s", 900))) == "a"
    assert driver.place("t", text(("t", 1))) == "b"
    assert driver.place("u", text(("u", 1))) == "a"
    driver.finish("t")
    assert driver.place("v", text(("v", 1))) == "b"


def test_queue_time_weighs_queued_tokens_against_kv_usage() -> None:
    driver = PlaneDriver(LeastLoaded(LeastLoadedConfig(load="queue-time")), mixed("a", "b"))
    assert driver.place("s", text(("s", 1000))) == "a"  # 0 and 0: the first
    # a: 1000 / 2000 = 0.5 s. b: 0.15 * 0.8 / 0.2 = 0.6 s.
    driver.sampled("b", ReplicaSample(kv_usage=0.8))
    assert driver.place("t", text(("t", 300))) == "a"
    # a: 1300 / 2000 = 0.65 s > 0.6 s.
    assert driver.place("u", text(("u", 1))) == "b"


def test_queue_time_survives_a_full_cache() -> None:
    driver = PlaneDriver(LeastLoaded(LeastLoadedConfig(load="queue-time")), mixed("a", "b"))
    driver.sampled("a", ReplicaSample(kv_usage=1.0))
    # k is capped at 0.999: 0.15 * 999 = 149.85 s; b has no sample: 0.
    assert driver.place("s", text(("s", 10))) == "b"


# LMetric.


def test_lmetric_multiplies_prefill_work_by_batch_size() -> None:
    driver = PlaneDriver(LMetric(), mixed("a", "b"))
    assert driver.place("s", text(("s", 100))) == "a"  # 0 and 0, P 100 and 100: round robin, a
    assert driver.place("t", text(("t", 300))) == "b"  # a (100 + 300) * 1, b 0
    # a: (100 + 50) * 1 = 150; b: (300 + 50) * 1 = 350.
    assert driver.place("u", text(("u", 50))) == "a"
    # a: (150 + 50) * 2 = 400; b: (300 + 50) * 1 = 350.
    assert driver.place("v", text(("v", 50))) == "b"
    driver.first_token("t")
    driver.first_token("v")
    # The cache counts: a: (150 + 350) * 2 = 1000; b: (0 + 350 - 300) * 2 = 100.
    assert driver.place("w", text(("t", 350))) == "b"


def test_lmetric_ties_go_to_the_smaller_prefill_then_round_robin() -> None:
    driver = PlaneDriver(LMetric(), mixed("a", "b"))
    driver.place("s", text(("s", 100)))
    driver.finish("s")
    # Both idle, both score 0; a would compute 10 tokens, b 110.
    assert driver.place("s", text(("s", 110))) == "a"
    driver.finish("s")
    # Nobody knows t: an exact tie. s was the first such tie (a), this is the second (b).
    assert driver.place("t", text(("t", 10))) == "b"


def test_lmetric_offset_lets_an_idle_cache_win_over_nothing() -> None:
    # a: cached, one turn in flight. Faithful: a (0 + 10) * 1 = 10, b 0. Offset 1:
    # a 10 * 2 = 20, b 110 * 1 = 110.
    for offset, expected in ((0, "b"), (1, "a")):
        driver = PlaneDriver(LMetric(LMetricConfig(batch_offset=offset)), mixed("a", "b"))
        driver.place("s", text(("s", 100)))
        driver.first_token("s")
        assert driver.place("t", text(("s", 110))) == expected


def test_least_prefill_work_left_ignores_the_batch() -> None:
    driver = PlaneDriver(LMetric(LMetricConfig(objective="prefill")), mixed("a", "b"))
    driver.place("s", text(("s", 100)))
    driver.first_token("s")
    # a: 0 + 10, b: 0 + 110, though a is busy.
    assert driver.place("t", text(("s", 110))) == "a"
    driver.first_token("t")
    # Equal work, 5 and 5: fewer turns in flight, b.
    assert driver.place("u", text(("u", 5))) == "b"


def test_lmetric_refuses_unknown_objective() -> None:
    with pytest.raises(ValueError, match="objective"):
        LMetricConfig(objective="sum")  # type: ignore[arg-type]


# Power of two, random.


def test_power_of_two_takes_the_less_loaded_of_its_draw() -> None:
    driver = PlaneDriver(PowerOfTwo(rng=Random(3)), mixed("a", "b", "c"))
    twin = Random(3)
    loads = dict.fromkeys("abc", 0)
    for i in range(30):
        first, second = twin.sample("abc", 2)
        expected = second if loads[second] < loads[first] else first
        assert driver.place(f"s{i}", text((f"s{i}", 1))) == expected
        loads[expected] += 1


def test_power_of_two_by_token_usage_only_if_both_report() -> None:
    config = PowerOfTwoConfig(load="token-usage")
    driver = PlaneDriver(PowerOfTwo(config), mixed("a", "b"))
    driver.sampled("a", ReplicaSample(kv_usage=0.9))
    # b reports nothing: turns in flight decide. Whatever the draw, the second goes to the other.
    first = driver.place("s", text(("s", 1)))
    second = driver.place("t", text(("t", 1)))
    assert {first, second} == {"a", "b"}
    driver.sampled("b", ReplicaSample(kv_usage=0.1))
    assert [driver.place(f"u{i}", text((f"u{i}", 1))) for i in range(3)] == ["b", "b", "b"]


def test_power_of_two_with_one_replica() -> None:
    assert PlaneDriver(PowerOfTwo(), mixed("a")).place("s", text(("s", 1))) == "a"


def test_random_uses_the_given_generator_and_healthy_replicas() -> None:
    driver = PlaneDriver(RandomChoice(rng=Random(5)), mixed("a", "b", "c"))
    twin = Random(5)
    for i in range(10):
        assert driver.place(f"s{i}", text(("s", 1))) == twin.choice("abc")
    driver.lose("b")
    twin = Random(5)
    driver.scheduler.rng = Random(5)
    for i in range(10):
        assert driver.place(f"t{i}", text(("s", 1))) == twin.choice("ac")
