"""Engine counters of a cell, read from the replicas themselves and not by way of the gateway."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from harness.live.clock import LoopClock
from harness.live.gauges import Gauges, KvTransfers, read_gauges
from harness.live.http_client import HttpClient
from harness.live.parts import ReplicaAddress
from harness.live.serving import fetch

COUNTED = (
    "prompt_tokens",
    "generation_tokens",
    "prefix_queries",
    "prefix_hits",
    "preemptions",
)

TRANSFERS_SOURCE = (
    "the engines' counters: totals, so that when the KV of a single turn was sent and received "
    "stays unknown"
)


@dataclass(frozen=True, slots=True)
class Growth:
    """What engines counted in a cell."""

    counters: Mapping[str, float]
    """As `engine.NAME.REPLICA`."""
    transfers: Sequence[KvTransfers]
    """Of each replica that counts them."""


def transfer_facts(transfers: Iterable[KvTransfers]) -> dict[str, Any]:
    """The KV that replicas handed to one another in a cell, as the fact that metrics use."""
    known = list(transfers)
    if not known:
        return {}
    return {
        "kv_transfers": {
            "count": sum(one.count for one in known),
            "seconds": math.fsum(one.seconds for one in known),
            "bytes": sum(one.bytes for one in known),
        },
        "kv_transfers_source": TRANSFERS_SOURCE,
    }


class ReplicaWatch:
    """Reads the metrics pages of replicas. Make it inside the event loop.

    Args:
        speed: virtual seconds per real second, of the clock.
    """

    def __init__(self, replicas: Sequence[ReplicaAddress], speed: float = 1.0) -> None:
        self.clock = LoopClock(asyncio.get_running_loop(), speed)
        self._clients = {replica.name: HttpClient(replica.url) for replica in replicas}
        self._task: asyncio.Task[None] | None = None

    async def read(self) -> dict[str, Gauges]:
        """One page of each replica that answers."""
        found: dict[str, Gauges] = {}
        for name, client in self._clients.items():
            status, page = await fetch(client, "/metrics")
            if status == 200:
                found[name] = read_gauges(page.decode("utf-8", "replace"))
        return found

    async def growth_since(self, before: Mapping[str, Gauges]) -> Growth:
        """What the engines' own counters have grown by.

        A replica that was restarted meanwhile, or tells nothing, is left out.
        """
        counters: dict[str, float] = {}
        transfers: list[KvTransfers] = []
        for name, gauges in (await self.read()).items():
            for field in COUNTED:
                then = getattr(before[name].sample, field) if name in before else None
                now = getattr(gauges.sample, field)
                if then is not None and now is not None and now >= then:
                    counters[f"engine.{field}.{name}"] = now - then
            # A counter that nothing was counted with yet may not be on the page.
            had = before[name].kv or KvTransfers(0, 0.0, 0, 0) if name in before else None
            if gauges.kv is not None and had is not None and gauges.kv.count >= had.count:
                grown = gauges.kv.since(had)
                transfers.append(grown)
                counters[f"engine.kv_transfers.{name}"] = grown.count
                counters[f"engine.kv_transfer_s.{name}"] = grown.seconds
                counters[f"engine.kv_transfer_bytes.{name}"] = grown.bytes
                if grown.tokens is not None:
                    counters[f"engine.kv_transfer_tokens.{name}"] = grown.tokens
        return Growth(counters, transfers)

    def start(self, interval_s: float, seen: Callable[[str, Gauges], None]) -> None:
        """Read every so often, for cells whose front does not."""
        self._task = asyncio.get_running_loop().create_task(self._go_on(interval_s, seen))

    async def _go_on(self, interval_s: float, seen: Callable[[str, Gauges], None]) -> None:
        while True:
            for name, gauges in (await self.read()).items():
                seen(name, gauges)
            await asyncio.sleep(interval_s)

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
        for client in self._clients.values():
            await client.close()
