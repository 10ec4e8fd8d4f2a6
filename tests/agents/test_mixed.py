"""Mixes of agents: shares, order, settings, scripts; played with chat beside them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import UsageError
from harness.live.agents.background import Background
from harness.live.emulated_answers import read_script
from harness.live.replay import ReplaySettings
from results.cells import CellId
from results.run import Run
from results.store import CellState
from results.writer import CellWriter
from tests.agents.stage import Cell, FakeDriver, play
from tests.live.rig import run
from workloads.agents import mixed, registry
from workloads.agents.automationbench_world import make_task, task_names
from workloads.agents.base import AgentTask
from workloads.agents.harbor_standin import STANDIN_TASKS
from workloads.agents.mixed import MixedAgents, read_settings, share_out
from workloads.agents.swe_standin import standin_tasks
from workloads.in_place import profile_of
from workloads.profiles.generate import PROFILES

MIX = {"parts": {"automationbench-synthetic": 1, "automation-bench": 3}}


@given(
    st.lists(st.floats(0.01, 100.0), min_size=1, max_size=6),
    st.integers(1, 300),
)
@settings(max_examples=100, deadline=None)
def test_shares_are_within_one_of_what_is_due(weights: list[float], count: int) -> None:
    named = {str(index): weight for index, weight in enumerate(weights)}
    shares = share_out(named, count)
    assert sum(shares.values()) == count
    for name, share in shares.items():
        assert abs(share - count * named[name] / sum(weights)) < 1 + 1e-9


def test_largest_remainders_by_hand() -> None:
    # 10 * (2, 1, 1) / 4 = (5, 2.5, 2.5): the one that is left goes to the first of equals.
    assert share_out({"a": 2, "b": 1, "c": 1}, 10) == {"a": 5, "b": 3, "c": 2}


def test_tasks_keep_their_weights_and_change_order_with_the_seed() -> None:
    driver = MixedAgents()
    tasks = driver.tasks(MIX, sessions=16, seed=0)
    assert Counter(task.part for task in tasks) == {
        "automation-bench": 12,
        "automationbench-synthetic": 4,
    }
    assert [task.part for task in tasks] != sorted(task.part for task in tasks)
    assert driver.tasks(MIX, sessions=16, seed=0) == tasks
    assert [t.part for t in driver.tasks(MIX, sessions=16, seed=1)] != [t.part for t in tasks]
    payloads = {task.part: task.payload for task in tasks}
    assert set(payloads["automation-bench"]) == {"skip"}


def test_without_a_number_it_ends_where_the_first_part_runs_out() -> None:
    # 600 of automation-bench at 3 of 4 are 800 in all; automationbench-synthetic gives 200.
    tasks = MixedAgents().tasks(MIX, sessions=None, seed=0)
    assert Counter(task.part for task in tasks) == {
        "automation-bench": 600,
        "automationbench-synthetic": 200,
    }
    assert len({task.id for task in tasks}) == 800


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"parts": {"mixed-agents": 1}}, "mixed-agents"),
        ({"parts": {"azure-chat": 1}}, "azure-chat"),
        ({"parts": {}}, "empty"),
        ({"parts": {"automation-bench": 0}}, "weight"),
        ({"parts": ["automation-bench"]}, "parts"),
        ({"weights": {}}, "weights"),
        ({"part_settings": {"swe-bench-lite": {}}}, "swe-bench-lite"),
        ({"part_settings": {"swe-bench-standin": {"grace_s": 1}}}, "grace_s"),
        ({"background": {"rate": 1}}, "rate"),
        ({"background": {"rate_per_s": "fast"}}, "rate_per_s"),
        ({"background": {"sessions": 0}}, "sessions"),
    ],
)
def test_wrong_settings_are_named(given: Mapping[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        read_settings(given)


@pytest.mark.parametrize(
    "background", [{"workload": "none-such"}, {"process": "bursty"}, {"rate_per_s": 0}]
)
def test_chat_that_cannot_be_had_is_found_before_anything_runs(background: Any) -> None:
    given = {"parts": {"automationbench-synthetic": 1}, "background": background}
    with pytest.raises(UsageError):
        MixedAgents().check(given)


def test_a_merged_script_leads_every_task_to_its_own_lines(tmp_path: Path) -> None:
    path = MixedAgents().script(tmp_path, {})
    assert path is not None
    book = read_script(path)
    prompts = [task.problem for task in standin_tasks()]
    prompts += [f"Task {task.name}.\n\n{task.instruction}" for task in STANDIN_TASKS]
    prompts += [make_task(name).instruction for name in task_names()]
    names = {name for prompt in prompts for name in book.names.findall(prompt)}
    assert names == set(book.by_task)
    for prompt in prompts:
        assert len(set(book.names.findall(prompt))) == 1


def test_each_agent_workload_has_a_generated_profile() -> None:
    for name in registry.agent_workloads():
        profile, values = profile_of(name, {})
        assert profile in PROFILES
        assert bool(values) == (name == "mixed-agents")
    assert profile_of("terminal-bench-2", {"agent": "claude-code"})[0] == "tb2-claude-code"
    _, values = profile_of("mixed-agents", {"parts": {"swe-bench-lite": 3, "automation-bench": 1}})
    assert values == {"parts": "swe-bench-mini-short=3, automationbench=1"}


class Slow(FakeDriver):
    """One part of a mix; its tasks are the fake client's."""

    name = "slow"

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        return [
            AgentTask(f"{self.name}-{number}", {"turns": 3, "tool_s": 0.3})
            for number in range(3 if sessions is None else sessions)
        ]


