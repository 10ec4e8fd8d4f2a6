from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SimulationError, TopologyError, UsageError
from harness.sim.block_cache import BlockCache, Holding
from harness.sim.content import BlockRun, ContentIndex, Line
from tests.oracles.block_cache import Hasher, OracleBlockCache, OracleHolding


def test_line_of_a_growing_session_keeps_its_branches() -> None:
    index = ContentIndex(16)
    # system prompt 40 tokens: blocks 0, 1 and half of block 2, which belongs to the session.
    first = index.intern([("system", 40), ("s1", 60)])
    assert first.runs == (BlockRun(1, 0, 2), BlockRun(2, 2, 6))  # 100 tokens: 6 full blocks
    assert first.tokens == 100
    later = index.intern([("system", 40), ("s1", 60), ("s1", 100)])
    assert later.runs == (BlockRun(1, 0, 2), BlockRun(2, 2, 12))
    other = index.intern([("system", 40), ("s2", 60)])
    assert other.runs == (BlockRun(1, 0, 2), BlockRun(3, 2, 6))
    # The same segment after a shorter beginning is other text from the first different block on.
    cut = index.intern([("system", 32), ("s1", 60)])
    assert cut.runs == (BlockRun(1, 0, 2), BlockRun(4, 2, 5))


def test_line_skips_empty_segments_and_stretches_too_short_for_a_block() -> None:
    index = ContentIndex(16)
    assert index.intern([("a", 0), ("b", 15)]).runs == ()
    # c begins at token 15; block 0 ends in it, so block 0 is a block of c's branch.
    assert index.intern([("b", 15), ("c", 1)]).runs == (BlockRun(2, 0, 1),)
    with pytest.raises(UsageError):
        index.intern([("a", -1)])


def test_tail_blocks_are_evicted_first_and_blank_blocks_before_them() -> None:
    index, cache = ContentIndex(1), BlockCache(6)
    line = index.intern([("a", 5)])
    holding = _hold(cache, line, 5)  # 5 of 6 blocks
    cache.fill(holding, 4)  # the fifth has no hash
    cache.release(holding)
    assert cache.free_queue() == [None, None, (1, 3), (1, 2), (1, 1), (1, 0)]
    cache.take(3)  # both blank ones and the last hashed one
    assert (cache.evicted, cache.free, cache.match(line, 5).blocks) == (1, 3, 3)


def test_of_two_copies_the_first_hashed_is_hit() -> None:
    index, cache = ContentIndex(1), BlockCache(8)
    line = index.intern([("a", 2)])
    one, two = _hold(cache, line, 2), _hold(cache, line, 2)
    cache.fill(one, 2)
    cache.fill(two, 2)
    assert cache.copies() == {(1, 0): [1, 1], (1, 1): [1, 1]}
    cache.release(one)
    match = cache.match(line, 2)
    assert (match.blocks, match.free) == (2, 2)  # one's copy, though nobody holds it any more


def test_pool_of_no_blocks_and_too_large_an_allocation_are_errors() -> None:
    with pytest.raises(TopologyError):
        BlockCache(0)
    with pytest.raises(SimulationError, match="4 KV blocks were asked for, 3 are free"):
        BlockCache(3).take(4)


def test_splits_are_undone_when_no_holding_needs_them() -> None:
    index, cache = ContentIndex(1), BlockCache(100)
    line = index.intern([("shared", 64)])
    owner = _hold(cache, line, 64)
    cache.fill(owner, 64)
    parts = [cache.acquire(line, cache.match(line, blocks)) for blocks in (5, 40, 17, 17, 63, 1)]
    assert len(cache._branches[1]) == 6  # cuts at 1, 5, 17, 40 and 63
    for part in parts[:-1]:
        cache.release(part)
    assert [(e.lo, e.hi, e.refs) for e in cache._branches[1]] == [(0, 1, 2), (1, 64, 1)]
    cache.release(owner)
    cache.release(parts[-1])
    assert [(e.lo, e.hi, e.refs) for e in cache._branches[1]] == [(0, 64, 0)]


