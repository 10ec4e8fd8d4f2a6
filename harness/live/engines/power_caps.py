"""Power caps on GPUs, set for a run and restored after it.

A note says what they were, so that the next run can restore those of one that was killed.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from agentsched import AgentschedError
from harness.live.engines import leash
from harness.live.engines.kinds import home
from harness.live.engines.nvml import Nvml, NvmlMissingError


def caps_folder() -> Path:
    """Notes of caps that are set now; one file for each process that set some."""
    return home() / "power-caps"


class PowerCaps:
    """Sets caps and remembers what they were.

    Args:
        module: stands for `pynvml`, for tests.
    """

    def __init__(self, module: Any = None) -> None:
        self._module = module
        self._nvml: Nvml | None = None
        self._note = caps_folder() / f"{os.getpid()}.json"
        self._before: dict[int, float] = {}
        self._set: dict[int, float] = {}

    def set(self, caps_w: Mapping[int, float]) -> None:
        """Set caps, of GPUs by number, in watts. Does nothing without any.

        Raises:
            AgentschedError: no NVML, a cap out of range, or no permission; those that were set
                are restored first.
        """
        if not caps_w:
            return
        try:
            self._nvml = Nvml(self._module)
        except NvmlMissingError as error:
            raise AgentschedError(
                f"power caps cannot be set: {error}", "leave launch.set_power_caps out"
            ) from None
        try:
            for gpu, watts in caps_w.items():
                self._set_one(self._nvml, gpu, watts)
        except self._nvml.error as error:
            self.restore()
            raise AgentschedError(
                f"power cap of GPU {gpu} cannot be set to {watts:g} W: {error}",
                "run as root, or set it yourself (nvidia-smi -i GPU -pl WATTS) and leave "
                "launch.set_power_caps out",
            ) from None
        except AgentschedError:
            self.restore()
            raise

    def take_over(self, before_w: Mapping[int, float]) -> None:
        """Take on what somebody else should have restored.

        Raises:
            AgentschedError: there is no NVML now.
        """
        try:
            self._nvml = Nvml(self._module)
        except NvmlMissingError as error:
            raise AgentschedError(
                f"power caps of a run that was killed cannot be restored: {error}",
                f"nvidia-smi -i GPU -pl WATTS, as root, and remove {caps_folder()}",
            ) from None
        self._before = dict(before_w)

    def restore(self) -> None:
        """Put back what was there. May be called twice.

        Raises:
            AgentschedError: a cap could not be put back; names the GPU and its former cap.
        """
        failed = []
        nvml, self._nvml = self._nvml, None
        if nvml is None:
            return
        for gpu, watts in self._before.items():
            try:
                nvml.set_power_limit(gpu, watts)
            except nvml.error as error:
                failed.append(f"GPU {gpu} to {watts:g} W ({error})")
        self._before.clear()
        self._note.unlink(missing_ok=True)
        nvml.close()
        if failed:
            raise AgentschedError(
                f"power caps could not be restored: {', '.join(failed)}",
                "nvidia-smi -i GPU -pl WATTS, as root",
            )

    def facts(self) -> dict[str, float]:
        """Caps that were set, by GPU."""
        return {str(gpu): watts for gpu, watts in self._set.items()}

    def _set_one(self, nvml: Nvml, gpu: int, watts: float) -> None:
        if gpu >= nvml.count:
            raise AgentschedError(f"there is no GPU {gpu}", "choose another topology")
        low, high = nvml.power_limits_w(gpu)
        if not low <= watts <= high:
            raise AgentschedError(
                f"GPU {gpu} takes power caps from {low:g} to {high:g} W, not {watts:g} W",
                "change power_cap_w in the topology",
            )
        self._before[gpu] = nvml.power_limit_w(gpu)
        self._write_note()
        try:
            nvml.set_power_limit(gpu, watts)
        except nvml.error:
            del self._before[gpu]
            raise
        self._set[gpu] = watts

    def _write_note(self) -> None:
        self._note.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        note = {
            "boot": leash.boot(),
            "owner": [os.getpid(), leash.started(os.getpid())],
            "before_w": self._before,
        }
        self._note.write_text(json.dumps(note), "ascii")


def restore_those_left(module: Any = None) -> dict[str, float]:
    """Put back caps whose owner is gone. Returns GPUs and caps that were put back.

    Raises:
        AgentschedError: one could not be put back.
    """
    done: dict[str, float] = {}
    for file in sorted(caps_folder().glob("*.json")):
        with contextlib.suppress(OSError, json.JSONDecodeError, KeyError):
            note = json.loads(file.read_text("ascii"))
            pid, began = note["owner"]
            if note["boot"] == leash.boot() and leash.started(pid) == began:
                continue
            if note["boot"] == leash.boot():  # the driver forgets caps when the machine restarts
                left = PowerCaps(module)
                left.take_over({int(gpu): watts for gpu, watts in note["before_w"].items()})
                left.restore()
                done |= note["before_w"]
            file.unlink(missing_ok=True)
    return done
