"""Step times of a replica that may become slower for a while, as a faulty or throttled GPU does."""

from __future__ import annotations

from collections.abc import Sequence

from harness.sim.engine_types import DecodePiece, StepTime


class VaryingSteps:
    """Step times multiplied by a factor, which `Engine.slow_down` changes."""

    __slots__ = ("_inner", "factor")

    def __init__(self, inner: StepTime) -> None:
        self._inner = inner
        self.factor = 1.0

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        piece = self._inner.decode_piece(decodes, context_sum)
        if self.factor == 1.0:
            return piece
        return DecodePiece(
            round(piece.fixed_ps * self.factor),
            round(piece.per_token_ps * self.factor),
            piece.context_end,
        )

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        if not chunks:
            piece = self.decode_piece(decodes, context_sum)
            return piece.fixed_ps + piece.per_token_ps * context_sum
        return round(self._inner.mixed_ps(chunks, decodes, context_sum) * self.factor)
