"""The short-first plan against plans worked out by hand."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.short_first import (
    IDLE,
    NEW,
    RETURNING,
    Placement,
    Queued,
    queue_class,
    queue_order,
    select,
    short_first_plan,
)


def queued(name: str, cls: int, tokens: int, at_queueing: int | None = None) -> Queued:
    return Queued(name, cls, tokens if at_queueing is None else at_queueing, tokens)


def test_classes() -> None:
    assert queue_class(step=1, reasoning=True) == NEW
    # A session paused after its only turn is still of the new class, as in the original.
    assert queue_class(step=1, reasoning=False) == NEW
    assert queue_class(step=2, reasoning=True) == RETURNING
    assert queue_class(step=2, reasoning=False) == IDLE


def test_order_is_class_then_tokens_when_queued_then_age() -> None:
    pool = [
        queued("idle", IDLE, 10),
        queued("new", NEW, 10),
        queued("grown", RETURNING, 900, at_queueing=100),
        queued("large", RETURNING, 500),
        queued("twin", RETURNING, 500),
    ]
    assert [one.session for one in queue_order(pool)] == ["grown", "large", "twin", "new", "idle"]


def test_walk_goes_on_after_one_that_does_not_fit_and_tests_current_tokens() -> None:
    pool = [
        queued("a", RETURNING, 900, at_queueing=100),  # first by 100, but needs 900 + 100
        queued("b", RETURNING, 600),  # 1000 + 700 = 1700 > 1500: left out
        queued("c", NEW, 400),  # 1000 + 500 = 1500 <= 1500: taken
    ]
    assert [one.session for one in select(pool, 1500)] == ["a", "c"]
    assert [one.session for one in select(pool, 1499)] == ["a"]


def test_each_goes_where_most_room_is() -> None:
    # Descending: 500, 300, 200. r1 (1000) takes 500 -> 400 left; r0 (600) takes 300 -> 200 left;
    # r1 (400) takes 200 -> 100 left, which is not more than the buffer, so it is dropped.
    pool = [queued("s", NEW, 200), queued("l", NEW, 500), queued("m", NEW, 300)]
    assert short_first_plan(pool, [("r0", 600), ("r1", 1000)]) == [
        Placement("l", "r1"),
        Placement("m", "r0"),
        Placement("s", "r1"),
    ]


def test_equal_room_goes_to_the_first_configured() -> None:
    assert short_first_plan([queued("a", NEW, 50)], [("r0", 500), ("r1", 500)]) == [("a", "r0")]


def test_one_too_large_for_any_single_replica_is_skipped() -> None:
    # 700 + 100 fits 400 + 500 together but neither alone; 50 + 100 still gets its place.
    pool = [queued("large", RETURNING, 700), queued("small", NEW, 50)]
    assert select(pool, 950)
    assert short_first_plan(pool, [("r0", 450), ("r1", 500)]) == [("small", "r1")]


def test_stops_when_the_smallest_does_not_fit_the_roomiest() -> None:
    # Both are taken (2 x 400 <= 900). The first leaves r0 with 450 - 400 = 50 (dropped) ...
    pool = [queued("a", NEW, 300), queued("b", NEW, 300)]
    assert short_first_plan(pool, [("r0", 450), ("r1", 450)]) == [("a", "r0"), ("b", "r1")]
    # ... and with 450 and 350 the second (400) exceeds r1's 350: nothing more can be placed.
    assert short_first_plan(pool, [("r0", 450), ("r1", 350)]) == [("a", "r0")]


def test_replica_with_no_more_than_the_buffer_does_not_count() -> None:
    assert short_first_plan([queued("a", NEW, 0)], [("r0", 100)]) == []
    assert short_first_plan([queued("a", NEW, 1)], [("r0", 101)]) == [("a", "r0")]
    assert short_first_plan([queued("a", NEW, 1)], []) == []


@settings(max_examples=300, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 900), st.integers(0, 900)), max_size=12),
    st.lists(st.integers(-200, 2000), min_size=1, max_size=4),
)
def test_never_over_room_and_never_twice(
    sessions: list[tuple[int, int, int]], rooms: list[int]
) -> None:
    pool = [Queued(f"s{i}", *values) for i, values in enumerate(sessions)]
    room = [(f"r{i}", tokens) for i, tokens in enumerate(rooms)]
    plan = short_first_plan(pool, room)
    assert len({placement.session for placement in plan}) == len(plan)
    need = {one.session: one.tokens + 100 for one in pool}
    for replica, tokens in room:
        assert sum(need[s] for s, where in plan if where == replica) <= max(tokens, 0)
    assert plan == short_first_plan(list(pool), list(room))
