"""Names of KV blocks without token ids: equal text, equal block.

A block is identified by everything before and in it, as in a hash chain. Texts form a tree: a
*branch* is the text of one segment after a given beginning, and a block belongs to the branch of
its last token. So a text is a short path of (branch, first block, end block) extents, and two
texts share exactly the blocks that both paths contain.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from agentsched import UsageError

ROOT = 0


class BlockRun(NamedTuple):
    """Blocks `lo` to `hi` - 1 (counted from the start of the text) of a branch."""

    branch: int
    lo: int
    hi: int


class Line:
    """The text of a prompt and its output, as full blocks. `runs` join end to end from block 0."""

    __slots__ = ("runs", "tokens")

    def __init__(self, runs: tuple[BlockRun, ...], tokens: int) -> None:
        self.runs = runs
        self.tokens = tokens


class ContentIndex:
    """Interns texts, the same for all replicas.

    Args:
        block_size: tokens per KV block.
        limit: branches known at once; the longest unused is forgotten, and its text is new when
            it comes again. None: any number.
    """

    def __init__(self, block_size: int = 16, limit: int | None = None) -> None:
        if block_size < 1:
            raise UsageError("block size must be at least 1 token", "set `block_size` to 1 or more")
        self.block_size = block_size
        self._branches: dict[tuple[int, int, str], int] = {}
        self._limit, self._last = limit, ROOT

    def intern(self, segments: Iterable[tuple[str, int]]) -> Line:
        """The line of a text given as (segment id, tokens): that many first tokens of the segment.

        Segments of 0 tokens are skipped; the same id twice in a row is one longer stretch. Costs
        time in the number of segments only.
        """
        size = self.block_size
        runs: list[BlockRun] = []
        branch, start, end = ROOT, 0, 0
        name: str | None = None
        for segment, tokens in segments:
            if tokens < 0:
                raise UsageError(
                    f"segment `{segment}` has {tokens} tokens", "token counts must be 0 or more"
                )
            if tokens == 0:
                continue
            if segment == name:
                end += tokens
                continue
            if name is not None and start // size < end // size:
                runs.append(BlockRun(branch, start // size, end // size))
            branch = self._branch(branch, end - start, segment)
            name, start, end = segment, end, end + tokens
        if name is not None and start // size < end // size:
            runs.append(BlockRun(branch, start // size, end // size))
        return Line(tuple(runs), end)

    def _branch(self, parent: int, taken: int, segment: str) -> int:
        key = (parent, taken, segment)
        if self._limit is None:
            found = self._branches.get(key)
        else:  # last: the first one is the longest unused
            found = self._branches.pop(key, None)
            if found is not None:
                self._branches[key] = found
        if found is None:
            self._last += 1
            found = self._branches[key] = self._last
            if self._limit is not None and len(self._branches) > self._limit:
                del self._branches[next(iter(self._branches))]
        return found
