"""Prompts as runs of known text, against comparing the texts themselves."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.control.prefix_index import PrefixIndex
from harness.live.texts import SHARED_BYTES, Piece, TextTree, TokenRatio, correct, runs_of
from harness.live.words import BYTES_PER_TOKEN, words
from schedulers.types import PromptRef, PromptRun
from tests.oracles.http_texts import common_bytes


def tree() -> TextTree:
    return TextTree(TokenRatio(4.0))


def test_an_appending_agent_is_one_growing_segment() -> None:
    texts = tree()
    first = [Piece("system", "s" * 40), Piece("user", "u" * 20)]
    second = [*first, Piece("assistant", "a" * 8), Piece("user", "v" * 12)]
    [run] = runs_of(texts.walk(first))
    assert (run.tokens, run.bytes) == (15, 60)  # (40 + 20) / 4
    [longer] = runs_of(texts.walk(second))
    assert longer == PromptRun(run.segment, 20, 80)
    assert runs_of(texts.walk(first)) == (run,)


def test_agents_that_share_a_beginning_share_a_run() -> None:
    texts = tree()
    system = Piece("system", "s" * 40)
    [one] = runs_of(texts.walk([system, Piece("user", "one!")]))
    shared, own = runs_of(texts.walk([system, Piece("user", "other!!!")]))
    assert shared == PromptRun(one.segment, 10, 40)
    assert own.segment != one.segment
    assert (own.tokens, own.bytes) == (2, 8)


def test_a_cut_message_shares_what_is_left_of_it() -> None:
    texts = tree()
    long = words("a", 100)
    [whole] = runs_of(texts.walk([Piece("user", long)]))
    [cut] = runs_of(texts.walk([Piece("user", long[: 40 * BYTES_PER_TOKEN])]))
    assert cut == PromptRun(whole.segment, 40, 160)
    kept, new = runs_of(texts.walk([Piece("user", long[:160]), Piece("user", words("b", 5))]))
    assert kept == cut
    assert new.tokens == 5


def test_roles_keep_equal_texts_apart() -> None:
    texts = tree()
    [a] = runs_of(texts.walk([Piece("user", "same")]))
    [b] = runs_of(texts.walk([Piece("assistant", "same")]))
    assert a.segment != b.segment


_PIECES = st.lists(
    st.tuples(st.sampled_from("uv"), st.sampled_from("abc"), st.integers(1, 40)),
    min_size=1,
    max_size=5,
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_PIECES, min_size=2, max_size=8))
def test_shared_prefixes_are_those_of_the_texts(prompts: list[list[tuple[str, str, int]]]) -> None:
    """What the prefix index finds over the runs is what the prompts themselves share.

    Texts of one name are prefixes of each other, so pieces are cut everywhere. What follows a cut
    is compared again, and there less than SHARED_BYTES may be missed.
    """
    texts, index = tree(), PrefixIndex()
    sent: list[list[Piece]] = []
    for prompt in prompts:
        pieces = [Piece(role, words(name, tokens)) for role, name, tokens in prompt]
        ref = PromptRef(runs_of(texts.walk(pieces)))
        assert ref.bytes == sum(len(piece.text) for piece in pieces)
        assert ref.tokens * 4 == ref.bytes
        found = index.match(ref, "r")
        best = max((common_bytes(pieces, other, SHARED_BYTES) for other in sent), default=0)
        assert best - SHARED_BYTES < found * 4 <= best
        assert found * 4 == best or pieces not in sent
        index.insert("s", ref, "r")
        sent.append(pieces)


def test_old_text_is_dropped_leaf_first() -> None:
    texts = TextTree(TokenRatio(4.0), node_limit=10)
    root = Piece("system", "s" * 100)
    for number in range(50):
        texts.walk([root, Piece("user", f"{number} asks {'x' * 96}")])
    # The shared beginning is still known, the oldest ends are not.
    runs = runs_of(texts.walk([root, Piece("user", f"49 asks {'x' * 96}")]))
    assert runs[0].bytes == 100
    assert len(texts._nodes) <= 10


def test_the_ratio_follows_what_engines_report() -> None:
    ratio = TokenRatio(4.0)
    assert ratio.tokens(10) == 2
    ratio.learn(600, 200)  # the first sample replaces the start: 3
    assert ratio.value == 3.0
    ratio.learn(800, 100)  # 0.2 * 8 + 0.8 * 3 = 4
    assert ratio.value == pytest.approx(4.0)
    ratio.learn(0, 5)
    ratio.learn(5, 0)
    assert ratio.value == pytest.approx(4.0)


def test_an_engines_count_corrects_the_last_piece() -> None:
    texts = tree()
    pieces = [Piece("system", "s" * 40), Piece("user", "u" * 20)]
    path = texts.walk(pieces)
    correct(path, 18)  # estimated 10 + 5; the engine counted 18
    [run] = runs_of(texts.walk(pieces))
    assert run.tokens == 18
    longer = texts.walk([*pieces, Piece("user", "w" * 8)])
    assert runs_of(longer)[0].tokens == 20
    correct(path, 99)  # something follows by now: known lengths stay
    assert runs_of(texts.walk(pieces))[0].tokens == 18


def test_words_are_the_same_every_time() -> None:
    rng = random.Random(1)
    for _ in range(50):
        tokens, start = rng.randrange(60), rng.randrange(60)
        text = words("name", tokens, start)
        assert len(text) == tokens * BYTES_PER_TOKEN
        assert words("name", start + tokens)[start * 4 :] == text
