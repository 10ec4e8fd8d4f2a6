"""SMetric against its formulas, worked out by hand. Prompts have four bytes a token."""

from __future__ import annotations

import pytest

from schedulers.smetric import Sent, SMetric, SMetricConfig
from schedulers.smetric_slo import SMetricSlo, SMetricSloConfig
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def test_first_turn_takes_the_least_load_times_in_flight() -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    # Both idle: products 0 and 0, round robin.
    assert driver.place("s", text(("s", 100))) == "a"
    # a: (100 + 300) * 1 = 400, b: 0.
    assert driver.place("t", text(("t", 300))) == "b"
    # a: (100 + 50) * 1 = 150, b: (300 + 50) * 1 = 350.
    assert driver.place("u", text(("u", 50))) == "a"
    # a: (150 + 50) * 2 = 400, b: (300 + 50) * 1 = 350.
    assert driver.place("v", text(("v", 50))) == "b"


def test_queued_work_ends_with_the_first_token_or_the_turn() -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    driver.place("s", text(("s", 1000)))
    driver.place("t", text(("t", 100)))
    driver.first_token("s")
    # a: (0 + 50) * 1 = 50, b: (100 + 50) * 1 = 150.
    assert driver.place("u", text(("u", 50))) == "a"
    driver.fail("u")
    # a: (0 + 50) * 1 = 50 again.
    assert driver.place("v", text(("v", 50))) == "a"
    driver.client_gone("v")
    assert driver.place("w", text(("w", 50))) == "a"


def test_idle_replicas_tie_whatever_they_cache() -> None:
    # The known weak point: two products of 0, so the cached system prompt on a does not count.
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    driver.place("s", text(("system", 500), ("s", 10)))
    driver.finish("s")
    # The first tie went to a, the second goes to b.
    assert driver.place("t", text(("system", 500), ("t", 10))) == "b"


@pytest.mark.parametrize(
    ("score", "queued_on_b", "expected"),
    # In flight a 2, b 1; queued a 10 + 10 = 20; the new prompt has 10 tokens.
    [
        ("product", 300, "a"),  # 30 * 2 = 60 < 310 * 1
        ("product", 40, "b"),  # 30 * 2 = 60 > 50 * 1
        ("prefill_load", 40, "a"),  # 30 < 50
        ("inflight", 300, "b"),  # 2 > 1
    ],
)
def test_first_turn_scores(score: str, queued_on_b: int, expected: str) -> None:
    config = SMetricConfig(first_turn_score=score)  # type: ignore[arg-type]
    driver = PlaneDriver(SMetric(config), mixed("a", "b"))
    assert driver.place("s", text(("s", 10))) == "a"
    assert driver.place("t", text(("t", queued_on_b))) == "b"
    assert driver.place("s", text(("s", 20), replies=1)) == "a"
    assert driver.place("u", text(("u", 10))) == expected


def test_attention_term_of_the_cost() -> None:
    # L_eq 1000, L 2000, matched 1000: n = 1000, cost 1000 + 1000 * (2000 - 500) / 1000 = 2500.
    driver = PlaneDriver(SMetric(SMetricConfig(attention_tokens=1000.0)), mixed("a"))
    driver.place("s", text(("s", 1000)))
    driver.first_token("s")
    driver.place("s", text(("s", 2000), replies=1))
    assert driver.scheduler._queued["a"] == 2500.0  # type: ignore[attr-defined]


def test_later_turn_sticks_above_half_of_the_history() -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    driver.place("s", text(("system", 60), ("s", 40)))
    # a is loaded and b idle: sticking asks nothing about load.
    # History is the prompt before, 100 tokens, all on a: 100 > 50.
    assert driver.place("s", text(("system", 60), ("s", 400), replies=1)) == "a"


@pytest.mark.parametrize(("kept", "expected"), [(50, "b"), (51, "a")])
def test_hit_ratio_is_a_strict_bound(kept: int, expected: str) -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    assert driver.place("s", text(("system", kept), ("s", 100 - kept))) == "a"
    # The session compacted: of the 100 tokens of history only `kept` are found again, on a.
    # Sticks if kept > 50. Otherwise a scores (100 + 100 - kept) * 1 and b is idle: 0.
    assert driver.place("s", text(("system", kept), ("new", 100 - kept), replies=1)) == expected


def test_equal_matches_prefer_the_lower_load() -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    driver.place("s", text(("system", 100), ("s", 50)))
    assert driver.place("t", text(("system", 100), ("t", 20))) == "b"
    # Both match 100 of 110; loads: a 150 + 10, b 120 - 0 + 10 (t matched nothing on b).
    assert driver.place("u", text(("system", 100), ("u", 10), replies=1)) == "b"


