"""TAO's planner by hand: when it is asked, and what becomes of late and stale plans."""

from __future__ import annotations

from schedulers.commands import Solve
from schedulers.events import PlanReady
from schedulers.tao_plan import make_plan
from schedulers.types import NS
from tests.schedulers.tao_rig import resumed, setup, solves


def test_at_most_one_solve_and_opportunities_are_taken_together() -> None:
    driver, _, _ = setup({"r0": 20_000}, direct=False)
    driver.plan_delay = round(0.02 * NS)
    assert len(solves(driver.arrive("a", 1000))) == 1
    assert not solves(driver.arrive("b", 1000))  # one is under way
    commands = driver.advance(0.05)
    assert resumed(commands) == [("a", "r0")]
    assert not solves(commands)  # 100 ms have not passed
    commands = driver.advance(0.075)
    assert [s.snapshot.now for s in solves(commands)] == [NS // 10]
    assert resumed(commands) == [("b", "r0")]


def test_late_plan_is_replaced_by_short_first_and_dropped() -> None:
    driver, _, scheduler = setup({"r0": 20_000}, direct=False)
    driver.plan_delay = round(0.08 * NS)
    driver.arrive("a", 1000)
    assert resumed(driver.advance(0.05)) == []  # a plan at the deadline would be in time
    assert resumed(driver.advance(0.01)) == [("a", "r0")]
    assert resumed(driver.advance(0.03)) == []
    counters = scheduler.counters()
    assert (counters["timeouts"], counters["late_plans_dropped"]) == (1, 1)
    assert (counters["admitted_by_short_first"], counters["admitted"]) == (1, 0)


def test_plan_exactly_at_the_deadline_is_in_time() -> None:
    driver, _, scheduler = setup({"r0": 20_000}, direct=False)
    driver.plan_delay = round(0.05 * NS)
    driver.arrive("a", 1000)
    assert resumed(driver.advance(0.05)) == [("a", "r0")]
    assert scheduler.counters()["timeouts"] == 0


def test_late_plan_without_a_timer_before_it() -> None:
    driver, cluster, scheduler = setup({"r0": 20_000}, direct=False)
    driver.plan_delay = None
    (solve,) = solves(driver.arrive("a", 1000))
    driver.now += NS
    commands = driver.answer(solve)
    assert resumed(commands) == [("a", "r0")]
    assert scheduler.counters()["timeouts"] == 1
    assert scheduler.counters()["admitted_by_short_first"] == 1
    assert cluster.sessions["a"].in_flight == 1


def test_while_an_overdue_plan_is_out_short_first_serves_and_later_it_is_given_up() -> None:
    driver, _, scheduler = setup({"r0": 20_000}, direct=False)
    driver.plan_delay = None
    driver.arrive("a", 1000)
    driver.advance(0.2)
    assert resumed(driver.arrive("b", 1000)) == [("b", "r0")]
    driver.advance(10.0)
    commands = driver.arrive("c", 1000)
    assert len(solves(commands)) == 1
    assert scheduler.counters()["lost_plans"] == 1
    # The lost plan turns up after all: it is not the one that is waited for.
    first = driver.solves[0][1]
    assert not resumed(
        driver.send(PlanReady(driver.now, first.solve_id, make_plan(first.snapshot)))
    )
    assert scheduler.counters()["late_plans_dropped"] == 1


def test_strict_discards_a_plan_when_a_selected_session_has_changed() -> None:
    driver, cluster, scheduler = setup({"r0": 20_000}, direct=False)
    driver.arrive("a", 1000)
    driver.advance(0.2)
    driver.finish("a")
    cluster.unplace(cluster.sessions["a"], driver.now)
    driver.arrive("b", 1000)
    driver.arrive("a", 1200)  # while the plan is being made
    assert resumed(driver.advance(0.011)) == []
    assert scheduler.counters()["discarded_changed"] == 1
    assert sorted(resumed(driver.advance(0.2))) == [("a", "r0"), ("b", "r0")]


def test_skip_leaves_out_the_changed_session_alone() -> None:
    driver, cluster, scheduler = setup({"r0": 20_000}, direct=False, discard="skip")
    driver.arrive("a", 1000)
    driver.advance(0.2)
    driver.finish("a")
    cluster.unplace(cluster.sessions["a"], driver.now)
    driver.arrive("b", 1000)
    driver.arrive("a", 1200)
    assert resumed(driver.advance(0.011)) == [("b", "r0")]
    assert scheduler.counters()["skipped_changed"] == 1


def test_a_session_that_left_changes_the_plan() -> None:
    driver, _, scheduler = setup({"r0": 20_000}, direct=False)
    driver.arrive("a", 1000)
    driver.client_gone("a")
    driver.close("a")
    driver.advance(0.2)
    assert scheduler.counters()["discarded_changed"] == 1


def test_longest_prefix_that_fits_live_room_is_applied() -> None:
    driver, cluster, scheduler = setup({"r0": 20_000}, direct=False)
    driver.arrive("seed", 1000)
    driver.advance(0.2)
    for name, tokens in (("a", 6000), ("b", 7000), ("c", 5000)):
        driver.arrive(name, tokens)
    (_, solve), *_ = driver.solves
    assert [c.session for c in solve.snapshot.candidates] == ["a"]
    driver.advance(0.105)  # solved with b and c: 20,000 - 1,000 - 6,000 - 200 = 12,800 left
    plan = [c for t, c in driver.log if isinstance(c, Solve)][-1]
    assert [c.session for c in plan.snapshot.candidates] == ["b", "c"]
    cluster.streamed["seed"] = 5000  # 7,800 left when it is applied: b (7,100), then not c
    assert resumed(driver.advance(0.01)) == [("b", "r0")]
    counters = scheduler.counters()
    assert counters["plans_applied"] - counters["plans_in_full"] == 1


def test_plan_of_which_nothing_fits_is_discarded() -> None:
    driver, cluster, scheduler = setup({"r0": 20_000}, direct=False)
    driver.arrive("seed", 1000)
    driver.advance(0.2)
    driver.arrive("a", 6000)
    cluster.streamed["seed"] = 15_000
    assert resumed(driver.advance(0.02)) == []
    assert scheduler.counters()["discarded_no_room"] == 1


def test_replica_lost_while_planning() -> None:
    driver, _, scheduler = setup({"r0": 20_000}, direct=False)
    driver.arrive("a", 6000)
    driver.lose("r0")
    assert resumed(driver.advance(0.02)) == []
    assert scheduler.counters()["discarded_no_room"] == 1
    driver.recover("r0")
    assert resumed(driver.advance(0.2)) == [("a", "r0")]


def test_no_solve_when_nobody_could_fit() -> None:
    driver, _, scheduler = setup({"r0": 5000})
    driver.arrive("a", 4000)
    assert not solves(driver.arrive("b", 4000))
    assert scheduler.counters()["opportunities_without_room"] == 1
