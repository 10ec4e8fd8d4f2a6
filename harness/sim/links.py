"""Network links that KV transfers share."""

from __future__ import annotations

from dataclasses import dataclass, field

from schedulers.types import NS


@dataclass(frozen=True, slots=True)
class LinkSpec:
    """One end's link.

    `gigabytes_per_s` is the line rate, `efficiency` the share of it that transfers reach
    (Mooncake's transfer engine reports 87 % on 4 x 200 Gb/s and 48 % on 8 x 400 Gb/s).
    """

    gigabytes_per_s: float
    efficiency: float = 0.7
    latency_us: float = 10.0

    def __post_init__(self) -> None:
        if self.gigabytes_per_s <= 0 or not 0 < self.efficiency <= 1 or self.latency_us < 0:
            raise ValueError("a link needs a rate above 0, efficiency in (0, 1] and latency >= 0")

    def occupied_ns(self, size: int) -> int:
        """Nanoseconds that `size` bytes occupy the link."""
        return round(size * NS / (self.gigabytes_per_s * 1e9 * self.efficiency))


@dataclass(slots=True)
class Fabric:
    """Links by end. A transfer occupies both its ends; each end serves one at a time, in order."""

    spec: LinkSpec
    transfers: int = 0
    moved_bytes: int = 0
    waited_ns: int = 0
    """Time transfers waited for a busy end, in all."""
    _free_at: dict[str, int] = field(default_factory=dict)

    def reset(self) -> None:
        """All ends are idle; the counters go on."""
        self._free_at.clear()

    def transfer(self, source: str, target: str, size: int, now: int) -> int:
        """Start a transfer of `size` bytes at `now`; returns when its last byte has arrived.

        Call in order of time.
        """
        ends = (source, target) if source != target else (source,)
        begin = max(now, *(self._free_at.get(end, 0) for end in ends))
        done = begin + self.spec.occupied_ns(size)
        for end in ends:
            self._free_at[end] = done
        self.transfers += 1
        self.moved_bytes += size
        self.waited_ns += begin - now
        return done + round(self.spec.latency_us * 1000)
