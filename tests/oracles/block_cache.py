"""The KV block pool block by block, with token-level content: slow and plain.

Structures and order of operations as in vLLM v1: a list of free blocks, a table from hash to the
blocks that carry it, reference counts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

Hash = int
Segments = Sequence[tuple[str, int]]


class Hasher:
    """Block hashes: equal exactly if the block and all before it hold equal tokens."""

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size
        self.known: dict[tuple[Hash, tuple[tuple[str, int], ...]], Hash] = {}

    def hashes(self, segments: Segments) -> list[Hash]:
        tokens: list[tuple[str, int]] = []
        for name, count in segments:
            start = tokens[-1][1] + 1 if tokens and tokens[-1][0] == name else 0
            tokens += [(name, start + i) for i in range(count)]
        found: list[Hash] = []
        parent = 0
        for end in range(self.block_size, len(tokens) + 1, self.block_size):
            key = (parent, tuple(tokens[end - self.block_size : end]))
            parent = self.known.setdefault(key, len(self.known) + 1)
            found.append(parent)
        return found


@dataclass(eq=False)
class Block:
    hash: Hash | None = None
    refs: int = 0
    marked: bool = False
    """There is a window state at its end."""


@dataclass(eq=False)
class OracleHolding:
    hashes: list[Hash]
    blocks: list[Block] = field(default_factory=list)
    hashed: int = 0
    fixed: list[Block] = field(default_factory=list)
    marks: list[int] = field(default_factory=list)


class OracleBlockCache:
    def __init__(self, blocks: int, caching: bool = True) -> None:
        self.caching = caching
        self.total = blocks
        self.queue = [Block() for _ in range(blocks)]
        self.by_hash: dict[Hash, list[Block]] = {}
        self.evicted = 0

    @property
    def free(self) -> int:
        return len(self.queue)

    @property
    def cached(self) -> int:
        return sum(len(blocks) for blocks in self.by_hash.values())

    def match(self, hashes: list[Hash], limit: int) -> list[Block]:
        found: list[Block] = []
        for key in hashes[:limit]:
            if not self.caching or key not in self.by_hash:
                break
            found.append(self.by_hash[key][0])
        return found

    def acquire(self, hashes: list[Hash], match: list[Block]) -> OracleHolding:
        for block in match:
            if block.refs == 0:
                self.queue.remove(block)
            block.refs += 1
        return OracleHolding(hashes, list(match), len(match))

    def allocate(self, holding: OracleHolding, count: int) -> None:
        for _ in range(count):
            block = self.queue.pop(0)
            if block.hash is not None:
                self.by_hash[block.hash].remove(block)
                if not self.by_hash[block.hash]:
                    del self.by_hash[block.hash]
                block.hash = None
                block.marked = False
                self.evicted += 1
            assert block.refs == 0
            block.refs = 1
            holding.blocks.append(block)

    def fix(self, holding: OracleHolding, count: int) -> None:
        others = OracleHolding([])
        self.allocate(others, count)
        holding.fixed += others.blocks

    def fill(self, holding: OracleHolding, full: int) -> None:
        if not self.caching:
            return
        while holding.hashed < full:
            block, key = holding.blocks[holding.hashed], holding.hashes[holding.hashed]
            block.hash = key
            self.by_hash.setdefault(key, []).append(block)
            holding.hashed += 1
            if holding.hashed in holding.marks:
                block.marked = True

    def release(self, holding: OracleHolding) -> None:
        first: list[Block] = []
        last: list[Block] = []
        for block in reversed(holding.blocks + holding.fixed):
            block.refs -= 1
            if block.refs == 0:
                (first if block.hash is None else last).append(block)
        self.queue = first + self.queue + last
        holding.blocks, holding.fixed, holding.hashed = [], [], 0
