"""Settings of a simulated run. Each says where its default comes from."""

from __future__ import annotations

from dataclasses import dataclass

from harness.sim.cpu_offload import OffloadSpec
from harness.sim.faults import Fault as Fault
from harness.sim.faults import FaultScenario
from harness.sim.kv_store import StoreSpec
from harness.sim.links import LinkSpec


@dataclass(frozen=True, slots=True)
class SimSettings:
    """How the world around scheduler and engines behaves."""

    sampling_interval_s: float = 5.0
    """How often gauges are polled (ThunderAgent's metrics interval)."""
    planner_latency_ms: float = 5.0
    """From a Solve command to its PlanReady. Our choice; fixed, so that results never depend on
    the machine's speed."""
    bytes_per_token: float = 4.0
    """Size of text where a trace gives none. Our choice, a common rule of thumb."""
    start_spread_s: float = 0.0
    """Workers start evenly over this time instead of all at once. Our choice: at once."""
    agent_retries: int = 3
    """How often an agent sends a turn again that failed after tokens had come. Our choice."""
    retry_delay_s: float = 1.0
    """How long the agent waits before that. Our choice."""
    tool_slots: int | None = None
    """Tool calls that can run at once, first come first served; None: no limit. Our choice."""
    release: bool = True
    """Whether agents tell the gateway when a session ends. False reproduces deployments without
    release calls."""
    true_tool_hints: bool = False
    """Tell the scheduler the true end of every tool call (a bound, not a real deployment)."""
    starvation_limit_s: float = 7200.0
    """Turns held this long while nothing runs at all fail the cell. Our choice."""
    max_wait_s: float | None = None
    """A turn held this long is sent on, whatever the scheduler says; None: it decides alone, as
    in the papers."""
    decision_limit_s: float = 120.0
    """Real seconds that one decision, or one plan, may take before the cell fails; it never changes
    a result. Our choice."""
    context_limit: int | None = None
    """Tokens of prompt and output a turn may have; None: the model's."""
    reported_kv_tokens: int | None = None
    """KV tokens that each replica reports to the gateway; None: what it has. vLLM's labels (blocks
    x block size) are not what fits where layers keep KV of different kinds."""
    kv_link: LinkSpec | None = None
    """Link of each GPU for KV between replicas; None: the GPU kind's network at the default
    efficiency."""
    kv_store: StoreSpec | None = None
    """A KV store that all replicas share."""
    cpu_offload: OffloadSpec | None = None
    """A tier for KV in the memory of each replica's host; None: off, as by default in vLLM."""
    faults: tuple[Fault, ...] = ()
    fault_scenario: FaultScenario | None = None
    """Failures at random, beside `faults`."""
    gateways: int = 1
    """Gateways that share the cluster, each with a scheduler and sessions of its own; see
    harness.partition."""
    gateway_split: str = "shares"
    """With several: each has an equal share of every replica's KV (`shares`), or every G-th
    replica to itself (`replicas`)."""
    record_decisions: bool = True
    host_fixed_us: float | None = None
    """Scalars beside the step-time tables, as `agentsched calibrate` fits them; None: the profile
    that ships for the GPU kind."""
    host_prefill_us: float | None = None
    host_per_seq_us: float | None = None
    bandwidth_scale: float | None = None

    def __post_init__(self) -> None:
        if not self.sampling_interval_s >= 0.001:
            raise ValueError("sampling_interval_s must be at least 0.001")
        for name in ("starvation_limit_s", "decision_limit_s", "bytes_per_token"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        for name in ("planner_latency_ms", "start_spread_s", "agent_retries", "retry_delay_s"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} must not be negative")
        if self.max_wait_s is not None and not self.max_wait_s > 0:
            raise ValueError("max_wait_s must be above 0")
        if self.reported_kv_tokens is not None and self.reported_kv_tokens < 1:
            raise ValueError("reported_kv_tokens must be at least 1")
        if self.kv_store is not None and self.cpu_offload is not None:
            raise ValueError("kv_store and cpu_offload cannot be combined")
        if self.gateways < 1:
            raise ValueError("gateways must be at least 1")
        if self.gateway_split not in ("shares", "replicas"):
            raise ValueError("gateway_split is `shares` or `replicas`")
        if self.tool_slots is not None and self.tool_slots < 1:
            raise ValueError("tool_slots must be at least 1")
