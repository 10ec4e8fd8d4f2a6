"""Slow twin of the routers' prefix tree: keeps every prompt ever inserted, compares them all."""

from __future__ import annotations

from schedulers.types import PromptRef


def common_prefix_bytes(prompt: PromptRef, other: PromptRef) -> int:
    """Bytes of `prompt` that `other` starts with too, by the rule of PromptRun."""
    total = 0
    for mine, theirs in zip(prompt.runs, other.runs, strict=False):
        if mine.segment != theirs.segment:
            break
        total += min(mine.bytes, theirs.bytes)
        if mine.tokens != theirs.tokens:
            break
    return total


class PrefixTreeOracle:
    def __init__(self) -> None:
        self.inserted: list[tuple[int, str, PromptRef]] = []

    def insert(self, prompt: PromptRef, replica: str, now: int) -> None:
        self.inserted.append((now, replica, prompt))

    def match(self, prompt: PromptRef, replica: str, since: int = 0) -> int:
        """Longest common prefix with a prompt sent to the replica at `since` or later."""
        return max(
            (
                common_prefix_bytes(prompt, other)
                for now, name, other in self.inserted
                if name == replica and now >= since
            ),
            default=0,
        )

    def size(self, replica: str, since: int = 0) -> int:
        """Distinct bytes sent to the replica at `since` or later."""
        total, seen = 0, list[PromptRef]()
        for now, name, prompt in self.inserted:
            if name == replica and now >= since:
                total += prompt.bytes
                total -= max((common_prefix_bytes(prompt, other) for other in seen), default=0)
                seen.append(prompt)
        return total
