"""Power caps on GPUs, set for a run and restored after it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agentsched import AgentschedError
from harness.live.engines.nvml import Nvml, NvmlMissingError


class PowerCaps:
    """Sets caps and remembers what they were.

    Args:
        module: stands for `pynvml`, for tests.
    """

    def __init__(self, module: Any = None) -> None:
        self._module = module
        self._nvml: Nvml | None = None
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
        before = nvml.power_limit_w(gpu)
        nvml.set_power_limit(gpu, watts)
        self._before[gpu], self._set[gpu] = before, watts
