"""The vLLM router's cache-aware policy, decision by decision."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from schedulers.cache_aware import CacheAware, CacheAwareConfig
from tests.schedulers.plane_driver import PlaneDriver, mixed, text


def driver_with(*names: str, **settings: Any) -> PlaneDriver:
    return PlaneDriver(CacheAware(CacheAwareConfig(**settings)), mixed(*names))


def test_follows_a_match_above_the_threshold() -> None:
    driver = driver_with("a", "b", threshold=0.5)
    assert driver.place("s", text(("s", 60))) == "a"
    assert driver.place("other", text(("o", 200))) == "b"
    # 60 of 110 tokens match on a: 0.545 > 0.5, although both replicas have one turn in flight and
    # a has the smaller tree anyway; so fill a's tree to tell the two rules apart.
    driver.place("big", text(("big", 1000)))
    assert driver.place("s", text(("s", 110))) == "a"


def test_at_the_threshold_the_smallest_tree_decides() -> None:
    driver = driver_with("a", "b", threshold=0.5, fallback="smallest-tree")
    driver.place("s", text(("s", 60)))
    # 60 of 120 tokens: 0.5 is not above 0.5; b's tree is empty.
    assert driver.place("s", text(("s", 120))) == "b"


def test_smallest_tree_ties_go_to_the_first() -> None:
    driver = driver_with("a", "b", fallback="smallest-tree")
    assert driver.place("s", text(("s", 10))) == "a"
    assert driver.place("t", text(("t", 10))) == "b"
    assert driver.place("u", text(("u", 10))) == "a"


def test_fallback_least_load_looks_at_turns_in_flight() -> None:
    driver = driver_with("a", "b", fallback="least-load")
    assert driver.place("s", text(("s", 10))) == "a"
    assert driver.place("t", text(("t", 1000))) == "b"
    driver.finish("t")
    # b holds the larger tree but nothing in flight.
    assert driver.place("u", text(("u", 10))) == "b"


def shared_text(**settings: Any) -> PlaneDriver:
    """Both have the system prompt, b first; b has two turns in flight, a one."""
    driver = driver_with("a", "b", threshold=0.5, **settings)
    driver.place("x", text(("x", 50)))
    assert driver.place("s", text(("system", 90), ("s", 200))) == "b"
    driver.finish("x")
    # 90 of 290 match: fallback, a.
    assert driver.place("t", text(("system", 90), ("t", 200))) == "a"
    driver.place("s2", text(("system", 90), ("s", 250)))  # 290 of 340 match on b alone
    return driver


@pytest.mark.parametrize(("owner", "expected"), [("least-load", "a"), ("first-holder", "b")])
def test_several_owners_of_the_match(owner: str, expected: str) -> None:
    driver = shared_text(owner=owner)
    # 90 of 100 match on both.
    assert driver.place("u", text(("system", 90), ("u", 10))) == expected


def test_equal_owners_first_or_drawn() -> None:
    for owner, picks in (("least-load", {"a"}), ("random-least-load", {"a", "b"})):
        seen = set()
        for seed in range(12):
            config = CacheAwareConfig(threshold=0.5, owner=owner)  # type: ignore[arg-type]
            driver = PlaneDriver(CacheAware(config, Random(seed)), mixed("a", "b"))
            driver.place("s", text(("system", 90), ("s", 200)))
            driver.place("t", text(("system", 90), ("t", 200)))
            seen.add(driver.place("u", text(("system", 90), ("u", 10))))
        assert seen == picks


def test_only_those_with_the_whole_match_are_owners() -> None:
    driver = shared_text(owner="least-load")
    # 290 of 300 match on b, 90 on a: a is less busy, but has less of it.
    assert driver.place("u", text(("system", 90), ("s", 210))) == "b"


def test_least_load_ties_go_to_the_first_or_to_the_least_often_chosen() -> None:
    for tie, expected in (("first", "a"), ("fewest-chosen", "b")):
        driver = driver_with("a", "b", least_load_tie=tie)
        assert driver.place("s", text(("s", 10))) == "a"
        driver.finish("s")
        assert driver.place("t", text(("t", 10))) == expected


@pytest.mark.parametrize(
    ("gap", "expected"),
    # In flight on a: 1 + gap - 1 = gap, on b: 0. Uneven needs a - b > 2 (and > 1.1 * 0).
    [(2, "a"), (3, "b")],
)
def test_fleet_gate_switches_affinity_off_beyond_abs(gap: int, expected: str) -> None:
    driver = driver_with("a", "b", balance_abs=2)
    driver.place("s", text(("s", 100)))
    for i in range(gap - 1):
        assert driver.place(f"s{i}", text(("s", 100))) == "a"
    assert driver.place("again", text(("s", 100))) == expected


def test_both_conditions_are_needed() -> None:
    # a 4, b 1: 4 - 1 > 2 but 4 > 5 * 1 is false: balanced, follow the match.
    driver = driver_with("a", "b", balance_abs=2, balance_rel=5.0)
    driver.place("s", text(("s", 100)))
    assert driver.place("t", text(("t", 1000))) == "b"
    for i in range(3):
        assert driver.place(f"s{i}", text(("s", 100))) == "a"
    assert driver.place("again", text(("s", 100))) == "a"


@pytest.mark.parametrize(("gate", "expected"), [("fleet", "c"), ("request", "b")])
def test_one_hot_replica_hurts_everybody_only_with_the_fleet_gate(gate: str, expected: str) -> None:
    driver = driver_with("a", "b", "c", balance_abs=3, imbalance_gate=gate)
    driver.place("hot", text(("hot", 100)))
    assert driver.place("calm", text(("calm", 200))) == "b"
    for i in range(3):
        assert driver.place(f"hot{i}", text(("hot", 100))) == "a"
    # In flight: a 4, b 1, c 0; 4 - 0 > 3. The calm session's match is on b, which is not busy.
    assert driver.place("calm", text(("calm", 210))) == expected


def test_average_gate_compares_the_matched_replica_with_the_mean() -> None:
    driver = driver_with("a", "b", "c", balance_abs=2, imbalance_gate="average")
    for i in range(3):
        assert driver.place(f"hot{i}", text(("hot", 100))) == "a"
    # In flight: a 3, b 0, c 0; the mean is 1 and 3 > 1 + 2 is false.
    assert driver.place("hot3", text(("hot", 100))) == "a"
    # a 4, mean 4/3: 4 > 1.33 + 2, and 4 > 1.33 * 1.5.
    assert driver.place("hot4", text(("hot", 100))) == "b"


def test_average_gate_caps_the_margin() -> None:
    driver = driver_with("a", "b", "c", imbalance_gate="average")
    for i in range(6):
        assert driver.place(f"hot{i}", text(("hot", 100))) == "a"
    # a 6, mean 2: 6 > 2 + min(64, max(4, 2.83)) is false.
    assert driver.place("hot6", text(("hot", 100))) == "a"
    # a 7, mean 2.33: 7 > 6.33, and 7 > 3.5.
    assert driver.place("hot7", text(("hot", 100))) == "b"


def test_request_gate_sends_the_hot_text_to_the_least_loaded() -> None:
    driver = driver_with("a", "b", balance_abs=3, imbalance_gate="request")
    for i in range(4):
        assert driver.place(f"hot{i}", text(("hot", 100))) == "a"
    assert driver.place("hot", text(("hot", 100))) == "b"


def test_matched_replica_lost_means_the_first_healthy() -> None:
    driver = driver_with("a", "b", "c")
    driver.place("x", text(("x", 10)))
    driver.place("s", text(("s", 100)))
    driver.finish("s")
    driver.lose("b")
    # c has the smallest tree, but the router takes the first healthy one.
    assert driver.place("s", text(("s", 110))) == "a"


def test_forgets_least_recently_used_text_every_thirty_seconds() -> None:
    settings = {"fallback": "smallest-tree", "evict_every_s": 30.0, "threshold": 0.5}
    driver = driver_with("a", "b", max_tree_bytes=405, **settings)
    driver.place("old", text(("old", 100)))
    driver.place("t", text(("t", 60)))
    assert driver.place("mid", text(("mid", 40))) == "b"
    # Trees: a 400 bytes, b 400: tie, a.
    assert driver.place("new", text(("new", 1))) == "a"
    driver.advance(29.0)
    assert driver.place("old", text(("old", 101))) == "a"
    driver.advance(60.0)
    # a holds 4 + 404 = 408 bytes; "new" was used before "old" grew, and without it 404 fit.
    driver.place("tick", text(("tick", 200)))
    tree = driver.scheduler._tree  # type: ignore[attr-defined]
    assert tree.match(text(("old", 101))) == {"a": 404}
    assert tree.match(text(("new", 1))) == {}


def test_refuses_unknown_modes() -> None:
    for name in ("imbalance_gate", "fallback", "owner", "least_load_tie"):
        with pytest.raises(ValueError, match=name):
            CacheAwareConfig(**{name: "none"})  # type: ignore[arg-type]


def test_defaults_are_those_of_the_program() -> None:
    # vllm-router 0.1.17 --help: threshold 0.3, abs 64, rel 1.5, 120 s, 33,554,432 characters.
    config = CacheAwareConfig()
    assert (config.threshold, config.balance_abs, config.balance_rel) == (0.3, 64, 1.5)
    assert (config.evict_every_s, config.max_tree_bytes) == (120.0, 33_554_432)
