"""Ordinary traffic beside agents: people who chat, and single code completions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.model import Session, TurnSpec
from workloads.profiles.laws import Floats, QuantileLaw, counts, shared_segment

AZURE_CHAT_PROMPT = QuantileLaw(
    (
        (0.0, 2), (0.05, 181), (0.1, 207), (0.25, 396), (0.5, 1020), (0.75, 1189), (0.9, 2734),
        (0.95, 4083), (0.99, 4142), (1.0, 14050),
    )
)  # fmt: skip
"""Azure LLM inference trace 2023, conversation (19,366 requests): ContextTokens."""

AZURE_CHAT_OUTPUT = QuantileLaw(
    (
        (0.0, 7), (0.05, 41), (0.1, 54), (0.25, 85), (0.5, 129), (0.75, 395), (0.9, 424),
        (0.95, 451), (0.99, 601), (1.0, 1000),
    )
)  # fmt: skip
"""The same requests: GeneratedTokens."""

AZURE_CODE_PROMPT = QuantileLaw(
    (
        (0.0, 3), (0.05, 75), (0.1, 147), (0.25, 578), (0.5, 1469), (0.75, 2744), (0.9, 5187),
        (0.95, 7303), (0.99, 7436), (1.0, 7437),
    )
)  # fmt: skip
"""Azure LLM inference trace 2023, code (8,819 requests): ContextTokens."""

AZURE_CODE_OUTPUT = QuantileLaw(
    (
        (0.0, 6), (0.05, 6.1), (0.1, 7), (0.25, 9), (0.5, 13), (0.75, 24), (0.9, 55), (0.95, 90),
        (0.99, 251), (1.0, 1899),
    )
)  # fmt: skip
"""The same requests: GeneratedTokens."""

MOONCAKE_FIRST = QuantileLaw(
    (
        (0.0, 891), (0.05, 897), (0.1, 905), (0.25, 1336), (0.5, 5264), (0.75, 13056),
        (0.9, 25559), (0.95, 38494), (1.0, 126195),
    )
)  # fmt: skip
"""Mooncake conversation trace (FAST 2025), input_length of the 7,373 requests that share no more
than the first block with any before."""

MOONCAKE_GROWTH = QuantileLaw(
    ((0.0, 1), (0.25, 7), (0.5, 23), (0.75, 425), (0.9, 4256), (0.95, 7041), (1.0, 30000))
)
"""The other 4,658 requests: input_length less input and output of the request whose blocks they go
on from. The maximum is assumed; a quarter is below 7, as far as negative, where the reply was cut
or rewritten."""

MOONCAKE_OUTPUT = QuantileLaw(
    (
        (0.0, 1), (0.05, 10), (0.1, 24), (0.25, 156), (0.5, 350), (0.75, 472), (0.9, 597),
        (0.95, 698), (0.99, 1118), (1.0, 2000),
    )
)  # fmt: skip
"""All 12,031 requests: output_length."""

MOONCAKE_WAIT = QuantileLaw(
    (
        (0.0, 5), (0.05, 30), (0.1, 42), (0.25, 66), (0.5, 123), (0.75, 264), (0.9, 483),
        (0.95, 615), (1.0, 3600),
    )
)  # fmt: skip
"""Seconds between a request and the one that goes on from it. The extremes are assumed."""


@dataclass(frozen=True, slots=True)
class AzureChat:
    """Single requests of people who chat; nothing is shared."""

    name: ClassVar[str] = "azure-chat"
    source: ClassVar[str] = "Azure LLM inference trace 2023, conversation (CC-BY-4.0)"
    note: ClassVar[str] = "background traffic; lengths of prompt and reply are independent"
    default_sessions: ClassVar[int] = 1000

    longest_prompt: int = 14_050
    """Longer prompts are cut to it, tokens. The longest of the Azure trace."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        return _single(
            rng, session_id, self.name, AZURE_CHAT_PROMPT, AZURE_CHAT_OUTPUT, self.longest_prompt
        )


@dataclass(frozen=True, slots=True)
class AzureCode:
    """Single code completions; nothing is shared."""

    name: ClassVar[str] = "azure-code"
    source: ClassVar[str] = "Azure LLM inference trace 2023, code (CC-BY-4.0)"
    note: ClassVar[str] = "background traffic; lengths of prompt and reply are independent"
    default_sessions: ClassVar[int] = 1000

    longest_prompt: int = 7437
    """Longer prompts are cut to it, tokens. The longest of the Azure trace."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        return _single(
            rng, session_id, self.name, AZURE_CODE_PROMPT, AZURE_CODE_OUTPUT, self.longest_prompt
        )


@dataclass(frozen=True, slots=True)
class MooncakeChat:
    """Conversations with long prompts, most of one turn, that share a system prompt."""

    name: ClassVar[str] = "mooncake-chat"
    source: ClassVar[str] = "Mooncake conversation trace (FAST 2025; Apache-2.0)"
    note: ClassVar[str] = (
        "the trace has no sessions: a request that shares more than the first block with an "
        "earlier one is taken to go on from the last that had its last known block"
    )
    default_sessions: ClassVar[int] = 1000

    shared_tokens: int = 512
    """System prompt, tokens. All but one request of the Mooncake trace share the first block."""
    second_share: float = 0.307
    """Share of conversations with a second turn: 2,265 of 7,373 in the Mooncake trace."""
    later_share: float = 0.51
    """Share of turns after the second's that follow one: 2,393 of 4,658 in the Mooncake trace."""
    turns_cap: int = 60
    """Most turns. Assumed."""
    longest_prompt: int = 126_195
    """Longer first prompts are cut to it, tokens. The longest of the Mooncake trace."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        count = 1
        if rng.random() < self.second_share:
            count += int(rng.geometric(1 - min(0.99, self.later_share)))
        count = min(count, max(1, self.turns_cap))
        first = counts(MOONCAKE_FIRST.draw(rng, 1), self.shared_tokens + 1, self.longest_prompt)
        growth = counts(MOONCAKE_GROWTH.draw(rng, count), 1, np.inf)
        outputs = counts(MOONCAKE_OUTPUT.draw(rng, count), 1, np.inf)
        waits = MOONCAKE_WAIT.draw(rng, count)
        turns: list[TurnSpec] = []
        for index in range(count):
            before = turns[-1] if turns else None
            own = int(first[0]) - self.shared_tokens if before is None else int(growth[index])
            turns.append(
                TurnSpec(
                    new_tokens=own,
                    output_tokens=int(outputs[index]),
                    kept_turn=None if before is None else index - 1,
                    kept_tokens=0
                    if before is None
                    else before.prompt_tokens + before.output_tokens,
                    shared=()
                    if before
                    else shared_segment("mooncake-chat/system", self.shared_tokens),
                    visible=True,
                    wait_s=round(float(waits[index]), 1) if index + 1 < count else 0.0,
                )
            )
        return Session(id=session_id, turns=tuple(turns), workload=self.name, origin="generated")


def _single(
    rng: np.random.Generator,
    session_id: str,
    name: str,
    prompt: QuantileLaw,
    output: QuantileLaw,
    longest: int,
) -> Session:
    tokens: Floats = prompt.draw(rng, 1)
    turn = TurnSpec(
        new_tokens=int(counts(tokens, 1, max(1, longest))[0]),
        output_tokens=int(counts(output.draw(rng, 1), 1, np.inf)[0]),
        visible=True,
    )
    return Session(id=session_id, turns=(turn,), workload=name, origin="generated")
