"""Claude Code: on SWE-bench tasks without a person, and at a desk with one."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.model import Session, ToolCall, TurnSpec
from workloads.profiles.bash_tools import bash_law
from workloads.profiles.laws import (
    Floats,
    QuantileLaw,
    append_only,
    lognormal_counts,
    pick,
    shared_segment,
)

FILE_TOOLS = {"Read": 0.45, "Edit": 0.24, "Grep": 0.16, "TodoWrite": 0.10, "Write": 0.05}
"""Calls that are no shell command; the mix is assumed."""
FILE_SECONDS = {"Read": 0.013, "Edit": 0.024, "Grep": 0.023, "Write": 0.026, "TodoWrite": 0.013}
"""Median seconds of each. AgentCgroup (arXiv 2602.09345), local GLM."""
FILE_SIGMA = 0.5
"""Spread of their log. Assumed."""


@dataclass(frozen=True, slots=True)
class ToolMix:
    """Which tools Claude Code calls: share of shell commands, of turns with two calls, time cap."""

    bash_share: float
    parallel_share: float
    cap_s: float


def claude_calls(
    rng: np.random.Generator, turns: int, mix: ToolMix, shell: Callable[[int], Floats]
) -> list[tuple[ToolCall, ...]]:
    """Calls after each turn, none after the last.

    Args:
        shell: draws durations of shell commands, in seconds.
    """
    counts = 1 + (rng.random(turns) < mix.parallel_share)
    counts[-1] = 0
    total = int(counts.sum())
    is_shell = rng.random(total) < mix.bash_share
    commands = np.minimum(shell(total), mix.cap_s).tolist()
    files = pick(rng, FILE_TOOLS, total)
    spread = rng.lognormal(0.0, FILE_SIGMA, total).tolist()
    result: list[tuple[ToolCall, ...]] = []
    start = 0
    for count in counts.tolist():
        calls: list[ToolCall] = []
        for i in range(start, start + count):
            if is_shell[i]:
                name, seconds = "Bash", commands[i]
            else:
                name, seconds = files[i], FILE_SECONDS[files[i]] * spread[i]
            calls.append(ToolCall(name, round(seconds, 4), parallel=i > start))
        result.append(tuple(calls))
        start += count
    return result


@dataclass(frozen=True, slots=True)
class SweBenchClaudeCode:
    """Claude Code on SWE-rebench tasks."""

    name: ClassVar[str] = "swe-bench-cc"
    source: ClassVar[str] = (
        "AgentCgroup (arXiv 2602.09345), Claude Code on SWE-rebench: 111 sessions with a local "
        "GLM, 45 with Haiku"
    )
    note: ClassVar[str] = "one recording's quantiles; the mix of file tools is assumed"
    default_sessions: ClassVar[int] = 500

    turns_mu: float = 3.75
    """Log of turns a session. AgentCgroup, local GLM."""
    turns_sigma: float = 0.63
    """As turns_mu."""
    turns_cap: int = 250
    """Most turns. Assumed; the p99 of AgentCgroup is 135."""
    first_tokens: float = 13_400.0
    """First prompt, tokens. AgentCgroup, local GLM."""
    first_sigma: float = 0.02
    """Spread of its log. AgentCgroup: 2 %."""
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
    tools: str = "slow"
    """`slow` (AgentCgroup, local GLM) or `fast` (AgentCgroup, Haiku) shell commands."""
    tool_cap_s: float = 600.0
    """Longest shell command, seconds. Assumed; the maximum of AgentCgroup is 308."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        turns = int(lognormal_counts(rng, self.turns_mu, self.turns_sigma, 1, 1, self.turns_cap)[0])
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
        law = bash_law(self.tools)
        return Session(
            id=session_id,
            turns=append_only(
                shared_segment("claude-code/swe-bench", self.shared_tokens),
                first,
                growth.tolist(),
                outputs.tolist(),
                claude_calls(rng, turns, mix, lambda size: law.draw(rng, size)),
            ),
            workload=self.name,
            origin="generated",
        )


FIRST_PROMPT = QuantileLaw(
    (
        (0.0, 6343.0),
        (0.1, 15_500.0),
        (0.5, 23_300.0),
        (0.57, 40_000.0),
        (0.73, 100_000.0),
        (0.9, 259_000.0),
        (1.0, 852_000.0),
    )
)
"""Weka Claude Code traces: p10, p50 and p90 of the first prompt in tokens, 57 % up to 40k, 27 %
above 100k (resumed sessions); ends are the shortest and longest recorded."""