def test_unknown_history_counts_as_the_whole_prompt() -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    driver.place("s", text(("system", 60)))
    # A turn that starts with a reply: 60 of 130 found, not above 65; b is idle.
    assert driver.place("t", text(("system", 60), ("t", 70), replies=1)) == "b"


def test_prefill_pool_balances_load_alone() -> None:
    pool = [
        replica("p0", "prefill"),
        replica("p1", "prefill"),
        replica("d0", "decode"),
        replica("d1", "decode"),
    ]
    driver = PlaneDriver(SMetric(), pool)
    first = driver.dispatch("s", text(("s", 100)))
    # p0 and p1 tie at 100: round robin; decode: fewest in flight, first.
    assert (first.prefill, first.decode) == ("p0", "d0")
    driver.leg("s")
    # p0 and p1 have queued 0 again and tie: second tie, p1. d0 holds one turn.
    second = driver.dispatch("t", text(("t", 100)))
    assert (second.prefill, second.decode) == ("p1", "d1")
    # In flight 0 and 1, but load alone counts: 10 < 110.
    third = driver.dispatch("u", text(("u", 10)))
    assert (third.prefill, third.decode) == ("p0", "d1")


def test_a_lost_replica_is_neither_used_nor_remembered() -> None:
    driver = PlaneDriver(SMetric(), mixed("a", "b"))
    driver.place("s", text(("s", 100)))
    driver.finish("s")
    driver.lose("a")
    assert driver.place("s", text(("s", 110), replies=1)) == "b"
    driver.finish("s")
    driver.recover("a")
    # 110 on b; a's text is forgotten.
    assert driver.place("s", text(("s", 120), replies=2)) == "b"


# The SLO-aware form.


def slo_driver(samples: int, queued_on_a: int, base_s: float = 1.0) -> PlaneDriver:
    """Session s has its history of 1,900 tokens on a, where `queued_on_a` tokens wait.

    Each replica has given `samples` samples of 1,000 tokens in 1 s; b is idle.
    """
    driver = PlaneDriver(SMetricSlo(SMetricSloConfig(ttft_base_s=base_s)), mixed("a", "b"))
    for i in range(2 * samples):
        assert driver.place(f"warm{i}", text((f"warm{i}", 1000))) == "ab"[i % 2]
        driver.advance(1.0)
        driver.first_token(f"warm{i}")
        driver.finish(f"warm{i}")
    assert driver.place("s", text(("s", 1900))) == "a"
    driver.advance(1.9)
    driver.first_token("s")
    driver.finish("s")
    assert driver.place("x", text(("x", 10))) == "b"
    assert driver.place("y", text(("y", queued_on_a))) == "a"
    driver.client_gone("x")
    return driver


@pytest.mark.parametrize(
    ("samples", "queued_on_a", "base_s", "expected"),
    # The turn: L = 2000, so a first token is allowed base + 0.0625 * 2 s. On a it costs 100, on b
    # 2000 (2.0 s at 1,000 tokens a second). Leaving a means b, which is idle (score 0).
    [
        (8, 3025, 3.0, "a"),  # a: 3125 / 1000 = 3.125 <= 3.125
        (8, 3026, 3.0, "b"),  # a: 3.126 > 3.125, b: 2.0 meets
        (8, 1026, 1.0, "a"),  # a: 1.126 > 1.125, b: 2.0 > 1.125: nobody meets, stick
        (6, 3026, 3.0, "a"),  # 6 + 1 samples on a are too few: rate unknown, meets
    ],
)
def test_slo_form_sticks_only_while_it_meets(
    samples: int, queued_on_a: int, base_s: float, expected: str
) -> None:
    driver = slo_driver(samples, queued_on_a, base_s)
    assert driver.place("s", text(("s", 2000), replies=1)) == expected


def test_rate_is_the_ninetieth_percentile_of_the_last_samples() -> None:
    scheduler = SMetricSlo(SMetricSloConfig(rate_window=10))
    for seconds in (0.001, 1, 2, 4, 5, 8, 10, 20, 25, 40, 50):
        scheduler.observed(Sent("a", 1000.0, 0), seconds)
    # The last ten: 1000 500 250 200 125 100 50 40 25 20; nearest rank ceil(0.9 * 10) = 9 of the
    # ascending list: 500.
    assert scheduler.rate("a") == 500.0
    assert scheduler.rate("b") is None


def test_free_prompts_give_no_rate_sample() -> None:
    scheduler = SMetricSlo(SMetricSloConfig(rate_min_samples=1))
    scheduler.observed(Sent("a", 0.0, 0), 0.5)
    assert scheduler.rate("a") is None