def test_a_match_is_good_only_until_the_cache_changes() -> None:
    index, cache = ContentIndex(1), BlockCache(4)
    line = index.intern([("a", 4)])
    holding = _hold(cache, line, 4)
    cache.fill(holding, 4)
    cache.release(holding)
    match = cache.match(line, 4)
    cache.take(2)
    with pytest.raises(SimulationError, match="no longer where they were"):
        cache.acquire(line, match)


def _hold(cache: BlockCache, line: Line, blocks: int) -> Holding:
    holding = cache.acquire(line, cache.match(line, 0))
    cache.take(blocks)
    holding.blocks += blocks
    return holding


class Pair:
    """The same operations on both caches, and the comparison."""

    def __init__(self, blocks: int, block_size: int, caching: bool) -> None:
        self.size = block_size
        self.fast, self.slow = BlockCache(blocks, caching), OracleBlockCache(blocks, caching)
        self.index, self.hasher = ContentIndex(block_size), Hasher(block_size)
        self.names: dict[int, tuple[int, int]] = {}
        self.held: list[tuple[Holding, OracleHolding, int]] = []

    def admit(self, segments: list[tuple[str, int]], limit: int, grow: int) -> None:
        line, hashes = self.index.intern(segments), self.hasher.hashes(segments)
        keys = [(run.branch, block) for run in line.runs for block in range(run.lo, run.hi)]
        assert len(keys) == len(hashes)
        for key, value in zip(keys, hashes, strict=True):
            assert self.names.setdefault(value, key) == key
        match, blocks = self.fast.match(line, limit), self.slow.match(hashes, limit)
        assert match.blocks == len(blocks)
        assert match.free == sum(block.refs == 0 for block in blocks)
        if match.free + grow > self.slow.free:
            return
        pair = self.fast.acquire(line, match), self.slow.acquire(hashes, blocks), len(hashes)
        self.held.append(pair)
        self.grow(len(self.held) - 1, grow, grow)

    def grow(self, which: int, take: int, fill: int) -> None:
        if not self.held:
            return
        fast, slow, full = self.held[which % len(self.held)]
        take = min(take, self.slow.free)
        self.fast.take(take)
        fast.blocks += take
        self.slow.allocate(slow, take)
        upto = min(fast.hashed + fill, fast.blocks, full)
        self.fast.fill(fast, upto)
        self.slow.fill(slow, upto)

    def release(self, which: int) -> None:
        if self.held:
            fast, slow, _ = self.held.pop(which % len(self.held))
            self.fast.release(fast)
            self.slow.release(slow)

    def check(self) -> None:
        fast, slow = self.fast, self.slow
        assert (fast.free, fast.evicted, fast.cached) == (slow.free, slow.evicted, slow.cached)
        queue = [None if b.hash is None else self.names[b.hash] for b in slow.queue]
        assert fast.free_queue() == queue
        expected = {self.names[h]: [b.refs for b in bs] for h, bs in slow.by_hash.items()}
        assert fast.copies() == expected


def random_segments(rng: random.Random, length: int) -> list[tuple[str, int]]:
    """Texts that share beginnings, end in the middle of others', and repeat."""
    segments = [(f"s{rng.randrange(2)}", rng.randint(1, length))]
    while rng.random() < 0.5:
        segments.append(
            (f"t{rng.randrange(3)}", rng.choice((1, 3, length, rng.randint(1, length))))
        )
    return segments


@settings(max_examples=1500, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    blocks=st.integers(1, 40),
    block_size=st.integers(1, 4),
    caching=st.sampled_from((True, True, True, False)),
)
def test_cache_equals_block_by_block_oracle(
    seed: int, blocks: int, block_size: int, caching: bool
) -> None:
    rng = random.Random(seed)
    pair = Pair(blocks, block_size, caching)
    for _ in range(60):
        draw = rng.random()
        if draw < 0.4:
            segments = random_segments(rng, 12)
            total = sum(tokens for _, tokens in segments) // block_size
            pair.admit(segments, rng.randint(0, total + 1), rng.randint(0, 4))
        elif draw < 0.7:
            pair.grow(rng.randrange(100), rng.randint(0, 3), rng.randint(0, 3))
        else:
            pair.release(rng.randrange(100))
        pair.check()
