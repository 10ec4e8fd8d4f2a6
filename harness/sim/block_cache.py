"""A replica's KV block pool with prefix cache, at the cost of runs instead of blocks.

Semantics of vLLM v1 (`v1/core/block_pool.py`, `single_type_kv_cache_manager.py`), block by block:

- a full block is hashed when its slots are allocated, and several blocks may hold the same
  content; of those the one hashed first is the one that is hit;
- blocks nobody holds wait in one queue, allocation takes from its front (which evicts), a hit
  takes the block out of the middle;
- a request's blocks are freed last block first: hashed ones go to the queue's end, others to its
  front.

Here a stretch of neighbouring blocks with the same holders is one `Extent`. Blocks without a hash
are interchangeable and always in front of the queue, so they are only counted.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from operator import attrgetter
from typing import NamedTuple, Protocol

from agentsched import SimulationError, TopologyError
from harness.sim.content import Line

_by_place = attrgetter("lo", "seq")
_by_seq = attrgetter("seq")


class CacheWatcher(Protocol):
    """Is told what becomes of blocks with content: of blocks `lo` to `hi` - 1 of a branch."""

    def stored(self, line: Line, lo: int, hi: int) -> None:
        """They were hashed, for a text that is `line`."""
        ...

    def removed(self, branch: int, lo: int, hi: int) -> None:
        """They were evicted."""
        ...

    def cleared(self) -> None:
        """All of them are gone."""
        ...


class Extent:
    """Physical blocks with the content of blocks `lo`..`hi`-1 of a branch.

    `seq` tells copies of the same content apart: the smaller was hashed first. `refs` requests
    hold all of it; with 0 it is a node of the free queue, its last block in front. Of the
    holdings' pieces `starts` begin where it begins and `ends` end where it ends.
    """

    __slots__ = ("after", "before", "branch", "ends", "hi", "lo", "refs", "seq", "starts")

    def __init__(self, branch: int, lo: int, hi: int, seq: int) -> None:
        self.branch = branch
        self.lo = lo
        self.hi = hi
        self.seq = seq
        self.refs = self.starts = self.ends = 0
        self.before: Extent = self
        self.after: Extent = self


class Match(NamedTuple):
    """The cached beginning of a text: `blocks` blocks, of which `free` are held by nobody.

    Of `reach` cached blocks, that is, as far as there is a window state at their end too.
    """

    pieces: list[tuple[Extent, int, int]]
    blocks: int
    free: int
    reach: int = 0


NO_MATCH = Match([], 0, 0)


class Holding:
    """The blocks one request holds: `blocks` for its text, the first `hashed` of them with content,
    and `fixed` others."""

    __slots__ = ("blocks", "cursor", "fixed", "hashed", "line", "marks", "pieces")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.pieces: list[tuple[Extent, int, int]] = []
        self.blocks = 0
        self.fixed = 0
        self.hashed = 0
        self.marks: tuple[int, ...] = ()
        """Blocks after which it leaves a window state."""
        self.cursor = 0
        """Index of the run of `line` in which the next block to be hashed lies."""


class BlockCache:
    """All KV blocks of a replica.

    Args:
        blocks: usable blocks.
        caching: whether full blocks are kept for later requests.
        windows: whether a hit must end where a window state was left (`Holding.marks`). A state is
            there as long as the block that its request filled before it; its own memory is not
            counted.
    """

    def __init__(self, blocks: int, caching: bool = True, windows: bool = False) -> None:
        if blocks < 1:
            raise TopologyError(
                f"the KV cache has {blocks} usable blocks",
                "use more or larger GPUs, a smaller model, or a higher gpu_memory_utilization",
            )
        self.total = blocks
        self.caching = caching
        self.windows = windows
        self.evicted = 0
        self.watcher: CacheWatcher | None = None
        self._seq = 0
        self.clear()

    def clear(self) -> None:
        """Everything free and without content (a replica that restarts)."""
        self.free = self.total
        self.cached = 0
        self._blank = self.total
        self._branches: dict[int, list[Extent]] = {}
        self._marks: dict[int, list[tuple[int, int]]] = {}
        """Window states by branch, in order: after how many blocks, and `seq` of the last one."""
        self._queue = Extent(-1, 0, 0, -1)
        if self.watcher is not None:
            self.watcher.cleared()

    # ---- lookup ------------------------------------------------------------------------------

    def match(self, line: Line, limit: int) -> Match:
        """The longest cached beginning of `line`, at most `limit` blocks."""
        if not self.caching:
            return NO_MATCH
        pieces: list[tuple[Extent, int, int]] = []
        position = 0
        branches = self._branches
        for branch, lo, hi in line.runs:
            if lo >= limit:
                break
            extents = branches.get(branch)
            if extents is None:
                break
            if hi > limit:
                hi = limit
            position = _cover(extents, position, hi, pieces)
            if position < hi:
                break
        reach = position
        if self.windows:
            position = self._last_mark(line, reach)
            while pieces and pieces[-1][1] >= position:
                pieces.pop()
            if pieces and pieces[-1][2] > position:
                pieces[-1] = (*pieces[-1][:2], position)
        free = 0
        for extent, lo, hi in pieces:
            if extent.refs == 0:
                free += hi - lo
        return Match(pieces, position, free, reach)

    def _last_mark(self, line: Line, reach: int) -> int:
        """The last window state within the first `reach` blocks; 0 if there is none."""
        for branch, lo, hi in reversed(line.runs):
            marks = self._marks.get(branch)
            if marks is None or lo >= reach:
                continue
            index = bisect_left(marks, (min(hi, reach) + 1, 0))
            if index and marks[index - 1][0] > lo:
                return marks[index - 1][0]
        return 0

    # ---- holding -----------------------------------------------------------------------------

    def acquire(self, line: Line, match: Match) -> Holding:
        """Hold the matched blocks; the match must be fresh."""
        holding = Holding(line)
        for extent, lo, hi in match.pieces:
            if not extent.lo <= lo < hi <= extent.hi:
                raise SimulationError(
                    f"blocks {lo} to {hi} of branch {extent.branch} are no longer where they were",
                    "this is a bug in the engine simulator; please report it",
                )
            if extent.lo < lo:
                extent = self._split(extent, lo)
            if hi < extent.hi:
                self._split(extent, hi)
            if extent.refs == 0:
                self._unlink(extent)
                self.free -= hi - lo
            extent.refs += 1
            extent.starts += 1
            extent.ends += 1
            holding.pieces.append((extent, lo, hi))
        holding.blocks = holding.hashed = match.blocks
        return holding

    def take(self, count: int) -> None:
        """Allocate `count` blocks from the front of the free queue, evicting what they held."""
        if count > self.free:
            raise SimulationError(
                f"{count} KV blocks were asked for, {self.free} are free",
                "this is a bug in the engine simulator; please report it",
            )
        self.free -= count
        if count <= self._blank:
            self._blank -= count
            return
        count -= self._blank
        self._blank = 0
        self.evicted += count
        self.cached -= count
        queue = self._queue
        while count:
            extent = queue.after
            size = extent.hi - extent.lo
            if size > count:
                extent.hi -= count
                if self.watcher is not None:
                    self.watcher.removed(extent.branch, extent.hi, extent.hi + count)
                if self._marks:
                    self._remark(extent, extent.hi, extent.hi + count, None)
                return
            count -= size
            self._unlink(extent)
            self._drop(extent)
            if self.watcher is not None:
                self.watcher.removed(extent.branch, extent.lo, extent.hi)
            if self._marks:
                self._remark(extent, extent.lo, extent.hi, None)

    def _remark(self, extent: Extent, lo: int, hi: int, seq: int | None) -> None:
        """Window states after the extent's blocks `lo` to `hi` - 1 are `seq`'s now; None: lost."""
        marks = self._marks.get(extent.branch)
        if marks is None:
            return
        first, last = bisect_left(marks, (lo + 1, 0)), bisect_left(marks, (hi + 1, 0))
        if first == last:
            return
        kept = [mark for mark in marks[first:last] if mark[1] != extent.seq]
        if seq is not None:
            moved = [(at, seq) for at, old in marks[first:last] if old == extent.seq]
            kept = sorted({*kept, *moved})
        marks[first:last] = kept
        if not marks:
            del self._marks[extent.branch]

    def fill(self, holding: Holding, full: int) -> None:
        """Hash the holding's blocks up to its first `full`; they must have been allocated."""
        hashed = holding.hashed
        if full <= hashed or not self.caching:
            return
        self.cached += full - hashed
        if self.watcher is not None:
            self.watcher.stored(holding.line, hashed, full)
        runs = holding.line.runs
        while hashed < full:
            branch, _, hi = runs[holding.cursor]
            if hashed >= hi:
                holding.cursor += 1
                continue
            end = hi if hi < full else full
            self._hash(holding, branch, hashed, end)
            hashed = end
        for mark in holding.marks:
            if holding.hashed < mark <= full:
                self._mark(holding, mark)
        holding.hashed = hashed

    def _mark(self, holding: Holding, after: int) -> None:
        for extent, lo, hi in reversed(holding.pieces):
            if lo < after <= hi:
                marks = self._marks.setdefault(extent.branch, [])
                if (after, extent.seq) not in marks:
                    insort(marks, (after, extent.seq))
                return

    def fix(self, holding: Holding, count: int) -> None:
        """Allocate blocks that stay without content until the holding is released."""
        self.take(count)
        holding.fixed += count

    def release(self, holding: Holding) -> None:
        """Free the holding's blocks, the last first."""
        blank = holding.blocks - holding.hashed + holding.fixed
        self._blank += blank
        self.free += blank
        for extent, lo, hi in reversed(holding.pieces):
            extent.starts -= 1
            if extent.hi == hi:
                extent.ends -= 1
                self._let_go(extent)
                if extent.refs:
                    self._mend(extent)
                continue
            seq = extent.seq
            parts = [e for e in self._branches[extent.branch] if e.seq == seq and lo <= e.lo < hi]
            parts[-1].ends -= 1
            for part in reversed(parts):
                self._let_go(part)
            for part in (parts[-1], parts[0]):
                if part.refs:
                    self._mend(part)
        holding.pieces = []
        holding.blocks = holding.hashed = holding.fixed = 0

    # ---- extents -----------------------------------------------------------------------------

    def _hash(self, holding: Holding, branch: int, lo: int, hi: int) -> None:
        extents = self._branches.get(branch)
        if extents is None:
            extents = self._branches[branch] = []
        elif holding.pieces:
            last, start, end = holding.pieces[-1]
            if (
                end == lo
                and last.hi == lo
                and last.branch == branch
                and last.refs == 1
                and (len(extents) == 1 or not _any_copy(extents, lo, hi))
            ):
                last.hi = hi
                holding.pieces[-1] = (last, start, hi)
                return
        self._seq += 1
        extent = Extent(branch, lo, hi, self._seq)
        extent.refs = extent.starts = extent.ends = 1
        _place(extents, extent)
        holding.pieces.append((extent, lo, hi))

    def _split(self, extent: Extent, at: int) -> Extent:
        """Cut the extent before block `at`; it keeps the lower part, the upper is returned."""
        upper = Extent(extent.branch, at, extent.hi, extent.seq)
        upper.refs, upper.ends = extent.refs, extent.ends
        extent.hi, extent.ends = at, 0
        _place(self._branches[extent.branch], upper)
        if extent.refs == 0:
            upper.before, upper.after = extent.before, extent
            extent.before.after = upper
            extent.before = upper
        return upper

    def _let_go(self, extent: Extent) -> None:
        extent.refs -= 1
        if extent.refs:
            return
        self.free += extent.hi - extent.lo
        last = self._queue.before
        if last.branch == extent.branch and last.lo == extent.hi and self._joins(extent, last):
            self._unlink(last)
            self._drop(last)
            if self._marks:
                self._remark(last, last.lo, last.hi, extent.seq)
            extent.hi = last.hi
        queue = self._queue
        extent.before, extent.after = queue.before, queue
        queue.before.after = extent
        queue.before = extent

    def _mend(self, extent: Extent) -> None:
        """Undo splits at both ends of a held extent that no holding needs any more."""
        extents = self._branches[extent.branch]
        if len(extents) == 1:
            return
        if extent.ends == 0:
            upper = _at(extents, extent.hi, extent.seq)
            if upper is not None and upper.starts == 0 and upper.refs == extent.refs:
                extent.hi, extent.ends = upper.hi, upper.ends
                self._drop(upper)
        if extent.starts == 0:
            lower = next((e for e in extents if e.hi == extent.lo and e.seq == extent.seq), None)
            if lower is not None and lower.ends == 0 and lower.refs == extent.refs:
                lower.hi, lower.ends = extent.hi, extent.ends
                self._drop(extent)

    def _joins(self, lower: Extent, upper: Extent) -> bool:
        """Whether two neighbours may become one: their order among other copies must not matter."""
        if lower.seq == upper.seq:
            return True
        lo, hi = lower.lo, upper.hi
        return not any(
            e.lo < hi and lo < e.hi and e is not lower and e is not upper
            for e in self._branches[lower.branch]
        )

    @staticmethod
    def _unlink(extent: Extent) -> None:
        extent.before.after = extent.after
        extent.after.before = extent.before

    def _drop(self, extent: Extent) -> None:
        extents = self._branches[extent.branch]
        if len(extents) == 1:
            del self._branches[extent.branch]
            return
        for index, other in enumerate(extents):
            if other is extent:
                del extents[index]
                return

    # ---- for checks --------------------------------------------------------------------------

    def free_queue(self) -> list[tuple[int, int] | None]:
        """(branch, block) of every free block from the front; None for one without content."""
        queue: list[tuple[int, int] | None] = [None] * self._blank
        extent = self._queue.after
        while extent is not self._queue:
            queue.extend(
                (extent.branch, block) for block in range(extent.hi - 1, extent.lo - 1, -1)
            )
            extent = extent.after
        return queue

    def copies(self) -> dict[tuple[int, int], list[int]]:
        """Holders of each copy of each cached (branch, block), first hashed copy first."""
        found: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for extents in self._branches.values():
            for extent in extents:
                for block in range(extent.lo, extent.hi):
                    found.setdefault((extent.branch, block), []).append((extent.seq, extent.refs))
        return {key: [refs for _, refs in sorted(value)] for key, value in found.items()}


