"""Round robin: configured order, skipping what is lost."""

from __future__ import annotations

from schedulers.round_robin import RoundRobin
from tests.schedulers.plane_driver import PlaneDriver, mixed, replica, text


def test_takes_replicas_in_configured_order() -> None:
    driver = PlaneDriver(RoundRobin(), mixed("b", "a", "c"))
    assert [driver.place(f"s{i}", text(("s", 1))) for i in range(4)] == ["b", "a", "c", "b"]


def test_skips_a_lost_replica_and_holds_when_none_is_left() -> None:
    driver = PlaneDriver(RoundRobin(), mixed("a", "b"))
    driver.lose("a")
    assert [driver.place(f"s{i}", text(("s", 1))) for i in range(2)] == ["b", "b"]
    driver.lose("b")
    assert driver.open == {}
    assert len(driver.view.waiting) == 2
    driver.recover("a")
    assert [one.decode for one in driver.open.values()] == ["a", "a"]


def test_leaves_prefill_replicas_alone() -> None:
    driver = PlaneDriver(RoundRobin(), [replica("p", "prefill"), replica("d", "decode")])
    assert [driver.place(f"s{i}", text(("s", 1))) for i in range(2)] == ["d", "d"]
