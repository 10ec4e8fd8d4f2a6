"""Three kinds of agents on one cluster."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.model import Session
from workloads.profiles.automationbench import AutomationBench
from workloads.profiles.swe_bench import SweBenchMiniShort
from workloads.profiles.terminal_bench import TerminalClaudeCode


@dataclass(frozen=True, slots=True)
class Mixed:
    """Each session is of one of three other profiles, drawn by their shares; it keeps the name of
    its profile as its workload."""

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

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        profiles = (SweBenchMiniShort(), TerminalClaudeCode(), AutomationBench())
        weights = np.array([self.coding_weight, self.terminal_weight, self.office_weight])
        chosen = profiles[int(rng.choice(3, p=weights / weights.sum()))]
        return chosen.session(rng, session_id)
