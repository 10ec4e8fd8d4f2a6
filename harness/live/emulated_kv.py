"""KV that emulated replicas hand to each other, at the speed of the simulator's links.

The prefill replica keeps a prompt's blocks under a name until the decode replica has copied them,
or nobody asked for them for as long as vLLM waits. vLLM's replicas name them in
`kv_transfer_params`; SGLang's meet in a numbered room.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from harness.live.clock import Clock
from harness.live.gauges import KvTransfers
from harness.sim.clock import Priority
from harness.sim.links import Fabric, LinkSpec

KEPT_NS = 30 * 10**9
"""How long blocks that nobody asked for are kept (vLLM's `kv_lease_duration`)."""


class Holder(Protocol):
    """A replica that keeps blocks."""

    @property
    def name(self) -> str: ...
    def let_go(self, number: int) -> None:
        """The blocks of that request are not needed any more."""
        ...


@dataclass(slots=True)
class Kept:
    """Blocks of one ended prefill."""

    owner: Holder
    number: int
    key: str
    taken: Callable[[], None] | None = None
    """Tells who copies them that they are gone. None: nobody does yet."""
    free: bool = False

    def release(self) -> None:
        """They have been copied, or nobody wants them."""
        if not self.free:
            self.free = True
            self.owner.let_go(self.number)


@dataclass(slots=True)
class KvExchange:
    """What the replicas of one emulator share to hand KV over.

    Args:
        link: of each GPU.
        bytes_per_token: KV of a token on each GPU, by replica name.
    """

    clock: Clock
    link: LinkSpec
    bytes_per_token: Mapping[str, float]
    fabric: Fabric = field(init=False)
    received: dict[str, KvTransfers] = field(default_factory=dict)
    """By replica; time and bytes of transfers that have begun."""
    _kept: dict[str, Kept] = field(default_factory=dict)
    _taken: dict[str, Kept] = field(default_factory=dict)
    _waiting: dict[str, Callable[[Kept | None], None]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.fabric = Fabric(self.link)

    def keep(self, owner: Holder, number: int, key: str) -> None:
        """A prefill has ended; its blocks are there to be copied under `key`."""
        kept = Kept(owner, number, key)
        self._kept[key] = kept
        at = self.clock.now + KEPT_NS
        self.clock.at(at, Priority.ENGINE, partial(self._expire, kept))
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting(self.take(key))

    def take(self, key: str) -> Kept | None:
        """The blocks of that name, once; None if they are not, or no longer, there."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._taken[key] = kept
        return kept

    def wait(self, key: str, ready: Callable[[Kept | None], None]) -> None:
        """Call `ready` when blocks of that name are there; with None if they never will be."""
        if key in self._kept:
            ready(self.take(key))
        else:
            self._waiting[key] = ready

    def forget(self, key: str) -> None:
        """Who waited for that name has gone."""
        self._waiting.pop(key, None)

    def failed(self, key: str) -> None:
        """The prefill of that name came to nothing."""
        waiting = self._waiting.pop(key, None)
        if waiting is not None:
            waiting(None)

    def done(self, kept: Kept) -> None:
        """The copy is complete, or called off."""
        self._taken.pop(kept.key, None)
        kept.release()

    def lost(self, owner: Holder) -> list[Callable[[], None]]:
        """The owner is gone with its KV; returns what tells those who were copying from it."""
        for key in [key for key, kept in self._kept.items() if kept.owner is owner]:
            self._kept.pop(key).free = True
        told: list[Callable[[], None]] = []
        for key, kept in list(self._taken.items()):
            if kept.owner is owner:
                del self._taken[key]
                kept.free = True
                if kept.taken is not None:
                    told.append(kept.taken)
        return told

    def transfer(self, source: str, target: str, tokens: int) -> int:
        """Start to copy so many tokens now; returns when the last byte has arrived."""
        size = max(self._size(target, tokens), self._size(source, tokens))
        now = self.clock.now
        done = self.fabric.transfer(source, target, size, now)
        had = self.received.get(target, KvTransfers(0, 0.0, 0))
        self.received[target] = KvTransfers(
            had.count + 1, had.seconds + (done - now) / 1e9, had.bytes + size
        )
        return done

    def counters(self) -> dict[str, float]:
        """Totals, by the simulator's names."""
        return {
            "kv.transfers": self.fabric.transfers,
            "kv.transferred_gb": self.fabric.moved_bytes / 1e9,
            "kv.transfer_wait_s": self.fabric.waited_ns / 1e9,
        }

    def _size(self, replica: str, tokens: int) -> int:
        return round(tokens * self.bytes_per_token[replica])

    def _expire(self, kept: Kept) -> None:
        if self._kept.get(kept.key) is kept:
            del self._kept[kept.key]
            kept.release()


def remote_params(kept_key: str, owner: str, tokens: int, block_size: int) -> dict[str, Any]:
    """`kv_transfer_params` of a prefill's answer, as vLLM 0.32 with NIXL gives them."""
    return {
        "do_remote_prefill": True,
        "do_remote_decode": False,
        "remote_block_ids": [list(range(-(-tokens // block_size)))],
        "remote_engine_id": owner,
        "remote_request_id": kept_key,
        "remote_host": "127.0.0.1",
        "remote_port": 0,
        "tp_size": 1,
        "remote_num_tokens": tokens,
    }


def wanted_key(params: Any) -> str | None:
    """The name of the blocks that a decode request wants, by its `kv_transfer_params`."""
    if not isinstance(params, dict) or not params.get("do_remote_prefill"):
        return None
    key = params.get("remote_request_id")
    return key if isinstance(key, str) else None
