"""A second tier for KV in the memory of each replica's host, as vLLM's native offloading has it.

What a turn computed is copied out when it ends; a later turn that finds less in the GPU's own cache
has the rest copied back before it runs, without holding up the step loop
(`distributed/kv_transfer/kv_connector/v1/offloading/scheduler.py`, `v1/kv_offload/cpu`). Chunks are
dropped least recently used first, the end of a text before its beginning.

Three things are simpler here (our choices): vLLM copies out as blocks fill, not at the turn's end;
it looks chunks up when the request could first run, not when it arrives; and it looks again for a
request that was preempted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from agentsched import TopologyError
from harness.capacity import GIB, Cluster, ReplicaPlan
from harness.sim.kv_store import KvStore, StoreSpec
from harness.sim.links import Fabric, LinkSpec


@dataclass(frozen=True, slots=True)
class OffloadSpec:
    """The tier of one replica."""

    gib: float
    """Memory for it, of all GPUs of the replica together (vLLM's `kv_offloading_size`)."""
    chunk_tokens: int | None = None
    """Tokens that are copied and found as one; None: a block of the engine, as by default in vLLM.
    LMCache's default is 256."""
    gigabytes_per_s: float | None = None
    """Line rate of each GPU's link to the host, each way; None: PCIe of the GPU kind."""
    efficiency: float = 0.8
    """Share of the rate that copies reach. Our choice."""
    latency_us: float = 20.0
    """Of one copy. Our choice."""
    lookup_us: float = 0.0
    """Of one lookup: in vLLM a dictionary's, within the scheduler. Our choice."""

    def __post_init__(self) -> None:
        if not self.gib > 0:
            raise ValueError("gib must be above 0")
        if self.chunk_tokens is not None and self.chunk_tokens < 1:
            raise ValueError("chunk_tokens must be at least 1")
        if self.gigabytes_per_s is not None and not self.gigabytes_per_s > 0:
            raise ValueError("gigabytes_per_s must be above 0")
        if not 0 < self.efficiency <= 1 or self.latency_us < 0 or self.lookup_us < 0:
            raise ValueError("efficiency is in (0, 1], latency_us and lookup_us are 0 or more")


class CpuTier:
    """What one replica's host holds, and its two links: each GPU copies its own part of the KV.

    Args:
        capacity_tokens: that fit.
        bytes_per_token: on each GPU.
        link: of each GPU, in each direction.
    """

    def __init__(
        self,
        capacity_tokens: int,
        chunk_tokens: int,
        bytes_per_token: float,
        link: LinkSpec,
        lookup_us: float = 0.0,
    ) -> None:
        self.chunks = KvStore(StoreSpec(capacity_tokens, link, chunk_tokens, lookup_us))
        self.to_gpu, self.to_cpu = Fabric(link), Fabric(link)
        self.loaded_tokens = 0
        self._bytes = bytes_per_token
        self._lookup_ns = round(lookup_us * 1000)
        self._life = 0

    def found(self, segments: Iterable[tuple[str, int]], tokens: int) -> int:
        """How many of the text's first `tokens` tokens are here."""
        return self.chunks.lookup(self.chunks.intern(segments), tokens)

    def load(self, tokens: int, now: int) -> int:
        """Copy `tokens` tokens to the GPUs from `now` (ns) on; returns when they are there."""
        self.loaded_tokens += tokens
        size = round(tokens * self._bytes)
        return self.to_gpu.transfer("gpu", "gpu", size, now + self._lookup_ns)

    def keep(
        self, segments: Iterable[tuple[str, int]], tokens: int, now: int
    ) -> tuple[int, Callable[[], None]]:
        """Copy what it lacks of the text's first `tokens` tokens to the host.

        Returns when that is done, and what to call then.
        """
        line = self.chunks.intern(segments)
        missing, life = self.chunks.missing(line, tokens), self._life
        done = now
        if missing:
            done = self.to_cpu.transfer("gpu", "gpu", round(missing * self._bytes), now)

        def publish() -> None:
            if self._life == life:
                self.chunks.publish(line, tokens)

        return done, publish

    def lose(self) -> None:
        """The replica's process dies, and what it held with it."""
        self._life += 1
        self.chunks.clear()
        self.to_gpu.reset()
        self.to_cpu.reset()


def tiers_of(spec: OffloadSpec, cluster: Cluster) -> dict[str, CpuTier]:
    """By replica id.

    Raises:
        TopologyError: not one chunk fits.
    """
    return {replica.id: _tier(spec, cluster, replica) for replica in cluster.replicas}


def _tier(spec: OffloadSpec, cluster: Cluster, replica: ReplicaPlan) -> CpuTier:
    chunk = spec.chunk_tokens or replica.block_size
    copies = 1 if cluster.model.kv.replicated else replica.tensor_parallel
    capacity = int(spec.gib * GIB // (replica.kv_bytes_per_token * copies))
    if capacity < chunk:
        raise TopologyError(
            f"{spec.gib:g} GiB of host memory hold {capacity} tokens of KV, a chunk has {chunk}",
            "raise sim.cpu_offload.gib, or lower its chunk_tokens",
        )
    rate = spec.gigabytes_per_s or replica.gpu.pcie_gbs
    link = LinkSpec(rate, spec.efficiency, spec.latency_us)
    return CpuTier(capacity, chunk, replica.kv_bytes_per_token, link, spec.lookup_us)


def offload_counters(tiers: Iterable[CpuTier]) -> dict[str, float]:
    """Totals over replicas."""
    tiers = list(tiers)
    return {
        "offload.lookups": sum(t.chunks.lookups for t in tiers),
        "offload.found_tokens": sum(t.chunks.hit_tokens for t in tiers),
        "offload.loaded_tokens": sum(t.loaded_tokens for t in tiers),
        "offload.to_gpu_gb": sum(t.to_gpu.moved_bytes for t in tiers) / 1e9,
        "offload.to_cpu_gb": sum(t.to_cpu.moved_bytes for t in tiers) / 1e9,
        "offload.wait_s": sum(t.to_gpu.waited_ns for t in tiers) / 1e9,
    }
