"""Random laws of the generators, and the text line of an append-only agent."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.model import Segment, ToolCall, TurnSpec

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class QuantileLaw:
    """A positive law given by quantiles: between two of them its logarithm is uniform.

    Args:
        points: (probability, value), rising in both, from probability 0 to 1.
    """

    points: tuple[tuple[float, float], ...]

    def draw(self, rng: np.random.Generator, size: int) -> Floats:
        """`size` independent values."""
        return self.at(rng.random(size))

    def at(self, probability: Floats) -> Floats:
        """Quantiles at given probabilities."""
        levels = [level for level, _ in self.points]
        logs = [math.log(value) for _, value in self.points]
        return np.exp(np.interp(probability, levels, logs))


def lognormal_counts(
    rng: np.random.Generator, mu: float, sigma: float, size: int, low: int, high: float
) -> Ints:
    """Lognormal numbers, rounded and clipped to [low, high]; mu, sigma of the natural log."""
    return counts(rng.lognormal(mu, sigma, size), low, high)


def leveled(rng: np.random.Generator, mu: float, sigma: float, within: float, size: int) -> Floats:
    """Lognormal numbers around a level of their own session.

    The level, which is the numbers' mean, is lognormal (mu, sigma); around it the log spreads by
    `within`. For sources that give one mean a session.
    """
    level = rng.normal(mu, sigma)
    return rng.lognormal(level - within**2 / 2, within, size)


def counts(values: Floats, low: int, high: float) -> Ints:
    """Numbers rounded and clipped to [low, high]."""
    return np.clip(np.rint(values), low, high).astype(np.int64)


def pick(rng: np.random.Generator, weights: Mapping[str, float], size: int) -> list[str]:
    """`size` names, drawn by weight."""
    names = list(weights)
    total = sum(weights.values())
    shares = [weights[name] / total for name in names]
    return [names[i] for i in rng.choice(len(names), size=size, p=shares)]


def shared_segment(name: str, tokens: int) -> tuple[Segment, ...]:
    """Text that all sessions of a profile start with, at 4 bytes a token (assumed)."""
    return (Segment(name, tokens, 4 * tokens),) if tokens else ()


def append_only(
    shared: tuple[Segment, ...],
    first: int,
    growth: Sequence[int],
    outputs: Sequence[int],
    tools: Sequence[tuple[ToolCall, ...]],
    *,
    keep_outputs: bool = True,
) -> tuple[TurnSpec, ...]:
    """Turns of an agent that only ever appends to its prompt.

    Args:
        shared: the start of the first prompt.
        first: tokens of the first prompt, `shared` included.
        growth: tokens that each later turn adds besides the reply before; one less than turns.
        outputs: tokens of each turn's reply.
        tools: calls after each turn.
        keep_outputs: False where a reply is not sent back as it came (its reasoning is dropped):
            then `growth` holds what of it is sent back.
    """
    turns = [
        TurnSpec(
            new_tokens=first - sum(part.tokens for part in shared),
            output_tokens=int(outputs[0]),
            shared=shared,
            tools=tools[0],
        )
    ]
    for index in range(1, len(outputs)):
        before = turns[-1]
        kept = before.prompt_tokens + (before.output_tokens if keep_outputs else 0)
        turns.append(
            TurnSpec(
                new_tokens=int(growth[index - 1]),
                output_tokens=int(outputs[index]),
                kept_turn=index - 1,
                kept_tokens=kept,
                tools=tools[index],
            )
        )
    return tuple(turns)
