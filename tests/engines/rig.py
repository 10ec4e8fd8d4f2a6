"""Clusters and commands of every topology that ships, as on a machine with the engines."""

from __future__ import annotations

from pathlib import Path

from harness.capacity import Cluster, resolve_cluster
from harness.live.engines.commands import EngineCommand, command
from harness.live.engines.kinds import EngineKind, Environment, find_engine
from harness.live.engines.layout import lay_out
from harness.live.engines.settings import EngineSettings
from harness.topology import find_topology, topology_names

RUNTIME = Path("/run/agentsched")

_MODELS = {
    "1x8xh100": "glm-4.7",
    "2x8xh100": "glm-4.7",
    "2x4xh100": "deepseek-v4-flash",
    "1x8xh100-dp8-ep": "qwen3-30b-a3b",
    "4x2xh100": "qwen3-32b",
    "1p3d-h100": "qwen3-32b",
    "1x4xh100-dp2": "qwen3-32b",
    "1x1xrtx-4090": "llama-3.1-8b",
    "1x1xrtx-pro-6000": "llama-3.1-8b",
    "1x2xrtx-pro-6000": "qwen3-32b",
}
_SMALL = {"cpu": "tiny-qwen3", "a40": "qwen3-0.6b", "h100": "qwen3-8b"}


def cluster_of(topology: str) -> Cluster:
    """With the model of the paper that the topology is of, or one that fits."""
    kind = find_topology(topology).nodes[0].gpu.name
    return resolve_cluster(_MODELS.get(topology) or _SMALL[kind], topology)


def environment_of(name: str) -> Environment:
    return Environment(find_engine(name), Path("/opt/engines") / name)


def commands_of(
    engine: str, topology: str, settings: EngineSettings | None = None
) -> list[EngineCommand]:
    """Every replica's command."""
    cluster, place = cluster_of(topology), environment_of(engine)
    settings = settings or EngineSettings()
    places = lay_out(cluster, place.kind, settings, RUNTIME)
    count = len(places)
    return [command(p, cluster.model, place, settings, replicas=count, cores=8) for p in places]


def pairs() -> list[tuple[str, str]]:
    """Every engine with every topology it can run on."""
    return [
        (engine, name)
        for engine in ("vllm", "sglang", "vllm-cpu")
        for name in topology_names()
        if _fits(find_engine(engine), name)
    ]


def _fits(kind: EngineKind, topology: str) -> bool:
    return kind.gpu != (find_topology(topology).nodes[0].gpu.name == "cpu")


def arguments(command: EngineCommand) -> list[str]:
    """What the engine's parser is given: all after the program."""
    argv = list(command.argv)
    for start in ("serve", "vllm.entrypoints.openai.api_server", "sglang.launch_server"):
        if start in argv:
            return argv[argv.index(start) + 1 :]
    raise AssertionError(argv)
