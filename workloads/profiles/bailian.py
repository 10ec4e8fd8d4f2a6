"""Agent and chat traffic shaped on what is published of Alibaba's Bailian service.

The traces themselves are not used. Published of the agent traces: more than 80 % of prompt tokens
are reusable (SMetric, arXiv 2607.08565). Of the chat traces: 54 to 62 % are (KVCache Cache in the
Wild, arXiv 2506.02634), single-turn requests matter as much as multi-turn ones, and in the
consumer trace 80 % of reuses come within 10 minutes. The rest is from like traffic or assumed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from workloads.model import Session, ToolCall, TurnSpec
from workloads.profiles.bash_tools import one_each
from workloads.profiles.laws import append_only, lognormal_counts, shared_segment


def application(rng: np.random.Generator, count: int, skew: float) -> int:
    """Which application a session belongs to: number i with weight 1 / (i + 1) ** skew."""
    weights = 1.0 / np.arange(1, max(1, count) + 1) ** skew
    return int(rng.choice(weights.size, p=weights / weights.sum()))


@dataclass(frozen=True, slots=True)
class BailianAgent:
    """Agents of many applications, each with tools and rules of its own."""

    name: ClassVar[str] = "bailian-agent"
    source: ClassVar[str] = (
        "SMetric (arXiv 2607.08565: over 80 % reuse), TraceLab (arXiv 2606.30560) and the Exgentic "
        "entry of the inference-perf catalogue for sizes"
    )
    note: ClassVar[str] = (
        "shaped on published aggregates of Bailian and like traffic, not on traces"
    )
    default_sessions: ClassVar[int] = 1000

    turns_mu: float = 2.71
    """Log of turns a session. TraceLab (arXiv 2606.30560): p50 15 steps; that Bailian's agents
    take as many is assumed."""
    turns_sigma: float = 0.9
    """Spread of that log. Assumed: TraceLab's p90, 135, would be 1.7, its sessions last days."""
    turns_cap: int = 100
    """Most turns. Assumed."""
    applications: int = 40
    """Applications, each with a shared prefix. Assumed."""
    skew: float = 1.0
    """Popularity of the i-th application falls as 1 / i ** skew. Assumed."""
    shared_tokens: int = 6000
    """Tools and rules of an application, tokens. Assumed."""
    task_mu: float = 7.6
    """Log of tokens of a task's own text. Assumed: 2,000 at the median."""
    task_sigma: float = 1.0
    """As task_mu."""
    task_cap: int = 60_000
    """Longest task text, tokens. Assumed."""
    growth_mu: float = 6.8
    """Log of new tokens a turn besides the reply. Assumed: 900 at the median and 2,100 at the mean,
    between AgentCgroup (410 and 840) and TraceLab (6,600 at the mean)."""
    growth_sigma: float = 1.3
    """As growth_mu."""
    growth_cap: int = 50_000
    """Most new tokens a turn. Assumed."""
    output_mu: float = 5.86
    """Log of output tokens a turn. Assumed: 350 at the median, as Mooncake's conversations."""
    output_sigma: float = 1.0
    """Spread of that log; mean 578. Assumed: TraceLab has 523, the Exgentic entry 659."""
    output_cap: int = 16_384
    """Longest reply, tokens. Assumed."""
    tool_mu: float = 1.0
    """Log of seconds between turns. Assumed: 2.7 s at the median, mean 9.7; the Exgentic entry has
    a mean of 13.0."""
    tool_sigma: float = 1.6
    """As tool_mu; heavy-tailed as the Exgentic entry. Assumed."""
    tool_cap_s: float = 600.0
    """Longest, seconds. Assumed."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        app = application(rng, self.applications, self.skew)
        turns = int(lognormal_counts(rng, self.turns_mu, self.turns_sigma, 1, 1, self.turns_cap)[0])
        task = int(lognormal_counts(rng, self.task_mu, self.task_sigma, 1, 20, self.task_cap)[0])
        growth = lognormal_counts(
            rng, self.growth_mu, self.growth_sigma, turns - 1, 1, self.growth_cap
        )
        outputs = lognormal_counts(
            rng, self.output_mu, self.output_sigma, turns, 1, self.output_cap
        )
        seconds = np.minimum(
            rng.lognormal(self.tool_mu, self.tool_sigma, turns), self.tool_cap_s
        ).tolist()
        calls = [ToolCall(f"app{app}.tool", round(value, 3)) for value in seconds]
        return Session(
            id=session_id,
            turns=append_only(
                shared_segment(f"bailian-agent/app-{app}", self.shared_tokens),
                self.shared_tokens + task,
                growth.tolist(),
                outputs.tolist(),
                one_each(calls),
            ),
            workload=self.name,
            origin="generated",
        )


@dataclass(frozen=True, slots=True)
class BailianChat:
    """People who chat: mostly one turn, under the system prompt of some application."""

    name: ClassVar[str] = "bailian-chat"
    source: ClassVar[str] = (
        "KVCache Cache in the Wild (arXiv 2506.02634: 54 to 62 % reuse, 80 % of reuses within 10 "
        "minutes); reply lengths of Mooncake's conversation trace (FAST 2025)"
    )
    note: ClassVar[str] = (
        "system prompts and single turns are solved so that reuse is 58 %, the middle of what is "
        "published, and nearly half of it falls on single-turn requests"
    )
    default_sessions: ClassVar[int] = 4000

    single_share: float = 0.8
    """Share of sessions with one turn. Solved with shared_tokens so that single-turn requests have
    nearly half of the reuse (arXiv 2506.02634: as important as multi-turn ones)."""
    more_turns_mean: float = 1.5
    """Turns after the first of the other sessions, mean of a geometric law. Assumed."""
    turns_cap: int = 40
    """Most turns. Assumed."""
    applications: int = 200
    """Applications, each with a system prompt of its own. Assumed."""
    skew: float = 1.0
    """Popularity of the i-th application falls as 1 / i ** skew. Assumed."""
    shared_tokens: int = 1000
    """System prompt of an application, tokens. Solved with single_share, by trial, so that an
    infinite cache serves 58 % of prompt tokens (arXiv 2506.02634: 54 to 62 %)."""
    user_mu: float = 6.2
    """Log of tokens of a person's message. Assumed: 490 at the median, so that prompts are a little
    above those of the Azure conversation trace of 2023 (p50 1,020)."""
    user_sigma: float = 1.2
    """As user_mu."""
    user_cap: int = 30_000
    """Longest message, tokens. Assumed."""
    output_mu: float = 5.86
    """Log of output tokens a turn. Mooncake's conversation trace, p50 350; that Bailian's are as
    long is assumed."""
    output_sigma: float = 0.42
    """As output_mu: p90 597."""
    output_cap: int = 8192
    """Longest reply, tokens. Assumed."""
    wait_mu: float = 5.13
    """Log of seconds between turns: 80 % within 600 s (arXiv 2506.02634), given wait_sigma."""
    wait_sigma: float = 1.5
    """Spread of that log. Assumed."""
    wait_cap_s: float = 7200.0
    """Longest wait, seconds. Assumed: the length of the published traces."""

    def session(self, rng: np.random.Generator, session_id: str) -> Session:
        """One session; all randomness comes from `rng`."""
        app = application(rng, self.applications, self.skew)
        more = 0
        if rng.random() >= self.single_share:
            more = int(rng.geometric(1 / max(1.0, self.more_turns_mean)))
        count = min(1 + more, max(1, self.turns_cap))
        user = lognormal_counts(rng, self.user_mu, self.user_sigma, count, 1, self.user_cap)
        outputs = lognormal_counts(
            rng, self.output_mu, self.output_sigma, count, 1, self.output_cap
        )
        waits = np.minimum(rng.lognormal(self.wait_mu, self.wait_sigma, count), self.wait_cap_s)
        turns: list[TurnSpec] = []
        for index in range(count):
            before = turns[-1] if turns else None
            turns.append(
                TurnSpec(
                    new_tokens=int(user[index]),
                    output_tokens=int(outputs[index]),
                    kept_turn=index - 1 if before else None,
                    kept_tokens=before.prompt_tokens + before.output_tokens if before else 0,
                    shared=()
                    if before
                    else shared_segment(f"bailian-chat/app-{app}", self.shared_tokens),
                    visible=True,
                    wait_s=round(float(waits[index]), 1) if index + 1 < count else 0.0,
                )
            )
        return Session(id=session_id, turns=tuple(turns), workload=self.name, origin="generated")
