"""SWE-bench through mini-swe-agent: one growing prompt, one shell command a turn."""

from __future__ import annotations

import math
from dataclasses import dataclass
from statistics import NormalDist
from typing import ClassVar

import numpy as np

from agentsched import UsageError
from workloads.model import Session
from workloads.profiles.bash_tools import bash_calls, one_each
from workloads.profiles.laws import append_only, lognormal_counts, shared_segment


@dataclass(frozen=True, slots=True)
class SweBenchMini:
    """Token growth and turns as Claude Code shows them on like tasks, prompts of mini-swe-agent."""

    name: ClassVar[str] = "swe-bench-mini"
    source: ClassVar[str] = "AgentCgroup (arXiv 2602.09345), LMCache agent traces, mini-swe-agent"
    note: ClassVar[str] = (
        "no per-turn recording of mini-swe-agent with a strong model exists: turns and growth are "
        "those of Claude Code on SWE-rebench; half of the sessions pass 40,960 tokens"
    )
    default_sessions: ClassVar[int] = 500

    turns_mu: float = 3.75
    """Log of turns a session. AgentCgroup, Claude Code with a local GLM on SWE-rebench, 111
    sessions; that mini-swe-agent takes as many is assumed."""
    turns_sigma: float = 0.63
    """As turns_mu."""
    turns_cap: int = 250
    """step_limit of mini-swe-agent 2.4.6, swebench.yaml."""
    first_mu: float = 7.37
    """Log of first-prompt tokens. LMCache agent traces, mini-swe-agent."""
    first_sigma: float = 0.30
    """As first_mu."""
    template_tokens: int = 1200
    """Start that all sessions share, tokens. Assumed from LMCache agent traces: the shortest first
    prompt has 1,247."""
    task_tokens_min: int = 47
    """Shortest task text, tokens: that shortest first prompt less the template."""
    growth_mu: float = 6.03
    """Log of new tokens a turn besides the reply. AgentCgroup, Claude Code with a local GLM."""
    growth_sigma: float = 1.07
    """As growth_mu."""
    growth_cap: int = 2750
    """Longest observation, tokens: mini-swe-agent 2.4.6 cuts it to 10,000 characters, 2,500 to
    3,000 tokens; the middle is assumed."""
    output_mu: float = 5.09
    """Log of output tokens a turn. AgentCgroup, Claude Code with a local GLM."""
    output_sigma: float = 0.95
    """As output_mu."""
    output_cap: int = 8192
    """Longest reply, tokens. Assumed: cuts a tail that no recording shows."""
    tools: str = "slow"
    """`slow` (AgentCgroup, local GLM) or `fast` (AgentCgroup, Haiku) shell commands."""
    tool_cap_s: float = 60.0
    """environment.timeout of mini-swe-agent 2.4.6, swebench.yaml, seconds."""
    hint_share: float = 0.01
    """Share of commands of a second or more that are `sleep N`. Assumed."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        return _mini_session(self, self.growth_mu, rng, session_id)


@dataclass(frozen=True, slots=True)
class SweBenchMiniShort(SweBenchMini):
    """swe-bench-mini with the growth that a published bound on the context allows.

    Successful runs stay below `bound_tokens`, and `bound_share` of runs succeed, so at least that
    share of sessions must peak below it. Turns are left as they are and replies are those recorded
    of mini-swe-agent; the mean observation is what makes the session at that quantile of turns
    end at the bound.
    """

    name: ClassVar[str] = "swe-bench-mini-short"
    source: ClassVar[str] = (
        "arXiv 2602.16069 (context bound), mini-swe-agent README (share resolved), LMCache agent "
        "traces, AgentCgroup (arXiv 2602.09345)"
    )
    note: ClassVar[str] = (
        "swe-bench-mini with growth solved from the published bound: 74 % of sessions below "
        "20,000 tokens"
    )

    growth_mu: float = 0.0
    """0: solved by observation_mu from the bound; any other value is taken as it is."""
    output_mu: float = 4.61
    """LMCache agent traces, mini-swe-agent (p50 95, p90 177)."""
    output_sigma: float = 0.42
    """As output_mu."""
    bound_tokens: int = 20_000
    """arXiv 2602.16069: contexts of successful mini-SWE-agent runs stay below."""
    bound_share: float = 0.74
    """mini-swe-agent README: more than 74 % of SWE-bench Verified resolved. That these are the
    shorter sessions is assumed."""

    def observation_mu(self) -> float:
        """Log-median of observation tokens at which bound_share of sessions stay in the bound.

        Raises:
            UsageError: the bound leaves no room for observations.
        """
        if self.growth_mu != 0.0:
            return self.growth_mu
        if not 0 < self.bound_share < 1:
            raise UsageError("bound_share must lie between 0 and 1", "give a share such as 0.74")
        z = NormalDist().inv_cdf(self.bound_share)
        turns = min(math.exp(self.turns_mu + z * self.turns_sigma), self.turns_cap)
        first = math.exp(self.first_mu + self.first_sigma**2 / 2)
        output = math.exp(self.output_mu + self.output_sigma**2 / 2)
        room = self.bound_tokens - first - turns * output
        if room <= 0 or turns <= 1:
            raise UsageError(
                f"{turns:.0f} turns of {output:.0f} output tokens leave no room below "
                f"{self.bound_tokens}",
                "raise bound_tokens, or lower turns_mu, output_mu or bound_share",
            )
        return math.log(room / (turns - 1)) - self.growth_sigma**2 / 2

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        return _mini_session(self, self.observation_mu(), rng, session_id)


def _mini_session(
    shape: SweBenchMini, growth_mu: float, rng: np.random.Generator, session_id: str
) -> Session:
    turns = int(lognormal_counts(rng, shape.turns_mu, shape.turns_sigma, 1, 1, shape.turns_cap)[0])
    shortest = shape.template_tokens + shape.task_tokens_min
    first = lognormal_counts(rng, shape.first_mu, shape.first_sigma, 1, shortest, math.inf)
    growth = lognormal_counts(rng, growth_mu, shape.growth_sigma, turns - 1, 1, shape.growth_cap)
    outputs = lognormal_counts(rng, shape.output_mu, shape.output_sigma, turns, 1, shape.output_cap)
    calls = bash_calls(rng, turns, shape.tools, shape.tool_cap_s, shape.hint_share)
    return Session(
        id=session_id,
        turns=append_only(
            shared_segment("mini-swe-agent/template", shape.template_tokens),
            int(first[0]),
            growth.tolist(),
            outputs.tolist(),
            one_each(calls),
        ),
        workload=shape.name,
        origin="generated",
    )
