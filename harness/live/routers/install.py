"""Installs routers, each in an environment of its own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from agentsched import AgentschedError, UsageError
from harness.live.engines.kinds import engines_folder
from harness.live.routers.dynamo import DynamoFrontend
from harness.live.routers.others import LiteLlmProxy
from harness.live.routers.rust import SglangRouter, Smg, VllmRouter


@dataclass(frozen=True, slots=True)
class InstallSpec:
    """One environment."""

    name: str
    packages: tuple[str, ...]
    """For pip."""
    program: str
    """The file in the environment's bin folder that shows the install is complete."""
    size_mb: int
    """Of the environment, measured on x86_64 Linux with Python 3.11."""


INSTALLS: dict[str, InstallSpec] = {
    spec.name: spec
    for spec in (
        InstallSpec(
            "vllm-router", (f"vllm-router=={VllmRouter.version}",), VllmRouter.program, 131
        ),
        InstallSpec("smg", (f"smg=={Smg.version}",), Smg.program, 154),
        InstallSpec(
            "sglang-router", (f"sglang-router=={SglangRouter.version}",), SglangRouter.program, 146
        ),
        InstallSpec(
            "litellm", (f"litellm[proxy]=={LiteLlmProxy.version}",), LiteLlmProxy.program, 756
        ),
        InstallSpec(
            "dynamo", (f"ai-dynamo=={DynamoFrontend.version}",), DynamoFrontend.program, 581
        ),
    )
}
"""By router. ThunderAgent is not on the package index: check its repository out."""


def environment_of(name: str) -> Path:
    """Where `agentsched engine install` puts a router."""
    return engines_folder() / name


def install_router(
    name: str,
    folder: Path | None = None,
    *,
    python: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Path:
    """Make a router's environment, with pip's own configuration; returns its program.

    Args:
        folder: where; None: below agentsched's own folder.
        python: interpreter to make it with; None: the one that runs this.

    Raises:
        UsageError: no router that can be installed.
        AgentschedError: a step failed; shows the last lines of what it said.
    """
    if name not in INSTALLS:
        raise UsageError(f"router `{name}` cannot be installed", f"one of: {', '.join(INSTALLS)}")
    spec = INSTALLS[name]
    place = folder or environment_of(name)
    program = place / "bin" / spec.program
    tell(f"installing {' '.join(spec.packages)} in {place}: about {spec.size_mb} MB")
    if not (place / "pyvenv.cfg").exists():
        _run([python or sys.executable, "-m", "venv", str(place)], "make a virtual environment")
    pip = [str(place / "bin" / "python"), "-m", "pip", "--disable-pip-version-check"]
    _run([*pip, "install", *spec.packages], f"install {name}")
    if not program.exists():
        raise AgentschedError(f"{name} has no program {program}", "remove the folder, try again")
    return program


def _run(command: Sequence[str], what: str) -> None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        raise AgentschedError(f"could not {what}: {error.strerror}", "install it first") from None
    if done.returncode != 0:
        lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()][-8:]
        shown = "\n".join(f"    {line}" for line in lines)
        raise AgentschedError(
            f"could not {what}:\n{shown}",
            "see pip's words above: mostly the index, the disk or the Python version",
        )
