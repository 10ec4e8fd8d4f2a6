"""Data-parallel ranks that step together, as one engine.

With experts shared between ranks, all of them run every step, padded to the same size. Seen from
outside they are one engine with all their slots and blocks, whose step takes as long as that of its
fullest rank. Requests are taken to be spread evenly, as vLLM's balancer aims at.
"""

from __future__ import annotations

from collections.abc import Sequence

from harness.sim.engine_types import DecodePiece
from harness.sim.step_time import TableStepTime


class DataParallelStepTime:
    """Step times of `ranks` equal ranks, from those of one."""

    def __init__(self, rank: TableStepTime, ranks: int) -> None:
        if ranks < 1:
            raise ValueError("there must be at least one rank")
        self._rank, self._ranks = rank, ranks

    @property
    def description(self) -> str:
        return f"{self._ranks} ranks in step; {self._rank.description}"

    @property
    def source(self) -> str:
        return self._rank.source

    @property
    def extrapolations(self) -> int:
        return self._rank.extrapolations

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        """Of the rank with the most decodes, at the mean context of all."""
        piece = self._rank.decode_piece(self._most(decodes), self._share(decodes, context_sum))
        # A rank has most / decodes of all tokens: the slope over all is that share of its own.
        most = self._most(decodes)
        slope = piece.per_token_ps * most // decodes
        end = max(context_sum + 1, piece.context_end * decodes // most)
        return DecodePiece(piece.fixed_ps, slope, end)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        """Of the slowest rank, chunks going to the rank with the fewest new tokens so far."""
        if not chunks:
            piece = self.decode_piece(decodes, context_sum)
            return piece.fixed_ps + piece.per_token_ps * context_sum
        parts: list[list[tuple[int, int]]] = [[] for _ in range(self._ranks)]
        loads = [0] * self._ranks
        for chunk in sorted(chunks, reverse=True):
            least = loads.index(min(loads))
            parts[least].append(chunk)
            loads[least] += chunk[0]
        most, share = self._most(decodes), self._share(decodes, context_sum)
        return max(self._rank.mixed_ps(part, most, share) for part in parts if part)

    def _most(self, decodes: int) -> int:
        return -(-decodes // self._ranks)

    def _share(self, decodes: int, context_sum: int) -> int:
        return context_sum * self._most(decodes) // decodes if decodes else 0
