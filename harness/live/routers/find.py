"""From `name:policy` and settings to a router that can be started."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentsched import UsageError
from harness.live.routers.base import Router, RouterSettings
from harness.live.routers.dynamo import DynamoFrontend
from harness.live.routers.front import Found, RouterFront
from harness.live.routers.install import INSTALLS, environment_of
from harness.live.routers.others import (
    LiteLlmProxy,
    ThunderAgentRouter,
    ThunderAgentSettings,
)
from harness.live.routers.rust import SglangRouter, Smg, VllmRouter

ROUTERS: dict[str, type[Router]] = {
    router.name: router
    for router in (VllmRouter, Smg, SglangRouter, DynamoFrontend, ThunderAgentRouter, LiteLlmProxy)
}


def find_router(
    target: str, settings: Mapping[str, Any] | None = None, folder: Path | None = None
) -> RouterFront:
    """A rival's router as a front, not started yet.

    Args:
        target: its name, with a policy of its own after a colon: `vllm-router:cache_aware`.
        settings: by name; docs/routers.md says which there are.
        folder: for its log and configuration; None: a temporary one.

    Raises:
        UsageError: unknown router, policy or setting; not installed (the remedy has the command);
            or one that cannot stand before replicas that run already.
    """
    router = describe_router(target, settings)
    return RouterFront(router, find_program(router), folder)


def check_router(
    target: str, settings: Mapping[str, Any] | None = None
) -> tuple[str, dict[str, Any]]:
    """The arm's name and all its settings, if `find_router` would find it.

    Raises:
        UsageError: as `find_router`.
    """
    router = describe_router(target, settings)
    find_program(router)
    return arm_name(router), dataclasses.asdict(router.settings)


def describe_router(target: str, settings: Mapping[str, Any] | None = None) -> Router:
    """As `find_router`, without looking whether it is installed."""
    name, _, policy = target.partition(":")
    if name not in ROUTERS:
        raise UsageError(f"unknown router `{name}`", f"one of: {', '.join(ROUTERS)}")
    cls = ROUTERS[name]
    if policy and policy not in cls.policies:
        raise UsageError(
            f"router `{name}` has no policy `{policy}`", f"one of: {', '.join(cls.policies)}"
        )
    return cls(policy or cls.policies[0], configure(cls, settings or {}))


def arm_name(router: Router) -> str:
    """How tables and folders call it."""
    scheduling = getattr(router.settings, "program_scheduling", False)
    return f"{router.name}:{router.policy}" + ("+programs" if scheduling else "")


def configure(cls: type[Router], settings: Mapping[str, Any]) -> RouterSettings:
    """The router's settings with these in place of defaults.

    Raises:
        UsageError: unknown setting, wrong type, or a value that is refused.
    """
    fields = {field.name: field for field in dataclasses.fields(cls.config_type)}
    given: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in fields:
            raise UsageError(
                f"router `{cls.name}` has no setting `{key}`", f"its settings: {', '.join(fields)}"
            )
        kind = str(fields[key].type)
        value = float(value) if "float" in kind and type(value) is int else value
        value = tuple(value) if kind.startswith("tuple") and isinstance(value, list) else value
        if not _fits(value, kind):
            raise UsageError(f"setting `{key}` of router `{cls.name}` is {value!r}", f"give {kind}")
        given[key] = value
    try:
        return cls.config_type(**given)
    except ValueError as error:
        raise UsageError(f"router `{cls.name}`: {error}", "see docs/routers.md") from None


def _fits(value: object, kind: str) -> bool:
    """Whether a value is of the type that a settings field is annotated with."""
    if value is None:
        return "None" in kind
    kind = kind.removesuffix(" | None")
    if kind.startswith("tuple"):
        return isinstance(value, tuple) and all(isinstance(word, str) for word in value)
    if kind.startswith("Mapping"):
        return isinstance(value, Mapping)
    return type(value).__name__ == kind


def find_program(router: Router) -> Found:
    """Where the router is installed.

    Raises:
        UsageError: nowhere; the remedy has the command that installs it.
    """
    if isinstance(router.settings, ThunderAgentSettings):
        return _checkout(router, router.settings)
    for folder in _folders(router):
        path = shutil.which(router.program, path=str(folder))
        if path is not None and (router.module is None or _has(path, router)):
            return Found((path,), _installed_version(Path(path), router.distribution))
    spec = INSTALLS[router.name]
    where = f" at {router.settings.program}" if router.settings.program else ""
    raise UsageError(
        f"router `{router.name}` is not installed{where}",
        f"pip install {' '.join(spec.packages)}  (or: agentsched engine install {router.name})",
    )


def _folders(router: Router) -> list[str]:
    given = router.settings.program
    if given is not None:
        path = Path(given).expanduser()
        return [str(path.parent if path.is_file() else path)]
    return [
        str(environment_of(router.name) / "bin"),
        str(Path(sys.executable).parent),
        *os.get_exec_path(),
    ]


def _checkout(router: Router, settings: ThunderAgentSettings) -> Found:
    remedy = (
        f"git clone https://github.com/{router.source}, pip install fastapi httpx uvicorn, and "
        "give its folder in the setting `program`"
    )
    if settings.program is None:
        raise UsageError("router `thunderagent` needs a checkout of its repository", remedy)
    folder = Path(settings.program).expanduser()
    if not (folder / "ThunderAgent" / "__main__.py").is_file():
        raise UsageError(f"{folder} is no checkout of ThunderAgent", remedy)
    python = settings.python or sys.executable
    if shutil.which(python) is None:
        raise UsageError(f"`{python}` is no program", "correct the setting `python`")
    return Found((python, "-m", "ThunderAgent"), _commit(folder))


def _commit(folder: Path) -> str | None:
    """The commit that is checked out, as far as plain files tell."""
    head = folder / ".git" / "HEAD"
    try:
        text = head.read_text().strip()
        if text.startswith("ref: "):
            text = (folder / ".git" / text.removeprefix("ref: ")).read_text().strip()
    except OSError:
        return None
    return text[:12] or None


def _has(python: str, router: Router) -> bool:
    """Whether an interpreter's environment has the router."""
    return _installed_version(Path(python), router.distribution) is not None


def _installed_version(program: Path, distribution: str) -> str | None:
    """The version in the environment that a program belongs to."""
    for parent in (program.parent.parent, program.resolve().parent.parent):
        paths = [str(path) for path in parent.glob("lib*/python*/site-packages")]
        for found in importlib.metadata.distributions(name=distribution, path=paths):
            return found.version
    return None
