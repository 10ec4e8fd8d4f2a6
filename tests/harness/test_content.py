"""Names of blocks: equal text, equal block, for as long as it is known."""

from __future__ import annotations

from harness.sim.content import ContentIndex


def test_text_that_is_used_again_is_the_same() -> None:
    index = ContentIndex(16)
    first = index.intern([("system", 32), ("a", 32)]).runs
    other = index.intern([("system", 32), ("b", 32)]).runs
    assert first[0] == other[0]
    assert first[1] != other[1]
    assert index.intern([("system", 32), ("a", 32)]).runs == first


def test_the_longest_unused_branch_is_forgotten() -> None:
    index = ContentIndex(16, limit=2)
    a, b = index.intern([("a", 32)]).runs, index.intern([("b", 32)]).runs
    assert index.intern([("a", 32)]).runs == a
    c = index.intern([("c", 32)]).runs  # b goes
    assert index.intern([("a", 32)]).runs == a
    again = index.intern([("b", 32)]).runs
    assert again != b
    assert again not in (a, c)  # its number was never another's
