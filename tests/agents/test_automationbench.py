"""AutomationBench: the stand-in end to end over HTTP, and the published program's driver."""

from __future__ import annotations

import json
import stat
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from agentsched import UsageError
from harness.live.emulated_answers import ScriptBook, ScriptLine, read_script
from tests.agents.stage import Cell, play
from tests.live.rig import run
from workloads.agents.automationbench import AutomationBench, AutomationBenchSynthetic
from workloads.agents.automationbench_relay import called_tools
from workloads.agents.automationbench_world import (
    APPLICATIONS,
    World,
    make_task,
    system_prompt,
    task_names,
    tool_schemas,
)

SHORT = {"domains": ["support"], "first": 0, "count": 100}


def test_the_stand_in_has_the_shape_of_the_published_runs() -> None:
    tasks = [make_task(name) for name in task_names()]
    assert Counter(task.domain for task in tasks) == dict.fromkeys(APPLICATIONS, 100)
    turns = sorted(len(task.turns) + 1 for task in tasks)  # and the closing one
    calls = [sum(map(len, task.turns)) for task in tasks]
    tokens = [n for task in tasks for n in task.output_tokens]
    # Published (four models): model calls p50 16-20, mean 21.4-23.1, cap 50; tool calls mean
    # 37-44, 1.75-2.09 a model call; output mean 340-448; first prompt 2.6k-4.6k tokens.
    assert turns[-1] == 50
    assert 16 <= turns[300] <= 20
    assert 21.4 <= sum(turns) / 600 <= 23.1
    assert 37 <= sum(calls) / 600 <= 44
    assert 1.75 <= sum(calls) / sum(turns) <= 2.09
    assert 340 <= sum(tokens) / len(tokens) <= 448
    for domain in APPLICATIONS:
        assert 1000 <= len(system_prompt(domain)) + len(json.dumps(tool_schemas(domain))) <= 18_400
    waits = sorted(World(task).seconds() for task in tasks)
    assert 0.006 < waits[300] < 0.011  # 8 to 9 ms


def test_the_plan_of_a_task_solves_it_and_nothing_less_does() -> None:
    for task in map(make_task, task_names()[::7]):
        world = World(task)
        assert world.score()[0] == 0
        for turn in task.turns:
            right, assertions = world.score()
            assert right < assertions
            for call in turn:
                assert "error" not in json.loads(world.call(call.name, json.dumps(call.arguments)))
        assert world.score() == (assertions, assertions)
        assert len(task.targets) + 1 == assertions


def test_the_world_answers_mistakes() -> None:
    world = World(make_task("hr-007"))
    for name, arguments in (
        ("people_get", "{not json"),
        ("people_get", "[]"),
        ("people_get", '{"id": "people-999"}'),
        ("people_fire", '{"id": "people-001"}'),
        ("nothing_get", "{}"),
    ):
        assert "error" in json.loads(world.call(name, arguments)), (name, arguments)
    assert world.calls == 5
    with pytest.raises(ValueError, match="no task"):
        make_task("law-001")


def played(
    folder: Path, driver: Any, settings: dict[str, Any], script: Any, sessions: int, workers: int
) -> Cell:
    found: list[Cell] = []

    async def inside() -> None:
        tasks = driver.tasks(settings, sessions=sessions, seed=0)
        cell = await play(
            folder, tasks, workers=workers, driver=driver, settings=settings, script=script
        )
        found.append(cell)

    run(inside, limit_s=120.0)
    return found[0]


def short_answers(script: ScriptBook) -> ScriptBook:
    """The same answers in fewer tokens: tests need not wait for them."""
    return ScriptBook(
        ScriptLine(line.content, line.calls, min(line.tokens or 8, 8), line.task) for line in script
    )


def test_the_stand_in_is_solved_through_the_gateway(tmp_path: Path) -> None:
    driver = AutomationBenchSynthetic()
    assert driver.check(SHORT) == {}
    script = driver.script(tmp_path, SHORT)
    assert script is not None
    cell = played(tmp_path, driver, SHORT, short_answers(read_script(script)), 4, 2)
    assert set(cell.statuses.values()) == {"finished"}
    assert cell.played.facts["agent_reward_mean"] == 1.0
    for session in cell.statuses:
        task = make_task(session.removeprefix("synthetic-"))
        turns = cell.turns_of(session)
        assert [turn.status for turn in turns] == ["ok"] * (len(task.turns) + 1)
        assert sum(turn.tool_s for turn in turns) > 0.004 * sum(map(len, task.turns))
        [log] = (cell.folder / session).glob("conversation.json")
        messages = json.loads(log.read_text())
        assert messages[1]["content"] == task.instruction
        assert Counter(m["role"] for m in messages)["tool"] == sum(map(len, task.turns))


def test_a_model_that_never_ends_is_stopped_after_the_steps(tmp_path: Path) -> None:
    calls = (("tickets_get", '{"id": "tickets-001"}'),)
    settings = {**SHORT, "max_steps": 3}
    script = ScriptBook([ScriptLine("again", calls, 4)])
    cell = played(tmp_path, AutomationBenchSynthetic(), settings, script, 1, 1)
    assert list(cell.statuses.values()) == ["finished"]
    assert len(cell.records.turns) == 3
    assert cell.played.facts["agent_reward_mean"] == 0.0


