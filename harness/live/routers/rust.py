"""vLLM router, SMG and SGLang's router: three programs of one descent, with much the same flags.

Flags: the programs' own --help (vllm-router 0.1.17, smg 1.13.0, sglang-router 0.3.2).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import quote

from agentsched import UsageError
from harness.live.parts import ReplicaAddress
from harness.live.routers.base import Launch, Router, RouterSettings, split
from harness.live.routers.naming import SessionName
from harness.live.wire import Request


@dataclass(frozen=True, slots=True)
class RustRouterSettings(RouterSettings):
    """Settings that the three have in common; None leaves the router's own default."""

    prefill_policy: str | None = None
    "Of prefill replicas."
    decode_policy: str | None = None
    "Of decode replicas."
    cache_threshold: float | None = None
    "Share of the prompt that must match for cache_aware to follow it."
    balance_abs_threshold: int | None = None
    "Requests by which loads must differ to count as uneven."
    balance_rel_threshold: float | None = None
    "Factor by which loads must differ as well."


@dataclass(frozen=True, slots=True)
class VllmRouterSettings(RustRouterSettings):
    """Settings of the vLLM router."""

    program_scheduling: bool = False
    "Its scheduling of whole programs (sessions): --enable-program-scheduling."
    program_scheduling_config: Mapping[str, Any] = field(default_factory=dict)
    "Overrides of that, as --program-scheduling-config-json takes them."
    kv_event_block_size: int | None = None
    "Of kv_aware: tokens a KV block of the replicas has."
    kv_connector: str | None = None
    "Of prefill and decode replicas: nixl, mooncake or moriio."

    def __post_init__(self) -> None:
        RustRouterSettings.__post_init__(self)
        if self.program_scheduling_config and not self.program_scheduling:
            raise ValueError("program_scheduling_config needs program_scheduling=true")


class RustRouter(Router):
    """What the three have in common."""

    known_path = "/workers"
    settings: RustRouterSettings
    config_type = RustRouterSettings
    launch_words: ClassVar[tuple[str, ...]] = ("launch",)
    disaggregated: ClassVar[str] = "--pd-disaggregation"

    def command(self, launch: Launch) -> list[str]:
        words = [*launch.program, *self.launch_words, "--host", "127.0.0.1"]
        words += ["--port", str(launch.port), "--policy", self.policy]
        words += ["--prometheus-host", "127.0.0.1", "--prometheus-port", str(launch.metrics_port)]
        prefill, decode = split(launch.replicas)
        if prefill:
            words += self._pools(prefill, decode)
        else:
            words += ["--worker-urls", *(replica.url for replica in launch.replicas)]
        return words + self._options() + self.own_flags(launch)

    def _pools(
        self, prefill: Sequence[ReplicaAddress], decode: Sequence[ReplicaAddress]
    ) -> list[str]:
        words = [self.disaggregated]
        for replica in prefill:
            words += ["--prefill", replica.url]
            words += [str(replica.bootstrap_port)] if replica.bootstrap_port is not None else []
        for replica in decode:
            words += ["--decode", replica.url]
        for flag, policy in (
            ("--prefill-policy", self.settings.prefill_policy),
            ("--decode-policy", self.settings.decode_policy),
        ):
            words += [flag, policy] if policy is not None else []
        return words

    def _options(self) -> list[str]:
        words: list[str] = []
        for name in ("cache_threshold", "balance_abs_threshold", "balance_rel_threshold"):
            value = getattr(self.settings, name)
            words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
        return words

    def own_flags(self, launch: Launch) -> list[str]:
        return []

    def knows(self, page: Any, replicas: Sequence[ReplicaAddress]) -> bool:
        workers = page.get("workers", ()) if isinstance(page, dict) else ()
        healthy = {worker["url"] for worker in workers if worker.get("is_healthy")}
        return all(replica.url in healthy for replica in replicas)

    def order(self, page: Any) -> list[str]:
        return [worker["url"] for worker in page["workers"]]


class VllmRouter(RustRouter):
    """The router of the vLLM project."""

    name = "vllm-router"
    distribution = "vllm-router"
    version = "0.1.17"
    program = "vllm-router"
    policies = (
        "cache_aware",
        "random",
        "round_robin",
        "kv_aware",
        "power_of_two",
        "consistent_hash",
        "sticky_least_loaded",
    )
    source = "vllm-project/router"
    session_name = SessionName(header="x-session-id")
    launch_words = ()
    disaggregated = "--vllm-pd-disaggregation"
    settings: VllmRouterSettings
    config_type = VllmRouterSettings

    def own_flags(self, launch: Launch) -> list[str]:
        settings = self.settings
        words: list[str] = []
        if settings.program_scheduling:
            words.append("--enable-program-scheduling")
            # By default it sees only programs named in the body, in a form of its own.
            config = {"enable_key": "auto", **settings.program_scheduling_config}
            words += ["--program-scheduling-config-json", json.dumps(config, sort_keys=True)]
        if settings.kv_connector is not None:
            words += ["--kv-connector", settings.kv_connector]
        if self.policy == "kv_aware" or settings.prefill_policy == "kv_aware":
            words += self._kv_events(launch)
        return words

    def _kv_events(self, launch: Launch) -> list[str]:
        prefill, _ = split(launch.replicas)
        flag = "--pd-kv-events" if prefill else "--kv-event-source"
        words: list[str] = []
        for replica in prefill or launch.replicas:
            if replica.kv_events is None:
                raise UsageError(
                    f"policy kv_aware needs KV events, which replica {replica.name} does not "
                    "publish",
                    "start the engines with KV events, or take another policy",
                )
            words += [flag, f"{replica.url}={replica.kv_events}"]
        if not prefill:
            words += ["--kv-event-model", launch.model]
            size = self.settings.kv_event_block_size
            words += ["--kv-event-block-size", str(size)] if size is not None else []
        return words

    def release(self, session: str) -> Request | None:
        if self.policy != "sticky_least_loaded" and not self.settings.program_scheduling:
            return None
        return Request("POST", f"/finish_session?session_id={quote(session, safe='')}")


class _SglangDescent(RustRouter):
    def _pools(
        self, prefill: Sequence[ReplicaAddress], decode: Sequence[ReplicaAddress]
    ) -> list[str]:
        for replica in prefill:
            if replica.bootstrap_port is None:
                raise UsageError(
                    f"router `{self.name}` splits turns of SGLang replicas only, and prefill "
                    f"replica {replica.name} has no bootstrap port",
                    "use SGLang engines, or --router vllm-router",
                )
        return super()._pools(prefill, decode)


class Smg(_SglangDescent):
    """Shepherd Model Gateway, the present form of SGLang's router."""

    name = "smg"
    distribution = "smg"
    version = "1.13.0"
    program = "smg"
    policies = (
        "cache_aware",
        "random",
        "round_robin",
        "passthrough",
        "power_of_two",
        "least_load",
        "manual",
        "consistent_hashing",
        "prefix_hash",
    )
    source = "smg-project/smg"
    session_name = SessionName(header="x-smg-routing-key")
    replica_header = "x-smg-routed-worker-id"

    def own_flags(self, launch: Launch) -> list[str]:
        return ["--shutdown-grace-period-secs", "1"]


class SglangRouter(_SglangDescent):
    """SGLang's router as it was before it became SMG."""

    name = "sglang-router"
    distribution = "sglang-router"
    version = "0.3.2"
    program = "sglang-router"
    policies = ("cache_aware", "random", "round_robin", "power_of_two", "manual")
    source = "sgl-project/sglang"
    session_name = SessionName(header="x-smg-routing-key")
