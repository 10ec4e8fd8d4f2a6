"""The client process that runs trials of Harbor, one session after another.

Runs under Harbor's interpreter.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path
from typing import Any

import litellm
from harbor.models.trial.config import TrialConfig
from harbor.trial.trial import Trial

from workloads.agents.base import SCRATCH, Assignment, EventKind
from workloads.agents.claude_code import HookFolder, HookServer, ToolMark
from workloads.agents.client import AgentFailedError, Teller, serve
from workloads.agents.harbor_results import DEADLINES, mini_swe_marks, trial_facts
from workloads.agents.harbor_settings import HarborSettings, read_settings
from workloads.agents.harbor_standin import STANDIN_TASKS, write_task
from workloads.agents.harbor_trial import HOOKS, MINI_SWE_TRAJECTORY, TRIAL, trial_config
from workloads.agents.limits import split_limits

HOOK_POLL_S = 0.05
"""How often hooks' files are looked for, which hold their own times. Our choice."""


def run(assignment: Assignment, teller: Teller) -> Mapping[str, Any]:
    """Run one trial.

    Raises:
        AgentFailedError: the agent or its environment failed.
    """
    return asyncio.run(_run(assignment, teller))


async def _run(assignment: Assignment, teller: Teller) -> Mapping[str, Any]:
    _, own = split_limits(assignment.settings)
    settings = read_settings({**assignment.task.payload.get("defaults", {}), **own})
    with ExitStack() as stack:
        hooks = None
        if settings.agent == "claude-code" and settings.sandboxed:
            server = HookServer(partial(_tell_mark, teller, assignment.session))
            stack.callback(server.close)
            hooks = server.url
        return await _run_trial(assignment, teller, settings, hooks)


async def _run_trial(
    assignment: Assignment, teller: Teller, settings: HarborSettings, hooks: str | None
) -> Mapping[str, Any]:
    folder = Path(assignment.folder)
    config = trial_config(assignment, settings, _task(assignment, folder), hooks)
    if settings.agent == "terminus-2":
        await _warm_up()
    trial = await Trial.create(TrialConfig.model_validate(config))
    trial.agent.session_id = assignment.session  # mini-swe-agent sends it; Harbor's names the trial
    if settings.agent == "terminus-2":
        trial.agent.notice = partial(_notice, teller, assignment.session)
    watch = None
    if settings.agent == "claude-code" and hooks is None:
        path = folder / TRIAL / "agent" / HOOKS
        watch = asyncio.ensure_future(_watch(path, teller, assignment.session))
    try:
        await trial.run()
    finally:
        if watch is not None:
            watch.cancel()
            with suppress(asyncio.CancelledError):
                await watch
    if settings.agent == "mini-swe-agent":  # says when it did what only in the end
        for mark in mini_swe_marks(folder / TRIAL / "agent" / MINI_SWE_TRAJECTORY):
            _tell_mark(teller, assignment.session, mark)
    facts = trial_facts(folder / TRIAL)
    if (error := facts.get("error")) is not None:
        message = f"{error}: {facts.get('error_message', '')}"[:2000]
        status = "deadline" if error in DEADLINES else "failed"
        raise AgentFailedError(message, facts, "deadline" if status == "deadline" else "failed")
    return facts


async def _warm_up() -> None:
    """Let litellm deal with a made-up answer once, which takes it a tenth of a second the first
    time, so that the first turn of a session is like the others."""
    if not _warm.is_set():
        said = [{"role": "user", "content": "."}]
        await litellm.acompletion(model="openai/none", messages=said, mock_response=".")
        _warm.set()


_warm = threading.Event()


def _task(assignment: Assignment, folder: Path) -> Mapping[str, Any]:
    """Harbor's configuration of the task; stand-ins are written on the spot."""
    payload = assignment.task.payload
    if "standin" not in payload:
        found: Mapping[str, Any] = payload["task"]
        return found
    task = next(task for task in STANDIN_TASKS if task.name == payload["standin"])
    path = folder / SCRATCH / "tasks" / task.name
    write_task(task, path)
    return {"path": str(path)}


def _notice(teller: Teller, session: str, kind: EventKind, name: str) -> None:
    teller.tell(kind, session, name=name)


def _tell_mark(teller: Teller, session: str, mark: ToolMark) -> None:
    teller.tell(mark.kind, session, name=mark.name, time_ns=mark.time_ns)


async def _watch(path: Path, teller: Teller, session: str) -> None:
    """Pass on what hooks write to a folder, until cancelled."""
    path.mkdir(parents=True, exist_ok=True)
    hooks = HookFolder(path)

    def pass_on() -> None:
        for mark in hooks.new():
            _tell_mark(teller, session, mark)

    try:
        while True:
            await asyncio.sleep(HOOK_POLL_S)
            pass_on()
    finally:
        pass_on()


def main() -> None:
    """Serve assignments from standard input."""
    serve(run)


if __name__ == "__main__":
    main()
