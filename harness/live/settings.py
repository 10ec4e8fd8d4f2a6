"""Settings of cells on live engines. Each says where its default comes from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class LiveSettings:
    """How sessions are played on emulated or real engines (`live:` in a specification)."""

    time_scale: float = 1.0
    """Virtual seconds per real second; of the emulator only, and only in replay."""
    virtual_clock: bool = False
    """Gateway, emulated engines and replay on one virtual clock, as fast as it goes: the times of
    the simulator through the code of the gateway."""
    urls: tuple[str, ...] = ()
    """Replicas that run already, in the topology's order; none are then started or stopped."""
    served_model: str | None = None
    """Name that these serve the model under; None: what the first answers to /v1/models."""
    gaps: Literal["recorded", "sampled", "none"] = "recorded"
    """Tool times of a replay: as recorded, drawn from all of the trace's, or none."""
    gap_scale: float = 1.0
    """Factor on tool times and other waits of a replay."""
    event_log: bool = True
    """Keep each cell's gateway events, for `agentsched verify-log`."""
    passthrough: bool = True
    """Ask replicas which APIs they serve, and pass those through untranslated."""

    def __post_init__(self) -> None:
        if not self.time_scale > 0:
            raise ValueError("time_scale must be above 0")
        if not self.gap_scale >= 0:
            raise ValueError("gap_scale must not be negative")
        if self.virtual_clock and self.time_scale != 1.0:
            raise ValueError("a virtual clock has no time_scale; leave one of them out")
