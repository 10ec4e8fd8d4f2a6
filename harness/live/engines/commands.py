"""Command lines of engines.

Flags are those of vLLM 0.33 (`vllm serve --help=all`) and SGLang 0.5.23 (`sglang.launch_server
--help`); a test holds every one against the lists of flags that those releases have.
"""

from __future__ import annotations

import json
import os
import shlex
import shutil
from collections.abc import Mapping
from dataclasses import dataclass

from agentsched import UsageError
from harness.capacity import GIB
from harness.live.engines.kinds import EngineKind, Environment
from harness.live.engines.layout import Place
from harness.live.engines.settings import EngineSettings
from harness.models import Model

CPU_BLOCK_TOKENS = 32
"""vLLM on CPUs prefers multiples of 32 and takes 128 unless told; small blocks share more."""


@dataclass(frozen=True, slots=True)
class EngineCommand:
    """What starts one replica."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    """Set on top of the caller's environment."""

    @property
    def line(self) -> str:
        """As one would type it."""
        settings = [f"{name}={shlex.quote(value)}" for name, value in sorted(self.env.items())]
        return " ".join([*settings, shlex.join(self.argv)])


@dataclass(frozen=True, slots=True)
class _Parsers:
    tools: str
    reasoning: str | None = None


# By the prefix of the model's name; names of the parsers that ship with each engine.
_PARSERS: dict[str, dict[str, _Parsers]] = {
    "vllm": {
        "qwen3": _Parsers("hermes", "qwen3"),
        "glm-4.7": _Parsers("glm47", "glm45"),
        "deepseek-v4": _Parsers("deepseek_v4", "deepseek_v4"),
        "llama-3.1": _Parsers("llama3_json"),
    },
    "sglang": {
        "qwen3": _Parsers("qwen25", "qwen3"),
        "glm-4.7": _Parsers("glm47", "glm45"),
        "deepseek-v4": _Parsers("deepseekv4", "deepseek-v4"),
        "llama-3.1": _Parsers("llama3"),
    },
}


def served_name(model: Model, settings: EngineSettings) -> str:
    """The name that requests give the model."""
    return settings.served_name or model.name


