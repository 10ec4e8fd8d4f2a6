"""Client process of mini-swe-agent: its own SWE-bench runner, with an agent that says what it does.

Each assignment goes through `minisweagent.run.benchmarks.swebench.process_instance`, unchanged; the
runner's agent class is replaced by a subclass of it.
"""

from __future__ import annotations

import gc
import json
import shutil
import subprocess
import threading
from collections.abc import Mapping
from functools import partial
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import litellm
from minisweagent.config import get_config_from_spec
from minisweagent.models import get_model
from minisweagent.run.benchmarks import swebench
from minisweagent.run.benchmarks.utils.batch_progress import RunBatchProgressManager
from minisweagent.run.benchmarks.utils.common import ProgressTrackingAgent
from minisweagent.utils.serialize import recursive_merge

from workloads.agents.base import CONTAINER, SCRATCH, Assignment
from workloads.agents.bubblewrap import SandboxSpec, prepare_root, python_inside, sandbox_argv
from workloads.agents.client import AgentFailedError, Teller, serve
from workloads.agents.mini_swe import HUB, STANDIN, MiniSweSettings, read_settings
from workloads.agents.mini_swe_environment import run_bounded
from workloads.agents.swe_standin import TEST_COMMAND

DEADLINE_STATUS = "TimeExceeded"
"""What mini-swe-agent calls the end of an agent whose time is over."""
TEST_LIMIT_S = 60.0
"""How long the tests of a stand-in task may take. Our choice."""
_ARGUMENTS = '{"command": "true"}'
_GIT = (
    "git init -q && git add -A && "
    "git -c user.name=standin -c user.email=standin@localhost commit -q -m 'As it was'"
)


class _Told:
    """A model or an environment of which one method's starts and ends are told."""

    def __init__(self, inner: Any, method: str, before: Any, after: Any) -> None:
        self._inner, self._method, self._before, self._after = inner, method, before, after

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._inner, name)
        if name != self._method:
            return found

        def told(*arguments: Any, **keywords: Any) -> Any:
            self._before()
            try:
                return found(*arguments, **keywords)
            finally:
                self._after()

        return told


class SessionAgent(ProgressTrackingAgent):
    """The runner's agent; tells the harness when it asks the model and when it runs commands."""

    def __init__(
        self, model: Any, env: Any, *, session: str, teller: Teller, **settings: Any
    ) -> None:
        tell = teller.tell
        super().__init__(
            _Told(
                model,
                "query",
                partial(tell, "model_started", session),
                partial(tell, "model_ended", session),
            ),
            _Told(
                env,
                "execute",
                partial(tell, "tool_started", session, name="bash"),
                partial(tell, "tool_ended", session, name="bash"),
            ),
            **settings,
        )


class _Progress(RunBatchProgressManager):
    """Keeps the exit status, which the runner tells nobody else."""

    exit_status: str | None = None

    def on_instance_end(self, instance_id: str, exit_status: str | None) -> None:
        self.exit_status = exit_status
        super().on_instance_end(instance_id, exit_status)


def run(assignment: Assignment, teller: Teller) -> Mapping[str, Any]:
    """Run one instance; its trajectory is kept in the session's folder."""
    folder, instance = Path(assignment.folder), dict(assignment.task.payload)
    tasks = STANDIN if "files" in instance else HUB
    settings = read_settings({"tasks": tasks, **assignment.settings})
    config = _config(assignment, settings, folder, instance)
    swebench.ProgressTrackingAgent = partial(
        SessionAgent, session=assignment.session, teller=teller
    )
    progress = _Progress(1, folder / "exit_status.yaml")
    swebench.process_instance(instance, folder, config, progress)
    facts = _facts(folder, instance["instance_id"], progress.exit_status)
    facts["environment"] = settings.where
    if "files" in instance and settings.where == "bubblewrap":
        facts["reward"] = _reward(folder / SCRATCH / "root", instance)
    if facts.pop("broke", False) or progress.exit_status is None:
        raise AgentFailedError(
            f"{progress.exit_status}: {facts.pop('error', 'see the log of the worker')}", facts
        )
    if progress.exit_status == DEADLINE_STATUS:
        raise AgentFailedError("the agent's time was over", facts, "deadline")
    return facts


def _config(
    assignment: Assignment, settings: MiniSweSettings, folder: Path, instance: Mapping[str, Any]
) -> dict[str, Any]:
    """The runner's configuration: its own file, and what this session sets."""
    file = swebench.DEFAULT_CONFIG_FILE
    if settings.text_based:
        file = file.with_name("swebench_backticks.yaml")
    base = get_config_from_spec(settings.config or str(file))
    calls: dict[str, Any] = {
        "api_base": f"{assignment.base_url}/v1",
        "api_key": "none",
        "timeout": settings.model_timeout_s,
        "max_retries": 0,
        "extra_headers": {
            "x-agentsched-session": assignment.session,
            "x-session-id": assignment.session,
        },
    }
    for name in ("temperature", "max_tokens"):
        if getattr(settings, name) is not None:
            calls[name] = getattr(settings, name)
    own = {
        "agent": {
            "step_limit": int(settings.step_limit),
            "cost_limit": 0.0,
            "wall_time_limit_seconds": int(settings.task_limit_s or 0),
        },
        "model": {
            "model_name": f"{settings.provider}/{assignment.model}",
            "model_class": settings.model_class,
            "cost_tracking": "ignore_errors",
            "model_kwargs": calls,
        },
        "environment": {
            "timeout": int(settings.command_limit_s),
            **_environment(settings, folder, instance),
        },
    }
    merged: dict[str, Any] = recursive_merge(base, own)
    return merged


