"""Routers in Python: ThunderAgent, LiteLLM's proxy."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from harness.live.routers.base import Launch, Router, RouterSettings, mixed_only
from harness.live.routers.naming import SessionName
from harness.live.wire import Request


@dataclass(frozen=True, slots=True)
class ThunderAgentSettings(RouterSettings):
    """Settings of ThunderAgent's own program; None leaves its own default."""

    python: str | None = None
    "The interpreter that has fastapi, httpx and uvicorn; None: that of agentsched."
    scheduler_interval: float | None = None
    "Seconds between two rounds of resuming and pausing."
    acting_token_weight: float | None = None
    "Weight of acting sessions' tokens."
    use_acting_token_decay: bool = False
    "Let acting tokens halve every second when room for resuming is computed."
    release: bool = True
    "Tell it when a session ends; its own agents do, many others do not."
    backend_type: str | None = None
    "vllm, sglang or skyrl."


class ThunderAgentRouter(Router):
    """The program of the ThunderAgent paper, from a checkout of its repository."""

    name = "thunderagent"
    distribution = "ThunderAgent"
    version = "0.1.0"
    program = "ThunderAgent"
    policies = ("tr", "default")
    source = "ThunderAgent-org/ThunderAgent"
    session_name = SessionName(field="program_id")
    known_path = "/health"
    settings: ThunderAgentSettings
    config_type = ThunderAgentSettings

    def command(self, launch: Launch) -> list[str]:
        mixed_only(self, launch.replicas)
        settings = self.settings
        words = [*launch.program, "--host", "127.0.0.1", "--port", str(launch.port)]
        words += ["--backends", ",".join(replica.url for replica in launch.replicas)]
        words += ["--router", self.policy]
        for name in ("scheduler_interval", "acting_token_weight", "backend_type"):
            value = getattr(settings, name)
            words += [f"--{name.replace('_', '-')}", str(value)] if value is not None else []
        return words + (["--use-acting-token-decay"] if settings.use_acting_token_decay else [])

    def environment(self, launch: Launch) -> dict[str, str]:
        checkout = Path(self.settings.program or "").expanduser().resolve()
        return {"PYTHONPATH": str(checkout), "PYTHONUNBUFFERED": "1"}

    def knows(self, page: Any, replicas: Any) -> bool:
        return all(replica.url in page["backends"] for replica in replicas)

    def order(self, page: Any) -> list[str]:
        return list(page["backends"])

    def release(self, session: str) -> Request | None:
        if not self.settings.release:
            return None
        body = json.dumps({"program_id": session}).encode()
        return Request("POST", "/programs/release", {"content-type": "application/json"}, body)


class LiteLlmProxy(Router):
    """LiteLLM's proxy, with all replicas as deployments of one model."""

    name = "litellm"
    distribution = "litellm"
    version = "1.108.7"
    program = "litellm"
    policies = (
        "simple-shuffle",
        "least-busy",
        "usage-based-routing-v2",
        "latency-based-routing",
    )
    source = "BerriAI/litellm"
    replica_header = "x-litellm-model-api-base"

    def command(self, launch: Launch) -> list[str]:
        mixed_only(self, launch.replicas)
        config = launch.folder / "litellm.yaml"
        config.write_text(yaml.safe_dump(self.config(launch), sort_keys=False))
        words = [*launch.program, "--config", str(config), "--host", "127.0.0.1"]
        return [*words, "--port", str(launch.port), "--num_workers", "1"]

    def config(self, launch: Launch) -> dict[str, Any]:
        """Its configuration file.

        Source: LiteLLM's documentation, "Router - Load Balancing" and "Proxy - Config".
        """
        return {
            "model_list": [
                {
                    "model_name": launch.model,
                    "litellm_params": {
                        "model": f"hosted_vllm/{launch.model}",
                        "api_base": f"{replica.url}/v1",
                        "api_key": "none",
                    },
                }
                for replica in launch.replicas
            ],
            "router_settings": {"routing_strategy": self.policy, "num_retries": 0},
            "litellm_settings": {"telemetry": False, "drop_params": False},
        }

    def environment(self, launch: Launch) -> dict[str, str]:
        return {
            "LITELLM_LOCAL_MODEL_COST_MAP": "True",  # else it fetches its price list at each start
            # It listens on the loopback address only, and agents have no key for it.
            "LITELLM_DANGEROUSLY_PERMIT_WEAK_OR_UNSET_MASTER_KEY": "true",
        }
