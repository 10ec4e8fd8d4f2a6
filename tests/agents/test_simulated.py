"""Agent workloads by the same names where no agents run: generated profiles, shown as such."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentsched import UsageError
from cli.plan_lines import plan_lines
from harness.overrides import Flags
from harness.plan import Plan, plan
from harness.spec import load_spec
from tests.cli.command import agentsched
from workloads.agents.registry import agent_workloads


def planned(workload: str, *assignments: str, engine: str = "sim") -> Plan:
    flags = Flags(
        engine=engine,
        model="qwen3-8b",
        topology="4x1xh100",
        schedulers=["round-robin"],
        workloads=[workload],
        workers=[2],
        assignments=["workloads.0.sessions=3", *assignments],
    )
    return plan(load_spec(None, flags))


@pytest.mark.parametrize(
    ("name", "profile"),
    [
        ("swe-bench-lite", "swe-bench-mini-short"),
        ("terminal-bench-2", "tb2-terminus2"),
        ("automation-bench", "automationbench"),
        ("mixed-agents", "mixed"),
    ],
)
def test_the_profile_is_named_and_says_what_it_stands_for(name: str, profile: str) -> None:
    found = planned(name)
    [workload] = found.workloads
    assert (workload.name, workload.in_place_of, workload.driver) == (profile, name, None)
    assert workload.sessions == 3
    facts = found.manifest("simulated")["workloads"][profile]
    assert facts["in_place_of"] == name
    lines = "\n".join(plan_lines(found, Path("out"), 1))
    assert f"{profile} (generated, in place of {name}): 2 workers" in lines


def test_settings_of_agents_choose_the_profile_and_those_of_the_profile_hold() -> None:
    [workload] = planned("terminal-bench-2", "workloads.0.agents.agent=claude-code").workloads
    assert workload.name == "tb2-claude-code"
    [short] = planned("swe-bench-lite").workloads
    [shorter] = planned("swe-bench-lite", "workloads.0.settings.bound_tokens=12000").workloads
    assert shorter.prompt_tokens < short.prompt_tokens


def test_a_replay_on_the_emulator_takes_the_profile_too() -> None:
    found = planned("swe-bench-lite", "workloads.0.play=replay", engine="emulator")
    assert found.workloads[0].in_place_of == "swe-bench-lite"
    assert found.jobs(Path("run"))[0].workload == "swe-bench-mini-short"


def test_chat_beside_agents_has_an_entry_of_its_own() -> None:
    found = planned(
        "mixed-agents",
        "workloads.0.agents.parts={automationbench-synthetic: 1}",
        "workloads.0.agents.background={workload: mooncake-chat, rate_per_s: 2}",
        engine="emulator",
    )
    assert [w.driver for w in found.workloads] == ["mixed-agents"]
    entries = found.manifest("emulated")["workloads"]
    assert entries["mooncake-chat-beside-mixed-agents-2w"] == {
        "origins": ["generated"],
        "rate_per_s": 2,
        "arrivals": "poisson",
        "played_by": "replay",
        "beside": "mixed-agents",
    }


def test_a_real_workload_and_a_wrong_name_are_as_before() -> None:
    assert planned("azure-chat").workloads[0].in_place_of is None
    with pytest.raises(UsageError, match="unknown workload"):
        planned("swe-bench-light")


def test_list_shows_what_agents_run(tmp_path: Path) -> None:
    shown = agentsched("list", "workloads", cwd=tmp_path).stdout
    for name in agent_workloads():
        assert name in shown
    one = agentsched("list", "workloads", "terminal-bench-standin", cwd=tmp_path).stdout
    assert "real agents" in one
    assert "tb2-terminus2" in one
