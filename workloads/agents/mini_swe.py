"""SWE-bench through mini-swe-agent: settings, task sets, and how its client process is started.

Source of names and defaults: mini-swe-agent 2.4 (`mini-extra swebench`, `swebench.yaml`).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal, get_args

from agentsched import UsageError
from workloads.agents.base import AgentTask
from workloads.agents.bubblewrap import bubblewrap_version
from workloads.agents.client import client_command
from workloads.agents.limits import split_limits
from workloads.agents.swe_scripts import recorded_scripts, standin_script, write_script
from workloads.agents.swe_standin import standin_tasks
from workloads.agents.swe_tasks import (
    Instance,
    file_instances,
    hub_instances,
    id_list,
    repeated,
    select,
    standin_instances,
)

Environment = Literal["auto", "docker", "singularity", "bubblewrap", "local"]
STANDIN = "standin"
HUB = "hub"


@dataclass(frozen=True, slots=True)
class MiniSweSettings:
    """Settings of the SWE-bench workloads (`agents:` in a specification)."""

    tasks: str = HUB
    """`hub`: the data set of the workload's name, by `datasets.load_dataset`; `standin`: our own
    small stand-in tasks; else a JSON Lines file, or what `load_dataset` takes for a path."""
    split: str = "test"
    """Of the data set. mini-swe-agent's own default is `dev`; the papers use `test`."""
    ids: str | tuple[str, ...] | None = None
    """Only these instances: a list, names with commas, or a file with one a line."""
    filter: str | None = None
    """Only instances whose id matches this expression from its start."""
    slice: str | None = None
    """Only this slice of them, such as `0:5`."""
    shuffle: bool = False
    """Take them in an order drawn from the seed."""
    repeats: int = 1
    """How often each is done."""
    step_limit: int = 250
    """Model calls of a session (mini-swe-agent's swebench.yaml)."""
    task_limit_s: float | None = None
    """Wall-clock seconds of a session, which then ends as past its deadline; None: no limit."""
    command_limit_s: float = 60.0
    """Seconds a command may run (mini-swe-agent's swebench.yaml)."""
    pull_limit_s: float = 1800.0
    """Seconds that starting a container may take, its image's download included. Our choice;
    mini-swe-agent's is 120."""
    environment: Environment = "auto"
    """Where commands run. `auto`: the stand-in tasks and those with `repos` in bubblewrap, all
    others in docker. `local` is this machine itself and needs `unsafe_local`."""
    unsafe_local: bool = False
    """Let a model's commands run on this machine, outside any sandbox."""
    repos: str | None = None
    """Folder with a checkout for each instance, named by its id: for `bubblewrap` and `local`."""
    model_class: str = "litellm"
    """mini-swe-agent's model class: `litellm` (tool calls), `litellm_textbased`, or a dotted
    path."""
    provider: str = "hosted_vllm"
    """litellm's name for the kind of endpoint."""
    model_attempts: int = 3
    """Requests of a model call that fails. Our choice; mini-swe-agent's is 10, with waits of 4 to
    60 s. Each is a turn of its own in the records, none is hidden."""
    model_timeout_s: float = 3600.0
    """Seconds a model call may take. Our choice: schedulers may hold turns for long."""
    temperature: float | None = None
    """Sent with every call; None: not sent."""
    max_tokens: int | None = None
    """Longest answer, in tokens, sent with every call; None: not sent."""
    config: str | None = None
    """Configuration file of mini-swe-agent; None: its own swebench.yaml, or
    swebench_backticks.yaml for text-based models."""
    python: str | None = None
    """Interpreter that has mini-swe-agent; None: the one that runs agentsched."""
    script: str | None = None
    """On the emulator: folder with recorded trajectories (*.traj.json) whose answers are given
    again; None: scripts of the stand-in tasks, made-up words for all others."""

    def __post_init__(self) -> None:
        if self.environment not in get_args(Environment):
            raise UsageError(
                f"`environment`: {self.environment!r} is none",
                f"one of {', '.join(get_args(Environment))}",
            )
        if self.environment == "local" and not self.unsafe_local:
            raise UsageError(
                "environment `local` runs a model's commands on this machine, as you",
                "use `bubblewrap` or `docker`; if you are sure, set unsafe_local: true",
            )
        whole = ("repeats", "model_attempts", "max_tokens")
        for name in (
            *whole,
            "step_limit",
            "command_limit_s",
            "pull_limit_s",
            "model_timeout_s",
            "task_limit_s",
        ):
            value = getattr(self, name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if name in ("task_limit_s", "max_tokens") and value is None:
                continue
            if not number or value <= 0 or (name in whole and value != int(value)):
                raise UsageError(f"`{name}`: {value!r}", "give a number above 0")

    @property
    def where(self) -> str:
        """The environment that `auto` stands for."""
        if self.environment != "auto":
            return self.environment
        return "bubblewrap" if self.tasks == STANDIN or self.repos is not None else "docker"

    @property
    def text_based(self) -> bool:
        """Commands come in the text of answers, not as tool calls."""
        return self.model_class.endswith("_textbased")


def read_settings(given: Mapping[str, Any]) -> MiniSweSettings:
    """Settings out of a specification; limits of client processes may be among them.

    Raises:
        UsageError: unknown, or a wrong value.
    """
    _, own = split_limits(given)
    names = {field.name for field in fields(MiniSweSettings)}
    unknown = sorted(set(own) - names)
    if unknown:
        raise UsageError(
            f"mini-swe-agent has no setting `{unknown[0]}`", f"it has {', '.join(sorted(names))}"
        )
    if isinstance(own.get("ids"), list):
        own["ids"] = tuple(own["ids"])
    return MiniSweSettings(**own)


class MiniSwe:
    """Runs instances of one data set with mini-swe-agent."""

    name: str
    about: str
    dataset: str
    default_tasks = HUB

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """Versions of mini-swe-agent and of where commands run.

        Raises:
            UsageError: something is missing or a setting is wrong.
        """
        wanted = self._settings(settings)
        versions = {"mini-swe-agent": _mini_version(wanted.python)}
        where = wanted.where
        if where == "bubblewrap":
            versions["bubblewrap"] = bubblewrap_version()
            if wanted.tasks != STANDIN and wanted.repos is None:
                raise UsageError(
                    "instances of SWE-bench live in container images, which bubblewrap cannot run",
                    "use environment: docker or singularity, or give `repos: FOLDER` with a "
                    "checkout named by each id, or `tasks: standin`",
                )
        if where == "docker":
            versions["docker"] = _docker_version()
        if where == "singularity" and shutil.which("singularity") is None:
            raise UsageError("singularity is not installed", "install it, or use docker")
        if wanted.tasks == STANDIN and where not in ("bubblewrap", "local"):
            raise UsageError(
                f"the stand-in tasks have no image for {where}", "use environment: bubblewrap"
            )
        if wanted.tasks == STANDIN and shutil.which("git") is None:
            raise UsageError("the stand-in tasks need git", "install git")
        return versions

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        """The instances that are wanted, in the order they are taken up.

        Raises:
            UsageError: the task set cannot be had, or nothing is left of it.
            InputError: a file of tasks is wrong.
        """
        wanted = self._settings(settings)
        found = select(
            self._instances(wanted),
            ids=id_list(wanted.ids),
            pattern=wanted.filter,
            part=wanted.slice,
            shuffle_seed=seed if wanted.shuffle else None,
        )
        if wanted.repos is not None:
            _check_repos(Path(wanted.repos), found)
        return repeated(found, wanted.repeats, sessions, wanted.task_limit_s)

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        """The client process."""
        return client_command("workloads.agents.mini_swe_client", self._settings(settings).python)

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        """No banners, no look-ups of prices, and as many attempts as the settings say."""
        return {
            "MSWEA_CONFIGURED": "true",
            "MSWEA_SILENT_STARTUP": "1",
            "MSWEA_COST_TRACKING": "ignore_errors",
            "MSWEA_MODEL_RETRY_STOP_AFTER_ATTEMPT": str(self._settings(settings).model_attempts),
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",
            "DO_NOT_TRACK": "1",
        }

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        """Answers for the emulator: recorded ones, or those of the stand-in tasks.

        Raises:
            InputError: the folder of recorded trajectories holds none.
        """
        wanted = self._settings(settings)
        path = folder / "script.jsonl"
        if wanted.script is not None:
            return write_script(path, recorded_scripts(Path(wanted.script)))
        if wanted.tasks == STANDIN:
            text = wanted.text_based
            lines = (line for t in standin_tasks() for line in standin_script(t, text=text))
            return write_script(path, lines)
        return None

    def _settings(self, given: Mapping[str, Any]) -> MiniSweSettings:
        return read_settings({"tasks": self.default_tasks, **given})

    def _instances(self, wanted: MiniSweSettings) -> Sequence[Instance]:
        if wanted.tasks == STANDIN:
            return standin_instances()
        if wanted.tasks == HUB:
            return hub_instances(self.dataset, wanted.split, wanted.python)
        path = Path(wanted.tasks)
        if path.suffix in (".jsonl", ".json"):
            return file_instances(path)
        return hub_instances(wanted.tasks, wanted.split, wanted.python)


class SweBenchLite(MiniSwe):
    """SWE-bench Lite: 300 instances."""

    name = "swe-bench-lite"
    about = "SWE-bench Lite with mini-swe-agent, one shell command or more a turn"
    dataset = "princeton-nlp/SWE-Bench_Lite"


class SweBenchVerified(MiniSwe):
    """SWE-bench Verified: 500 instances."""

    name = "swe-bench-verified"
    about = "SWE-bench Verified with mini-swe-agent, one shell command or more a turn"
    dataset = "princeton-nlp/SWE-Bench_Verified"


class SweBenchStandin(MiniSwe):
    """Our own stand-in tasks; no part of SWE-bench."""

    name = "swe-bench-standin"
    about = "eight small repositories of ours in the shape of SWE-bench, with mini-swe-agent"
    dataset = ""
    default_tasks = STANDIN


def _mini_version(python: str | None) -> str:
    code = "import minisweagent; print(minisweagent.__version__)"
    command = [python or sys.executable, "-c", code]
    try:
        done = subprocess.run(
            command,
            capture_output=True,
            text=True,
            timeout=120,
            env={"MSWEA_SILENT_STARTUP": "1", "PATH": "/usr/bin:/bin", "HOME": str(Path.home())},
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UsageError(f"{command[0]} does not run: {error}", "check `python`") from None
    if done.returncode != 0:
        raise UsageError(
            f"{command[0]} has no mini-swe-agent",
            "pip install 'agentsched[agents]', or set `python` to the interpreter that has it",
        )
    return done.stdout.strip()


def _docker_version() -> str:
    remedy = (
        "start docker, or use `tasks: standin`, or give `repos: FOLDER` with checkouts for "
        "bubblewrap"
    )
    program = shutil.which("docker")
    if program is None:
        raise UsageError("instances of SWE-bench run in Docker images; there is no docker", remedy)
    command = [program, "version", "--format", "{{.Server.Version}}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
        raise UsageError(f"docker does not work here: {reason}", remedy)
    return done.stdout.strip()


def _check_repos(folder: Path, instances: Sequence[Instance]) -> None:
    missing = [i["instance_id"] for i in instances if not (folder / i["instance_id"]).is_dir()]
    if missing:
        raise UsageError(
            f"{folder} has no checkout of {len(missing)} instance(s), such as {missing[0]}",
            "make a folder named by each id, or narrow `ids`, `filter` or `slice`",
        )
