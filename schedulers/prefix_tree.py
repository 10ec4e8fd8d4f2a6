"""The routers' approximate prefix tree: which text went to which replica, in bytes, with LRU.

A radix tree over prompt runs. It is what a router believes, not what an engine holds: routers
count characters of text they sent, and forget by age or size without asking the engine.
Structure and eviction follow the tree of the vLLM and SGLang routers (text nodes shared by all
workers, one last-access time per node and worker, least recently used leaves go first).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedulers.pools import Pool
from schedulers.types import PromptRef

_Key = tuple[str, int]
_Condition = Callable[[int], bool]


@dataclass(slots=True, eq=False)
class _Node:
    """Tokens `start` to `end` of one segment, below its parent's text."""

    segment: str
    start: int
    end: int
    start_bytes: int
    end_bytes: int
    number: int
    parent: _Node | None
    children: dict[_Key, _Node] = field(default_factory=dict)
    holders: dict[str, int] = field(default_factory=dict)
    """Replicas this text was sent to, with the time of the last prompt that had it."""
    placed: tuple[Pool, NDArray[np.int64]] | None = None
    """Positions of the holders in a pool, in its order; forgotten when they change."""

    @property
    def bytes(self) -> int:
        return self.end_bytes - self.start_bytes

    def positions(self, pool: Pool) -> NDArray[np.int64]:
        """Those of its holders that are in the pool, as positions there, ascending."""
        if self.placed is None or self.placed[0] is not pool:
            known = pool.position
            found = sorted(known[name] for name in self.holders if name in known)
            self.placed = pool, np.array(found, dtype=np.int64)
        return self.placed[1]


class Step(NamedTuple):
    """Text of a prompt that was seen before, as far as one node of the tree goes."""

    matched: int
    """Bytes from the prompt's start."""
    node: _Node


class PrefixTree:
    """Longest prefix of a prompt that was sent to each replica and is not forgotten, in bytes."""

    def __init__(self) -> None:
        self._root = _Node("", 0, 0, 0, 0, 0, None)
        self._sizes: dict[str, int] = {}
        self._last_number = 0

    def size(self, replica: str) -> int:
        """Bytes of text held for the replica; shared text counts once."""
        return self._sizes.get(replica, 0)

    def match(self, prompt: PromptRef) -> dict[str, int]:
        """Matched bytes by replica; replicas that match nothing are absent."""
        matched: dict[str, int] = {}
        for reached, node in self.steps(prompt):
            for replica in node.holders:
                matched[replica] = reached
        return matched

    def longest(self, prompt: PromptRef) -> Step:
        """The last of `steps`; the empty text, which nobody holds, if nothing matches."""
        found = Step(0, self._root)
        for step in self.steps(prompt):
            found = step
        return found

    def steps(self, prompt: PromptRef) -> Iterator[Step]:
        """Nodes that hold the start of the prompt, shortest text first.

        Matched bytes never fall along the way. Who holds a node holds those before it too.
        """
        node, base = self._root, 0
        for segment, tokens, size in prompt.runs:
            start = 0
            while start < tokens:
                child = node.children.get((segment, start))
                if child is None:
                    return
                inside = child.end < tokens
                yield Step(base + (min(child.end_bytes, size) if inside else size), child)
                if child.end > tokens:
                    return
                node, start = child, child.end
            base += size

    def insert(self, prompt: PromptRef, replica: str, now: int) -> None:
        """The prompt was sent to the replica at `now` (nanoseconds)."""
        node = self._root
        for segment, tokens, size in prompt.runs:
            start = 0
            while start < tokens:
                child = node.children.get((segment, start))
                if child is None and _can_grow(node, segment, start, replica):
                    added = max(0, size - node.end_bytes)
                    node.end, node.end_bytes = tokens, node.end_bytes + added
                    self._sizes[replica] += added
                    break
                if child is None:
                    child = self._add(node, segment, start, tokens, size)
                elif child.end > tokens:
                    child = self._split(child, tokens, size)
                if replica not in child.holders:
                    self._sizes[replica] = self.size(replica) + child.bytes
                    child.placed = None
                child.holders[replica] = now
                node, start = child, child.end

    def forget(self, replica: str) -> None:
        """Drop all text of one replica."""
        self._drop_where(replica, lambda last: True)

    def evict_older(self, before: int) -> None:
        """Drop text last sent before the time `before`."""
        for replica in list(self._sizes):
            self._drop_where(replica, lambda last: last < before)

    def evict_to(self, limit: int) -> None:
        """Drop least recently used leaves of each replica until it holds at most `limit` bytes."""
        for replica, size in list(self._sizes.items()):
            if size > limit:
                self._evict_leaves(replica, limit)

    def _evict_leaves(self, replica: str, limit: int) -> None:
        leaves = [
            (node.holders[replica], node.number, node)
            for node in self._nodes()
            if replica in node.holders and _is_leaf(node, replica)
        ]
        heapify(leaves)
        while leaves and self._sizes[replica] > limit:
            _, _, node = heappop(leaves)
            parent = _parent(node)
            self._release(node, replica)
            if replica in parent.holders and _is_leaf(parent, replica):
                heappush(leaves, (parent.holders[replica], parent.number, parent))

    def _drop_where(self, replica: str, condition: _Condition) -> None:
        # A child is never newer than its parent, so what goes is whole subtrees.
        for node in reversed(list(self._nodes())):
            last = node.holders.get(replica)
            if last is not None and condition(last):
                self._release(node, replica)

    def _release(self, node: _Node, replica: str) -> None:
        del node.holders[replica]
        node.placed = None
        self._sizes[replica] -= node.bytes
        if not node.holders:
            del _parent(node).children[(node.segment, node.start)]

    def _nodes(self) -> Iterator[_Node]:
        """All nodes but the root, parents before their children."""
        stack = list(self._root.children.values())
        while stack:
            node = stack.pop()
            yield node
            stack.extend(node.children.values())

    def _add(self, parent: _Node, segment: str, start: int, end: int, end_bytes: int) -> _Node:
        start_bytes = parent.end_bytes if start else 0
        end_bytes = max(start_bytes, end_bytes)
        self._last_number += 1
        node = _Node(segment, start, end, start_bytes, end_bytes, self._last_number, parent)
        parent.children[(segment, start)] = node
        return node

    def _split(self, lower: _Node, at: int, at_bytes: int) -> _Node:
        """Cut the node at token `at`; the new upper part, which takes its place, is returned."""
        upper = self._add(_parent(lower), lower.segment, lower.start, at, at_bytes)
        upper.start_bytes = lower.start_bytes
        upper.end_bytes = min(max(at_bytes, lower.start_bytes), lower.end_bytes)
        upper.holders = dict(lower.holders)
        lower.parent, lower.start, lower.start_bytes = upper, at, upper.end_bytes
        upper.children[(lower.segment, at)] = lower
        return upper


def _can_grow(node: _Node, segment: str, start: int, replica: str) -> bool:
    """Whether new text at the node's end may extend it in place: it ends there for everybody."""
    return (
        start > 0
        and node.segment == segment
        and not node.children
        and len(node.holders) == 1
        and replica in node.holders
    )


def _is_leaf(node: _Node, replica: str) -> bool:
    return not any(replica in child.holders for child in node.children.values())


def _parent(node: _Node) -> _Node:
    assert node.parent is not None
    return node.parent
