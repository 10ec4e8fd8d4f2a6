"""Terminal-Bench 2: terminus-2 in a terminal, and Claude Code."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.model import Session, ToolCall
from workloads.profiles.bash_tools import one_each
from workloads.profiles.claude_code import ToolMix, claude_calls
from workloads.profiles.laws import (
    Floats,
    append_only,
    counts,
    leveled,
    lognormal_counts,
    shared_segment,
)

DEADLINES = {900.0: 48, 1200.0: 6, 1800.0: 17, 3600.0: 12}
"""Agent deadlines of Terminal-Bench 2.0 in seconds, and how many of its 89 tasks have them; those
of the six others are left out."""


def draw_deadline(rng: np.random.Generator) -> float:
    """The deadline of a task, by how many tasks have it, in seconds."""
    tasks = np.array(list(DEADLINES.values()), dtype=np.float64)
    return float(rng.choice(list(DEADLINES), p=tasks / tasks.sum()))


@dataclass(frozen=True, slots=True)
class Terminus2:
    """terminus-2 types keys, then waits as long as its reply asked for."""

    name: ClassVar[str] = "tb2-terminus2"
    source: ClassVar[str] = (
        "Terminal-Bench 2.0 leaderboard trials (harborframework/terminal-bench-2-leaderboard), "
        "3,560 trials of terminus-2 with 8 models"
    )
    note: ClassVar[str] = (
        "per-trial data only: the spread within a trial is assumed; deadlines as the tasks'"
    )
    default_sessions: ClassVar[int] = 89

    turns_mu: float = 2.86
    """Log of requests a trial. Terminal-Bench 2.0 trials of terminus-2."""
    turns_sigma: float = 0.89
    """As turns_mu."""
    turns_cap: int = 300
    """Most requests. Assumed: twice the p99 of those trials, 148."""
    first_tokens: int = 2000
    """First prompt, tokens: p10 of the mean prompt a request in Terminal-Bench 2.0 trials, 2.2k,
    rounded down."""
    first_sigma: float = 0.15
    """Spread of its log, from the task texts. Assumed."""
    template_tokens: int = 1500
    """Start that all trials share, tokens. Assumed."""
    growth_mean: float = 900.0
    """New tokens a turn, what is sent back of the reply included: (13k mean prompt less the first)
    over half of 26 turns, Terminal-Bench 2.0 trials. Below the mean reply of 1,530: reasoning is
    not sent back, so no output counts as kept."""
    growth_sigma: float = 1.0
    """Spread of its log. Assumed."""
    growth_cap: int = 10_000
    """Longest screen, tokens. Assumed."""
    output_mu: float = 6.80
    """Log of a trial's mean output tokens a request. Terminal-Bench 2.0 trials of terminus-2."""
    output_sigma: float = 1.02
    """As output_mu: the spread between trials."""
    output_within: float = 0.8
    """Spread of the log within a trial. Assumed; AgentCgroup has 0.95 over all turns of its
    sessions."""
    output_cap: int = 16_384
    """Longest reply, tokens. Assumed: twice the p99 of those trials, 7,909."""
    tool_mu: float = 1.94
    """Log of a trial's mean seconds from reply to next request, harness included. Terminal-Bench
    2.0 trials."""
    tool_sigma: float = 1.14
    """As tool_mu: the spread between trials."""
    tool_within: float = 0.8
    """Spread of the log within a trial. Assumed."""
    tool_cap_s: float = 600.0
    """Longest, seconds. Assumed."""
    harness_s: float = 1.0
    """Part of that time that the reply does not ask for, seconds. Assumed."""
    hint_cap_s: float = 60.0
    """Longest `duration` that terminus-2 accepts, seconds: Harbor 0.25.0, Terminal-Bench 2.0."""
    setup_mu: float = 1.10
    """Log of seconds of environment set-up. Terminal-Bench 2.0 trials: p50 3.0."""
    setup_sigma: float = 1.08
    """As setup_mu: p90 12 s."""
    deadlines: bool = True
    """Whether sessions have the deadlines of Terminal-Bench 2.0 tasks."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        turns = int(lognormal_counts(rng, self.turns_mu, self.turns_sigma, 1, 1, self.turns_cap)[0])
        first_mu = math.log(self.first_tokens)
        shortest = self.template_tokens + 20
        first = int(lognormal_counts(rng, first_mu, self.first_sigma, 1, shortest, math.inf)[0])
        growth_mu = math.log(self.growth_mean) - self.growth_sigma**2 / 2
        growth = lognormal_counts(rng, growth_mu, self.growth_sigma, turns - 1, 1, self.growth_cap)
        replies = leveled(rng, self.output_mu, self.output_sigma, self.output_within, turns)
        outputs = counts(replies, 1, self.output_cap)
        return Session(
            id=session_id,
            turns=append_only(
                shared_segment("terminus-2/template", self.template_tokens),
                first,
                growth.tolist(),
                outputs.tolist(),
                one_each(self._waits(rng, turns)),
                keep_outputs=False,
            ),
            workload=self.name,
            origin="generated",
            setup_s=round(float(rng.lognormal(self.setup_mu, self.setup_sigma)), 3),
            deadline_s=draw_deadline(rng) if self.deadlines else None,
        )

    def _waits(self, rng: np.random.Generator, count: int) -> list[ToolCall]:
        seconds = leveled(rng, self.tool_mu, self.tool_sigma, self.tool_within, count)
        return [
            ToolCall("terminal", round(value, 3), hint_s=self._asked(value))
            for value in np.minimum(seconds, self.tool_cap_s).tolist()
        ]

    def _asked(self, seconds: float) -> float:
        return round(min(max(seconds - self.harness_s, 0.1), self.hint_cap_s), 1)


@dataclass(frozen=True, slots=True)
class TerminalClaudeCode:
    """Claude Code on Terminal-Bench 2."""

    name: ClassVar[str] = "tb2-claude-code"
    source: ClassVar[str] = (
        "Terminal-Bench 2.0 leaderboard trials (agent time, set-up; 445 of Claude Code with "
        "GLM-4.7), AgentCgroup (arXiv 2602.09345) for what a turn holds"
    )
    note: ClassVar[str] = (
        "no per-turn recording of this pair exists: turns are agent time over the seconds a turn "
        "of Claude Code on SWE-rebench"
    )
    default_sessions: ClassVar[int] = 89

    agent_mu: float = 5.39
    """Log of seconds of agent time. Terminal-Bench 2.0 trials, Claude Code with GLM-4.7."""
    agent_sigma: float = 1.40
    """As agent_mu."""
    turn_s: float = 12.8
    """Seconds a turn: AgentCgroup, 10.8 minutes a task over 50.7 turns."""
    turns_cap: int = 281
    """Most turns: the longest deadline of Terminal-Bench 2.0, 3,600 s, over turn_s."""
    first_tokens: float = 14_000.0
    """First prompt, tokens. AgentCgroup: 13.4k with the local GLM, 14.8k with Haiku."""
    first_sigma: float = 0.03
    """Spread of its log. Assumed; AgentCgroup has 2 % on one kind of task."""
    shared_tokens: int = 12_500
    """Tools and system prompt, tokens. AgentCgroup: 12k to 13k."""
    growth_mu: float = 6.03
    """Log of new tokens a turn besides the reply. AgentCgroup, local GLM."""
    growth_sigma: float = 1.07
    """As growth_mu."""
    growth_cap: int = 25_000
    """Longest tool result, tokens. Assumed."""
    output_mu: float = 5.09
    """Log of output tokens a turn. AgentCgroup, local GLM."""
    output_sigma: float = 0.95
    """As output_mu."""
    output_cap: int = 8192
    """Longest reply, tokens. Assumed."""
    bash_share: float = 0.505
    """Share of tool calls that are shell commands. AgentCgroup: 3,263 of 6,455."""
    parallel_share: float = 0.147
    """Share of turns with a second, parallel call. AgentCgroup: 6,455 calls in 5,628 turns."""
    tool_mu: float = 1.94
    """Log of a trial's mean seconds a shell command. Terminal-Bench 2.0 trials of terminus-2,
    harness included; that Claude Code's commands take as long is assumed."""
    tool_sigma: float = 1.14
    """As tool_mu: the spread between trials."""
    tool_within: float = 0.8
    """Spread of the log within a trial. Assumed."""
    tool_cap_s: float = 600.0
    """Longest shell command, seconds. Assumed."""
    env_mu: float = 1.335
    """Log of seconds of environment set-up. Terminal-Bench 2.0 trials: p50 3.8."""
    env_sigma: float = 1.17
    """As env_mu: p90 17 s."""
    install_mu: float = 2.74
    """Log of seconds of agent set-up. Terminal-Bench 2.0 trials: p50 15.5."""
    install_sigma: float = 0.273
    """As install_mu: p90 22 s."""
    deadlines: bool = True
    """Whether sessions have the deadlines of Terminal-Bench 2.0 tasks."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        turns_mu = self.agent_mu - math.log(self.turn_s)
        turns = int(lognormal_counts(rng, turns_mu, self.agent_sigma, 1, 1, self.turns_cap)[0])
        first_mu = math.log(self.first_tokens)
        shortest = self.shared_tokens + 20
        first = int(lognormal_counts(rng, first_mu, self.first_sigma, 1, shortest, math.inf)[0])
        growth = lognormal_counts(
            rng, self.growth_mu, self.growth_sigma, turns - 1, 1, self.growth_cap
        )
        outputs = lognormal_counts(
            rng, self.output_mu, self.output_sigma, turns, 1, self.output_cap
        )
        mix = ToolMix(self.bash_share, self.parallel_share, self.tool_cap_s)

        def shell(size: int) -> Floats:
            return leveled(rng, self.tool_mu, self.tool_sigma, self.tool_within, size)

        setup = rng.lognormal(self.env_mu, self.env_sigma) + rng.lognormal(
            self.install_mu, self.install_sigma
        )
        return Session(
            id=session_id,
            turns=append_only(
                shared_segment("claude-code/terminal-bench", self.shared_tokens),
                first,
                growth.tolist(),
                outputs.tolist(),
                claude_calls(rng, turns, mix, shell),
            ),
            workload=self.name,
            origin="generated",
            setup_s=round(float(setup), 3),
            deadline_s=draw_deadline(rng) if self.deadlines else None,
        )
