"""The API server in front of an engine: tokenizes one request after the other, in order."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from harness.sim.sequence import Sequence


class ApiServer:
    """A single first-in first-out server; a request leaves it at a time known on arrival.

    Work on a request that is aborted here is done all the same: its place was taken.
    """

    __slots__ = ("_free_at", "_leaving", "_request_ps", "_token_ps")

    def __init__(self, request_ps: int, prompt_token_ps: int) -> None:
        self._request_ps = request_ps
        self._token_ps = prompt_token_ps
        self._free_at = 0
        self._leaving: deque[tuple[int, Sequence]] = deque()

    def __len__(self) -> int:
        return len(self._leaving)

    def serve(self, now_ps: int, prompt_tokens: int) -> int:
        """Queue a request behind those before it; returns when it leaves (picoseconds)."""
        start = now_ps if now_ps > self._free_at else self._free_at
        self._free_at = start + self._request_ps + self._token_ps * prompt_tokens
        return self._free_at

    def put(self, leaves_ps: int, sequence: Sequence) -> None:
        """The request that leaves at `leaves_ps` (never before those put earlier)."""
        self._leaving.append((leaves_ps, sequence))

    def next_leaving(self) -> int | None:
        return self._leaving[0][0] if self._leaving else None

    def pop_until(self, now_ps: int) -> Sequence | None:
        """The next request that has left by `now_ps`."""
        if self._leaving and self._leaving[0][0] <= now_ps:
            return self._leaving.popleft()[1]
        return None

    def left_by(self, now_ps: int) -> int:
        """How many of those still here have left by `now_ps`."""
        count = 0
        for leaves, _ in self._leaving:
            if leaves > now_ps:
                break
            count += 1
        return count

    def remove(self, sequence: Sequence) -> None:
        self._leaving = deque(item for item in self._leaving if item[1] is not sequence)

    def clear(self) -> None:
        self._leaving.clear()
        self._free_at = 0
