"""TAO's decisions worked out by hand on a fake cluster."""

from __future__ import annotations

import pickle

import pytest

from agentsched import UsageError
from schedulers import tao_view as view
from schedulers.commands import Resume, Route, Solve
from schedulers.readiness import ReadinessPredictor
from schedulers.registry import create
from schedulers.tao import Tao
from schedulers.tao_config import TaoConfig
from schedulers.tao_plan import UNLIMITED, Plan
from schedulers.types import NS, Evidence
from tests.schedulers.fake_cluster import Driver, FakeCluster, tool
from tests.schedulers.tao_rig import resumed, setup, solves, tao

# The value triplet.


def test_credit_halves_every_ten_seconds_and_counts_whole_quanta() -> None:
    cluster, config = FakeCluster({"r0": 1}), TaoConfig()
    driver = Driver(tao(), cluster)
    driver.arrive("s", 1)
    cluster.sessions["s"].evidence["r0"] = Evidence(16_384, 0)

    def credit(at_s: float, config: TaoConfig = config) -> int:
        return view.credit("s", "r0", round(at_s * NS), cluster, config)

    # 16,384 tokens / 4,096 = 4; after 10 s 8,192 / 4,096 = 2; after 20 s exactly 1, then 0.
    assert [credit(0), credit(10), credit(20), credit(20.001)] == [4, 2, 1, 0]
    # At 5 s: 16,384 * 2^-0.5 = 11,585; / 4,096 = 2.83.
    assert credit(5) == 2
    assert credit(1000, TaoConfig(cache_half_life_s=0)) == 4
    assert credit(0, TaoConfig(use_cache=False)) == 0
    assert credit(0, TaoConfig(credit_quantum_tokens=1)) == 16_384
    assert view.credit("s", "r1", 0, cluster, config) == 0


def test_room_counts_contexts_streamed_tokens_and_a_buffer_each() -> None:
    driver, cluster, scheduler = setup({"r0": 10_000, "r1": None})
    driver.arrive("a", 3000)
    driver.arrive("b", 2000)
    config = scheduler.config
    # r1's capacity is not known, so it takes everything; move both to r0 for the sum.
    for name in ("a", "b"):
        cluster.by_id["r1"].homes.pop(name, None)
        cluster.by_id["r0"].homes[name] = None
    cluster.streamed["a"] = 50
    # 10,000 - (3,000 + 50 + 100) - (2,000 + 100)
    assert view.room(cluster.by_id["r0"], cluster, config) == 4750
    assert view.room(cluster.by_id["r1"], cluster, config) == UNLIMITED


def test_room_with_weighted_and_decayed_acting_tokens() -> None:
    driver, cluster, _ = setup({"r0": 10_000})
    driver.arrive("a", 4000)
    driver.finish("a")
    replica = cluster.by_id["r0"]
    assert view.room(replica, cluster, TaoConfig(acting_weight=0.5)) == 10_000 - 2000 - 100
    decayed = TaoConfig(acting_half_life_s=1.0)
    assert view.room(replica, cluster, decayed, decayed_at=2 * NS) == 10_000 - 1000 - 100
    assert view.room(replica, cluster, decayed) == 5900  # never for pausing


def test_ready_when_a_turn_waits_or_tools_are_about_to_end() -> None:
    driver, cluster, _ = setup({"r0": 10_000})
    predictor, config = ReadinessPredictor(), TaoConfig()
    driver.arrive("a", 100)
    driver.finish("a")
    session = cluster.sessions["a"]
    predictor.started("a", [tool("bash", "sleep 10")], 0)
    assert view.ready(session, 8 * NS, predictor, config) == 0
    assert view.ready(session, 9 * NS, predictor, config) == 1
    assert view.ready(session, 9 * NS, predictor, TaoConfig(use_readiness=False)) == 0


# New sessions, and sessions that have a place.


def test_lone_session_goes_at_once_where_most_room_is() -> None:
    driver, _, scheduler = setup({"r0": 5000, "r1": 9000, "r2": 9000})
    assert resumed(driver.arrive("a", 1000)) == [("a", "r1")]  # ties: the first configured
    assert resumed(driver.arrive("b", 1000)) == [("b", "r2")]
    assert scheduler.counters()["routed_directly"] == 2


def test_lone_session_goes_to_the_first_that_fits_without_spreading() -> None:
    driver, _, _ = setup({"r0": 5000, "r1": 9000}, spread_ties=False)
    assert resumed(driver.arrive("a", 1000)) == [("a", "r0")]


