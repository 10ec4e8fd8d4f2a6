"""Prefix knowledge the slow way: prompts spelled out token by token."""

from __future__ import annotations

from schedulers.types import PromptRef


def spell(prompt: PromptRef) -> list[tuple[str, int]]:
    """Every token of the prompt as (segment, position)."""
    return [(run.segment, i) for run in prompt.runs for i in range(run.tokens)]


def common_prefix(a: list[tuple[str, int]], b: list[tuple[str, int]]) -> int:
    length = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        length += 1
    return length


class SlowPrefixes:
    """Remembers every prompt sent to every replica."""

    def __init__(self) -> None:
        self.sent: list[tuple[str, list[tuple[str, int]]]] = []

    def insert(self, prompt: PromptRef, replica: str) -> None:
        self.sent.append((replica, spell(prompt)))

    def match(self, prompt: PromptRef, replica: str) -> int:
        tokens = spell(prompt)
        return max(
            (common_prefix(tokens, sent) for where, sent in self.sent if where == replica),
            default=0,
        )
