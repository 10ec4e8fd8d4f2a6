"""Which running requests write the same text at the same time.

A decoding sequence hashes blocks of its output text as it grows. Nobody notices when exactly,
unless another request has the same blocks in its own text; those cases are found here.
"""

from __future__ import annotations

from harness.sim.content import Line
from harness.sim.sequence import Sequence


class Overlap:
    """Texts of the running sequences.

    Args:
        block_size: tokens per KV block.
    """

    __slots__ = ("_block_size", "_outputs", "_texts", "pairs")

    def __init__(self, block_size: int) -> None:
        self._block_size = block_size
        self.clear()

    def clear(self) -> None:
        self.pairs = 0
        """Pairs of running sequences where one's output is in the other's text."""
        self._texts: dict[int, dict[Sequence, int]] = {}
        """Branch -> sequences whose text is in it, and up to which block."""
        self._outputs: dict[int, dict[Sequence, int]] = {}
        """Branch -> sequences whose output is in it, and from which block."""

    def enter(self, sequence: Sequence) -> None:
        written = sequence.prompt // self._block_size
        for branch, lo, hi in sequence.line.runs:
            texts = self._texts.get(branch)
            if texts is None:
                texts = self._texts[branch] = {}
            elif branch in self._outputs:
                for other, first in self._outputs[branch].items():
                    if hi > first:
                        self._pair(sequence, other)
            if hi > written:
                first = max(lo, written)
                for other, end in texts.items():
                    if end > first:
                        self._pair(sequence, other)
                self._outputs.setdefault(branch, {})[sequence] = first
            texts[sequence] = hi

    def leave(self, sequence: Sequence) -> None:
        for run in sequence.line.runs:
            branch = run[0]
            texts = self._texts[branch]
            if len(texts) == 1:
                del self._texts[branch]
            else:
                del texts[sequence]
            outputs = self._outputs.get(branch)
            if outputs is not None and sequence in outputs:
                del outputs[sequence]
                if not outputs:
                    del self._outputs[branch]
        if sequence.twins:
            for other in sequence.twins:
                assert other.twins is not None
                other.twins.discard(sequence)
            self.pairs -= len(sequence.twins)
            sequence.twins = None

    def writers(self, line: Line) -> list[Sequence]:
        """Running sequences whose output is part of the line."""
        found: list[Sequence] = []
        for branch, _, hi in line.runs:
            outputs = self._outputs.get(branch)
            if outputs is not None:
                found += [sequence for sequence, first in outputs.items() if hi > first]
        return found

    def _pair(self, one: Sequence, other: Sequence) -> None:
        if one.twins is None:
            one.twins = set()
        if other.twins is None:
            other.twins = set()
        if other not in one.twins:
            one.twins.add(other)
            other.twins.add(one)
            self.pairs += 1