def test_lone_returning_session_prefers_credit_to_room() -> None:
    driver, cluster, _ = setup({"r0": 30_000, "r1": 20_000})
    driver.arrive("a", 8000)
    driver.finish("a", output=200)
    cluster.unplace(cluster.sessions["a"], driver.now)
    driver.now += NS
    cluster.sessions["a"].evidence["r1"] = Evidence(8200, driver.now)  # credit 2
    cluster.sessions["a"].evidence["r0"] = Evidence(8000, driver.now)  # credit 1
    assert resumed(driver.arrive("a", 8300)) == [("a", "r1")]


def test_without_direct_every_new_session_goes_through_the_planner() -> None:
    driver, _, _ = setup({"r0": 5000}, direct=False)
    commands = driver.arrive("a", 1000)
    assert len(solves(commands)) == 1
    assert resumed(driver.advance(0.01)) == [("a", "r0")]


def test_session_with_a_place_stays_unchecked() -> None:
    driver, _, _ = setup({"r0": 5000, "r1": 84_000})
    driver.arrive("big", 80_000)
    driver.arrive("a", 4000)
    driver.finish("a", output=500)
    commands = driver.arrive("a", 7000)  # more than r0 has: only the next tick sees it
    assert [c.decode for c in commands if isinstance(c, Route)] == ["r0"]


def test_second_turn_of_a_held_session_goes_with_the_first() -> None:
    driver, cluster, _ = setup({"r0": 5000})
    driver.arrive("big", 4500)
    driver.arrive("a", 1000)  # held
    driver.arrive("a", 1000)  # a parallel call of the same agent
    driver.finish("big")
    driver.close("big")
    driver.advance(0.2)
    assert cluster.sessions["a"].in_flight == 2


# The plan: left to right.


def contest(first: dict[str, int], second: dict[str, int], **settings: object) -> str:
    """Two sessions of a lost replica, room for one on the other: who gets it?

    Keys: tokens, evidence (on the replica that is left), eta (of its tools, in seconds).
    """
    driver, cluster, scheduler = setup({"r0": 20_000, "r1": 20_000}, **settings)
    driver.arrive("blocker", 10_500)  # on r0; the others find more room on r1
    for name, one in (("first", first), ("second", second)):
        driver.arrive(name, one["tokens"])
        driver.finish(name)
        assert cluster.sessions[name].home == "r1"
    for name, one in (("first", first), ("second", second)):
        cluster.sessions[name].evidence = {"r0": Evidence(one["evidence"], driver.now)}
        scheduler.predictor.started(name, [tool("bash", f"sleep {one['eta']}")], driver.now)
    driver.lose("r1")
    ((name, replica),) = resumed(driver.advance(0.2))
    assert replica == "r0"
    return name


def test_credit_comes_first() -> None:
    cold = {"tokens": 9000, "evidence": 0, "eta": 1}
    warm = {"tokens": 8000, "evidence": 8000, "eta": 60}
    assert contest(cold, warm) == "second"
    assert contest(warm, cold) == "first"
    assert contest(cold, warm, use_cache=False) == "first"  # ready


def test_readiness_breaks_ties_of_credit() -> None:
    soon = {"tokens": 8000, "evidence": 6000, "eta": 1}
    late = {"tokens": 9000, "evidence": 7000, "eta": 60}  # the same quantum of 4,096
    assert contest(soon, late) == "first"
    assert contest(late, soon) == "second"
    assert contest(soon, late, use_readiness=False) == "second"  # larger footprint
    assert contest(soon, late, credit_quantum_tokens=1) == "second"  # no tie: more credit


def test_footprint_breaks_the_remaining_ties_with_its_sign() -> None:
    small = {"tokens": 8000, "evidence": 5000, "eta": 60}
    large = {"tokens": 9000, "evidence": 5000, "eta": 60}
    assert contest(small, large) == "second"
    assert contest(small, large, footprint_sign=-1) == "first"


def test_two_sessions_are_placed_jointly() -> None:
    """Best first would put `a` on r0 (credit 4) and leave `b` nothing there: 4 + 0. Jointly: a on
    r1 (credit 3) and b on r0 (credit 2): 5."""
    driver, cluster, _ = setup({"r0": 18_000, "r1": 18_000}, direct=False)
    for name in ("a", "b"):
        driver.arrive(name, 17_000)
        driver.advance(0.2)
        driver.finish(name)
    for name in ("a", "b"):
        cluster.unplace(cluster.sessions[name], driver.now)
    now = driver.now
    cluster.sessions["a"].evidence = {"r0": Evidence(16_900, now), "r1": Evidence(12_900, now)}
    cluster.sessions["b"].evidence = {"r0": Evidence(8700, now)}
    driver.arrive("waker", 20_000)
    commands = driver.advance(0.05)
    assert sorted(resumed(commands)) == [("a", "r1"), ("b", "r0")]
    assert [c.why for c in commands if isinstance(c, Resume)] == [
        "planned: cache credit 3, not ready, 17,000 tokens",
        "planned: cache credit 2, not ready, 17,000 tokens",
    ]


