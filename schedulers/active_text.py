"""Text of the requests running on a replica, each shared stretch counted once.

Dynamo's router keeps the KV blocks of active requests per worker and counts a block that several
of them use once. Here the same is kept by runs of tokens.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from schedulers.types import PromptRef

_Key = tuple[int, int, str]


@dataclass(slots=True)
class _Stretch:
    """The text of one segment at one place; how many prompts reach how far into it."""

    number: int
    reaches: dict[int, int] = field(default_factory=dict)

    @property
    def length(self) -> int:
        return max(self.reaches)


class ActiveText:
    """A multiset of prompts, and the number of distinct tokens in it."""

    def __init__(self) -> None:
        self.tokens = 0
        self._stretches: dict[_Key, _Stretch] = {}
        self._last_number = 0

    def with_prompt(self, prompt: PromptRef) -> int:
        """Distinct tokens if the prompt were added."""
        total, parent, offset = self.tokens, 0, 0
        for segment, tokens, _ in prompt.runs:
            stretch = self._stretches.get((parent, offset, segment))
            total += max(0, tokens - (stretch.length if stretch else 0))
            # Below an unknown stretch everything is new: no stretch has parent -1.
            parent, offset = (stretch.number if stretch else -1), tokens
        return total

    def add(self, prompt: PromptRef) -> None:
        self.tokens = self.with_prompt(prompt)
        parent = offset = 0
        for segment, tokens, _ in prompt.runs:
            stretch = self._stretches.get((parent, offset, segment))
            if stretch is None:
                self._last_number += 1
                stretch = self._stretches[(parent, offset, segment)] = _Stretch(self._last_number)
            stretch.reaches[tokens] = stretch.reaches.get(tokens, 0) + 1
            parent, offset = stretch.number, tokens

    def remove(self, prompt: PromptRef) -> None:
        """Take out a prompt that was added."""
        parent = offset = 0
        for segment, tokens, _ in prompt.runs:
            key = (parent, offset, segment)
            stretch = self._stretches[key]
            before = stretch.length
            stretch.reaches[tokens] -= 1
            if not stretch.reaches[tokens]:
                del stretch.reaches[tokens]
            parent, offset = stretch.number, tokens
            if stretch.reaches:
                self.tokens -= before - stretch.length
            else:
                self.tokens -= before
                del self._stretches[key]