def command(
    place: Place,
    model: Model,
    environment: Environment,
    settings: EngineSettings,
    *,
    replicas: int = 1,
    cores: int | None = None,
    numactl: str | None = None,
) -> EngineCommand:
    """The command of one replica.

    Args:
        replicas: how many share this machine's cores; `cores`: how many those are.
        numactl: path of the program; None: replicas are not bound to NUMA nodes.

    Raises:
        UsageError: settings that the engine cannot follow.
    """
    kind = environment.kind
    if kind.dialect == "vllm":
        if settings.transfer != "nixl":
            raise UsageError(
                "vLLM replicas hand KV over through NIXL here", "set launch.transfer=nixl"
            )
        argv = [str(environment.folder / "bin" / "vllm"), "serve"]
        if not kind.gpu:  # its package has another name than the one that the program looks for
            argv = [str(environment.python), "-m", "vllm.entrypoints.openai.api_server", "--model"]
        argv += _vllm(place, model, settings)
        env = _vllm_env(place, kind, settings)
        if not kind.gpu:
            env |= _cpu_env(place, settings, replicas, cores or os.cpu_count() or 1)
            argv += ["--block-size", str(CPU_BLOCK_TOKENS), "--enforce-eager"]
        elif settings.enforce_eager:
            argv.append("--enforce-eager")
    else:
        argv = [str(environment.python), "-m", "sglang.launch_server"]
        argv += _sglang(place, model, settings)
        env = {}
    if kind.gpu:
        env["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as nvidia-smi and NVML number them
        env["CUDA_VISIBLE_DEVICES"] = ",".join(map(str, place.gpus))
    if settings.offline or (settings.model_path is not None and os.path.isdir(settings.model_path)):
        env["HF_HUB_OFFLINE"] = "1"
    env |= dict(pair.split("=", 1) for pair in settings.extra_env)
    if settings.numa and numactl is not None and place.numa is not None:
        argv = [numactl, f"--cpunodebind={place.numa}", f"--membind={place.numa}", *argv]
    return EngineCommand((*argv, *settings.extra_args), env)


def find_numactl() -> str | None:
    """Path of numactl, if it is installed."""
    return shutil.which("numactl")


def _path(model: Model, settings: EngineSettings) -> str:
    return settings.model_path or model.repository


def _vllm(place: Place, model: Model, settings: EngineSettings) -> list[str]:
    plan = place.plan
    flags = [
        _path(model, settings),
        *("--served-model-name", served_name(model, settings)),
        *("--host", settings.host, "--port", str(place.port)),
        *("--tensor-parallel-size", str(plan.tensor_parallel)),
    ]
    if plan.data_parallel > 1:
        flags += ["--data-parallel-size", str(plan.data_parallel)]
        flags += ["--data-parallel-address", "127.0.0.1"]
        flags += ["--data-parallel-rpc-port", str(place.internal_port)]
    if plan.expert_parallel:
        flags.append("--enable-expert-parallel")
    flags += ["--max-model-len", str(plan.context_limit)]
    flags += _vllm_memory(place, model, settings)
    if settings.max_num_batched_tokens is not None:
        flags += ["--max-num-batched-tokens", str(settings.max_num_batched_tokens)]
    if settings.max_num_seqs is not None:
        flags += ["--max-num-seqs", str(settings.max_num_seqs)]
    flags += ["--scheduling-policy", settings.scheduling]
    flags += ["--enable-prefix-caching", "--enable-prompt-tokens-details"]
    flags += ["--load-format", settings.load_format, "--seed", str(settings.seed)]
    if settings.dtype is not None:
        flags += ["--dtype", settings.dtype]
    if place.kv_events is not None:
        events = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": place.kv_events,
            "replay_endpoint": place.kv_replay,
            "topic": f"kv@{place.name}",
        }
        flags += ["--kv-events-config", json.dumps(events)]
    if place.role != "mixed":
        # Both ends may do both: the gateway's request says which end a leg is.
        transfer: dict[str, str] = {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
        if not place.gpus:
            transfer["kv_buffer_device"] = "cpu"
        flags += ["--kv-transfer-config", json.dumps(transfer)]
    parsers = _parsers("vllm", model, settings)
    if parsers is not None:
        flags += ["--enable-auto-tool-choice", "--tool-call-parser", parsers.tools]
        if parsers.reasoning is not None:
            flags += ["--reasoning-parser", parsers.reasoning]
    if settings.trust_remote_code:
        flags.append("--trust-remote-code")
    return [*flags, "--disable-uvicorn-access-log"]


def _vllm_memory(place: Place, model: Model, settings: EngineSettings) -> list[str]:
    plan = place.plan
    flags = []
    if place.gpus:
        flags += ["--gpu-memory-utilization", f"{plan.gpu_memory_utilization:g}"]
        if plan.block_size != model.kv.block_tokens:
            flags += ["--block-size", str(plan.block_size)]
    if _kv_is_set(place) or not place.gpus:
        flags += ["--kv-cache-memory-bytes", str(int(plan.kv_gib * GIB))]
    if settings.kv_tokens is not None:
        block = plan.block_size if place.gpus else CPU_BLOCK_TOKENS
        flags += ["--num-gpu-blocks-override", str(max(settings.kv_tokens // block, 2))]
    return [*flags, *_kv_dtype(place, model)]


def _kv_is_set(place: Place) -> bool:
    """Whether the topology gives the KV cache its size, and not what is left over."""
    plan = place.plan
    usable = plan.gpu.memory_gib * plan.gpu_memory_utilization
    return abs(usable - plan.weights_gib - plan.overhead_gib - plan.kv_gib) > 1e-6


def _kv_dtype(place: Place, model: Model) -> list[str]:
    plan = place.plan
    own = model.kv.bytes_per_token_on_gpu(plan.tensor_parallel)
    return [] if plan.kv_bytes_per_token >= own else ["--kv-cache-dtype", "fp8"]


def _vllm_env(place: Place, kind: EngineKind, settings: EngineSettings) -> dict[str, str]:
    env = {"VLLM_NO_USAGE_STATS": "1"}
    if settings.loopback:
        env["VLLM_SERVER_DEV_MODE"] = "1"  # opens /reset_prefix_cache, to this machine only
    if place.role != "mixed":
        env["VLLM_NIXL_SIDE_CHANNEL_HOST"] = "127.0.0.1" if settings.loopback else settings.host
        env["VLLM_NIXL_SIDE_CHANNEL_PORT"] = str(place.side_channel_port)
        if not kind.gpu:
            env["UCX_TLS"] = "tcp,sm,self"
    return env


def _cpu_env(place: Place, settings: EngineSettings, replicas: int, cores: int) -> dict[str, str]:
    threads = settings.cpu_threads or max(cores // replicas, 1)
    env = {
        "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # bound threads of two replicas would share cores
        "OMP_NUM_THREADS": str(threads),
    }
    if threads == 1 and place.role == "mixed":  # handovers were seen to take longer without
        # Without threads to set up the engine needs no worker process, which would spin for a
        # second after each step and keep a core busy for nothing (vllm/platforms/cpu.py).
        env["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    return env


def _sglang(place: Place, model: Model, settings: EngineSettings) -> list[str]:
    plan = place.plan
    flags = [
        *("--model-path", _path(model, settings)),
        *("--served-model-name", served_name(model, settings)),
        *("--host", settings.host, "--port", str(place.port)),
        *_sglang_parallel(place),
        *("--context-length", str(plan.context_limit)),
    ]
    # SGLang's fraction is of weights and KV together; vLLM's is of all that it uses.
    static = (plan.weights_gib + plan.kv_gib) / plan.gpu.memory_gib
    flags += ["--mem-fraction-static", f"{static:.3f}"]
    if settings.kv_tokens is not None or _kv_is_set(place):
        tokens = settings.kv_tokens or plan.kv_tokens // plan.data_parallel
        flags += ["--max-total-tokens", str(tokens)]
    if model.kv.block_fixed or plan.block_size != model.kv.block_tokens:
        flags += ["--page-size", str(plan.block_size)]
    if settings.max_num_batched_tokens is not None:
        flags += ["--chunked-prefill-size", str(settings.max_num_batched_tokens)]
    if settings.max_num_seqs is not None:
        flags += ["--max-running-requests", str(settings.max_num_seqs)]
    if settings.scheduling == "priority":
        # Its own direction is the other way round: lower first, as vLLM.
        flags += ["--enable-priority-scheduling", "--schedule-low-priority-values-first"]
    flags += ["--enable-metrics", "--enable-cache-report"]
    flags += ["--load-format", settings.load_format, "--random-seed", str(settings.seed)]
    if settings.dtype is not None:
        flags += ["--dtype", settings.dtype]
    if _kv_dtype(place, model):
        flags += ["--kv-cache-dtype", "fp8_e4m3"]
    if place.kv_events is not None:
        events = {
            "publisher": "zmq",
            "endpoint": place.kv_events,
            "replay_endpoint": place.kv_replay,
            "bind": True,
            "topic": f"kv@{place.name}",
        }
        flags += ["--kv-events-config", json.dumps(events)]
    if place.role != "mixed":
        flags += ["--disaggregation-mode", place.role]
        flags += ["--disaggregation-bootstrap-port", str(place.bootstrap_port)]
        flags += ["--disaggregation-transfer-backend", settings.transfer]
    parsers = _parsers("sglang", model, settings)
    if parsers is not None:
        flags += ["--tool-call-parser", parsers.tools]
        if parsers.reasoning is not None:
            flags += ["--reasoning-parser", parsers.reasoning]
    flags += ["--engine-info-bootstrap-port", str(place.engine_info_port)]
    if settings.enforce_eager:
        flags.append("--disable-cuda-graph")
    if settings.trust_remote_code:
        flags.append("--trust-remote-code")
    return flags


def _sglang_parallel(place: Place) -> list[str]:
    """With shared experts, SGLang counts all ranks as one tensor-parallel group that the copies of
    the attention divide among them."""
    plan = place.plan
    shared = plan.expert_parallel and plan.data_parallel > 1
    ranks = plan.gpus if shared else plan.tensor_parallel
    flags = ["--tensor-parallel-size", str(ranks)]
    if plan.data_parallel > 1:
        flags += ["--data-parallel-size", str(plan.data_parallel)]
        flags += ["--dist-init-addr", f"127.0.0.1:{place.internal_port}"]
    if shared:
        flags.append("--enable-dp-attention")
    if plan.expert_parallel:
        flags += ["--expert-parallel-size", str(ranks)]
    return flags


def _parsers(dialect: str, model: Model, settings: EngineSettings) -> _Parsers | None:
    if not settings.tool_parsers:
        return None
    for prefix, parsers in _PARSERS[dialect].items():
        if model.name.startswith(prefix):
            return parsers
    return None
