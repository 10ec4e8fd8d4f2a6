"""A KV store that all replicas share: chunks of tokens, least recently used dropped first."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from harness.sim.block_cache import BlockCache
from harness.sim.content import ContentIndex, Line
from harness.sim.links import LinkSpec


@dataclass(frozen=True, slots=True)
class StoreSpec:
    """A global KV store (Mooncake Store, LMCache and the like)."""

    capacity_tokens: int
    link: LinkSpec
    """Of each node, towards the store."""
    chunk_tokens: int = 256
    """Only whole chunks are stored and found (LMCache's default)."""
    lookup_us: float = 1000.0
    """Per lookup. An estimate."""
    publish_delay_us: float = 0.0
    """From the end of a turn to its chunks being visible, on top of writing them. Our choice."""


class KvStore:
    """What the store holds. Timing is the driver's."""

    def __init__(self, spec: StoreSpec) -> None:
        self.spec = spec
        self.lookups = self.hits = 0
        self.hit_tokens = 0
        self._contents = ContentIndex(spec.chunk_tokens)
        self._chunks = BlockCache(max(1, spec.capacity_tokens // spec.chunk_tokens))

    def intern(self, segments: Iterable[tuple[str, int]]) -> Line:
        """Name a text for the calls below."""
        return self._contents.intern(segments)

    def lookup(self, line: Line, tokens: int) -> int:
        """How many of the text's first `tokens` tokens it has; what it has becomes recent."""
        match = self._chunks.match(line, tokens // self.spec.chunk_tokens)
        self.lookups += 1
        if match.blocks:
            self.hits += 1
            self._chunks.release(self._chunks.acquire(line, match))
        found = match.blocks * self.spec.chunk_tokens
        self.hit_tokens += found
        return found

    def clear(self) -> None:
        """Lose everything it holds; the counters go on."""
        self._chunks.clear()

    def missing(self, line: Line, tokens: int) -> int:
        """How many of the text's first `tokens` tokens, in whole chunks, it does not have."""
        chunks = tokens // self.spec.chunk_tokens
        match = self._chunks.match(line, chunks)
        return (chunks - match.blocks) * self.spec.chunk_tokens

    def publish(self, line: Line, tokens: int) -> None:
        """Store the text's first `tokens` tokens, as far as they fill chunks and the store."""
        chunks = min(tokens // self.spec.chunk_tokens, self._chunks.total)
        match = self._chunks.match(line, chunks)
        holding = self._chunks.acquire(line, match)
        new = chunks - match.blocks
        if new > self._chunks.free:
            new = self._chunks.free
        self._chunks.take(new)
        holding.blocks += new
        self._chunks.fill(holding, match.blocks + new)
        self._chunks.release(holding)
