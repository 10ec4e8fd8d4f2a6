"""The client process of `automation-bench`: the published program, one task at a time.

The program names no session and cannot be told a header, so its requests go through a relay of
ours on the loopback that adds one. Standard library only.
"""

from __future__ import annotations

import json
import shlex
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workloads.agents.automationbench import read_settings
from workloads.agents.automationbench_relay import HeaderRelay
from workloads.agents.base import Assignment
from workloads.agents.client import AgentFailedError, Teller, serve

EXPORT = "export.json"
_FACTS = {
    "name": "task",
    "score": "score",
    "passed": "reward",
    "num_model_calls": "turns",
    "num_tool_calls": "tool_calls",
    "input_tokens": "input_tokens",
    "cached_input_tokens": "cached_tokens",
    "output_tokens": "output_tokens",
    "model_time_s": "model_s",
    "tool_time_s": "tools_s",
}
"""Fields of a task in the program's export, and what we call them."""


def run(assignment: Assignment, teller: Teller) -> Mapping[str, Any]:
    """Run the program on one task.

    Raises:
        AgentFailedError: it failed, or left no result.
    """
    session = assignment.session
    tools: list[str] = []

    def asked() -> None:
        if tools:
            teller.tell("tool_ended", session, name=tools.pop())
            tools.clear()
        teller.tell("model_started", session)

    def answered(names: list[str]) -> None:
        teller.tell("model_ended", session)
        if names:  # one span for all of an answer's calls: more cannot be seen from outside
            tools.append(names[0])
            teller.tell("tool_started", session, name=names[0])

    folder = Path(assignment.folder)
    headers = {"x-agentsched-session": session}
    relay = HeaderRelay(assignment.base_url, headers, asked, answered)
    try:
        with (folder / "auto-bench.log").open("wb") as log:
            command = bench_command(assignment, f"{relay.url}/v1", folder / EXPORT)
            status = subprocess.run(
                command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=False
            ).returncode
    finally:
        relay.close()
    if tools:
        teller.tell("tool_ended", session, name=tools.pop())
    if status != 0:
        end = (folder / "auto-bench.log").read_text(errors="replace")[-500:].strip()
        raise AgentFailedError(f"auto-bench ended with status {status}: {end}")
    return export_facts(folder / EXPORT)


def bench_command(assignment: Assignment, base_url: str, export: Path) -> list[str]:
    """The program's command line for one task.

    Options as in published runs of version 1.0.5 (github.com/Hert4/automationbench-opera-gemma4).
    """
    settings = read_settings(assignment.settings)
    command = [*shlex.split(settings.program), "--model", assignment.model]
    command += ["--base-url", base_url, "--api-key", "EMPTY"]
    command += ["--max-steps", str(settings.max_steps)]
    command += ["--max-concurrent", "1", "--skip", str(assignment.task.payload["skip"])]
    command += ["--num-examples", "1", "--export-json", str(export)]
    return [*command, *shlex.split(settings.options)]


def export_facts(path: Path) -> dict[str, Any]:
    """Facts of the one task in an export.

    Raises:
        AgentFailedError: it cannot be read, or holds another number of tasks.
    """
    try:
        tasks = json.loads(path.read_bytes())["tasks"]
        (task,) = tasks
        facts = {ours: task[theirs] for theirs, ours in _FACTS.items() if theirs in task}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise AgentFailedError(
            f"{path.name} of auto-bench: {type(error).__name__}: {error}"
        ) from None
    if isinstance(facts.get("reward"), bool):
        facts["reward"] = float(facts["reward"])
    return facts


if __name__ == "__main__":
    serve(run)