def _cover(
    extents: list[Extent], position: int, limit: int, pieces: list[tuple[Extent, int, int]]
) -> int:
    """Add pieces from `position` on, each of the first-hashed copy; returns how far they reach."""
    if len(extents) == 1:
        extent = extents[0]
        if extent.lo <= position < extent.hi:
            end = min(extent.hi, limit)
            pieces.append((extent, position, end))
            return end
        return position
    copies: list[Extent] = []
    index, count = 0, len(extents)
    while position < limit:
        while index < count and extents[index].lo <= position:
            copies.append(extents[index])
            index += 1
        copies = [extent for extent in copies if extent.hi > position]
        if not copies:
            break
        best = copies[0] if len(copies) == 1 else min(copies, key=_by_seq)
        end = min(best.hi, limit)
        following = index
        while following < count and extents[following].lo < end:
            if extents[following].seq < best.seq:
                end = extents[following].lo
                break
            following += 1
        pieces.append((best, position, end))
        position = end
    return position


def _at(extents: list[Extent], lo: int, seq: int) -> Extent | None:
    index = bisect_left(extents, (lo, seq), key=_by_place)
    if index < len(extents) and extents[index].lo == lo and extents[index].seq == seq:
        return extents[index]
    return None


def _any_copy(extents: list[Extent], lo: int, hi: int) -> bool:
    return any(e.lo < hi and lo < e.hi for e in extents)


def _place(extents: list[Extent], extent: Extent) -> None:
    """Insert, keeping the list in order of first block."""
    if not extents or extents[-1].lo < extent.lo:
        extents.append(extent)
    else:
        insort(extents, extent, key=_by_place)
