"""The tool side: CPU slots that tool calls share, first come, first served."""

from __future__ import annotations

import heapq

from harness.sim.agents import nanoseconds
from workloads.model import ToolCall


class ToolPool:
    """`slots` calls run at once; None: every call starts at once."""

    def __init__(self, slots: int | None) -> None:
        self._free = [0] * slots if slots is not None else None

    def start(self, calls: list[ToolCall], now: int) -> int:
        """Start calls that run in parallel; returns when the last one ends.

        Call in order of time.
        """
        end = now
        for call in calls:
            duration = nanoseconds(call.seconds)
            if self._free is None:
                end = max(end, now + duration)
                continue
            begin = max(now, heapq.heappop(self._free))
            heapq.heappush(self._free, begin + duration)
            end = max(end, begin + duration)
        return end


def parallel_groups(calls: tuple[ToolCall, ...]) -> list[list[ToolCall]]:
    """Calls that start together, in the order the groups run."""
    groups: list[list[ToolCall]] = []
    for call in calls:
        if call.parallel and groups:
            groups[-1].append(call)
        else:
            groups.append([call])
    return groups
