"""Headroom's settings. All defaults are our choice, found on seeds 100 and up of the workloads that
ship; docs/headroom.md has what each of them changes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True)
class HeadroomConfig:
    share_text: bool = True
    "Text that sessions on a replica share is counted once; False: for each of them."
    measure_capacity: bool = True
    """How many tokens fit is learned from the engine's gauge, which says what share of its KV the
    running turns hold; False: what it reported at its start."""
    long_tools: bool = True
    """A session whose tool call is expected to last longer than computing the replica's whole KV
    again takes counts as having given up its place."""
    move_fill: float = 0.95
    "Share of KV up to which a session moves to a replica that does not have its KV."
    aging_s: float = 1200.0
    "A turn that waited this long goes before all others, and room is kept for it."
    use_costs: bool = True
    "Moves are weighed in seconds; False: a turn that does not fit at home moves where it fits."
    rebalance: bool = True
    "A turn that fits at home may still move where it is cheaper."
    rebalance_gain: float = 1.0
    "Seconds that such a move must save, or a first place must cost more, to count."
    keep_while_there: bool = True
    """A session whose KV is still there goes on beside what runs; False: beside all of higher rank,
    whether its own KV is still there or not."""
    there_first: bool = True
    "Of the queue, those whose KV is still there go before the others."
    prefill_gain: float = 0.5
    """Seconds that prefilling elsewhere must save a turn whose KV is at home: others gain by it,
    but its own first token comes later."""
    use_store: bool = True
    "Sessions keep their room in tool calls for less long where a shared store has their KV too."
    rank: Literal["work", "turns", "arrival"] = "work"
    """Who goes first: those with the least work left (tokens of context x turns expected yet), with
    the fewest turns done, or who came first."""
    session_history: int = 256
    "Ended sessions whose numbers of turns are kept."
    rate_tokens_per_s: float = 8000.0
    "Prefill rate of a replica before any was measured."
    tool_history: int = 256
    "Durations kept for each tool."

    def __post_init__(self) -> None:
        if not 0 < self.move_fill <= 1.5 or self.aging_s <= 0:
            raise ValueError("move_fill must be above 0 and at most 1.5, aging_s positive")
        if self.rate_tokens_per_s <= 0 or min(self.tool_history, self.session_history) < 1:
            raise ValueError("rate_tokens_per_s and both histories must be positive")
        if self.rank not in ("work", "turns", "arrival"):
            raise ValueError(f"rank is {self.rank!r}, not one of work, turns, arrival")
