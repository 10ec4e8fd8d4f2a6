"""Behaves like the module `pynvml` of nvidia-ml-py, as far as it is used: units, error classes,
and that a function a GPU does not support raises."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class FakeNvml:
    """`count` GPUs at 300 W.

    Args:
        lacks: names of functions that raise NVMLError_NotSupported.
        broken: nvmlInit raises this.
    """

    class NVMLError(Exception):
        pass

    NVML_CLOCK_SM = 1
    NVML_CLOCK_MEM = 2
    NVML_NVLINK_MAX_LINKS = 18

    def __init__(
        self, count: int, lacks: set[str] | None = None, broken: str | None = None
    ) -> None:
        self._count, self._lacks, self._broken = count, lacks or set(), broken
        self._seconds = 0.0
        self.limits = dict.fromkeys(range(count), 700_000)
        self.open = 0

    def __getattribute__(self, name: str) -> Any:
        found = object.__getattribute__(self, name)
        if name.startswith("nvml") and name in self._lacks:
            return self._refusal()
        return found

    def _refusal(self) -> Callable[..., Any]:
        def refuse(*arguments: object) -> None:
            raise self.NVMLError("Not Supported")

        return refuse

    def advance(self, seconds: float) -> None:
        self._seconds += seconds

    def nvmlInit(self) -> None:  # noqa: N802
        if self._broken is not None:
            raise self.NVMLError(self._broken)
        self.open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.open -= 1

    def nvmlSystemGetDriverVersion(self) -> str:  # noqa: N802
        return "590.10"

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return self._count

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        return 300_000  # milliwatts

    def nvmlDeviceGetTotalEnergyConsumption(self, handle: int) -> int:  # noqa: N802
        return round((1e6 + 300 * self._seconds) * 1000)  # millijoules

    def nvmlDeviceGetClockInfo(self, handle: int, kind: int) -> int:  # noqa: N802
        return {self.NVML_CLOCK_SM: 1980, self.NVML_CLOCK_MEM: 2619}[kind]

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(gpu=50, memory=20)  # per cent

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:  # noqa: N802
        return SimpleNamespace(total=80 * 2**30, free=79 * 2**30, used=2**30)

    def nvmlDeviceGetNvLinkState(self, handle: int, link: int) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetPowerManagementLimit(self, handle: int) -> int:  # noqa: N802
        return self.limits[handle]

    def nvmlDeviceGetPowerManagementLimitConstraints(self, handle: int) -> list[int]:  # noqa: N802
        return [200_000, 700_000]

    def nvmlDeviceSetPowerManagementLimit(self, handle: int, limit: int) -> None:  # noqa: N802
        self.limits[handle] = limit
