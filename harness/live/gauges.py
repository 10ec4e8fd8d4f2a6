"""Engine gauges from a Prometheus page: vLLM's and SGLang's names, old and new.

One endpoint may stand for several engines (data parallelism): counts are summed, shares averaged.
Names: vLLM docs/design/metrics.md and SGLang docs (production metrics).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from schedulers.types import ReplicaSample

_NAMES: dict[str, str] = {
    "vllm:num_requests_running": "running",
    "vllm:num_requests_waiting": "waiting",
    "vllm:kv_cache_usage_perc": "kv_usage",
    "vllm:gpu_cache_usage_perc": "kv_usage",
    "vllm:prefix_cache_queries": "prefix_queries",
    "vllm:gpu_prefix_cache_queries": "prefix_queries",
    "vllm:prefix_cache_hits": "prefix_hits",
    "vllm:gpu_prefix_cache_hits": "prefix_hits",
    "vllm:num_preemptions": "preemptions",
    "vllm:prompt_tokens": "prompt_tokens",
    "vllm:generation_tokens": "generation_tokens",
    "sglang:num_running_reqs": "running",
    "sglang:num_queue_reqs": "waiting",
    "sglang:token_usage": "kv_usage",
    "sglang:prompt_tokens": "prompt_tokens",
    "sglang:generation_tokens": "generation_tokens",
    "sglang:cached_tokens": "prefix_hits",
    "sglang:max_total_num_tokens": "capacity",
    "vllm:nixl_xfer_time_seconds_count": "transfers",
    "vllm:nixl_xfer_time_seconds_sum": "transfer_s",
    "vllm:nixl_bytes_transferred_sum": "transfer_bytes",
    "sglang:kv_transfer_latency_ms_count": "transfers",
    "sglang:kv_transfer_latency_ms_sum": "transfer_ms",
    "sglang:kv_transfer_total_mb_sum": "transfer_mib",
}
_BY_SOURCE = "vllm:prompt_tokens_by_source_total"
_FROM_OTHERS = 'source="external_kv_transfer"'
_MOST = 1e15
"""No gauge or counter of an engine gets there."""
_CONFIG = "vllm:cache_config_info"
_LABEL = re.compile(r'(\w+)="([^"]*)"')


@dataclass(frozen=True, slots=True)
class KvTransfers:
    """KV that went from replica to replica since the start: vLLM counts what one has got from
    others, SGLang what it has sent. No engine tells the moments of a single one."""

    count: int
    seconds: float
    bytes: int
    tokens: int | None = None
    """Prompt tokens that it had not to compute; None: it does not say."""

    def since(self, before: KvTransfers) -> KvTransfers:
        """Those after an earlier look."""
        known = self.tokens is not None and before.tokens is not None
        return KvTransfers(
            self.count - before.count,
            self.seconds - before.seconds,
            self.bytes - before.bytes,
            (self.tokens or 0) - (before.tokens or 0) if known else None,
        )


@dataclass(frozen=True, slots=True)
class Gauges:
    """One page's worth. `capacity_tokens` None: it does not say."""

    sample: ReplicaSample
    capacity_tokens: int | None
    kv: KvTransfers | None = None
    """None: it reports none."""


def read_gauges(page: str) -> Gauges:
    """Gauges of a metrics page; what it lacks is None."""
    found: dict[str, list[float]] = {}
    sglang = False
    capacity = 0
    for name, labels, value in _samples(page):
        if name == _CONFIG:
            capacity += _configured(labels)
            continue
        field = _NAMES.get(name.removesuffix("_total"))
        if name == _BY_SOURCE and _FROM_OTHERS in labels:
            field = "transfer_tokens"
        if field is not None:
            sglang = sglang or name.startswith("sglang:")
            found.setdefault(field, []).append(value)
    if sglang and "prefix_hits" in found and "prefix_queries" not in found:
        found["prefix_queries"] = found.get("prompt_tokens", [])
    capacity = capacity or int(sum(found.get("capacity", ())))
    usage = found.get("kv_usage")
    sample = ReplicaSample(
        running=_total(found, "running"),
        waiting=_total(found, "waiting"),
        kv_usage=min(1.0, math.fsum(usage) / len(usage)) if usage else None,
        prefix_queries=_total(found, "prefix_queries"),
        prefix_hits=_total(found, "prefix_hits"),
        preemptions=_total(found, "preemptions"),
        prompt_tokens=_total(found, "prompt_tokens"),
        generation_tokens=_total(found, "generation_tokens"),
    )
    return Gauges(sample, capacity or None, _transfers(found))


def _transfers(found: dict[str, list[float]]) -> KvTransfers | None:
    count = _total(found, "transfers")
    if count is None:
        return None
    seconds = math.fsum(found.get("transfer_s", ())) + math.fsum(found.get("transfer_ms", ())) / 1e3
    size = math.fsum(found.get("transfer_bytes", ()))
    size += math.fsum(found.get("transfer_mib", ())) * 2**20
    return KvTransfers(count, seconds, round(size), _total(found, "transfer_tokens"))


def _samples(page: str) -> Iterator[tuple[str, str, float]]:
    for line in page.splitlines():
        if not line.startswith(("vllm:", "sglang:")):
            continue
        head, _, text = line.rpartition(" ")
        name, brace, labels = head.partition("{")
        if brace and not head.endswith("}"):  # a timestamp follows the value
            head, _, text = head.rpartition(" ")
            name, _, labels = head.partition("{")
        try:
            value = float(text)
        except ValueError:
            continue
        if 0 <= value <= _MOST:  # what an engine cannot have is not believed
            yield name.strip(), labels, value


def _configured(labels: str) -> int:
    values = dict(_LABEL.findall(labels))
    try:
        size, blocks = int(values["block_size"]), int(values["num_gpu_blocks"])
        return size * blocks if size > 0 and 0 < blocks <= _MOST else 0
    except (KeyError, ValueError):  # vLLM writes "None" until it has profiled
        return 0


def _total(found: dict[str, list[float]], field: str) -> int | None:
    values = found.get(field)
    return round(math.fsum(values)) if values else None
