"""Dynamo's frontend before replicas that run already.

Its workers register themselves through a discovery back end (here: files in a folder of the cell's)
and are sent token numbers over its own request plane (here: TCP). So every replica gets a worker
of ours, `dynamo_bridge.py`, that does both and asks the replica over its OpenAI API. Frontend,
tokenizer and router are Dynamo's own, unmodified.

Flags and bindings: ai-dynamo 1.3.1, `python -m dynamo.frontend --help`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentsched import UsageError
from harness.live.emulated_tokens import write_model
from harness.live.parts import ReplicaAddress
from harness.live.routers.base import Helper, Launch, Router, RouterSettings, mixed_only
from harness.live.routers.naming import SessionName

NAMESPACE = "agentsched"
BRIDGE = Path(__file__).with_name("dynamo_bridge.py")
EMULATED_OWNER = "agentsched"


@dataclass(frozen=True, slots=True)
class DynamoSettings(RouterSettings):
    """Settings of the frontend and of our workers; None leaves the frontend's own default."""

    model_folder: str | None = None
    """Folder (or hub name) of the model, for its tokenizer and chat template; None: as the replicas
    name it, and of emulated ones one is made."""
    kv_events: bool = True
    "Of policy kv: follow the replicas' KV events; without, it predicts what they hold."
    kv_overlap_score_credit: float | None = None
    "Of policy kv."
    prefill_load_scale: float | None = None
    "Of policy kv."
    temperature: float | None = None
    "Of policy kv."
    queue_threshold: float | None = None
    "Of policy kv: batches of prefill tokens ahead of every worker beyond which turns queue."
    session_affinity_ttl_secs: int | None = None
    "Keep a session's turns on one worker until it was idle for this long."
    batch_tokens: int = 8192
    "The replicas' max_num_batched_tokens, which no page of theirs tells. vLLM's default on H100."
    max_sequences: int = 256
    "The replicas' max_num_seqs. Our choice."
    load_interval_s: float = 1.0
    "Between two looks at a replica's KV use. Our choice; own workers tell at every step."
    tool_parser: str | None = None
    "Of the frontend, for tool calls in the model's text, such as hermes."
    reasoning_parser: str | None = None
    "Of the frontend, such as qwen3."

    def __post_init__(self) -> None:
        RouterSettings.__post_init__(self)
        for name in ("batch_tokens", "max_sequences", "load_interval_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")


class DynamoFrontend(Router):
    """Dynamo's frontend, with a worker of ours for each replica."""

    name = "dynamo"
    distribution = "ai-dynamo"
    version = "1.3.1"
    program = "python"
    module = "dynamo.frontend"
    policies = ("kv", "round-robin", "random", "power-of-two", "least-loaded")
    source = "ai-dynamo/dynamo"
    session_name = SessionName(header="x-dynamo-session-id")
    known_path = "/health"
    request_header = "x-dynamo-request-id"
    settings: DynamoSettings
    config_type = DynamoSettings

    def command(self, launch: Launch) -> list[str]:
        mixed_only(self, launch.replicas)
        words = [*launch.program, "-m", self.module, "--http-host", "127.0.0.1"]
        words += ["--http-port", str(launch.port), "--namespace", NAMESPACE]
        words += ["--discovery-backend", "file", "--request-plane", "tcp", "--event-plane", "zmq"]
        words += ["--router-mode", self.policy]
        ttl = self.settings.session_affinity_ttl_secs
        words += ["--router-session-affinity-ttl-secs", str(ttl)] if ttl is not None else []
        return words + (self._kv_flags(launch) if self.policy == "kv" else [])

    def _kv_flags(self, launch: Launch) -> list[str]:
        words = ["--router-kv-events" if self.settings.kv_events else "--no-router-kv-events"]
        for replica in launch.replicas if self.settings.kv_events else ():
            if replica.kv_events is None:
                raise UsageError(
                    f"policy kv follows KV events, which replica {replica.name} does not publish",
                    "start the engines with KV events, or set kv_events=false",
                )
        for name in (
            "kv_overlap_score_credit",
            "prefill_load_scale",
            "temperature",
            "queue_threshold",
        ):
            value = getattr(self.settings, name)
            words += [f"--router-{name.replace('_', '-')}", str(value)] if value is not None else []
        return words

    def environment(self, launch: Launch) -> dict[str, str]:
        return {
            "DYN_FILE_KV": str(launch.scratch / "discovery"),
            "DYN_TCP_RPC_HOST": "127.0.0.1",
            "DYN_SDK_DISABLE_ANSI_LOGGING": "1",
            # It refuses requests with fields it does not know, which other servers ignore.
            "DYN_IGNORE_OPENAI_FE_UNSUPPORTED_FIELDS": "1",
            "PYTHONUNBUFFERED": "1",
        }

    def helpers(self, launch: Launch) -> list[Helper]:
        folder = self._model_folder(launch)
        return [self._worker(launch, replica, folder) for replica in launch.replicas]

    def _worker(self, launch: Launch, replica: ReplicaAddress, folder: str) -> Helper:
        settings = self.settings
        # Isolated: of Python's path only what belongs to Dynamo's environment.
        words = [*launch.program, "-I", str(BRIDGE), "--name", replica.name, "--url", replica.url]
        words += ["--model", launch.model, "--folder", folder, "--namespace", NAMESPACE]
        words += ["--batch-tokens", str(settings.batch_tokens)]
        words += ["--max-sequences", str(settings.max_sequences)]
        words += ["--interval", str(settings.load_interval_s)]
        if self.policy == "kv" and settings.kv_events and replica.kv_events is not None:
            words += ["--kv-events", replica.kv_events]
        for flag, value in (
            ("--tool-parser", settings.tool_parser),
            ("--reasoning-parser", settings.reasoning_parser),
            ("--tell", launch.tell),
        ):
            words += [flag, value] if value is not None else []
        return Helper(f"{self.name}-{replica.name}", words)

    def _model_folder(self, launch: Launch) -> str:
        if self.settings.model_folder is not None:
            return str(Path(self.settings.model_folder).expanduser())
        if launch.served.get("owned_by") == EMULATED_OWNER:
            folder = launch.scratch / "model"
            write_model(folder, int(launch.served.get("max_model_len") or 131_072))
            return str(folder)
        root = launch.served.get("root")
        if not isinstance(root, str) or not root:
            raise UsageError(
                "router `dynamo` needs the model's tokenizer, and the replicas do not say where "
                "their model is",
                "give its folder in the setting `model_folder`",
            )
        return root

    def knows(self, page: Any, replicas: Sequence[ReplicaAddress]) -> bool:
        return len(workers_of(page)) >= len(replicas)

    def facts(self) -> Mapping[str, Any]:
        return {
            "adapter": "one worker of agentsched a replica, between the frontend's request plane "
            "and the replica's OpenAI API; frontend, tokenizer and router are Dynamo's own"
        }


def workers_of(page: Any) -> list[int]:
    """Ids of the workers that generate, from the frontend's health page."""
    instances = page.get("instances", ()) if isinstance(page, dict) else ()
    return sorted(
        instance["instance_id"]
        for instance in instances
        if isinstance(instance, dict) and instance.get("endpoint") == "generate"
    )
