"""Settings of workloads that run through Harbor. Standard library only."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from agentsched import UsageError

AGENTS = ("terminus-2", "claude-code", "mini-swe-agent")
INSIDE = ("claude-code", "mini-swe-agent")
"""Agents that run inside the task's environment, and call the model from there."""
PROGRAMS = {"claude-code": "claude", "mini-swe-agent": "mini-swe-agent"}

_INSTALL = {
    "claude-code": "npm install @anthropic-ai/claude-code, and set `agent_program` to its "
    "node_modules/.bin/claude",
    "mini-swe-agent": "pip install mini-swe-agent in an environment of its own, and set "
    "`agent_program` to its bin/mini-swe-agent",
}


@dataclass(frozen=True, slots=True)
class HarborSettings:
    """How tasks are run. Defaults are our choice where no source is given."""

    agent: str = "terminus-2"
    environment: str = "docker"
    """`bubblewrap` (ours) or an environment of Harbor: docker, podman, singularity, ..."""
    dataset: str = "terminal-bench@2.0"
    """As Harbor's registry names it; the name Terminal-Bench's documentation gives."""
    tasks: str | None = None
    """A folder of task folders, instead of the dataset."""
    filter: tuple[str, ...] = ()
    """Names of tasks to take, as shell patterns; none: all."""
    exclude: tuple[str, ...] = ()
    repeats: int = 1
    python: str | None = None
    """Interpreter that has Harbor (it needs Python 3.12); None: the one agentsched runs on."""
    agent_program: str | None = None
    """With bubblewrap, the agent's program on this machine, for agents that run inside; None:
    looked for in the search path."""
    programs: tuple[str, ...] = ()
    """With bubblewrap, more folders of this machine to show inside."""
    ignore_run: bool = False
    """With bubblewrap, go on where a Dockerfile has steps that cannot be followed."""
    gateway_host: str | None = None
    """With containers, this machine's name as they see it, for agents that run inside."""
    parser: str = "json"
    """Terminus's reply format: json or xml."""
    context_limit: int | None = None
    """Tokens that Terminus believes the model takes; None: Harbor's default."""
    max_output_tokens: int | None = None
    """That Claude Code asks for with each turn; None: its default, 32,000 for models that it does
    not know, which is too much for models of small contexts."""
    max_turns: int | None = None
    timeout_multiplier: float = 1.0
    """On the deadlines that tasks set."""
    verify: bool = True
    """Run the tasks' tests afterwards."""
    agent_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of Harbor's agent (`--ak`)."""
    environment_options: Mapping[str, Any] = field(default_factory=dict)
    """Further options of Harbor's environment (`--ek`)."""

    @property
    def inside(self) -> bool:
        """The agent calls the model from inside the environment."""
        return self.agent in INSIDE

    @property
    def sandboxed(self) -> bool:
        return self.environment == "bubblewrap"


def read_settings(given: Mapping[str, Any]) -> HarborSettings:
    """Settings as a specification gives them.

    Raises:
        UsageError: names the setting.
    """
    names = {f.name for f in fields(HarborSettings)}
    for name in given:
        if name not in names:
            raise UsageError(
                f"agents through Harbor have no setting `{name}`", f"one of {', '.join(names)}"
            )
    values = dict(given)
    for name in ("filter", "exclude", "programs"):
        if name in values:
            values[name] = _texts(name, values[name])
    settings = HarborSettings(**values)
    _check_kinds(settings)
    if settings.agent not in AGENTS:
        raise UsageError(f"agent: `{settings.agent}`", f"one of {', '.join(AGENTS)}")
    if settings.parser not in ("json", "xml"):
        raise UsageError(f"parser: `{settings.parser}`", "json or xml")
    if settings.repeats < 1 or settings.timeout_multiplier <= 0:
        raise UsageError("repeats and timeout_multiplier", "give numbers above 0")
    if settings.inside and not settings.sandboxed and settings.gateway_host is None:
        raise UsageError(
            f"`{settings.agent}` calls the model from inside its container, which cannot reach "
            "this machine's loopback",
            "set `gateway_host` to this machine's name as containers see it "
            "(host.docker.internal, or an address), or use `environment: bubblewrap`",
        )
    return settings


def _texts(name: str, value: Any) -> tuple[str, ...]:
    texts = [value] if isinstance(value, str) else value
    if not isinstance(texts, (list, tuple)) or not all(isinstance(t, str) for t in texts):
        raise UsageError(f"{name}: {value!r}", "give a text or a list of texts")
    return tuple(texts)


_KINDS: Mapping[str, tuple[type, ...]] = {
    "agent": (str,),
    "environment": (str,),
    "dataset": (str,),
    "tasks": (str, type(None)),
    "repeats": (int,),
    "python": (str, type(None)),
    "agent_program": (str, type(None)),
    "ignore_run": (bool,),
    "gateway_host": (str, type(None)),
    "parser": (str,),
    "context_limit": (int, type(None)),
    "max_output_tokens": (int, type(None)),
    "max_turns": (int, type(None)),
    "timeout_multiplier": (int, float),
    "verify": (bool,),
    "agent_options": (dict,),
    "environment_options": (dict,),
}


def _check_kinds(settings: HarborSettings) -> None:
    for name, kinds in _KINDS.items():
        value = getattr(settings, name)
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            wanted = " or ".join(kind.__name__ for kind in kinds if kind is not type(None))
            raise UsageError(f"{name}: {value!r}", f"give {wanted}")


def agent_program(settings: HarborSettings) -> Path:
    """The program of an agent that runs inside a sandbox.

    Raises:
        UsageError: it is not on this machine.
    """
    name = PROGRAMS[settings.agent]
    found = shutil.which(settings.agent_program or name)
    if found is None:
        raise UsageError(
            f"there is no {settings.agent_program or f'`{name}` in the search path'}, and nothing "
            "can be installed inside a sandbox without a network",
            _INSTALL[settings.agent],
        )
    return Path(found).absolute()


def shown_folders(program: Path) -> list[str]:
    """Folders of this machine that a program needs: its packages, or its virtual environment
    and the interpreter behind that."""
    roots = {_package_root(program), _package_root(program.resolve())}
    folders = roots.union(*(_interpreters(root / "pyvenv.cfg") for root in roots))
    texts = (str(folder) for folder in folders)
    return sorted(text for text in texts if not text.startswith(("/usr", "/bin", "/lib")))


def _package_root(program: Path) -> Path:
    for parent in program.parents:
        if parent.name == "node_modules" or (parent / "pyvenv.cfg").is_file():
            return parent
    return program.parent


def _interpreters(config: Path) -> set[Path]:
    """The installation that a virtual environment was made from."""
    if not config.is_file():
        return set()
    for line in config.read_text().splitlines():
        name, _, value = line.partition("=")
        if name.strip() == "home":
            return {Path(value.strip()).resolve().parent}
    return set()