@dataclass(frozen=True, slots=True)
class InteractiveClaudeCode:
    """Claude Code with a person: long contexts, long and heavy-tailed gaps, compactions."""

    name: ClassVar[str] = "cc-interactive"
    source: ClassVar[str] = "Weka Claude Code traces (github.com/callanjfox/kv-cache-tester)"
    note: ClassVar[str] = (
        "tool gaps hold permission prompts and idle people; the recording misses its very longest "
        "sessions"
    )
    default_sessions: ClassVar[int] = 400

    turns_mu: float = 3.62
    """Log of turns a session. Weka traces, main agents."""
    turns_sigma: float = 1.15
    """As turns_mu."""
    turns_cap: int = 514
    """Most turns: the longest session of the Weka traces as read here."""
    shared_tokens: int = 15_100
    """Tools (12.3k) and system prompt (2.8k), tokens, where the first prompt holds them.
    Weka traces."""
    shared_versions: int = 50
    """Different tools and system prompts among all sessions. Assumed: the commonest of the Weka
    traces is in 4 % of sessions."""
    growth_mu: float = 5.94
    """Log of new tokens a turn besides the reply, prefix kept. Weka traces as read here."""
    growth_sigma: float = 1.74
    """As growth_mu."""
    growth_cap: int = 100_000
    """Most new tokens a turn. Assumed."""
    output_mu: float = 5.56
    """Log of output tokens a turn. Weka traces."""
    output_sigma: float = 0.89
    """As output_mu."""
    output_cap: int = 16_681
    """Longest reply of the Weka traces as read here, tokens."""
    reset_share: float = 0.017
    """Share of turns that keep less than half of the prompt before. Weka traces."""
    reset_mu: float = 10.55
    """Log of new tokens after such a turn's tools and system prompt. Weka traces as read here:
    53k tokens at the median, 14.7k of them kept."""
    reset_sigma: float = 0.88
    """As reset_mu: 133k tokens at p90."""
    window_tokens: int = 200_000
    """A longer prompt is compacted, tokens. Assumed: Claude's usual window. A session whose first
    prompt is longer has long_window_tokens."""
    long_window_tokens: int = 1_000_000
    """Window of sessions that start longer, tokens. Assumed."""
    wait_share: float = 0.14
    """Share of gaps that are a person. Weka traces as read here."""
    wait_mu: float = 4.88
    """Log of seconds of such a gap. Weka traces as read here."""
    wait_sigma: float = 1.76
    """As wait_mu."""
    wait_cap_s: float = 72_000.0
    """Longest wait of the Weka traces, seconds, rounded up."""
    tool_mu: float = 2.49
    """Log of seconds of a tool gap. Weka traces."""
    tool_sigma: float = 1.20
    """As tool_mu."""
    tool_cap_s: float = 37_500.0
    """Longest tool gap of the Weka traces, seconds, rounded up."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        turns = int(lognormal_counts(rng, self.turns_mu, self.turns_sigma, 1, 1, self.turns_cap)[0])
        first = round(float(FIRST_PROMPT.draw(rng, 1)[0]))
        version = int(rng.integers(max(1, self.shared_versions)))
        prefix = self.shared_tokens if first > self.shared_tokens else 0
        window = self.window_tokens if first <= self.window_tokens else self.long_window_tokens
        return Session(
            id=session_id,
            turns=self._turns(rng, turns, (first, prefix, window), f"claude-code/{version}"),
            workload=self.name,
            origin="generated",
        )

    def _turns(
        self, rng: np.random.Generator, count: int, sizes: tuple[int, int, int], prefix_name: str
    ) -> tuple[TurnSpec, ...]:
        first, prefix, window = sizes
        growth = lognormal_counts(rng, self.growth_mu, self.growth_sigma, count, 1, self.growth_cap)
        outputs = lognormal_counts(
            rng, self.output_mu, self.output_sigma, count, 1, self.output_cap
        )
        resets = rng.random(count) < self.reset_share
        after = lognormal_counts(rng, self.reset_mu, self.reset_sigma, count, 1, window / 2)
        gaps = self._gaps(rng, count)
        turns: list[TurnSpec] = []
        for index in range(count):
            tools, wait = gaps[index] if index + 1 < count else ((), 0.0)
            new, kept_turn, kept, compaction = int(growth[index]), index - 1, 0, False
            if index:
                before = turns[-1]
                kept = before.prompt_tokens + before.output_tokens
                if resets[index] or kept + new > window:
                    new = min(int(after[index]), max(1, before.prompt_tokens - prefix))
                    kept, compaction = min(prefix, kept), True
            turns.append(
                TurnSpec(
                    new_tokens=new if index else first - prefix,
                    output_tokens=int(outputs[index]),
                    kept_turn=kept_turn if kept else None,
                    kept_tokens=kept,
                    shared=() if index else shared_segment(prefix_name, prefix),
                    visible=wait > 0,
                    tools=tools,
                    wait_s=wait,
                    compaction=compaction,
                )
            )
        return tuple(turns)

    def _gaps(
        self, rng: np.random.Generator, count: int
    ) -> list[tuple[tuple[ToolCall, ...], float]]:
        person = rng.random(count) < self.wait_share
        waits = np.minimum(rng.lognormal(self.wait_mu, self.wait_sigma, count), self.wait_cap_s)
        tools = np.minimum(rng.lognormal(self.tool_mu, self.tool_sigma, count), self.tool_cap_s)
        return [
            ((), round(float(waits[i]), 1))
            if person[i]
            else ((ToolCall("tool", round(float(tools[i]), 1)),), 0.0)
            for i in range(count)
        ]
