"""Token numbers as text, so that prompts made of them are known as other prompts are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeGuard

from harness.live.texts import Piece

_PLANE = 0x10000
"""Characters from here on are four bytes of UTF-8 each, as a token of made-up text is."""
PIECE = 256
"""Tokens of a piece. Our choice."""
MOST = 0x10FFFF - _PLANE
"""The highest number that has a character: far above those of any vocabulary."""


def are_tokens(prompt: Any) -> TypeGuard[list[int]]:
    """Whether a prompt is one list of token numbers."""
    return (
        isinstance(prompt, list)
        and bool(prompt)
        and all(type(number) is int and 0 <= number <= MOST for number in prompt)
    )


def token_pieces(tokens: Sequence[int]) -> list[Piece]:
    """Pieces that stand for token numbers of any vocabulary: a character for each of them. They
    are of fixed length, so that a prompt that goes on shares all whole ones."""
    text = "".join([chr(_PLANE + number) for number in tokens])
    return [Piece("prompt", text[at : at + PIECE]) for at in range(0, len(text), PIECE)]
