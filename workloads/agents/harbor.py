"""Terminal-Bench through Harbor: Terminus 2, Claude Code and mini-swe-agent, as published.

The client process runs one trial of Harbor a session: environment, agent and verifier are
Harbor's. `terminal-bench-2` takes the real task set by Harbor's loader, or a folder of tasks;
`terminal-bench-standin` has tasks of our own, and scripted answers for them.
"""

from __future__ import annotations

import json
import random
import subprocess
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, ClassVar

from agentsched import InputError, UsageError
from workloads.agents.base import AgentTask
from workloads.agents.bubblewrap import bubblewrap_version
from workloads.agents.client import client_command
from workloads.agents.harbor_scripts import script_lines
from workloads.agents.harbor_settings import (
    HarborSettings,
    agent_program,
    read_settings,
)
from workloads.agents.harbor_standin import (
    AGENT_TIMEOUT_S,
    NAME,
    STANDIN_TASKS,
    VERIFIER_TIMEOUT_S,
)
from workloads.agents.limits import split_limits

DEFAULT_TIMEOUT_S = 600.0
"""Of a task that names none (Harbor's default for agents and verifiers)."""
HARBOR_PYTHON = "3.12"

_GET_HARBOR = (
    f"make an environment of Python {HARBOR_PYTHON} or later, `pip install harbor` in it, and set "
    "`python` to its interpreter"
)


