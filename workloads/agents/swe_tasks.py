"""Instances of SWE-bench: from the hub, a file, or the stand-in; and which of them are taken."""

from __future__ import annotations

import json
import os
import random
import re
import subprocess
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from agentsched import InputError, UsageError
from workloads.agents import swe_dataset
from workloads.agents.base import AgentTask
from workloads.agents.client import client_command
from workloads.agents.swe_standin import standin_tasks

Instance = Mapping[str, Any]
HUB_LIMIT_S = 1800.0
"""How long loading a data set may take. Our choice: the whole of SWE-bench over a slow line."""
_SLICE = re.compile(r"-?\d*:-?\d*(:-?\d+)?")


def hub_instances(name: str, split: str, python: str | None) -> list[Instance]:
    """Instances by `datasets.load_dataset(name, split=split)`.

    Args:
        python: the interpreter that has `datasets`; None: this one.

    Raises:
        UsageError: the package is missing, or the data set cannot be had.
    """
    command = [*client_command(swe_dataset.__name__, python), name, split]
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=HUB_LIMIT_S,
            env={**os.environ, **quiet},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{name} cannot be loaded: {error}", "check `python`") from None
    said = done.stderr.strip().splitlines()[-1:] or ["it did not say why"]
    if done.returncode == swe_dataset.MISSING:
        raise UsageError(
            f"{name} needs the package `datasets`: {said[0]}", "pip install 'agentsched[agents]'"
        )
    if done.returncode != 0:
        raise UsageError(
            f"the data set {name}, split {split}, cannot be had: {said[0]}",
            "connect to huggingface.co, or give `tasks: FILE.jsonl` with instances you have, "
            "or `tasks: standin`",
        )
    return [json.loads(line) for line in done.stdout.splitlines()]


def file_instances(path: Path) -> list[Instance]:
    """Instances of a JSON Lines file with `instance_id` and `problem_statement`.

    Raises:
        InputError: names file, line and field.
    """
    try:
        texts = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", "check the path", file=path) from None
    found: list[Instance] = []
    lines: dict[str, int] = {}
    for number, text in enumerate(texts, 1):
        if not text.strip():
            continue
        instance = _instance(path, number, text)
        name = instance["instance_id"]
        if name in lines:
            raise InputError(
                f"`{name}` is on line {lines[name]} too",
                "name each instance once",
                file=path,
                line=number,
                field="instance_id",
            )
        lines[name] = number
        found.append(instance)
    if not found:
        raise InputError("holds no instances", "write one JSON object a line", file=path)
    return found


def _instance(path: Path, number: int, text: str) -> Instance:
    remedy = 'as {"instance_id": "...", "problem_statement": "..."}, like the data sets on the hub'
    try:
        found = json.loads(text)
    except ValueError as error:
        raise InputError(f"no JSON: {error}", remedy, file=path, line=number) from None
    if not isinstance(found, dict):
        raise InputError("not an object", remedy, file=path, line=number)
    for field in ("instance_id", "problem_statement"):
        value = found.get(field)
        if not isinstance(value, str) or not value.strip():
            raise InputError("must be text", remedy, file=path, line=number, field=field)
    return {key: found[key] for key in swe_dataset.KEPT if found.get(key) is not None}


def standin_instances() -> list[Instance]:
    """The stand-in tasks; `files` holds the repository of each."""
    return [
        {
            "instance_id": task.id,
            "problem_statement": task.problem,
            "repo": "agentsched/standin",
            "files": dict(task.files),
        }
        for task in standin_tasks()
    ]


def id_list(value: str | Sequence[str] | None) -> list[str] | None:
    """Instance ids: a list, names with commas between, or a file with one a line.

    Raises:
        InputError: the file cannot be read.
    """
    if value is None or not isinstance(value, str):
        return None if value is None else [str(name) for name in value]
    if "," not in value and Path(value).is_file():
        try:
            lines = Path(value).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise InputError(f"cannot be read: {error}", "check the path", file=value) from None
        return [line.strip() for line in lines if line.strip() and not line.startswith("#")]
    return [name.strip() for name in value.split(",") if name.strip()]


def select(
    instances: Sequence[Instance],
    *,
    ids: Sequence[str] | None = None,
    pattern: str | None = None,
    part: str | None = None,
    shuffle_seed: int | None = None,
) -> list[Instance]:
    """Those of the instances that are wanted, in order.

    Args:
        ids: these, in this order.
        pattern: regular expression that the id must match from its start.
        part: a slice such as `0:5`, of what the others left.
        shuffle_seed: shuffle them; None: as they come.

    Raises:
        UsageError: an id is unknown, the expression or slice is none, or nothing is left.
    """
    found = list(instances)
    if ids is not None:
        by_id = {instance["instance_id"]: instance for instance in found}
        unknown = [name for name in ids if name not in by_id]
        if unknown:
            raise UsageError(
                f"{len(unknown)} of the ids are not in the task set: {', '.join(unknown[:3])}",
                "check `ids`, and the `split` they belong to",
            )
        found = [by_id[name] for name in ids]
    if pattern is not None:
        try:
            matches = re.compile(pattern)
        except re.error as error:
            raise UsageError(f"`filter`: {pattern}: {error}", "a regular expression") from None
        found = [instance for instance in found if matches.match(instance["instance_id"])]
    if shuffle_seed is not None:
        random.Random(f"{shuffle_seed}/tasks").shuffle(found)
    if part is not None:
        found = found[_slice(part)]
    if not found:
        raise UsageError("no task is left", "loosen `ids`, `filter` or `slice`")
    return found


def _slice(text: str) -> slice:
    if not _SLICE.fullmatch(text) or text.endswith(":0"):
        raise UsageError(f"`slice`: {text!r} is none", "as 0:5, 10: or ::2")
    return slice(*(int(number) if number else None for number in text.split(":")))


def repeated(
    instances: Iterable[Instance], repeats: int, sessions: int | None, timeout_s: float | None
) -> list[AgentTask]:
    """One task a session; the k-th copy of an instance is called `ID@k`.

    Args:
        repeats: how often all are done, one round after another.
        sessions: how many tasks in all, whatever `repeats` says; None: as many as there are.
    """
    base = list(instances)
    count = len(base) * repeats if sessions is None else sessions
    tasks: list[AgentTask] = []
    for number in range(count):
        instance, copy = base[number % len(base)], number // len(base) + 1
        name = instance["instance_id"] if copy == 1 else f"{instance['instance_id']}@{copy}"
        tasks.append(AgentTask(name, dict(instance), timeout_s))
    return tasks
