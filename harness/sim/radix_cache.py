"""A replica's KV pages with SGLang's radix tree over them, at the cost of runs instead of pages.

Semantics of SGLang 0.5.23 (`srt/mem_cache/unified_cache/unified_tree_core.py`): computed text is
put into a tree whose nodes are cut where texts part or a lookup ends; of two equal stretches the
second one computed is freed at once; a request locks the path it uses; when pages run out, leaves
go, whole nodes, the one used longest ago first.
"""

from __future__ import annotations

from heapq import heappop, heappush

from agentsched import SimulationError, TopologyError
from harness.sim.content import BlockRun, Line


class Node:
    """Pages `lo` to `hi` - 1 of the texts below it; `runs` names them. `locks` requests use it."""

    __slots__ = ("children", "hi", "lo", "locks", "parent", "queued", "runs", "used")

    def __init__(self, parent: Node | None, lo: int, hi: int, runs: tuple[BlockRun, ...]) -> None:
        self.parent = parent
        self.lo = lo
        self.hi = hi
        self.runs = runs
        self.children: dict[int, Node] = {}
        """By the branch of their first page: two children of a node differ in it."""
        self.locks = 0
        self.used = 0
        self.queued = False
        """It is in the eviction heap."""


class RadixCache:
    """All KV pages of a replica.

    Args:
        pages: usable pages.
        caching: whether computed text is kept for later requests.
    """

    def __init__(self, pages: int, caching: bool = True) -> None:
        if pages < 1:
            raise TopologyError(
                f"the KV cache has {pages} usable pages",
                "use more or larger GPUs, a smaller model, or a higher mem_fraction_static",
            )
        self.total = pages
        self.caching = caching
        self.evicted = 0
        self._clock = 0
        self.clear()

    def clear(self) -> None:
        """Everything free and without content (a replica that restarts)."""
        self.available = self.total
        self.evictable = 0
        self.cached = 0
        self.root = Node(None, 0, 0, ())
        self.root.locks = 1
        self._heap: list[tuple[int, int, Node]] = []
        self._pushed = 0

    @property
    def free(self) -> int:
        """Pages that could be allocated."""
        return self.available + self.evictable

    # ---- lookup and insertion ----------------------------------------------------------------

    def match(self, line: Line, limit: int) -> Node:
        """The end of the longest cached beginning of `line`, at most `limit` pages; marks it used.

        The node found ends where the match ends: one that reaches further is split, and its rest
        counts as used as well (`_split_node`).
        """
        return self._walk(line, limit)

    def insert(self, line: Line, pages: int) -> tuple[Node, int]:
        """Put the first `pages` pages of `line` into the tree.

        Returns the node they end at, and how many of them were there before. Pages that are new
        to the tree change their owner; the caller frees its copies of the others.
        """
        node = self._walk(line, pages)
        known = node.hi
        if known < pages:
            self._clock += 1
            leaf = Node(node, known, pages, _slice(line.runs, known, pages))
            leaf.used = self._clock
            node.children[_branch_at(line, known)] = leaf
            self.evictable += pages - known
            self.cached += pages - known
            self._enqueue(leaf)
            node = leaf
        return node, known

    def _walk(self, line: Line, limit: int) -> Node:
        """Follow the line."""
        if not self.caching or limit <= 0:
            return self.root
        self._clock += 1
        node = self.root
        while node.hi < limit:
            child = node.children.get(_branch_at(line, node.hi))
            if child is None:
                break
            child.used = self._clock
            common = _common(child, line, limit)
            if common < child.hi:
                return self._split(child, common)
            node = child
        return node

    def lock(self, node: Node) -> None:
        """Keep the path to `node` from eviction."""
        while node.parent is not None:
            if node.locks == 0:
                self.evictable -= node.hi - node.lo
            node.locks += 1
            node = node.parent

    def unlock(self, node: Node) -> None:
        """Undo one `lock`."""
        while node.parent is not None:
            node.locks -= 1
            if node.locks == 0:
                self.evictable += node.hi - node.lo
                if not node.children:
                    self._enqueue(node)
            node = node.parent

    # ---- pages -------------------------------------------------------------------------------

    def reclaim(self, pages: int) -> bool:
        """Evict until `pages` are available; False if that cannot be reached."""
        heap = self._heap
        while self.available < pages and heap:
            used, _, node = heappop(heap)
            node.queued = False
            if node.locks or node.children or node.parent is None:
                continue
            if node.used > used:
                self._enqueue(node)
                continue
            self._delete(node)
        return self.available >= pages

    def take(self, pages: int) -> None:
        """Allocate pages, evicting what has to go."""
        if not self.reclaim(pages):
            raise SimulationError(
                f"{pages} KV pages were asked for, {self.available} can be had",
                "this is a bug in the engine simulator; please report it",
            )
        self.available -= pages

    def give_back(self, pages: int) -> None:
        """Free pages that are not in the tree."""
        self.available += pages

    def _delete(self, node: Node) -> None:
        parent, size = node.parent, node.hi - node.lo
        assert parent is not None
        del parent.children[node.runs[0][0]]
        node.parent = None
        self.available += size
        self.evictable -= size
        self.cached -= size
        self.evicted += size
        if not parent.children and parent.locks == 0:
            self._enqueue(parent)

    def _enqueue(self, node: Node) -> None:
        if not node.queued:
            node.queued = True
            self._pushed += 1
            heappush(self._heap, (node.used, self._pushed, node))

    def _split(self, node: Node, at: int) -> Node:
        """Cut before page `at`: a new node takes the beginning, `node` keeps the rest."""
        parent = node.parent
        assert parent is not None
        upper = Node(parent, node.lo, at, _slice(node.runs, node.lo, at))
        upper.locks, upper.used = node.locks, self._clock
        parent.children[node.runs[0][0]] = upper
        node.runs = _slice(node.runs, at, node.hi)
        node.lo, node.parent = at, upper
        upper.children[node.runs[0][0]] = node
        return upper

    # ---- for checks --------------------------------------------------------------------------

    def nodes(self) -> list[tuple[tuple[tuple[int, int], ...], int, int]]:
        """(pages as (branch, page), locks, last use) of every node, in order of last use."""
        found = []
        stack = list(self.root.children.values())
        while stack:
            node = stack.pop()
            pages = tuple((b, page) for b, lo, hi in node.runs for page in range(lo, hi))
            found.append((pages, node.locks, node.used))
            stack.extend(node.children.values())
        return sorted(found, key=lambda item: (item[2], item[0]))


def common_pages(one: Line, other: Line, limit: int) -> int:
    """Length of the common beginning of two texts, at most `limit`."""
    position = 0
    for (branch, _, hi), (branch_2, _, hi_2) in zip(one.runs, other.runs, strict=False):
        if branch != branch_2:
            break
        position = min(hi, hi_2)
        if hi != hi_2:
            break
    return min(position, limit)


def _branch_at(line: Line, page: int) -> int:
    for branch, lo, hi in line.runs:
        if lo <= page < hi:
            return branch
    return -1


def _common(node: Node, line: Line, limit: int) -> int:
    """The page up to which node and line agree."""
    for branch, lo, hi in node.runs:
        for other, start, end in line.runs:
            if start <= lo < end:
                if other != branch:
                    return lo
                if end < hi or limit < hi:
                    return min(end, limit)
                break
        else:
            return lo
    return node.hi


def _slice(runs: tuple[BlockRun, ...], lo: int, hi: int) -> tuple[BlockRun, ...]:
    return tuple(
        BlockRun(branch, max(start, lo), min(end, hi))
        for branch, start, end in runs
        if start < hi and lo < end
    )
