"""Keeps agents from filling the disk: measures what sessions hold, and says which one must stop."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from workloads.agents.limits import ClientLimits

MB = 1 << 20
CHECK_S = 1.0
"""How often free space is looked at. Our choice: a disk of 1 GB/s stays within the reserve."""
MEASURE_S = 30.0
"""How often folders are measured whatever the free space is: it walks them. Our choice."""


def folder_bytes(folder: Path) -> int:
    """Bytes that a folder takes on the disk; what vanishes meanwhile counts as nothing."""
    total = 0
    waiting = [str(folder)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    if entry.is_dir(follow_symlinks=False):
                        waiting.append(entry.path)
                    else:
                        total += entry.stat(follow_symlinks=False).st_blocks * 512
        except OSError:
            continue
    return total


@dataclass(slots=True)
class DiskWatch:
    """Looks at the disk from time to time.

    Args:
        folder: on the disk that is watched.
        now_s: seconds of any clock, at each call.
    """

    folder: Path
    limits: ClientLimits
    _measured_s: float | None = None
    _free: int = 0
    peak_mb: float = field(default=0.0)
    """Most that one session was seen to hold."""

    def check(self, now_s: float, sessions: Mapping[str, Path]) -> dict[str, str]:
        """Sessions that must stop, and why. Blocks while it measures.

        Args:
            sessions: folders of those that run.
        """
        free = shutil.disk_usage(self.folder).free
        low = free < self.limits.free_disk_mb * MB
        sinking = self._free - free > self.limits.scratch_limit_mb * MB / 2
        due = self._measured_s is None or now_s - self._measured_s >= MEASURE_S
        if not sessions or not (low or sinking or due):
            return {}
        self._measured_s, self._free = now_s, free
        sizes = {name: folder_bytes(path) for name, path in sessions.items()}
        self.peak_mb = max(self.peak_mb, max(sizes.values()) / MB)
        limit = self.limits.scratch_limit_mb
        stopped = {
            name: f"its folder held {size / MB:.0f} MB, the limit is {limit:g} MB"
            for name, size in sizes.items()
            if size > limit * MB
        }
        if low and not stopped:
            largest = max(sizes, key=lambda name: (sizes[name], name))
            stopped[largest] = (
                f"the disk had {free / MB:.0f} MB left, and its folder was the largest "
                f"({sizes[largest] / MB:.0f} MB)"
            )
        return stopped
