"""MARS's admission window, worked out by hand. Looks every 5 s."""

from __future__ import annotations

from typing import Any

import pytest

from schedulers.mars import Mars, MarsConfig
from schedulers.registry import configure
from schedulers.types import ReplicaSample
from tests.schedulers.plane_driver import PlaneDriver, mixed, text


def start(*names: str, **config: Any) -> PlaneDriver:
    return PlaneDriver(
        Mars(configure(Mars, {"start_window": 2, "max_engine_waiting": 0, **config})), mixed(*names)
    )


def window(driver: PlaneDriver) -> float:
    return driver.scheduler.counters()["window"]


def sessions(driver: PlaneDriver) -> list[str]:
    return [one.turn.session for one in driver.open.values()]


def fill(driver: PlaneDriver, *names: str) -> None:
    for name in names:
        driver.arrive(name, text((name, 10)))


def test_new_sessions_wait_outside_a_full_window_and_old_ones_pass() -> None:
    driver = start("a", "b", start_window=1)  # one a replica
    fill(driver, "s", "t", "u", "v")
    assert sessions(driver) == ["s", "t"]
    driver.finish("s")
    fill(driver, "s")
    assert sessions(driver) == ["t", "s"]
    driver.finish("s")
    driver.close("s")
    assert sessions(driver) == ["t", "u"]  # first come first served


def test_a_full_window_grows_by_one_and_an_unfilled_one_stays() -> None:
    driver = start("a")
    fill(driver, "s", "t", "u", "v")
    driver.advance(5.0)
    assert window(driver) == 3.0
    assert sessions(driver) == ["s", "t", "u"]
    driver.advance(5.0)
    assert sessions(driver) == ["s", "t", "u", "v"]
    driver.advance(10.0)
    assert window(driver) == 5.0  # four inside a window of five


@pytest.mark.parametrize(
    ("before", "after", "trouble"),
    [
        (ReplicaSample(waiting=1), ReplicaSample(waiting=2), False),
        (ReplicaSample(waiting=1), ReplicaSample(waiting=3), True),
        (ReplicaSample(preemptions=3), ReplicaSample(preemptions=3), False),
        (ReplicaSample(preemptions=3), ReplicaSample(preemptions=4), True),
        (ReplicaSample(), ReplicaSample(), False),
    ],
)
def test_trouble_halves_the_window(
    before: ReplicaSample, after: ReplicaSample, trouble: bool
) -> None:
    driver = start("a", start_window=8, max_engine_waiting=2)
    fill(driver, "s")
    driver.sampled("a", before)
    driver.advance(5.0)
    assert window(driver) == 8.0
    driver.sampled("a", after)
    driver.advance(5.0)
    assert window(driver) == (4.0 if trouble else 8.0)


def test_two_replicas_grow_by_two() -> None:
    driver = start("a", "b", start_window=1)
    fill(driver, "s", "t")
    driver.advance(5.0)
    assert window(driver) == 4.0


def test_a_fall_of_the_hit_rate_is_trouble() -> None:
    driver = start("a", start_window=8)
    fill(driver, "s")
    # Rates between looks: 0.8, 0.71, 0.6: only the last fall is more than 0.1.
    for queries, hits, expected in (
        (0, 0, 8.0),
        (100, 80, 8.0),
        (200, 151, 8.0),
        (300, 211, 4.0),
    ):
        driver.sampled("a", ReplicaSample(prefix_queries=queries, prefix_hits=hits))
        driver.advance(5.0)
        assert window(driver) == expected


def test_too_many_running_tools_are_trouble() -> None:
    driver = start("a", start_window=8, tool_slots=1)
    fill(driver, "s", "t")
    driver.finish("s")
    driver.advance(5.0)
    assert window(driver) == 8.0
    driver.finish("t")
    driver.advance(5.0)
    assert window(driver) == 4.0


def test_the_window_never_falls_below_its_minimum() -> None:
    driver = start("a")
    fill(driver, "s")
    driver.sampled("a", ReplicaSample(waiting=9))
    driver.advance(30.0)
    assert window(driver) == 1.0


def test_level_of_the_remaining_prefill_is_the_priority() -> None:
    driver = start("a")
    for length, expected in ((2048, 0), (2049 + 2048, 1), (2048 + 2049 + 8193, 2)):
        one = driver.dispatch("s", text(("s", length)))
        assert one.annotations == {"priority": expected}
        driver.finish("s")
    assert driver.dispatch("s", text(("s", 100_000))).annotations == {"priority": 3}


def test_sessions_keep_their_replica() -> None:
    driver = start("a", "b")
    fill(driver, "s", "t")
    driver.finish("t")
    fill(driver, "u", "s")
    assert [(d.turn.session, d.decode) for d in driver.open.values()] == [
        ("s", "a"),
        ("u", "b"),
        ("s", "a"),
    ]


def test_refuses_impossible_windows() -> None:
    with pytest.raises(ValueError, match="min_window"):
        MarsConfig(start_window=1, min_window=2)
    with pytest.raises(ValueError, match="decrease"):
        MarsConfig(decrease=1.0)
