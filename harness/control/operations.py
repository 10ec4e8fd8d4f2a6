"""Operations: what the control plane asks its driver to do, already checked.

WakeAt and Solve commands pass through to the driver as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from schedulers.commands import Solve, WakeAt
from schedulers.types import Turn


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Send the turn to `decode` (through `prefill` first, if named) as attempt `attempt`."""

    attempt: int
    turn: Turn
    decode: str
    prefill: str | None
    annotations: Mapping[str, int | float | str]


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer the client with a refusal."""

    turn: Turn
    reason: str
    retry_after_s: float | None


@dataclass(frozen=True, slots=True)
class Cancel:
    """Cancel the attempt at its replica; report it with DispatchFailed."""

    attempt: int
    reason: str


Operation = Dispatch | Refuse | Cancel | WakeAt | Solve
