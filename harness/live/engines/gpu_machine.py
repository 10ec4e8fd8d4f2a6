"""The GPUs of this machine, through nvidia-smi."""

from __future__ import annotations

import subprocess
from pathlib import Path

from harness.live.engines.layout import LocalGpu

_QUERY = "index,name,memory.total,pci.bus_id"


def local_gpus() -> list[LocalGpu]:
    """Those that nvidia-smi shows; none where it is not installed or fails."""
    try:
        shown = subprocess.run(
            ["nvidia-smi", f"--query-gpu={_QUERY}", "--format=csv,noheader,nounits"],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return []
    return read_gpus(shown.stdout) if shown.returncode == 0 else []


def read_gpus(text: str, pci: Path = Path("/sys/bus/pci/devices")) -> list[LocalGpu]:
    """GPUs of nvidia-smi's table; lines that are none are left out."""
    found = []
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) == 4 and cells[0].isdigit() and cells[2].isdigit():
            numa = _numa_node(cells[3], pci)
            found.append(LocalGpu(int(cells[0]), cells[1], int(cells[2]), numa))
    return sorted(found, key=lambda gpu: gpu.index)


def _numa_node(bus: str, pci: Path) -> int | None:
    # nvidia-smi writes the PCI domain with eight digits, the kernel with four.
    domain, _, rest = bus.lower().partition(":")
    try:
        node = int((pci / f"{domain[-4:]}:{rest}" / "numa_node").read_text("ascii"))
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None
