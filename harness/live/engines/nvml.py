"""NVML, through the optional `nvidia-ml-py` package: what is used of it, and how it fails."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class GpuReading:
    """One look at one GPU. None: the GPU or its driver does not say."""

    power_w: float | None
    energy_j: float | None
    """Since the driver was loaded."""
    sm_clock_mhz: int | None
    memory_clock_mhz: int | None
    utilization: float | None
    """Share of time in which a kernel ran, in [0, 1]."""
    memory_used_mib: float | None


class NvmlMissingError(Exception):
    """There is no NVML here; the text says why."""


class Nvml:
    """GPUs by the numbers of nvidia-smi.

    Args:
        module: stands for `pynvml`; None: import it.

    Raises:
        NvmlMissingError: no package, no driver, or no GPU.
    """

    def __init__(self, module: Any = None) -> None:
        self._nvml = module if module is not None else _import()
        try:
            self._nvml.nvmlInit()
            self.count = int(self._nvml.nvmlDeviceGetCount())
        except self._nvml.NVMLError as error:
            raise NvmlMissingError(str(error)) from None
        self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(self.count)]

    def read(self, gpu: int) -> GpuReading:
        """A look at one GPU."""
        nvml, handle = self._nvml, self._handles[gpu]
        power = self._ask(nvml.nvmlDeviceGetPowerUsage, handle)
        energy = self._ask(nvml.nvmlDeviceGetTotalEnergyConsumption, handle)
        utilization = self._ask(nvml.nvmlDeviceGetUtilizationRates, handle)
        memory = self._ask(nvml.nvmlDeviceGetMemoryInfo, handle)
        return GpuReading(
            power_w=None if power is None else power / 1000,
            energy_j=None if energy is None else energy / 1000,
            sm_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_SM),
            memory_clock_mhz=self._ask(nvml.nvmlDeviceGetClockInfo, handle, nvml.NVML_CLOCK_MEM),
            utilization=None if utilization is None else utilization.gpu / 100,
            memory_used_mib=None if memory is None else memory.used / 2**20,
        )

    def power_limit_w(self, gpu: int) -> float:
        """The cap that is set now. Raises the module's NVMLError if it cannot be read."""
        return float(self._nvml.nvmlDeviceGetPowerManagementLimit(self._handles[gpu])) / 1000

    def power_limits_w(self, gpu: int) -> tuple[float, float]:
        """The lowest and highest cap that the GPU takes."""
        low, high = self._nvml.nvmlDeviceGetPowerManagementLimitConstraints(self._handles[gpu])
        return low / 1000, high / 1000

    def set_power_limit(self, gpu: int, watts: float) -> None:
        """Needs root."""
        self._nvml.nvmlDeviceSetPowerManagementLimit(self._handles[gpu], round(watts * 1000))

    @property
    def error(self) -> type[Exception]:
        """What its calls raise."""
        kind: type[Exception] = self._nvml.NVMLError
        return kind

    def driver(self) -> str:
        """Version of the driver."""
        version = self._nvml.nvmlSystemGetDriverVersion()
        return version.decode() if isinstance(version, bytes) else str(version)

    def nvlinks(self, gpu: int) -> int:
        """Links to other GPUs that are up."""
        active = 0
        for link in range(int(getattr(self._nvml, "NVML_NVLINK_MAX_LINKS", 18))):
            state = self._ask(self._nvml.nvmlDeviceGetNvLinkState, self._handles[gpu], link)
            active += state == 1
        return active

    def close(self) -> None:
        self._nvml.nvmlShutdown()

    def _ask(self, function: Any, *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except self._nvml.NVMLError:
            return None


def _import() -> Any:
    try:
        return import_module("pynvml")
    except ImportError:
        raise NvmlMissingError(
            "the package nvidia-ml-py is not installed (pip install 'agentsched[gpu]')"
        ) from None
