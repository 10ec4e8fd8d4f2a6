"""A consistent-hash ring over replicas, as the routers build it."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator
from hashlib import sha256

VIRTUAL_NODES = 160
"""Points on the ring per replica (vLLM router, SGLang gateway)."""


def position(key: str) -> int:
    """Where a key lies on the ring: 64 bits of SHA-256 (our choice; routers use faster hashes)."""
    return int.from_bytes(sha256(key.encode()).digest()[:8], "big")


class HashRing:
    """Replicas in the order in which they are met from a key's position onwards."""

    def __init__(self, replica_ids: Iterable[str], virtual_nodes: int = VIRTUAL_NODES) -> None:
        self._points = sorted(
            (position(f"{replica}#{number}"), replica)
            for replica in replica_ids
            for number in range(virtual_nodes)
        )

    def walk(self, key: str) -> Iterator[str]:
        """Each replica once, the key's owner first."""
        start = bisect_left(self._points, (position(key), ""))
        seen: set[str] = set()
        for offset in range(len(self._points)):
            _, replica = self._points[(start + offset) % len(self._points)]
            if replica not in seen:
                seen.add(replica)
                yield replica
