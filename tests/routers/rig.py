"""Emulated replicas, and fake routers for what real ones do not do on demand."""

from __future__ import annotations

import os
import stat
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from agentsched import UsageError
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.parts import ReplicaAddress
from harness.live.routers import find_program
from harness.live.routers.find import describe_router
from harness.live.routers.install import environment_of
from tests.live.rig import engines

DYNAMO = os.environ.get("AGENTSCHED_TEST_DYNAMO") or str(environment_of("dynamo") / "bin")
"""The bin folder of Dynamo's environment."""


@asynccontextmanager
async def emulated(count: int = 2) -> AsyncIterator[list[ReplicaAddress]]:
    fleet = FleetServer(engines(count), EmulatorSettings(tick_s=0.002))
    await fleet.start()
    try:
        yield [ReplicaAddress(f"e{i}", url) for i, url in enumerate(fleet.urls)]
    finally:
        await fleet.close()


def installed(router: str, **settings: str) -> None:
    """Skip the test if the router's program is not there."""
    try:
        find_program(describe_router(router, settings))
    except UsageError as error:
        pytest.skip(f"{error.message}; try: {error.remedy}")


def fake_program(folder: Path, name: str, script: str) -> Path:
    """A program of that name which runs a Python script."""
    path = folder / name
    path.write_text(f"#!{sys.executable}\n{script}")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


def started_with(text: str) -> list[int]:
    """Processes with that text in their command line."""
    found: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            if folder.name.isdigit() and text.encode() in (folder / "cmdline").read_bytes():
                found.append(int(folder.name))
        except OSError:
            continue  # it has ended meanwhile
    return found


def alive(pid: int) -> bool:
    """Whether the process runs (one that has ended and is not waited for does not)."""
    try:
        os.kill(pid, 0)
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
