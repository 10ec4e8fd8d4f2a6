"""Drivers of real agents by workload name."""

from __future__ import annotations

from importlib import import_module

from agentsched import UsageError
from workloads.agents.base import AgentDriver

DRIVERS: dict[str, str] = {
    "swe-bench-lite": "workloads.agents.mini_swe:SweBenchLite",
    "swe-bench-verified": "workloads.agents.mini_swe:SweBenchVerified",
    "swe-bench-standin": "workloads.agents.mini_swe:SweBenchStandin",
    "terminal-bench-2": "workloads.agents.harbor:TerminalBench",
    "terminal-bench-standin": "workloads.agents.harbor:TerminalBenchStandin",
    "automation-bench": "workloads.agents.automationbench:AutomationBench",
    "automationbench-synthetic": "workloads.agents.automationbench:AutomationBenchSynthetic",
    "mixed-agents": "workloads.agents.mixed:MixedAgents",
}
"""Workload name: module and class, imported when asked for."""


def agent_workloads() -> tuple[str, ...]:
    """Names of the workloads that real agents can run."""
    return tuple(DRIVERS)


def find_driver(name: str) -> AgentDriver:
    """The driver of a workload.

    Raises:
        UsageError: no agent runs this workload.
    """
    if name not in DRIVERS:
        raise UsageError(
            f"no agent runs the workload `{name}`",
            f"agents run {', '.join(DRIVERS)}; everything else is replayed",
        )
    module, _, cls = DRIVERS[name].partition(":")
    found: AgentDriver = getattr(import_module(module), cls)()
    return found
