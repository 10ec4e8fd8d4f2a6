"""The generated profile that stands for an agent workload where no real agents run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from workloads.agents.mixed import NAME as MIXED
from workloads.agents.mixed import read_settings as read_mix

_PROFILES = {
    "swe-bench-lite": "swe-bench-mini-short",
    "swe-bench-verified": "swe-bench-mini-short",
    "swe-bench-standin": "swe-bench-mini-short",
    "automation-bench": "automationbench",
    "automationbench-synthetic": "automationbench",
}
_TERMINAL = ("terminal-bench-2", "terminal-bench-standin")
_TERMINAL_PROFILES = {"claude-code": "tb2-claude-code"}


def profile_of(workload: str, agents: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """The profile in place of an agent workload, and its settings.

    Stand-in tasks get the profile of what they stand in for: they have none of their own.

    Args:
        agents: settings of the real agents, which say which agent and which mix.

    Raises:
        UsageError: the mix is wrong.
    """
    if workload == MIXED:
        weights: dict[str, float] = {}
        mix = read_mix(agents)
        for part, weight in mix.parts.items():
            profile, _ = profile_of(part, mix.of(part))
            weights[profile] = weights.get(profile, 0.0) + weight
        return "mixed", {"parts": ", ".join(f"{name}={w:g}" for name, w in weights.items())}
    if workload in _TERMINAL:
        return _TERMINAL_PROFILES.get(str(agents.get("agent")), "tb2-terminus2"), {}
    return _PROFILES[workload], {}
