"""Groups and counts on disk, against plain dictionaries."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.spill import Counts, Groups

NAMES = st.sampled_from("abcdef")


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.lists(NAMES, min_size=1, max_size=2), st.lists(NAMES, max_size=2))))
def test_groups_come_in_order_with_their_rows_in_order(
    rows: list[tuple[list[str], list[str]]],
) -> None:
    group_of: dict[str, int] = {}
    expected: list[list[list[int]]] = []
    with Groups() as groups:
        for number, (names, under) in enumerate(rows):
            groups.add(names, [number], under)
            known = [group_of[name] for name in (*names, *under) if name in group_of]
            if not known:
                expected.append([])
            place = known[0] if known else len(expected) - 1
            expected[place].append([number])
            for name in names:
                group_of.setdefault(name, place)
        assert list(groups) == expected


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 9)), st.integers(1, 4))
def test_counts_are_those_given_whether_moved_to_disk_or_not(
    given: dict[str, int], in_memory: int
) -> None:
    counts = Counts(in_memory)
    for name, count in given.items():
        assert name not in counts
        counts.add(name, count)
    assert len(counts) == len(given)
    assert {name: counts.get(name) for name in given} == given
    assert counts.get("not there") is None
