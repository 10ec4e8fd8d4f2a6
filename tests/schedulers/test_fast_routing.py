"""Routing policies that keep indexes decide as those that look at every replica."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.base import Scheduler
from schedulers.cache_aware import CacheAware, CacheAwareConfig
from schedulers.registry import find
from schedulers.smetric import SMetric, SMetricConfig
from schedulers.views import ClusterView
from tests.oracles.routing import ScanningCacheAware, ScanningSMetric
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text

SMALL = {"max_tree_bytes": 1500, "evict_every_s": 2.0}
CACHE_AWARE: list[dict[str, Any]] = [
    {},
    {"balance_abs": 2, "balance_rel": 1.1},
    {"imbalance_gate": "request", "balance_abs": 1, "balance_rel": 1.0},
    {"imbalance_gate": "average", "least_load_tie": "fewest-chosen", "owner": "random-least-load"},
    {"fallback": "smallest-tree", "owner": "first-holder", "threshold": 0.6},
]
SMETRIC: list[dict[str, Any]] = [
    {},
    {"attention_tokens": 70.0},
    {"first_turn_score": "inflight", "hit_ratio": 0.9},
    {"first_turn_score": "prefill_load"},
]
POOLS = {
    "mixed": mixed("a", "b", "c", "d", "e"),
    "apart": [replica("p", "prefill"), replica("q", "prefill"), *mixed("d", "e", "f")],
}


def live(driver: PlaneDriver, rng: Random, steps: int) -> list[Any]:
    """A random life of some sessions, the same for the same numbers and decisions."""
    names = list(driver.plane.ledger.replica_states)
    prompts: dict[str, list[tuple[str, int]]] = {}
    started = 0
    for _ in range(steps):
        driver.advance(rng.choice((0.0, 0.1, 1.5)))
        open_turns = {one.turn.session for one in driver.open.values()}
        waiting = {turn.session for turn in driver.plane.ledger.waiting_turns.values()}
        idle = sorted(set(prompts) - open_turns - waiting)
        draw = rng.random()
        if draw < 0.35 or not prompts:
            name = f"s{started}"
            started += 1
            shared = [("system", 40), (rng.choice(("x", "y")), rng.choice((10, 20)))]
            own = [(rng.choice((name, "copied")), rng.choice((5, 100)))]
            prompts[name] = shared[: rng.randrange(3)] + own
            driver.arrive(name, text(*prompts[name], replies=0))
        elif draw < 0.6 and idle:
            name = rng.choice(idle)
            last, length = prompts[name][-1]
            prompts[name][-1] = (last, length + rng.choice((0, 30)))
            prompts[name].append((f"{name}-{driver.turns[name]}", rng.choice((8, 60))))
            driver.arrive(name, text(*prompts[name], replies=driver.turns[name]))
        elif draw < 0.7 and open_turns:
            number, one = driver.oldest(rng.choice(sorted(open_turns)))
            attempt = driver.plane.ledger.attempts[number]
            if one.prefill is not None and attempt.serving == one.prefill:
                driver.leg(one.turn.session)
            else:
                driver.first_token(one.turn.session)
        elif draw < 0.9 and open_turns:
            name = rng.choice(sorted(open_turns))
            number, one = driver.oldest(name)
            attempt = driver.plane.ledger.attempts[number]
            if one.prefill is not None and attempt.serving == one.prefill:
                driver.leg(name)
            rng.choice((driver.finish, driver.finish, driver.fail))(name)
        elif draw < 0.94 and idle:
            name = rng.choice(idle)
            del prompts[name]
            driver.close(name)
        elif draw < 0.97:
            name = rng.choice(names)
            if driver.plane.ledger.replica_states[name].healthy:
                driver.lose(name)
            else:
                driver.recover(name)
    return driver.decisions


def same(fast: Scheduler, slow: Scheduler, pools: str, seed: int) -> None:
    lives = [live(PlaneDriver(one, POOLS[pools]), Random(seed), 120) for one in (fast, slow)]
    assert lives[0] == lives[1]
    assert len(lives[0]) > 20


class Bare:
    """A cluster's view without what the ledger keeps besides."""

    def __init__(self, view: Any) -> None:
        for name in vars(ClusterView):
            if not name.startswith("_"):
                setattr(self, name, getattr(view, name))


@pytest.mark.parametrize("capacity", [700, 4000])
@pytest.mark.parametrize(
    ("name", "changed"),
    [
        ("tao", {}),
        ("tao", {"acting_weight": 0.5, "credit_quantum_tokens": 16, "discard": "skip"}),
        ("tao", {"acting_half_life_s": 1.0, "spread_ties": False, "credit_quantum_tokens": 16}),
        ("tao-decomposed", {"cluster_replicas": 2, "idle_ttl_s": 5.0, "forced_after_s": 4.0}),
        ("smetric-slo", {}),
        ("least-loaded", {}),
    ],
)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_what_the_ledger_keeps_changes_no_decision(
    name: str, changed: dict[str, Any], capacity: int, seed: int
) -> None:
    lives = []
    for bare in (False, True):
        policy = find(name)
        driver = PlaneDriver(
            policy(policy.Config(**changed)), mixed("a", "b", "c", "d", capacity=capacity)
        )
        if bare:
            driver.plane._view = Bare(driver.plane._view)  # type: ignore[assignment]
        lives.append(live(driver, Random(seed), 100))
    assert lives[0] == lives[1]
    assert len(lives[0]) > 15


@pytest.mark.parametrize("pools", POOLS)
@pytest.mark.parametrize("changed", CACHE_AWARE, ids=str)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_cache_aware(changed: dict[str, Any], pools: str, seed: int) -> None:
    config = CacheAwareConfig(**(SMALL | changed))
    same(CacheAware(config, Random(1)), ScanningCacheAware(config, Random(1)), pools, seed)


@pytest.mark.parametrize("pools", POOLS)
@pytest.mark.parametrize("changed", SMETRIC, ids=str)
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_smetric(changed: dict[str, Any], pools: str, seed: int) -> None:
    config = SMetricConfig(**(SMALL | changed))
    same(SMetric(config), ScanningSMetric(config), pools, seed)
