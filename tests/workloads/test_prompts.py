"""PromptBuilder and the infinite cache against prompts written out token by token."""

from __future__ import annotations

from hypothesis import given, settings

from tests.oracles.workloads_text import common_prefix, literal_prompts, literal_replies
from tests.workloads.strategies import families
from workloads.model import Prompt, PromptBuilder, Segment, Session, TurnSpec
from workloads.stats import InfiniteCache, trace_stats


def _shared_tokens(one: Prompt, other: Prompt) -> int:
    total = 0
    for left, right in zip(one.segments, other.segments, strict=False):
        if left.id != right.id:
            break
        total += min(left.tokens, right.tokens)
        if left.tokens != right.tokens:
            break
    return total


@settings(max_examples=80, deadline=None)
@given(families())
def test_two_prompts_share_exactly_what_the_literal_texts_share(sessions: list[Session]) -> None:
    prompts: list[Prompt] = []
    literal = []
    for session in sessions:
        prompts.extend(PromptBuilder(session).prompts())
        literal.extend(literal_prompts(session)[0])
    for i, prompt in enumerate(prompts):
        assert sum(part.tokens for part in prompt.segments) == len(literal[i])
        for j in range(i):
            assert _shared_tokens(prompt, prompts[j]) == common_prefix(literal[i], literal[j])


@settings(max_examples=80, deadline=None)
@given(families())
def test_infinite_cache_finds_the_longest_earlier_prefix(sessions: list[Session]) -> None:
    seen: list[list[tuple[str, int, str, int]]] = []
    hits = total = 0
    for session in sessions:
        prompts, lines = literal_prompts(session)
        for prompt, line in zip(prompts, lines, strict=True):
            hits += max((common_prefix(prompt, old) for old in seen), default=0)
            total += len(prompt)
            seen.append(line)
    stats = trace_stats(sessions)
    assert stats.prompt_tokens == total
    assert stats.reuse_share == hits / total


def test_infinite_cache_by_hand() -> None:
    cache = InfiniteCache()
    cache.add((Segment("s", 10, 0), Segment("a", 5, 0)))
    # All of s, 3 of the 5 tokens of a.
    assert cache.known((Segment("s", 10, 0), Segment("a", 3, 0))) == 13
    # s is left after 8 of its 10 tokens: what follows was never seen there.
    assert cache.known((Segment("s", 8, 0), Segment("a", 5, 0))) == 8
    assert cache.known((Segment("a", 5, 0),)) == 0


def test_replies_and_bytes_of_a_branch() -> None:
    session = Session(
        "x",
        (
            TurnSpec(10, 4, new_bytes=100),
            TurnSpec(2, 3, kept_turn=0, kept_tokens=14),
            TurnSpec(1, 1, kept_turn=0, kept_tokens=5),
        ),
        "w",
        "recorded",
    )
    first, second, third = PromptBuilder(session).prompts()
    assert first.segments == (Segment("x#0", 10, 100),)
    # 10 + 4 tokens kept, 2 new: bytes 100 + 4 * 4 + 2 * 4.
    assert second.segments == (Segment("x#0", 16, 124),)
    # A branch: 5 of the 14 tokens, 116 bytes * 5 // 14 = 41; the new token opens its own segment.
    assert third.segments == (Segment("x#0", 5, 41), Segment("x#2", 1, 4))
    # The branch keeps half of the first prompt: the reply behind it is gone.
    assert [p.assistant_messages for p in (first, second, third)] == [0, 1, 0]


def test_a_cut_prompt_drops_the_replies_behind_the_cut() -> None:
    session = Session(
        "x",
        (
            TurnSpec(10, 4),
            TurnSpec(6, 5, kept_turn=0, kept_tokens=14),
            TurnSpec(2, 3, kept_turn=1, kept_tokens=25),
            # Replies begin at 10 and 20 of turn 2's prompt of 27 tokens: 20 tokens hold the first.
            TurnSpec(9, 1, kept_turn=2, kept_tokens=20),
            # 10 tokens end where the only reply left began.
            TurnSpec(9, 1, kept_turn=3, kept_tokens=10),
            # The whole prompt of 19 tokens is kept, the reply comes back rewritten.
            TurnSpec(9, 1, kept_turn=4, kept_tokens=19),
            # The same prompt once more: of 28 tokens, the reply of turn 5 is not in it.
            TurnSpec(0, 1, kept_turn=5, kept_tokens=28),
            TurnSpec(9, 1),
        ),
        "w",
        "recorded",
    )
    found = [p.assistant_messages for p in PromptBuilder(session).prompts()]
    assert found == [0, 1, 2, 1, 0, 1, 1, 0]


@settings(max_examples=80, deadline=None)
@given(families())
def test_replies_are_those_whose_first_token_is_kept(sessions: list[Session]) -> None:
    for session in sessions:
        held = literal_replies(session)
        assert [p.assistant_messages for p in PromptBuilder(session).prompts()] == held