class TerminalBench:
    """`terminal-bench-2`."""

    name = "terminal-bench-2"
    about = "Terminal-Bench 2.0 by Harbor; agents terminus-2, claude-code, mini-swe"
    defaults: ClassVar[Mapping[str, Any]] = {}

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Versions of Harbor, and of bubblewrap and the agent's program where they are used.

        Raises:
            UsageError: something is missing or a setting is wrong.
        """
        read = self._read(settings)
        versions = {"harbor": _harbor_version(_python(read))}
        if read.sandboxed:
            versions["bubblewrap"] = bubblewrap_version()
            if read.inside:
                program = agent_program(read)
                versions[read.agent] = _first_line([str(program), "--version"]) or "unknown"
            elif _first_line(["tmux", "-V"]) is None:
                raise UsageError("Terminus types into tmux, which is not installed", "install tmux")
        return versions

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        """The tasks, shuffled by the seed, each `repeats` times; more sessions begin anew.

        Raises:
            UsageError: Harbor cannot get the task set, or no task is left.
            InputError: a task's folder is wrong.
        """
        read = self._read(settings)
        found = [task for task in self._found(read) if _wanted(task.id, read)]
        if not found:
            raise UsageError("no task is left", "see the settings `filter`, `exclude` and `tasks`")
        random.Random(seed).shuffle(found)
        count = len(found) * read.repeats if sessions is None else sessions
        return [_taken_up(found[i % len(found)], i // len(found)) for i in range(count)]

    def _found(self, settings: HarborSettings) -> list[AgentTask]:
        if settings.tasks is not None:
            return list(_local_tasks(Path(settings.tasks), settings))
        return _listed_tasks(settings)

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """The client, under Harbor's interpreter."""
        return client_command("workloads.agents.harbor_client", self._read(settings).python)

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Nothing of Harbor or litellm calls home."""
        return {
            "HARBOR_TELEMETRY": "off",
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DO_NOT_TRACK": "1",
        }

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """None: nobody wrote down how to solve these tasks."""
        return None

    def _read(self, settings: Mapping[str, Any]) -> HarborSettings:
        _, own = split_limits(settings)
        return read_settings({**self.defaults, **own})


class TerminalBenchStandin(TerminalBench):
    """`terminal-bench-standin`."""

    name = NAME
    about = "stand-in for Terminal-Bench: eight small tasks of our own, by Harbor"
    defaults: ClassVar[Mapping[str, Any]] = {
        "environment": "bubblewrap",
        "max_output_tokens": 8192,  # whatever model is emulated takes as much
    }

    def _found(self, settings: HarborSettings) -> list[AgentTask]:
        if settings.tasks is not None:
            raise UsageError(f"`{NAME}` has its own tasks", "use terminal-bench-2 with `tasks`")
        timeout = (AGENT_TIMEOUT_S + VERIFIER_TIMEOUT_S) * settings.timeout_multiplier
        return [
            AgentTask(task.name, {"standin": task.name, "defaults": dict(self.defaults)}, timeout)
            for task in STANDIN_TASKS
        ]

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """Answers that solve the tasks, for the agent of the settings."""
        read = self._read(settings)
        path = folder / f"{NAME}-{read.agent}.jsonl"
        lines = script_lines(read.agent, STANDIN_TASKS, parser=read.parser)
        path.write_text("".join(json.dumps(line) + "\n" for line in lines))
        return path


# Where tasks come from.


def _local_tasks(folder: Path, settings: HarborSettings) -> Iterator[AgentTask]:
    if not folder.is_dir():
        raise InputError("no such folder", "give a folder of Harbor's task folders", file=folder)
    for path in sorted(folder.iterdir()):
        config = path / "task.toml"
        if not config.is_file():
            continue
        try:
            found = tomllib.loads(config.read_text())
        except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise InputError(
                f"not TOML: {error}", "see Harbor's task format", file=config
            ) from None
        if not (path / "instruction.md").is_file() and "steps" not in found:
            raise InputError(
                "a task has an instruction",
                "see Harbor's task format",
                file=path / "instruction.md",
            )
        timeout = sum(_timeout(config, found, part) for part in ("agent", "verifier"))
        payload = {"task": {"path": str(path.resolve())}}
        yield AgentTask(path.name, payload, timeout * settings.timeout_multiplier)


def _timeout(file: Path, found: Mapping[str, Any], part: str) -> float:
    section = found.get(part)
    value = section.get("timeout_sec") if isinstance(section, dict) else None
    if value is None:
        return DEFAULT_TIMEOUT_S
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
        raise InputError(
            f"{value!r}", "give seconds above 0", file=file, field=f"{part}.timeout_sec"
        )
    return float(value)


def _listed_tasks(settings: HarborSettings) -> list[AgentTask]:
    python = _python(settings)
    _harbor_version(python)
    command = client_command("workloads.agents.harbor_listing", python)
    done = subprocess.run([*command, settings.dataset], capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        answer = {"error": done.stderr.strip()[-500:] or f"exit status {done.returncode}"}
    if "error" in answer:
        raise UsageError(
            f"Harbor cannot get the task set {settings.dataset}: {answer['error']}",
            "download it where there is a network (`harbor download`) and set `tasks` to "
            f"its folder, or use the stand-in `{NAME}`",
        )
    # Its own deadline is known to Harbor alone, which has the task's folder only later.
    return [AgentTask(task["id"], {"task": task["task"]}) for task in answer["tasks"]]


def _wanted(name: str, settings: HarborSettings) -> bool:
    def among(patterns: Sequence[str]) -> bool:
        return any(fnmatchcase(name, pattern) for pattern in patterns)

    return (not settings.filter or among(settings.filter)) and not among(settings.exclude)


def _taken_up(task: AgentTask, times_before: int) -> AgentTask:
    """The task with an id of its own each time."""
    if times_before == 0:
        return task
    return AgentTask(f"{task.id}@{times_before + 1}", task.payload, task.timeout_s)


# What is installed.


def _python(settings: HarborSettings) -> str:
    return client_command("workloads.agents.harbor_client", settings.python)[0]


def _harbor_version(python: str) -> str:
    code = "import importlib.metadata as m; print(m.version('harbor'))"
    version = _first_line([python, "-P", "-c", code])
    if version is None:
        raise UsageError(f"{python} has no Harbor", _GET_HARBOR)
    return version


def _first_line(command: Sequence[str]) -> str | None:
    """The first line that a command prints; None: it failed."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        )
    except OSError:
        return None
    lines = done.stdout.strip().splitlines()
    return lines[0] if done.returncode == 0 and lines else None