@pytest.mark.parametrize(
    ("settings", "match"),
    [
        ({"max_step": 3}, "no setting `max_step`"),
        ({"max_steps": "3"}, "max_steps: '3'"),
        ({"max_steps": 0}, "max_steps, first and count"),
        ({"domains": ["law"]}, "domains: `law`"),
        ({"first": 600}, "no task is left"),
    ],
)
def test_wrong_settings_are_named(settings: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match):
        AutomationBenchSynthetic().tasks(settings, sessions=None, seed=0)


def test_tasks_are_in_the_order_of_the_seed_and_begin_anew() -> None:
    driver = AutomationBenchSynthetic()
    ids = [task.id for task in driver.tasks({}, sessions=605, seed=1)]
    assert len(set(ids)) == 605
    assert ids[600:] == [f"{name}@2" for name in ids[:5]]
    assert ids == [task.id for task in driver.tasks({}, sessions=605, seed=1)]
    assert ids[:600] != [task.id for task in driver.tasks({}, sessions=600, seed=2)]
    unshuffled = driver.tasks({"shuffle": False, "domains": "hr"}, sessions=1, seed=1)
    assert unshuffled[0].id == "synthetic-hr-000"


# The published program, played by a program that takes its options.

PROGRAM = """\
#!{python}
import argparse, json, time, urllib.request
p = argparse.ArgumentParser()
for name in ("model", "base-url", "api-key", "max-steps", "max-concurrent", "skip",
             "num-examples", "export-json"):
    p.add_argument("--" + name, required=True)
p.add_argument("--stream", action="store_true")
a = p.parse_args()
messages = [{{"role": "user", "content": f"Task number {{a.skip}}"}}]
if int(a.skip) == 7:
    raise SystemExit("task 7 is broken")
for step in range(int(a.max_steps)):
    body = {{"model": a.model, "messages": messages, "stream": a.stream}}
    request = urllib.request.Request(a.base_url + "/chat/completions", json.dumps(body).encode(),
                                     {{"content-type": "application/json"}})
    answer = urllib.request.urlopen(request).read()
    if a.stream:
        messages += [{{"role": "assistant", "content": "?"}}, {{"role": "user", "content": "on"}}]
        break
    message = json.loads(answer)["choices"][0]["message"]
    messages.append(message)
    if not message.get("tool_calls"):
        break
    time.sleep(0.1)
    messages += [{{"role": "tool", "tool_call_id": c["id"], "content": "x"}}
                 for c in message["tool_calls"]]
task = {{"id": 1, "name": "sales.x", "score": 0.5, "passed": True, "num_model_calls": step + 1,
        "num_tool_calls": 2, "input_tokens": 9, "output_tokens": 8, "messages": []}}
json.dump({{"meta": {{}}, "summary": {{}}, "tasks": [task]}}, open(a.export_json, "w"))
"""


@pytest.fixture
def program(tmp_path: Path) -> str:
    path = tmp_path / "auto-bench"
    path.write_text(PROGRAM.format(python=sys.executable))
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path)


SCRIPT = ScriptBook(
    [
        ScriptLine("", (("a_get", "{}"), ("b_get", "{}")), 4),
        ScriptLine("", (("c_get", "{}"),), 4),
        ScriptLine("done", (), 4),
    ]
)


def test_the_published_program_is_run_task_by_task(tmp_path: Path, program: str) -> None:
    driver, settings = AutomationBench(), {"program": program, "first": 6, "count": 2}
    assert driver.check(settings) == {"auto-bench": program}
    assert driver.script(tmp_path, settings) is None
    cell = played(tmp_path, driver, settings, SCRIPT, 2, 2)
    assert cell.statuses == {"automation-bench-006": "finished", "automation-bench-007": "failed"}
    turns = cell.turns_of("automation-bench-006")
    assert [turn.status for turn in turns] == ["ok"] * 3
    # What passes between an answer and the next request: 0.1 s of sleep, twice.
    spent = [turn.tool_s for turn in turns[:-1]]
    assert min(spent) > 0.09, spent
    assert (cell.folder / "automation-bench-006" / "export.json").is_file()


def test_streams_pass_through_the_relay(tmp_path: Path, program: str) -> None:
    settings = {"program": program, "count": 1, "options": "--stream"}
    cell = played(tmp_path, AutomationBench(), settings, SCRIPT, 1, 1)
    assert cell.statuses == {"automation-bench-000": "finished"}
    assert [turn.status for turn in cell.records.turns] == ["ok"]


def test_without_the_program_the_stand_in_is_named(tmp_path: Path) -> None:
    for name in ("auto-bench-that-is-not-here", "/bin/true", "/bin/false", ""):
        with pytest.raises(UsageError) as caught:
            AutomationBench().check({"program": name})
        assert "automationbench-synthetic" in caught.value.remedy


def test_tools_of_answers_whole_and_streamed() -> None:
    whole = {"choices": [{"message": {"tool_calls": [{"function": {"name": "a"}}]}}]}
    parts = [
        {"choices": [{"delta": {"tool_calls": [{"function": {"name": "a", "arguments": ""}}]}}]},
        {"choices": [{"delta": {"tool_calls": [{"function": {"arguments": "{}"}}]}}]},
        {"choices": [], "usage": {}},
    ]
    assert called_tools(json.dumps(whole).encode()) == ["a"]
    stream = b"".join(b"data: " + json.dumps(part).encode() + b"\n\n" for part in parts)
    assert called_tools(stream + b"data: [DONE]\n\n") == ["a"]
    assert called_tools(b"") == called_tools(b"<html>") == called_tools(b"[1]") == []