class Quick(Slow):
    """Another."""

    name = "quick"


def played(folder: Path, chat: Background | None, given: Mapping[str, Any], sessions: int) -> Cell:
    found: list[Cell] = []
    driver = MixedAgents()
    tasks = driver.tasks(given, sessions=sessions, seed=0)

    async def inside() -> None:
        found.append(
            await play(folder, tasks, workers=2, driver=driver, settings=given, background=chat)
        )

    run(inside)
    return found[0]


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    for name, cls in (("slow", Slow), ("quick", Quick)):
        monkeypatch.setitem(registry.DRIVERS, name, f"{__name__}:{cls.__name__}")
    return {"parts": {"slow": 1, "quick": 1}, "part_settings": {"quick": {"a": 7}}}


def background(folder: Path, sessions: int, rate: float) -> tuple[Background, CellId]:
    cell = CellId("chat-beside-agents-2w", "round-robin", 0, 0)
    chat = mixed.BackgroundSettings(rate_per_s=rate, sessions=sessions).load(0)
    return (
        Background(chat, ReplaySettings(), lambda: CellWriter(folder, cell, "emulated")),
        cell,
    )


def test_parts_and_chat_are_recorded_apart(tmp_path: Path, parts: Mapping[str, Any]) -> None:
    chat, cell = background(tmp_path, 200, 20.0)
    found = played(tmp_path, chat, parts, 6)
    assert found.played.invalid is None
    assert Counter(s.workload for s in found.records.sessions) == {"slow": 3, "quick": 3}
    assert {s.status for s in found.records.sessions} == {"finished"}
    assert {turn.workload for turn in found.records.turns} == {"slow", "quick"}
    assert all(turn.session.startswith(turn.workload) for turn in found.records.turns)
    assert len(found.records.turns) == 18
    assert found.played.facts["agent_parts"] == {
        name: {"sessions": 3, "finished": 3} for name in ("quick", "slow")
    }
    assert found.played.facts["client_processes"] == 4
    ended = [json.loads(x) for x in (found.folder / "sessions.jsonl").read_text().splitlines()]
    assert {(x["part"], x["facts"]["setting"]) for x in ended} == {("quick", 7), ("slow", None)}
    state = CellState(cell, "done", tmp_path / "cells" / cell.name)
    turns = Run(tmp_path, {}, "emulated", (state,), {}).table(cell, "turns")
    assert set(turns["workload"]) == {"azure-chat"}
    counters = found.played.counters
    cut_off = int((turns["status"] == "client_gone").sum())  # by the end of the agents
    assert (turns["status"] == "ok").sum() == len(turns) - cut_off > 5
    assert cut_off <= counters["background.cut_off"]
    assert counters["background.turns"] == len(turns)
    assert counters["background.sessions"] + counters["background.cut_off"] < 200
    # The chat comes as long as the agents are at work, and not before: 3 rounds of 2 x 0.3 s.
    assert turns["arrived"].min() >= min(turn.arrived for turn in found.records.turns) - 1e9
    assert turns["finished"].max() <= max(s.finished for s in found.records.sessions) + 1e9


def test_chat_that_runs_out_spoils_the_cell(tmp_path: Path, parts: Mapping[str, Any]) -> None:
    chat, _ = background(tmp_path, 2, 100.0)
    found = played(tmp_path, chat, parts, 4)
    assert found.played.invalid is not None
    assert "ran out" in found.played.invalid
