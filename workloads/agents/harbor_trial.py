"""Configuration of one trial of Harbor for one session. Standard library only.

Source of names: Harbor's models of trial configurations, and its agents' options (version 0.26).
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

from workloads.agents import claude_code
from workloads.agents.base import SCRATCH, Assignment
from workloads.agents.harbor_settings import HarborSettings, agent_program, shown_folders

TRIAL = "trial"
"""Name of the trial's folder in the session's."""
HOOKS = "tool-hooks"
"""Folder below the agent's logs where Claude Code's hooks write."""
MINI_SWE_TRAJECTORY = "mini-swe-agent.trajectory.json"
API_KEY = "no-key-is-needed"
"""What agents send as their key; the gateway asks for none."""
_LOGS = "/logs/agent"


def trial_config(
    assignment: Assignment,
    settings: HarborSettings,
    task: Mapping[str, Any],
    hooks: str | None = None,
) -> dict[str, Any]:
    """A trial's configuration, as Harbor's TrialConfig reads it.

    Args:
        task: as Harbor's TaskConfig: `path`, or where it is downloaded from.
        hooks: base URL that Claude Code's hooks are posted to, which a sandbox is made to reach;
            None: they write files below the agent's logs.
    """
    config: dict[str, Any] = {
        "task": dict(task),
        "trial_name": TRIAL,
        "trials_dir": assignment.folder,
        "timeout_multiplier": settings.timeout_multiplier,
        "agent": _agent(assignment, settings, hooks),
        "environment": _environment(assignment, settings, hooks),
        "verifier": {"disable": not settings.verify},
    }
    return config


def _agent(assignment: Assignment, settings: HarborSettings, hooks: str | None) -> dict[str, Any]:
    if settings.agent == "claude-code":
        agent = _claude_code(assignment, settings, hooks)
    elif settings.agent == "mini-swe-agent":
        agent = _mini_swe_agent(assignment, settings)
    else:
        agent = _terminus(assignment, settings)
    agent["kwargs"] |= settings.agent_options
    return agent


def _terminus(assignment: Assignment, settings: HarborSettings) -> dict[str, Any]:
    options: dict[str, Any] = {
        "api_base": f"{assignment.base_url}/v1",
        "parser_name": settings.parser,
        "record_terminal_session": False,  # installs a recorder first
        "llm_call_kwargs": {"extra_headers": {"x-agentsched-session": assignment.session}},
        "llm_kwargs": {"api_key": API_KEY},
    }
    if settings.max_turns is not None:
        options["max_turns"] = settings.max_turns
    if settings.context_limit is not None:
        options["model_info"] = {"max_input_tokens": settings.context_limit}
    return {
        "import_path": "workloads.agents.harbor_agents:WatchedTerminus2",
        "model_name": f"openai/{assignment.model}",
        "kwargs": options,
    }


def _claude_code(
    assignment: Assignment, settings: HarborSettings, hooks: str | None
) -> dict[str, Any]:
    if hooks is None:
        config = claude_code.file_hook_settings(f"{_LOGS}/{HOOKS}")
    else:
        config = claude_code.hook_settings(inside_url(hooks, settings))
    options: dict[str, Any] = {"config": config}
    if settings.max_turns is not None:
        options["max_turns"] = settings.max_turns
    return {
        "name": "claude-code",
        "model_name": f"anthropic/{assignment.model}",
        "base_url": inside_url(assignment.base_url, settings),
        "kwargs": options,
        "env": {
            **claude_code.environment(assignment.session, settings.max_output_tokens),
            "ANTHROPIC_API_KEY": API_KEY,
        },
    }


def _mini_swe_agent(assignment: Assignment, settings: HarborSettings) -> dict[str, Any]:
    return {
        "name": "mini-swe-agent",
        "model_name": f"openai/{assignment.model}",
        "base_url": f"{inside_url(assignment.base_url, settings)}/v1",
        "kwargs": {
            "session_id_headers": ["x-agentsched-session"],
            "skip_install": settings.sandboxed,
        },
        "env": {"OPENAI_API_KEY": API_KEY, "LITELLM_LOCAL_MODEL_COST_MAP": "True"},
    }


def inside_url(base_url: str, settings: HarborSettings) -> str:
    """The gateway's URL as processes inside the environment reach it."""
    parts = urlsplit(base_url)
    host = "127.0.0.1" if settings.sandboxed else settings.gateway_host
    return urlunsplit(parts._replace(netloc=f"{host}:{parts.port or 80}"))


def _environment(
    assignment: Assignment, settings: HarborSettings, hooks: str | None
) -> dict[str, Any]:
    if not settings.sandboxed:
        options = {"auto_mounting": True, **settings.environment_options}
        return {"type": settings.environment, "kwargs": options}
    programs, links = list(settings.programs), {}
    if settings.inside:
        program = agent_program(settings)
        programs += shown_folders(program)
        links[program.name] = str(program)
    return {
        "import_path": "workloads.agents.harbor_environment:BubblewrapEnvironment",
        "kwargs": {
            "auto_mounting": True,
            "folder": str(Path(assignment.folder) / SCRATCH),
            "reach": [u for u in (assignment.base_url, hooks) if u] if settings.inside else [],
            "programs": programs,
            "links": links,
            "ignore_run": settings.ignore_run,
            **settings.environment_options,
        },
    }
