"""Sessions made for a place on the map: the same mechanisms everywhere, only the ratios differ."""

from __future__ import annotations

import numpy as np

from harness.advice.place import TurnCost
from workloads.model import Session, ToolCall, TurnSpec

FIRST_PROMPT = 2000
OUTPUT = 150
LONGEST_NEW = 1500
TURNS = 12
SPREAD = 0.4
"""Sigma of the log-normal factors on turns, new tokens, outputs and tool times. Our choice."""


def made_for(
    tool_model: float, per_replica: int, prefill_share: float, cost: TurnCost, count: int, seed: int
) -> list[Session]:
    """`count` sessions whose means lie near the ratios asked for.

    Args:
        per_replica: workers on each replica.
    """
    rng = np.random.default_rng([seed, 7])
    running = max(1, round(per_replica / (1 + tool_model)))
    step = cost.step_s(running, FIRST_PROMPT + TURNS * OUTPUT)
    decode = OUTPUT * step / running
    new = prefill_share / (1 - prefill_share) * decode / cost.prefill_s(1.0)
    shrink = min(1.0, LONGEST_NEW / new)  # of both, so that contexts stay within the model's limit
    new, output = max(50.0, new * shrink), OUTPUT * shrink
    turn_s = cost.prefill_s(new) + output * step
    return [_session(f"m{i}", new, output, tool_model * turn_s, rng) for i in range(count)]


def _session(
    name: str, new: float, output: float, tool_s: float, rng: np.random.Generator
) -> Session:
    def factor() -> float:
        return float(np.exp(rng.normal(-SPREAD * SPREAD / 2, SPREAD)))

    turns: list[TurnSpec] = []
    for number in range(max(2, round(TURNS * factor()))):
        before = turns[-1] if turns else None
        turns.append(
            TurnSpec(
                new_tokens=round((FIRST_PROMPT if before is None else new) * factor()) + 1,
                output_tokens=round(output * factor()) + 1,
                kept_turn=None if before is None else number - 1,
                kept_tokens=0 if before is None else before.prompt_tokens + before.output_tokens,
                tools=(ToolCall("tool", tool_s * factor()),),
            )
        )
    return Session(id=name, turns=tuple(turns), workload="map", origin="generated")
