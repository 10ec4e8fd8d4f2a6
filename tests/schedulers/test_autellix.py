"""Autellix's gateway form: levels of attained service, placement, the optional queue."""

from __future__ import annotations

from typing import Any

import pytest

from schedulers.autellix import Autellix, AutellixConfig
from schedulers.registry import configure
from tests.schedulers.plane_driver import PlaneDriver, mixed, text


def start(*names: str, **config: Any) -> PlaneDriver:
    return PlaneDriver(Autellix(configure(Autellix, config)), mixed(*names))


def level(driver: PlaneDriver, session: str) -> int:
    assert isinstance(driver.scheduler, Autellix)
    return driver.scheduler.level(session)


def sessions(driver: PlaneDriver) -> list[str]:
    return [one.turn.session for one in driver.open.values()]


@pytest.mark.parametrize(
    ("prompt", "cached", "output", "expected"),
    [
        (2000, None, 48, 0),  # 2048 is not above 2048
        (2000, None, 49, 1),
        (10_000, 2000, 192, 1),  # 8192
        (10_000, None, 1, 2),
        (40_000, None, 1, 3),
        (40_000, 39_000, 100, 0),  # 1,100 computed
    ],
)
def test_levels_count_computed_tokens(
    prompt: int, cached: int | None, output: int, expected: int
) -> None:
    driver = start("a")
    driver.place("s", text(("s", prompt)))
    driver.finish("s", output=output, cached=cached)
    assert driver.dispatch("s", text(("s", prompt))).annotations == {"priority": expected}


def test_a_program_is_a_session_with_its_sub_agents() -> None:
    driver = start("a")
    driver.place("root", text(("root", 1500)))
    driver.place("sub", text(("sub", 1000)), parent="root")
    driver.finish("root")
    driver.finish("sub")
    assert level(driver, "root") == level(driver, "sub") == 1  # 2,500
    driver.close("sub")
    assert level(driver, "root") == 1


def test_atlas_takes_the_longest_path_not_the_sum() -> None:
    driver = start("a", order="atlas")
    driver.place("root", text(("root", 1000)))
    driver.finish("root")
    for name in ("x", "y"):
        driver.place(name, text((name, 1000)), parent="root")
    driver.finish("x")
    driver.finish("y")
    # The sum is 3,000, the longest path root-x 2,000.
    assert level(driver, "root") == 0
    driver.place("x", text(("x", 100)))
    driver.finish("x")
    assert level(driver, "root") == 1  # 2,100


def test_short_calls_are_balanced_and_long_ones_stay_with_their_program() -> None:
    driver = start("a", "b")
    assert driver.place("s", text(("s", 2049))) == "a"
    driver.finish("s")
    assert driver.place("t", text(("t", 10))) == "a"
    assert driver.place("u", text(("u", 10))) == "b"
    driver.finish("u")
    # a 1, b 0: a short call of s goes to b, a long one to a.
    assert driver.place("s", text(("s", 2048))) == "b"
    driver.finish("s")
    assert driver.place("s", text(("s", 2049))) == "a"
    driver.lose("a")
    assert {one.decode for one in driver.open.values()} == {"b"}


def test_the_queue_is_by_level_then_arrival() -> None:
    driver = start("a", max_in_flight=1)
    driver.place("heavy", text(("heavy", 3000)))
    driver.finish("heavy")
    driver.place("first", text(("first", 10)))
    driver.arrive("heavy", text(("heavy", 10)))
    driver.arrive("light1", text(("light1", 10)))
    driver.arrive("light2", text(("light2", 10)))
    order = []
    for _ in range(4):
        (current,) = sessions(driver)
        order.append(current)
        driver.finish(current)
    assert order == ["first", "light1", "light2", "heavy"]


def test_a_starving_program_counts_as_level_0() -> None:
    driver = start("a", max_in_flight=1)
    driver.place("heavy", text(("heavy", 3000)))
    driver.advance(3.0)
    driver.finish("heavy")  # served 3 s
    driver.place("first", text(("first", 10)))
    driver.arrive("heavy", text(("heavy", 10)))
    driver.advance(1.0)
    driver.arrive("light", text(("light", 10)))
    driver.advance(5.0)  # heavy has waited 6 s = 2 * 3 s
    driver.finish("first")
    assert sessions(driver) == ["heavy"]


def test_a_turn_that_cannot_be_placed_does_not_block_others() -> None:
    driver = start("a", "b", max_in_flight=1)
    assert driver.place("s", text(("s", 3000))) == "a"
    driver.finish("s")
    assert driver.place("t", text(("t", 10))) == "a"
    driver.arrive("s", text(("s", 3000)))  # its replica is full
    assert driver.place("u", text(("u", 10))) == "b"
    driver.client_gone("s")
    driver.finish("t")
    assert sessions(driver) == ["u"]


def test_refuses_levels_out_of_order() -> None:
    with pytest.raises(ValueError, match="ascend"):
        AutellixConfig(level_tokens=(10, 5))
