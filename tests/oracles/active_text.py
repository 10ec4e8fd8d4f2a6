"""Slow twin of ActiveText: the set of all (path, token) positions of the prompts in it."""

from __future__ import annotations

from schedulers.types import PromptRef

_Position = tuple[tuple[tuple[str, int], ...], str, int]


class ActiveTextOracle:
    def __init__(self) -> None:
        self.prompts: list[PromptRef] = []

    @property
    def tokens(self) -> int:
        return len(set().union(*(positions(prompt) for prompt in self.prompts)))


def positions(prompt: PromptRef) -> set[_Position]:
    """Each token by the runs before its own, its segment, and where in it."""
    found: set[_Position] = set()
    path: tuple[tuple[str, int], ...] = ()
    for segment, tokens, _ in prompt.runs:
        found |= {(path, segment, i) for i in range(tokens)}
        path = (*path, (segment, tokens))
    return found
