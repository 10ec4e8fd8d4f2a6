"""Slow, obvious version of the text tree: whole prompts kept, prefixes compared character by
character."""

from __future__ import annotations

from collections.abc import Sequence

from harness.live.texts import Piece


def common_bytes(a: Sequence[Piece], b: Sequence[Piece], least: int) -> int:
    """Bytes two prompts share from the start: whole pieces, then the start of one more.

    The start counts only if it is at least `least` characters long.
    """
    total = 0
    for mine, theirs in zip(a, b, strict=False):
        if mine == theirs:
            total += len(mine.text)
            continue
        if mine.role == theirs.role:
            same = 0
            while same < min(len(mine.text), len(theirs.text)) and (
                mine.text[same] == theirs.text[same]
            ):
                same += 1
            total += same if same >= least else 0
        break
    return total
