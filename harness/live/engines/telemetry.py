"""What the GPUs and this machine's processors do during a cell.

Rows of readings, one for each GPU (or the host) and look; and energy, from the GPUs' own counters
where they have one, and integrated from power readings with its error in any case. Without NVML
columns stay empty, never zero, and the reason is told once.
"""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from harness.live.engines.energy_integral import Energy, EnergyIntegral
from harness.live.engines.nvml import GpuReading, Nvml, NvmlMissingError

COUNTER_SOURCE = "counted by the GPUs (NVML)"
INTEGRAL_SOURCE = "integrated from the GPUs' power readings (NVML)"


@dataclass(frozen=True, slots=True)
class TelemetryRow:
    """One look. `gpu` None: the host."""

    time: int
    """Nanoseconds since the start."""
    gpu: int | None
    power_w: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    utilization: float | None = None
    """Of a GPU, or of all processors of the host, in [0, 1]."""
    memory_used_mib: float | None = None


@dataclass(frozen=True, slots=True)
class TelemetrySummary:
    """Over the whole time. None: not known, never zero."""

    energy_j: float | None
    """Of all GPUs that were looked at."""
    energy_error_j: float | None
    """None with counters: NVIDIA states no error for them."""
    energy_source: str | None
    integrated_j: float | None
    """From power readings, also where there are counters."""
    integrated_error_j: float | None
    host_utilization: float | None
    """Mean over all processors."""
    missing: str | None
    """Why there is nothing of the GPUs."""


class HostCpu:
    """Share of all processors' time that was not idle, between calls.

    Args:
        stat: /proc/stat.
    """

    def __init__(self, stat: Path = Path("/proc/stat")) -> None:
        self._stat = stat
        self._last = self._times()

    def utilization(self) -> float | None:
        """Since the last call; None where the kernel does not say, or no time has passed."""
        last, now = self._last, self._times()
        self._last = now
        if last is None or now is None or now[1] <= last[1]:
            return None
        return (now[0] - last[0]) / (now[1] - last[1])

    def _times(self) -> tuple[int, int] | None:
        """Ticks that were busy, and all, since boot."""
        try:
            line = self._stat.read_text("ascii").splitlines()[0].split()
        except (OSError, IndexError):
            return None
        if line[0] != "cpu":
            return None
        ticks = [int(word) for word in line[1:9]]  # guest time is in user time already
        idle = ticks[3] + (ticks[4] if len(ticks) > 4 else 0)  # waiting for disks is idle too
        return sum(ticks) - idle, sum(ticks)


class Telemetry:
    """Looks at GPUs and host when told to; no thread, no clock of its own.

    Args:
        gpus: numbers of those to look at.
        nvml: None: there is none, because of `missing`.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        nvml: Nvml | None,
        missing: str | None = None,
        host: HostCpu | None = None,
    ) -> None:
        self._gpus = tuple(gpus) if nvml is not None else ()
        self._nvml, self._missing = nvml, missing
        self._host = host or HostCpu()
        self._integrals = {gpu: EnergyIntegral() for gpu in self._gpus}
        self._counters: dict[int, tuple[float, float]] = {}
        self._busy: list[float] = []
        self.rows: list[TelemetryRow] = []

    def look(self, now_ns: int) -> None:
        """One look at everything."""
        for gpu in self._gpus:
            assert self._nvml is not None
            self._take(gpu, now_ns, self._nvml.read(gpu))
        busy = self._host.utilization()
        if busy is not None:
            self._busy.append(busy)
        self.rows.append(TelemetryRow(now_ns, None, utilization=busy))

    def summary(self) -> TelemetrySummary:
        """Of all looks so far."""
        integrated = self._integrated()
        counted = self._counted()
        energy, error, source = None, None, None
        if counted is not None:
            energy, source = counted, COUNTER_SOURCE
        elif integrated is not None:
            energy, error, source = integrated.joules, integrated.error_j, INTEGRAL_SOURCE
        return TelemetrySummary(
            energy_j=energy,
            energy_error_j=error,
            energy_source=source,
            integrated_j=None if integrated is None else integrated.joules,
            integrated_error_j=None if integrated is None else integrated.error_j,
            host_utilization=sum(self._busy) / len(self._busy) if self._busy else None,
            missing=self._missing,
        )

    def write(self, file: Path) -> None:
        """All rows as CSV; what is not known is empty."""
        names = [field.name for field in fields(TelemetryRow)]
        with file.open("w", encoding="utf-8", newline="") as out:
            writer = csv.writer(out)
            writer.writerow(names)
            for row in self.rows:
                writer.writerow(["" if (v := getattr(row, n)) is None else v for n in names])

    def _take(self, gpu: int, now_ns: int, reading: GpuReading) -> None:
        if reading.power_w is not None:
            self._integrals[gpu].add(now_ns, reading.power_w)
        if reading.energy_j is not None:
            first, _ = self._counters.get(gpu, (reading.energy_j, 0.0))
            self._counters[gpu] = (first, reading.energy_j)
        self.rows.append(
            TelemetryRow(
                time=now_ns,
                gpu=gpu,
                power_w=reading.power_w,
                sm_clock_mhz=reading.sm_clock_mhz,
                memory_clock_mhz=reading.memory_clock_mhz,
                utilization=reading.utilization,
                memory_used_mib=reading.memory_used_mib,
            )
        )

    def _integrated(self) -> Energy | None:
        """Of all GPUs; None if one of them has no readings."""
        total: Energy | None = None
        for integral in self._integrals.values():
            energy = integral.result()
            if energy is None:
                return None
            total = energy if total is None else total + energy
        return total

    def _counted(self) -> float | None:
        if not self._gpus or set(self._counters) != set(self._gpus):
            return None
        return sum(last - first for first, last in self._counters.values())


class TelemetryThread:
    """Looks every `interval_s` from `start` to `stop`, in a thread beside a cell.

    Args:
        gpus: numbers of the GPUs of the run's replicas.
        module: stands for `pynvml`, for tests.
        tell: is told once why there is nothing of the GPUs.
    """

    def __init__(
        self,
        gpus: Sequence[int],
        interval_s: float,
        tell: Callable[[str], None] = lambda line: None,
        module: Any = None,
    ) -> None:
        self._interval_s = interval_s
        self._nvml: Nvml | None = None
        missing = None if gpus else "the replicas have no GPU"
        if gpus:
            try:
                self._nvml = Nvml(module)
            except NvmlMissingError as error:
                missing = str(error)
                tell(f"no figures of the GPUs: {missing}")
        self.telemetry = Telemetry(gpus, self._nvml, missing)
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self._began = 0

    def start(self) -> None:
        """Take the first look, and go on."""
        self._began = time.monotonic_ns()
        self.telemetry.look(0)
        self._thread = threading.Thread(target=self._run, name="telemetry", daemon=True)
        self._thread.start()

    def stop(self) -> TelemetrySummary:
        """Take a last look, and sum up."""
        if self._thread is not None:
            self._stop.set()
            self._thread.join()
            self._thread = None
            self._look()
        if self._nvml is not None:
            self._nvml.close()
            self._nvml = None
        return self.telemetry.summary()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._look()

    def _look(self) -> None:
        self.telemetry.look(time.monotonic_ns() - self._began)
