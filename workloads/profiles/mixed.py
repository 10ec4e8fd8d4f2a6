"""Several kinds of agents, and people who chat, on one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Protocol

import numpy as np

from agentsched import UsageError
from workloads.model import Session
from workloads.profiles.automationbench import AutomationBench
from workloads.profiles.bailian import BailianAgent, BailianChat
from workloads.profiles.chat import AzureChat, AzureCode, MooncakeChat
from workloads.profiles.claude_code import InteractiveClaudeCode, SweBenchClaudeCode
from workloads.profiles.swe_bench import SweBenchMini, SweBenchMiniShort
from workloads.profiles.terminal_bench import TerminalClaudeCode, Terminus2


class Part(Protocol):
    """A profile that a mix can hold."""

    name: ClassVar[str]

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        ...


PARTS: dict[str, Part] = {
    part.name: part
    for part in (
        SweBenchMiniShort(),
        SweBenchMini(),
        SweBenchClaudeCode(),
        Terminus2(),
        TerminalClaudeCode(),
        AutomationBench(),
        InteractiveClaudeCode(),
        BailianAgent(),
        BailianChat(),
        AzureChat(),
        AzureCode(),
        MooncakeChat(),
    )
}


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each session is of one of several other profiles, drawn by their shares; it keeps the name
    of its profile as its workload."""

    name: ClassVar[str] = "mixed"
    source: ClassVar[str] = "swe-bench-mini-short, tb2-claude-code and automationbench"
    note: ClassVar[str] = "the shares are assumed: those of TAO's mixed workload are not published"
    default_sessions: ClassVar[int] = 300

    coding_weight: float = 1.0
    """Weight of swe-bench-mini-short. Assumed."""
    terminal_weight: float = 1.0
    """Weight of tb2-claude-code. Assumed."""
    office_weight: float = 1.0
    """Weight of automationbench. Assumed."""
    parts: str = ""
    """Any profiles by weight in place of these three, such as `swe-bench-mini=3, azure-chat=1`;
    nothing: these three. Assumed."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`.

        Raises:
            UsageError: `parts` names an unknown profile or a weight that is none.
        """
        weights = self.weights()
        shares = np.array(list(weights.values()))
        chosen = list(weights)[int(rng.choice(len(shares), p=shares / shares.sum()))]
        return PARTS[chosen].session(rng, session_id)

    def weights(self) -> dict[str, float]:
        """Weights by name of profile. Raises UsageError as `session` does."""
        if not self.parts.strip():
            weights = {
                SweBenchMiniShort.name: self.coding_weight,
                TerminalClaudeCode.name: self.terminal_weight,
                AutomationBench.name: self.office_weight,
            }
        else:
            weights = mix_weights(self.parts.split(","))
        for name in weights:
            if name not in PARTS:
                raise UsageError(
                    f"a mix cannot hold {name!r}", f"use profiles out of: {', '.join(PARTS)}"
                )
        if not sum(weights.values()) > 0:
            raise UsageError("all weights of the mix are 0", "give one of them more")
        return weights


def mix_weights(items: list[str]) -> dict[str, float]:
    """Weights by name, of items such as `azure-chat=0.5`; an item without a weight has 1.

    Raises:
        UsageError: a weight is no number of 0 or more, or a name is there twice.
    """
    weights: dict[str, float] = {}
    for item in items:
        name, _, text = (piece.strip() for piece in item.rpartition("="))
        if not name:
            name, text = text, "1"
        try:
            weight = float(text)
        except ValueError:
            weight = -1.0
        if not 0 <= weight < 1e9:
            raise UsageError(f"the weight of {name!r} cannot be {text!r}", "give 0 or more")
        if not name or name in weights:
            raise UsageError(f"{name!r} is in the mix twice, or has no name", "give each once")
        weights[name] = weight
    return weights