# Ablations and settings.


def test_ablations_change_one_setting_each() -> None:
    full = TaoConfig()
    changed = {
        name: {
            field
            for field in TaoConfig.__dataclass_fields__
            if getattr(create(name).config, field) != getattr(full, field)
        }
        for name in (
            "tao-no-cache",
            "tao-no-decay",
            "tao-no-readiness",
            "tao-thunder-order",
            "tao-bfd",
            "oracle-tools",
        )
    }
    assert changed == {
        "tao-no-cache": {"use_cache"},
        "tao-no-decay": {"cache_half_life_s"},
        "tao-no-readiness": {"use_readiness"},
        "tao-thunder-order": {"pause_order"},
        "tao-bfd": {"planner"},
        "oracle-tools": {"fresh_s"},
    }


def test_bfd_ablation_never_solves() -> None:
    cluster = FakeCluster({"r0": 5000})
    driver = Driver(create("tao-bfd"), cluster)
    driver.arrive("a", 4000)
    driver.arrive("b", 3000)
    driver.arrive("c", 2000)
    driver.finish("a")
    driver.close("a")
    commands = driver.advance(0.2)
    assert resumed(commands) == [("c", "r0")]  # smallest first; then b does not fit
    assert not any(isinstance(c, Solve) for _, c in driver.log)


def test_oracle_uses_the_truth_and_says_where_it_had_none() -> None:
    cluster = FakeCluster({"r0": 50_000})
    scheduler = create("oracle-tools")
    driver = Driver(scheduler, cluster)
    for name, told in (("a", True), ("b", False)):
        driver.arrive(name, 1000)
        driver.finish(name)
        driver.tools(name, tool("bash"))
        if told:
            driver.hint(name, 100.0)
    assert isinstance(scheduler, Tao)
    assert scheduler.predictor.ready("a", round(99.5 * NS))  # far older than 30 s
    driver.advance(100.0)
    driver.arrive("a", 1000)
    driver.arrive("b", 1000)
    assert scheduler.counters()["tools_without_truth"] == 1


@pytest.mark.parametrize(
    "settings",
    [
        {"planner": "fast"},
        {"discard": "maybe"},
        {"pause_order": "random"},
        {"footprint_sign": 0},
        {"footprint_sign": -1, "use_readiness": False},
        {"credit_quantum_tokens": 0},
        {"tick_s": 0.0},
        {"min_replan_ms": -1.0},
        {"max_candidates": 0},
        {"margin_delta": 3.0},
        {"min_samples": 1},
        {"history_window": 1},
        {"parallel_tools": "avg"},
        {"probe_window_s": 0.0},
    ],
)
def test_settings_that_make_no_sense_are_refused(settings: dict[str, object]) -> None:
    with pytest.raises(UsageError, match=next(iter(settings))):
        create("tao", settings)


def test_counters_name_every_outcome() -> None:
    driver, _, scheduler = setup({"r0": 20_000}, direct=False)
    driver.arrive("a", 1000)
    driver.advance(0.2)
    driver.finish("a")
    driver.tools("a", tool("bash", "sleep 5"))
    driver.advance(5.25)
    driver.arrive("a", 1000)
    counters = scheduler.counters()
    assert counters["solves"] == counters["plans_applied"] == counters["plans_in_full"] == 1
    assert counters["predicted_calls_tao_stated"] == 1
    assert counters["prediction_mae_s_tao_stated"] == 0.25
    assert counters["prediction_within_0.5s_tao_all"] == 1.0
    assert counters["probe_windows"] == 1.0


def test_plans_are_plain_values() -> None:
    driver, _, _ = setup({"r0": 20_000}, direct=False)
    driver.plan_delay = None
    (solve,) = solves(driver.arrive("a", 1000))
    plan = solve.solver(solve.snapshot)
    assert isinstance(plan, Plan)
    assert plan.placements == (("a", "r0"),)
    assert solve.solver(solve.snapshot) == plan
    # Both cross to a worker process and back.
    sent = pickle.loads(pickle.dumps((solve.solver, solve.snapshot)))
    assert pickle.loads(pickle.dumps(sent[0](sent[1]))) == plan