def _environment(
    settings: MiniSweSettings, folder: Path, instance: Mapping[str, Any]
) -> dict[str, Any]:
    where = settings.where
    if where == "docker":
        return {
            "environment_class": where,
            "pull_timeout": int(settings.pull_limit_s),
            "run_args": ["--rm", "--cidfile", str(folder / CONTAINER)],
        }
    if where == "singularity":
        return {"environment_class": where}
    root = folder / SCRATCH / "root"
    testbed = root / "testbed"
    if where == "bubblewrap":
        prepare_root(root)
    _lay_out(testbed, settings.repos, instance)
    if where == "local":
        return {"environment_class": "local", "cwd": str(testbed)}
    environment = "workloads.agents.mini_swe_environment.SandboxEnvironment"
    return {"environment_class": environment, "root": str(root), "cwd": "/testbed"}


def _lay_out(testbed: Path, repos: str | None, instance: Mapping[str, Any]) -> None:
    """The instance's repository, as the agent finds it."""
    if repos is not None:
        shutil.copytree(Path(repos) / instance["instance_id"], testbed, symlinks=True)
        return
    for name, text in instance["files"].items():
        _write(testbed / name, text)
    subprocess.run(["sh", "-c", _GIT], cwd=testbed, check=True)


def _reward(root: Path, instance: Mapping[str, Any]) -> float:
    """1 if the tests of a stand-in task pass on what the agent left, else 0."""
    for name, text in instance["files"].items():
        if name.startswith("tests/"):  # as they were, whatever the agent did to them
            _write(root / "testbed" / name, text)
    spec = SandboxSpec(root=root, read_only=python_inside()[1], folder="/testbed")
    command = sandbox_argv(spec, ["bash", "-c", TEST_COMMAND])
    status, _, _ = run_bounded(command, TEST_LIMIT_S)
    return 1.0 if status == 0 else 0.0


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _facts(folder: Path, instance: str, exit_status: str | None) -> dict[str, Any]:
    """What the agent reports of itself, from its trajectory."""
    path = folder / instance / f"{instance}.traj.json"
    if not path.exists():  # the environment or the model could not be made
        return {"exit_status": exit_status, "broke": True}
    info = json.loads(path.read_text(encoding="utf-8"))["info"]
    facts: dict[str, Any] = {
        "exit_status": exit_status,
        "calls": info["model_stats"]["api_calls"],
        "submitted": bool(info.get("submission")),
        "trajectory": str(path.relative_to(folder)),
    }
    if "traceback" in info:
        facts |= {"broke": True, "error": str(info.get("exception_str", ""))[:1000]}
    return facts


_CALL = {"id": "1", "type": "function", "function": {"name": "bash", "arguments": _ARGUMENTS}}
_WARMING: list[dict[str, Any]] = [
    {"role": "user", "content": "none"},
    {"role": "assistant", "content": "none", "tool_calls": [_CALL]},
    {"role": "tool", "tool_call_id": "1", "content": "none"},
]
"""A conversation with all kinds of messages that an agent sends."""


class _Canned(BaseHTTPRequestHandler):
    """Answers everything with the same completion."""

    def do_POST(self) -> None:
        self.rfile.read(int(self.headers.get("content-length", 0)))
        message = {"role": "assistant", "content": "none", "tool_calls": [_CALL]}
        choice = {"index": 0, "message": message, "finish_reason": "tool_calls"}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        kind = {"id": "1", "object": "chat.completion", "created": 0, "model": "none"}
        body = json.dumps({**kind, "choices": [choice], "usage": usage}).encode()
        self.send_response(200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *arguments: object) -> None: ...


def _warm_up() -> None:
    """Have litellm import what it imports with its first calls, before the process is ready."""
    with HTTPServer(("127.0.0.1", 0), _Canned) as server:
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        calls = {"api_base": f"http://127.0.0.1:{server.server_port}/v1", "api_key": "none"}
        model = get_model(config={"model_name": "hosted_vllm/none", "model_kwargs": calls})
        for _ in range(3):
            model.query(_WARMING)
        server.shutdown()


if __name__ == "__main__":
    litellm.suppress_debug_info = True
    _warm_up()
    gc.collect()
    gc.freeze()  # litellm's objects are many: a look at all of them stops the agent for a second
    serve(run)
