"""llm-d's weighted scores and AIBrix's prefix cache, worked out by hand."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from schedulers.aibrix import AIBrix
from schedulers.llm_d import LlmD, load_aware, spread
from schedulers.registry import configure
from schedulers.types import ReplicaSample
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def llm_d(*names: str, **config: Any) -> PlaneDriver:
    return PlaneDriver(LlmD(configure(LlmD, config), Random(2)), mixed(*names))


def gauges(
    driver: PlaneDriver, name: str, waiting: int = 0, kv: float = 0.0, running: int = 0
) -> None:
    driver.sampled(name, ReplicaSample(running=running, waiting=waiting, kv_usage=kv))


def score(driver: PlaneDriver) -> str:
    return driver.decisions[-1].why


# llm-d.


def test_scores() -> None:
    assert spread([2, 6, 4]) == [1.0, 0.0, 0.5]
    assert spread([3, 3]) == [1.0, 1.0]
    assert load_aware(0) == 0.5
    assert load_aware(64) == 0.25
    assert load_aware(500) == 0.0


def test_ties_are_random_by_the_given_generator() -> None:
    driver = llm_d("a", "b", "c")
    assert driver.place("s", text(("s", 10))) == Random(2).choice("abc")


def test_prefix_outweighs_queue_and_kv_in_the_helm_weights() -> None:
    driver = llm_d("a", "b")
    gauges(driver, "b", waiting=1)
    assert driver.place("s", text(("s", 160))) == "a"
    gauges(driver, "b")
    gauges(driver, "a", waiting=5)
    # a: 3 * 10 / 20 + 2 * 0 + 2 * 1 = 3.5; b: 0 + 2 * 1 + 2 * 1 = 4.
    assert driver.place("s", text(("s", 320))) == "b"
    # a has 160 tokens of it, b 320. A third turn of 336 tokens, 21 blocks:
    # a 3 * 10 / 21 + 2 = 3.43, b 3 * 20 / 21 + 2 + 2 = 6.857.
    assert driver.place("s", text(("s", 336))) == "b"
    assert score(driver) == "score 6.857"
    gauges(driver, "b", waiting=9, kv=1.0)
    # a: 3 * 10 / 21 + 2 * 1 + 2 * 1 = 5.43; b: 3 * 21 / 21 + 0 + 0 = 3.
    assert driver.place("s", text(("s", 336))) == "a"


def test_kv_usage_is_scored_absolutely() -> None:
    driver = llm_d("a", "b")
    gauges(driver, "a", kv=0.75)
    gauges(driver, "b", kv=0.5)
    # a: 2 + 2 * 0.25 = 2.5; b: 2 + 2 * 0.5 = 3.
    assert driver.place("s", text(("s", 10))) == "b"
    assert score(driver) == "score 3.000"


def test_only_the_first_4096_tokens_can_match() -> None:
    driver = llm_d("a", "b")
    gauges(driver, "b", waiting=1)
    driver.place("s", text(("system", 4096), ("s", 50_000)))
    # A different text after the first 4,096 tokens looks like a full match: 3 * 256 / 256.
    assert driver.place("t", text(("system", 4096), ("t", 50_000))) == "a"
    assert score(driver) == "score 7.000"


def test_least_recently_used_blocks_are_forgotten() -> None:
    driver = llm_d("a", blocks_per_replica=20)
    driver.place("s", text(("s", 160)))
    driver.place("t", text(("t", 160)))
    driver.place("u", text(("u", 16)))  # 21 blocks: s goes
    driver.place("s", text(("s", 160)))
    assert score(driver) == "score 4.000"
    driver.place("u", text(("u", 16)))
    assert score(driver) == "score 7.000"


@pytest.mark.parametrize(
    ("weight", "expected"),
    [
        # Scores of a and b for a session that was on b; a has 3 running and nothing waiting,
        # b 1 running and 64 waiting.
        ("running_weight", "b"),  # 0 against 1
        ("load_aware_weight", "a"),  # 0.5 against 0.25
        ("affinity_weight", "b"),  # 0 against 1
        ("token_load_weight", "a"),  # 1 - 0 against 1 - 4,000 / 4,194,304
    ],
)
def test_other_scores(weight: str, expected: str) -> None:
    only: dict[str, Any] = {"prefix_weight": 0.0, "queue_weight": 0.0, "kv_weight": 0.0}
    driver = llm_d("a", "b", **only, **{weight: 1.0})
    driver.lose("a")
    driver.place("s", text(("s", 4000)))
    driver.recover("a")
    gauges(driver, "a", running=3)
    gauges(driver, "b", running=1, waiting=64)
    assert driver.place("s", text(("s", 4000))) == expected


def test_remote_prefill_when_the_decode_replica_misses_enough() -> None:
    pool = [replica("p", "prefill"), replica("d", "decode")]
    driver = PlaneDriver(LlmD(configure(LlmD, {"remote_prefill_tokens": 100})), pool)
    assert driver.dispatch("s", text(("s", 160))).prefill == "p"
    driver.leg("s")
    assert driver.dispatch("s", text(("s", 259))).prefill is None  # misses 99
    assert driver.dispatch("s", text(("s", 359))).prefill == "p"  # 259 known, misses 100
    driver = PlaneDriver(LlmD(), pool)
    assert driver.dispatch("s", text(("s", 160_000))).prefill is None  # 0 is never


# AIBrix. 128-byte blocks are 32 tokens.


def aibrix(*names: str, **config: Any) -> PlaneDriver:
    return PlaneDriver(AIBrix(configure(AIBrix, config), Random(4)), mixed(*names))


def test_aibrix_follows_the_best_match() -> None:
    driver = aibrix("a", "b")
    home = driver.place("s", text(("s", 64)))
    # In flight 1 and 0: mean 0.5, deviation 0.5, bound 1.5; 1 <= 1.5.
    assert driver.place("s", text(("s", 96))) == home
    # 31 tokens are no whole block: no match, least running.
    assert driver.place("t", text(("s", 31))) != home


def test_aibrix_prefers_fewer_running_among_equal_matches() -> None:
    driver = aibrix("a", "b", "c")
    scheduler = driver.scheduler
    assert isinstance(scheduler, AIBrix)
    for name in ("a", "b"):
        scheduler._tree.insert(text(("system", 64)), name, 0)
    where = {driver.place(name, text((name, 1))): name for name in ("x", "y", "z")}
    assert sorted(where) == ["a", "b", "c"]  # least running each time
    driver.finish(where["b"])
    # a 1, b 0, c 1: a and b match 2 blocks each.
    assert driver.place("s", text(("system", 64))) == "b"
    driver.finish(where["a"])
    # a 0, b 1, c 1.
    assert driver.place("t", text(("system", 64))) == "a"


def test_aibrix_passes_over_a_match_beyond_the_deviation_bound() -> None:
    names = [f"r{i}" for i in range(9)]
    # One replica holds n turns, eight none: mean n / 9, deviation n * sqrt(8) / 9. Two deviations:
    # bound n * (1 + 2 * 2.828) / 9 = 0.74 n < n, passed over. Three: 1.05 n >= n, followed.
    for factor, follows in ((2.0, False), (3.0, True)):
        driver = aibrix(*names, std_factor=factor)
        home = driver.place("s", text(("s", 64)))
        assert (driver.place("t", text(("s", 64))) == home) is follows


def test_aibrix_ignores_the_cache_when_load_is_uneven() -> None:
    driver = aibrix("a", "b", std_factor=100.0)
    home = driver.place("s", text(("s", 64)))
    placed = [driver.place(f"s{i}", text(("s", 64))) for i in range(17)]
    # With 16 in flight against 0 the cache still counts; with 17 it does not.
    assert placed[:16] == [home] * 16
    assert placed[16] != home


def test_aibrix_forgets_least_recently_used_text() -> None:
    driver = aibrix("a", "b", blocks_per_replica=2)
    home = driver.place("s", text(("s", 64)))
    driver.finish("s")
    driver.lose("b" if home == "a" else "a")
    driver.place("t", text(("t", 64)))
    driver.finish("t")
    scheduler = driver.scheduler
    assert isinstance(scheduler, AIBrix)
    assert scheduler._tree.match(text(("s", 64))) == {}
    assert scheduler._tree.match(text(("t", 64))) == {home: 256}
