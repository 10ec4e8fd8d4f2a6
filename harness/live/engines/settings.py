"""How real engines are started: what neither model nor topology says."""

from __future__ import annotations

import ipaddress
from dataclasses import dataclass
from typing import Literal

from agentsched import UsageError


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """Settings of all replicas of a run."""

    model_path: str | None = None
    """Folder or repository of the weights; None: the model's repository."""
    served_name: str | None = None
    """Name in requests; None: the model's."""
    environment: str | None = None
    """Virtual environment of the engine; None: where `agentsched engine install` puts it."""
    load_format: Literal["auto", "dummy"] = "auto"
    """`dummy`: random weights, nothing is downloaded but the configuration."""
    dtype: str | None = None
    """Of weights and activations; None: the engine decides."""
    host: str = "127.0.0.1"
    """Address that replicas listen on. Off loopback, vLLM cannot be told to forget its cache."""
    base_port: int | None = None
    """Of the first replica; 0: free ports are taken; None: as the topology says."""
    max_num_batched_tokens: int | None = None
    """Tokens of one step (SGLang: of one prefill chunk); None: the engine's default."""
    max_num_seqs: int | None = None
    """Sequences of one step; None: the engine's default."""
    scheduling: Literal["fcfs", "priority"] = "priority"
    """`priority`: lower runs first where a request has one; those without keep their order."""
    kv_events: bool = True
    """Publish what enters and leaves the prefix cache (not with data parallelism)."""
    kv_tokens: int | None = None
    """Cuts the KV cache of each replica to so many tokens, to see eviction early."""
    enforce_eager: bool = False
    """No CUDA graphs."""
    trust_remote_code: bool = False
    """Runs code that comes with the model."""
    tool_parsers: bool = True
    """Turn on the parsers of tool calls and reasoning that belong to the model."""
    offline: bool = False
    """Never ask the model hub; always so with a local folder."""
    seed: int = 0
    transfer: Literal["nixl", "mooncake"] = "nixl"
    """What carries KV from prefill to decode replicas; Mooncake with SGLang only."""
    cpu_threads: int | None = None
    """Of a CPU replica; None: the cores of this machine, shared by its replicas."""
    numa: bool = True
    """Bind each replica to the NUMA node of its GPUs, where numactl is installed."""
    extra_args: tuple[str, ...] = ()
    """Appended to every replica's command line."""
    extra_env: tuple[str, ...] = ()
    """NAME=VALUE, for every replica."""
    start_timeout_s: float = 1800.0
    """Until a replica has generated its first token. Our choice: large weights load slowly."""
    stop_grace_s: float = 15.0
    """Between asking an engine to stop and killing it. Our choice."""
    between_cells: Literal["reset", "restart"] = "reset"
    """How caches are emptied. A reset that cannot be proved is followed by a restart."""
    warm_up: int = 3
    """Generations before each cell, so that its first turn meets no compilation. Our choice."""
    set_power_caps: bool = False
    """Set the topology's power caps on the GPUs, and restore them at the end. Needs root."""
    on: Literal["here", "ray"] = "here"
    """Where replicas are started: on this machine, or on the machines of a Ray cluster."""
    ray: str | None = None
    """Address of the Ray cluster, `ray://HOST:PORT` or `HOST:PORT`; None: the one of this machine,
    or that RAY_ADDRESS names."""
    telemetry_interval_s: float = 0.2
    """Between looks at the GPUs. Our choice; NVML renews most figures every 20 to 100 ms."""

    def __post_init__(self) -> None:
        for name in ("max_num_batched_tokens", "max_num_seqs", "kv_tokens", "cpu_threads"):
            value = getattr(self, name)
            _require(value is None or value >= 1, name, "at least 1")
        for name in ("start_timeout_s", "stop_grace_s", "telemetry_interval_s"):
            _require(getattr(self, name) > 0, name, "above 0")
        _require(self.warm_up >= 0, "warm_up", "0 or more")
        port = self.base_port
        _require(port is None or 0 <= port <= 65_535, "base_port", "a port number, or 0")
        for pair in self.extra_env:
            _require("=" in pair and not pair.startswith("="), "extra_env", "NAME=VALUE items")

    @property
    def loopback(self) -> bool:
        """Whether only this machine can reach the replicas."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _require(ok: bool, name: str, what: str) -> None:
    if not ok:
        raise UsageError(f"launch setting `{name}` must be {what}", f"change `launch.{name}`")
