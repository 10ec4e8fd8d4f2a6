"""How much a session of an agent may take before its client process is killed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from agentsched import UsageError


@dataclass(frozen=True, slots=True)
class ClientLimits:
    """Limits on client processes; all our choice, and all settings of every agent workload."""

    session_limit_s: float = 7200.0
    """A session that takes longer is stopped and counted as past its deadline."""
    grace_s: float = 120.0
    """How much longer than the task's own deadline a session may take: building its environment
    and ending it are not the agent's time."""
    start_limit_s: float = 300.0
    """A client process must have imported its packages by then."""
    scratch_limit_mb: float = 4096.0
    """A session whose folder holds more is stopped."""
    file_limit_mb: float = 2048.0
    """No file that an agent or its tools write grows beyond this."""
    free_disk_mb: float = 1024.0
    """With less than this left on the disk, the session with the largest folder is stopped."""

    def __post_init__(self) -> None:
        for field in fields(self):
            value = getattr(self, field.name)
            number = isinstance(value, (int, float)) and not isinstance(value, bool)
            if not number or not value > 0:
                raise UsageError(f"{field.name}: {value!r}", "give a number above 0")


NAMES = tuple(field.name for field in fields(ClientLimits))


def split_limits(settings: Mapping[str, Any]) -> tuple[ClientLimits, dict[str, Any]]:
    """The limits among an agent workload's settings, and the other settings.

    Raises:
        UsageError: a limit is not a number above 0.
    """
    own = {name: value for name, value in settings.items() if name in NAMES}
    return ClientLimits(**own), {k: v for k, v in settings.items() if k not in NAMES}
