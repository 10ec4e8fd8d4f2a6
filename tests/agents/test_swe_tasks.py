"""Task sets of SWE-bench: where instances come from, and which are taken."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentsched import InputError, UsageError
from workloads.agents.limits import ClientLimits, split_limits
from workloads.agents.mini_swe import STANDIN, SweBenchLite, SweBenchStandin, read_settings
from workloads.agents.registry import agent_workloads, find_driver
from workloads.agents.swe_tasks import (
    file_instances,
    hub_instances,
    id_list,
    repeated,
    select,
)

INSTANCES = [
    {"instance_id": f"{repo}-{number}", "problem_statement": "p"}
    for repo, number in (("a__a", 1), ("a__a", 2), ("b__b", 3), ("b__b", 4), ("c__c", 5))
]


def ids(instances: list[Any]) -> list[str]:
    return [instance["instance_id"] for instance in instances]


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ({}, ["a__a-1", "a__a-2", "b__b-3", "b__b-4", "c__c-5"]),
        ({"ids": ["b__b-4", "a__a-1"]}, ["b__b-4", "a__a-1"]),
        ({"pattern": "a__|c__"}, ["a__a-1", "a__a-2", "c__c-5"]),
        ({"part": "1:3"}, ["a__a-2", "b__b-3"]),
        ({"part": "::2"}, ["a__a-1", "b__b-3", "c__c-5"]),
        ({"part": "-1:"}, ["c__c-5"]),
        ({"pattern": "b__", "part": ":1"}, ["b__b-3"]),
    ],
)
def test_selection(wanted: dict[str, Any], expected: list[str]) -> None:
    assert ids(select(INSTANCES, **wanted)) == expected


def test_a_shuffle_is_the_seeds_own() -> None:
    orders = [ids(select(INSTANCES, shuffle_seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == ids(INSTANCES)


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"ids": ["a__a-1", "z"]}, "1 of the ids are not in the task set: z"),
        ({"pattern": "["}, "`filter`"),
        ({"part": "first"}, "`slice`"),
        ({"part": "0:5:0"}, "`slice`"),
        ({"pattern": "zzz"}, "no task is left"),
    ],
)
def test_what_cannot_be_selected(wanted: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        select(INSTANCES, **wanted)


def test_repeats_and_sessions() -> None:
    two = INSTANCES[:2]
    assert [t.id for t in repeated(two, 2, None, 5.0)] == [
        "a__a-1",
        "a__a-2",
        "a__a-1@2",
        "a__a-2@2",
    ]
    assert [t.id for t in repeated(two, 1, 3, None)] == ["a__a-1", "a__a-2", "a__a-1@2"]
    assert [t.id for t in repeated(two, 3, 1, None)] == ["a__a-1"]
    assert repeated(two, 1, 1, 5.0)[0].timeout_s == 5.0


def test_ids_by_list_text_or_file(tmp_path: Path) -> None:
    file = tmp_path / "ids.txt"
    file.write_text("# wanted\na__a-1\n\n b__b-3 \n")
    assert id_list(str(file)) == ["a__a-1", "b__b-3"]
    assert id_list("a__a-1, b__b-3") == ["a__a-1", "b__b-3"]
    assert id_list(["a__a-1"]) == ["a__a-1"]
    assert id_list(None) is None


def test_a_file_of_instances_without_their_solutions(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    instance = {"instance_id": "x-1", "problem_statement": "p", "patch": "secret", "repo": "x/x"}
    file.write_text(json.dumps(instance) + "\n\n")
    [task] = SweBenchLite().tasks({"tasks": str(file)}, sessions=None, seed=0)
    assert (task.id, dict(task.payload)) == (
        "x-1",
        {"instance_id": "x-1", "problem_statement": "p", "repo": "x/x"},
    )


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "holds no instances"),
        ("{", "line 1: no JSON"),
        ("[]", "line 1: not an object"),
        ('{"instance_id": "a"}', "line 1, field `problem_statement`: must be text"),
        (
            '{"instance_id": "a", "problem_statement": "p"}\n' * 2,
            "line 2, field `instance_id`: `a` is on line 1 too",
        ),
    ],
)
def test_a_wrong_file_is_named_with_line_and_field(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text(text)
    with pytest.raises(InputError) as caught:
        file_instances(file)
    assert said in caught.value.message
    assert str(file) in caught.value.message


def test_a_data_set_without_its_package_or_its_hub_is_refused(tmp_path: Path) -> None:
    fake = tmp_path / "python"
    fake.write_text("#!/bin/sh\necho 'No module named datasets' >&2; exit 3\n")
    fake.chmod(0o755)
    with pytest.raises(UsageError, match="needs the package `datasets`"):
        hub_instances("some/SET", "test", str(fake))
    fake.write_text("#!/bin/sh\necho \"Couldn't reach 'some/SET' on the Hub\" >&2; exit 4\n")
    with pytest.raises(UsageError, match="cannot be had: Couldn't reach") as caught:
        hub_instances("some/SET", "test", str(fake))
    assert "tasks: standin" in caught.value.remedy
    fake.write_text('#!/bin/sh\necho \'{"instance_id": "a", "problem_statement": "p"}\'\n')
    assert ids(hub_instances("some/SET", "test", str(fake))) == ["a"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"stepp_limit": 3}, "no setting `stepp_limit`"),
        ({"environment": "chroot"}, "`environment`"),
        ({"environment": "local"}, "on this machine"),
        ({"repeats": 0}, "`repeats`"),
        ({"model_attempts": 1.5}, "`model_attempts`"),
        ({"session_limit_s": -1}, "session_limit_s"),
    ],
)
def test_wrong_settings(given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        read_settings(given)


def test_where_commands_run() -> None:
    assert read_settings({}).where == "docker"
    assert read_settings({"tasks": STANDIN}).where == "bubblewrap"
    assert read_settings({"repos": "somewhere"}).where == "bubblewrap"
    assert read_settings({"environment": "local", "unsafe_local": True}).where == "local"


def test_checkouts_must_be_there(tmp_path: Path) -> None:
    file = tmp_path / "tasks.jsonl"
    file.write_text("".join(json.dumps(instance) + "\n" for instance in INSTANCES[:2]))
    (tmp_path / "a__a-1").mkdir()
    settings = {"tasks": str(file), "repos": str(tmp_path)}
    with pytest.raises(UsageError, match="no checkout of 1 instance"):
        SweBenchLite().tasks(settings, sessions=None, seed=0)
    [task] = SweBenchLite().tasks({**settings, "slice": ":1"}, sessions=None, seed=0)
    assert task.id == "a__a-1"


def test_limits_are_told_apart_from_settings() -> None:
    limits, rest = split_limits({"grace_s": 5, "step_limit": 3})
    assert (limits, rest) == (ClientLimits(grace_s=5), {"step_limit": 3})


def test_workloads_by_name(tmp_path: Path) -> None:
    assert {"swe-bench-lite", "swe-bench-verified", "swe-bench-standin"} <= set(agent_workloads())
    driver = find_driver("swe-bench-standin")
    assert isinstance(driver, SweBenchStandin)
    assert len(driver.tasks({}, sessions=None, seed=0)) == 8
    script = driver.script(tmp_path, {})
    assert script is not None
    assert len(script.read_text().splitlines()) == 72
    assert SweBenchLite().script(tmp_path, {"tasks": "hub"}) is None
    with pytest.raises(UsageError, match="no agent runs"):
        find_driver("swe-bench-none")
