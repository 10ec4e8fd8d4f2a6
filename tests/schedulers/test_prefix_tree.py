"""The routers' prefix tree against a twin that remembers every prompt."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.prefix_tree import PrefixTree
from schedulers.types import PromptRef, PromptRun
from tests.oracles.prefix_tree import PrefixTreeOracle

REPLICAS = ("r0", "r1", "r2")


def prompt(*runs: tuple[str, int]) -> PromptRef:
    """Four bytes a token, as the routers assume."""
    return PromptRef(tuple(PromptRun(name, tokens, 4 * tokens) for name, tokens in runs))


prompts = st.lists(
    st.tuples(st.sampled_from("abc"), st.integers(1, 6)), min_size=1, max_size=4
).map(lambda runs: prompt(*runs))
sent = st.lists(st.tuples(prompts, st.sampled_from(REPLICAS)), max_size=25)


def build(history: list[tuple[PromptRef, str]]) -> tuple[PrefixTree, PrefixTreeOracle]:
    tree, oracle = PrefixTree(), PrefixTreeOracle()
    for now, (text, replica) in enumerate(history, start=1):
        tree.insert(text, replica, now)
        oracle.insert(text, replica, now)
    return tree, oracle


@settings(max_examples=300, deadline=None)
@given(sent, prompts)
def test_match_and_size_equal_the_oracle(
    history: list[tuple[PromptRef, str]], asked: PromptRef
) -> None:
    tree, oracle = build(history)
    found = tree.match(asked)
    for replica in REPLICAS:
        assert found.get(replica, 0) == oracle.match(asked, replica)
        assert tree.size(replica) == oracle.size(replica)
    best = max(found.values(), default=0)
    reached, node = tree.longest(asked)
    assert reached == best
    assert set(node.holders) == {replica for replica in found if best and found[replica] == best}


@settings(max_examples=200, deadline=None)
@given(sent, prompts, st.integers(0, 26))
def test_eviction_by_age_keeps_exactly_what_was_sent_since(
    history: list[tuple[PromptRef, str]], asked: PromptRef, before: int
) -> None:
    tree, oracle = build(history)
    tree.evict_older(before)
    found = tree.match(asked)
    for replica in REPLICAS:
        assert found.get(replica, 0) == oracle.match(asked, replica, since=before)
        assert tree.size(replica) == oracle.size(replica, since=before)


@settings(max_examples=200, deadline=None)
@given(sent, st.integers(0, 80))
def test_eviction_by_size_drops_oldest_text_first(
    history: list[tuple[PromptRef, str]], limit: int
) -> None:
    tree, oracle = build(history)
    tree.evict_to(limit)
    for replica in REPLICAS:
        assert tree.size(replica) <= limit
        # The newest text that fits whole must stay; text older than the oldest that was cut into
        # must be gone.
        times = range(1, len(history) + 2)
        kept = min(t for t in times if oracle.size(replica, since=t) <= limit)
        for text, _ in history:
            matched = tree.match(text).get(replica, 0)
            assert matched >= oracle.match(text, replica, since=kept)
            assert matched <= oracle.match(text, replica, since=max(1, kept - 1))


@settings(max_examples=100, deadline=None)
@given(sent, prompts)
def test_forgotten_replica_matches_nothing_and_others_are_untouched(
    history: list[tuple[PromptRef, str]], asked: PromptRef
) -> None:
    tree, oracle = build(history)
    tree.forget("r1")
    found = tree.match(asked)
    assert "r1" not in found
    assert tree.size("r1") == 0
    assert found.get("r0", 0) == oracle.match(asked, "r0")


def test_text_is_usable_again_after_eviction() -> None:
    tree = PrefixTree()
    tree.insert(prompt(("a", 10)), "r0", 1)
    tree.evict_to(0)
    tree.insert(prompt(("a", 4)), "r0", 2)
    assert tree.match(prompt(("a", 10))) == {"r0": 16}


def test_a_growing_session_stays_one_node() -> None:
    # A session of many turns must not make matching slower with every turn.
    tree = PrefixTree()
    for turn in range(1, 200):
        tree.insert(prompt(("system", 5), ("session", 10 * turn)), "r0", turn)
    assert len(list(tree._nodes())) == 2
