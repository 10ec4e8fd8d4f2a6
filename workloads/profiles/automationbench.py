"""AutomationBench: simulated office applications, many parallel calls that take milliseconds."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.model import Session, ToolCall
from workloads.profiles.laws import (
    append_only,
    counts,
    leveled,
    lognormal_counts,
    pick,
    shared_segment,
)

DOMAINS = ("sales", "marketing", "operations", "support", "finance", "hr")
"""AutomationBench (arXiv 2604.18934): six domains of 100 tasks."""
ACTIONS = {"search": 0.35, "get": 0.25, "update": 0.18, "create": 0.14, "list": 0.08}
"""Kinds of endpoint; the mix is assumed."""


@dataclass(frozen=True, slots=True)
class AutomationBench:
    """Per-session shape of the public 600 tasks, run by Qwen3.6-27B."""

    name: ClassVar[str] = "automationbench"
    source: ClassVar[str] = (
        "AutomationBench runs of github.com/Hert4/automationbench-opera-gemma4 at 4dcfa213, "
        "Qwen3.6-27B"
    )
    note: ClassVar[str] = (
        "tools take about 9 ms: there is no tool gap to use; per-session data only, the growth "
        "within a session is fitted"
    )
    default_sessions: ClassVar[int] = 600

    turns_mu: float = 2.95
    """Log of model calls a session. AutomationBench runs, Qwen3.6-27B."""
    turns_sigma: float = 0.59
    """As turns_mu."""
    turns_cap: int = 50
    """--max-steps of those runs."""
    first_tokens: float = 3100.0
    """First prompt, tokens: fit of total input = n first + growth n (n - 1) / 2 to those runs."""
    first_sigma: float = 0.05
    """Spread of the log of the task text's share in it. Assumed."""
    shared_share: float = 0.9
    """Share of the first prompt that all sessions of a domain share (tools, rules). Assumed."""
    growth_mean: float = 800.0
    """New tokens a turn besides the reply: growth of that fit, 1,220, less the mean reply, 420."""
    growth_sigma: float = 0.8
    """Spread of its log. Assumed: the runs have no per-turn data."""
    output_mu: float = 5.93
    """Log of a session's mean output tokens a call. AutomationBench runs, Qwen3.6-27B."""
    output_sigma: float = 0.47
    """As output_mu: the spread between sessions."""
    output_within: float = 0.6
    """Spread of the log within a session. Assumed."""
    output_cap: int = 8192
    """Longest reply, tokens. Assumed."""
    calls_mean: float = 1.86
    """Tool calls a model call. AutomationBench runs, Qwen3.6-27B. One plus a Poisson number,
    which is assumed, as is that they run in parallel."""
    tool_mu: float = -4.8
    """Log of seconds a tool call. AutomationBench runs: 8 to 9 ms, an in-process simulator."""
    tool_sigma: float = 0.47
    """As tool_mu."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        turns = int(lognormal_counts(rng, self.turns_mu, self.turns_sigma, 1, 1, self.turns_cap)[0])
        domain = DOMAINS[int(rng.integers(len(DOMAINS)))]
        shared = round(self.first_tokens * self.shared_share)
        first_mu = math.log(self.first_tokens)
        first = int(lognormal_counts(rng, first_mu, self.first_sigma, 1, shared + 20, math.inf)[0])
        growth_mu = math.log(self.growth_mean) - self.growth_sigma**2 / 2
        growth = lognormal_counts(rng, growth_mu, self.growth_sigma, turns - 1, 1, math.inf)
        replies = leveled(rng, self.output_mu, self.output_sigma, self.output_within, turns)
        outputs = counts(replies, 1, self.output_cap)
        return Session(
            id=session_id,
            turns=append_only(
                shared_segment(f"automationbench/{domain}", shared),
                first,
                growth.tolist(),
                outputs.tolist(),
                self._tools(rng, domain, turns),
            ),
            workload=self.name,
            origin="generated",
        )

    def _tools(
        self, rng: np.random.Generator, domain: str, turns: int
    ) -> list[tuple[ToolCall, ...]]:
        numbers = 1 + rng.poisson(max(0.0, self.calls_mean - 1), turns)
        numbers[-1] = 0
        total = int(numbers.sum())
        seconds = np.round(rng.lognormal(self.tool_mu, self.tool_sigma, total), 5).tolist()
        actions = pick(rng, ACTIONS, total)
        result: list[tuple[ToolCall, ...]] = []
        start = 0
        for count in numbers.tolist():
            result.append(
                tuple(
                    ToolCall(f"{domain}.{actions[i]}", seconds[i], parallel=i > start)
                    for i in range(start, start + count)
                )
            )
            start += count
        return result
