"""AutomationBench: the published program where there is one, and a stand-in of our own.

`automation-bench` runs `auto-bench` (github.com/zapier/AutomationBench) one task at a time;
`automationbench-synthetic` has the same shape and needs nothing (`automationbench_world`).
"""

from __future__ import annotations

import json
import random
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from agentsched import UsageError
from workloads.agents.automationbench_world import (
    APPLICATIONS,
    MAX_STEPS,
    NAME,
    SyntheticTask,
    make_task,
    task_names,
)
from workloads.agents.base import AgentTask
from workloads.agents.client import client_command
from workloads.agents.limits import split_limits

PUBLIC_TASKS = 600
"""Six domains of 100 (arXiv 2604.18934)."""
_GET = (
    "get it from github.com/zapier/AutomationBench and set `program` (such as "
    f'"uv run --project FOLDER auto-bench"), or use the stand-in `{NAME}`'
)


@dataclass(frozen=True, slots=True)
class BenchSettings:
    """Settings of both workloads."""

    max_steps: int = MAX_STEPS
    first: int = 0
    """Number of the first task."""
    count: int = PUBLIC_TASKS
    """How many tasks."""
    shuffle: bool = True
    """Take tasks up in an order drawn from the seed, not domain after domain."""
    domains: tuple[str, ...] = ()
    """Of the stand-in; none: all six."""
    program: str = "auto-bench"
    """Command of the published program."""
    options: str = ""
    """More options for it."""


def read_settings(given: Mapping[str, Any]) -> BenchSettings:
    """Settings as a specification gives them.

    Raises:
        UsageError: names the setting.
    """
    _, own = split_limits(given)
    names = {f.name: f.default for f in fields(BenchSettings)}
    values = dict(own)
    for name, value in own.items():
        if name not in names:
            raise UsageError(
                f"AutomationBench has no setting `{name}`", f"one of {', '.join(names)}"
            )
        if name == "domains":
            values[name] = (value,) if isinstance(value, str) else tuple(value)
        elif type(value) is not type(names[name]):
            raise UsageError(f"{name}: {value!r}", f"give {type(names[name]).__name__}")
    settings = BenchSettings(**values)
    for domain in settings.domains:
        if domain not in APPLICATIONS:
            raise UsageError(f"domains: `{domain}`", f"one of {', '.join(APPLICATIONS)}")
    if not 1 <= settings.max_steps <= 1000 or settings.first < 0 or settings.count < 1:
        raise UsageError(
            "max_steps, first and count", "give max_steps 1 to 1000, first 0 or more, count 1 up"
        )
    return settings


def _in_order(
    tasks: list[AgentTask], settings: BenchSettings, sessions: int | None, seed: int
) -> list[AgentTask]:
    if settings.shuffle:
        random.Random(seed).shuffle(tasks)
    count = len(tasks) if sessions is None else sessions
    taken: list[AgentTask] = []
    for number in range(count):
        task, round_ = tasks[number % len(tasks)], number // len(tasks)
        name = task.id if round_ == 0 else f"{task.id}@{round_ + 1}"
        taken.append(AgentTask(name, task.payload))
    return taken


class AutomationBench:
    """`automation-bench`."""

    name = "automation-bench"
    about = "AutomationBench's own program, one task a session"

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """That the program is there.

        Raises:
            UsageError: it is not, with where to get it.
        """
        program = shlex.split(read_settings(settings).program)
        if not program or shutil.which(program[0]) is None:
            raise UsageError("AutomationBench's program `auto-bench` is not here", _GET)
        done = subprocess.run(
            [*program, "--help"],
            capture_output=True,
            text=True,
            stdin=subprocess.DEVNULL,
            check=False,
        )
        missing = [o for o in ("--base-url", "--skip", "--export-json") if o not in done.stdout]
        if done.returncode != 0 or missing:
            what = f"does not know {missing[0]}" if done.returncode == 0 else "does not start"
            raise UsageError(f"`{shlex.join(program)}` {what}", _GET)
        return {"auto-bench": shutil.which(program[0]) or program[0]}

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        """The tasks by their number in the program's order."""
        read = read_settings(settings)
        numbers = range(read.first, read.first + read.count)
        tasks = [AgentTask(f"automation-bench-{n:03}", self._payload(n)) for n in numbers]
        return _in_order(tasks, read, sessions, seed)

    def _payload(self, number: int) -> Mapping[str, Any]:
        return {"skip": number}

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """The client process."""
        return client_command("workloads.agents.automationbench_client")

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """None: the answers to the published tasks are not ours to know."""
        return None


class AutomationBenchSynthetic:
    """`automationbench-synthetic`."""

    name = NAME
    about = "stand-in for AutomationBench: an office of our own, 8 ms tools"

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """That the settings are right; nothing else is needed."""
        read_settings(settings)
        return {}

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        """Tasks of the domains.

        Raises:
            UsageError: none is left.
        """
        read = read_settings(settings)
        wanted = read.domains or tuple(APPLICATIONS)
        names = [name for name in task_names() if name.rpartition("-")[0] in wanted]
        names = names[read.first : read.first + read.count]
        if not names:
            raise UsageError("no task is left", f"`first` must be below {len(task_names())}")
        tasks = [AgentTask(f"synthetic-{name}", {"name": name}) for name in names]
        return _in_order(tasks, read, sessions, seed)

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """The client process."""
        return client_command("workloads.agents.automationbench_synthetic")

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Nothing."""
        return {}

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """Answers that solve every task."""
        path = folder / f"{NAME}.jsonl"
        with path.open("w") as file:
            for name in task_names():
                for line in script_lines(make_task(name)):
                    file.write(json.dumps(line) + "\n")
        return path


def script_lines(task: SyntheticTask) -> list[dict[str, Any]]:
    """Answers that solve one task, for `agentsched emulate`."""
    marker = f"Task synthetic {task.name}."
    lines: list[dict[str, Any]] = [
        {
            "task": marker,
            "content": f"Step {number + 1}.",
            "tool_calls": [{"name": c.name, "arguments": dict(c.arguments)} for c in calls],
            "tokens": task.output_tokens[number],
        }
        for number, calls in enumerate(task.turns)
    ]
    return [*lines, {"task": marker, "content": "Done.", "tokens": task.output_tokens[-1]}]
