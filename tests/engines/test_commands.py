"""Command lines of every topology and engine: as stored, of known flags, and what they say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from agentsched import TopologyError, UsageError
from harness.capacity import resolve_cluster
from harness.live.engines.commands import EngineCommand, command
from harness.live.engines.kinds import ENGINES, environment
from harness.live.engines.layout import LocalGpu, lay_out
from harness.live.engines.planned import planned_commands
from harness.live.engines.settings import EngineSettings
from harness.specfile import parse_document
from harness.topology import read_topology
from tests.engines.rig import RUNTIME, arguments, cluster_of, commands_of, environment_of, pairs

HERE = Path(__file__).parent
PARSER = HERE / "own_parser.py"

EVERYTHING = EngineSettings(
    load_format="dummy",
    dtype="bfloat16",
    max_num_batched_tokens=2048,
    max_num_seqs=64,
    kv_tokens=4096,
    enforce_eager=True,
    trust_remote_code=True,
)
"""Each setting that adds a flag."""


def known_flags(engine: str) -> set[str]:
    return set((HERE / "flags" / f"{engine}.txt").read_text("ascii").split())


def value(command: EngineCommand, flag: str) -> str:
    return command.argv[command.argv.index(flag) + 1]


@pytest.mark.parametrize(("engine", "topology"), pairs())
def test_command_lines_are_those_stored(engine: str, topology: str) -> None:
    """After a wanted change, run tests/engines/store_expected.py and read the difference."""
    stored = (HERE / "expected" / f"{engine}-{topology}.txt").read_text("utf-8")
    assert "".join(f"{c.line}\n" for c in commands_of(engine, topology)) == stored


def test_no_expectation_is_left_over() -> None:
    names = {f"{engine}-{topology}.txt" for engine, topology in pairs()}
    assert {file.name for file in (HERE / "expected").iterdir()} == names


@pytest.mark.parametrize(("engine", "topology"), pairs())
@pytest.mark.parametrize("settings", [EngineSettings(), EVERYTHING], ids=["plain", "everything"])
def test_every_flag_is_known_to_the_engine(
    engine: str, topology: str, settings: EngineSettings
) -> None:
    known = known_flags(engine)
    for line in commands_of(engine, topology, settings):
        flags = [word for word in arguments(line) if word.startswith("--")]
        assert len(flags) > 10
        assert set(flags) <= known, set(flags) - known


@pytest.mark.parametrize("engine", list(ENGINES))
def test_the_engines_own_parser_takes_every_line(engine: str) -> None:
    place = environment(ENGINES[engine])
    if place.installed is None:
        pytest.skip(f"{engine} is not installed (agentsched engine install {engine})")
    parsed = parse(place.python, engine, lines_of(engine))
    assert parsed["errors"] == []
    if place.installed == ENGINES[engine].version:
        assert set(parsed["flags"]) == known_flags(engine)


def lines_of(engine: str) -> list[list[str]]:
    return [
        arguments(line)
        for name, topology in pairs()
        if name == engine
        for settings in (EngineSettings(), EVERYTHING)
        for line in commands_of(engine, topology, settings)
    ]


def parse(python: Path, engine: str, lines: list[list[str]]) -> dict[str, Any]:
    done = subprocess.run(
        [str(python), str(PARSER), ENGINES[engine].dialect],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("engine", list(ENGINES))
def test_no_two_replicas_share_a_gpu_or_a_port(engine: str) -> None:
    for name, topology in pairs():
        if name != engine:
            continue
        lines = commands_of(engine, topology)
        ports = [value(line, "--port") for line in lines]
        gpus = [g for line in lines for g in line.env.get("CUDA_VISIBLE_DEVICES", "").split(",")]
        assert len(set(ports)) == len(ports)
        if ENGINES[engine].gpu:
            assert gpus == [str(i) for i in range(cluster_of(topology).gpus)]


def test_replicas_of_four_pairs_are_pinned_two_by_two() -> None:
    lines = commands_of("vllm", "4x2xh100")
    pinned = [line.env["CUDA_VISIBLE_DEVICES"] for line in lines]
    assert pinned == ["0,1", "2,3", "4,5", "6,7"]
    assert {value(line, "--tensor-parallel-size") for line in lines} == {"2"}
    assert [value(line, "--port") for line in lines] == ["8100", "8101", "8102", "8103"]


def test_sglang_is_given_the_share_of_weights_and_cache() -> None:
    # (61.02 / 2 + 38.13) GiB of 79.6 GiB = 0.862: vLLM's 0.9 less 3 GiB of overhead.
    assert value(commands_of("sglang", "4x2xh100")[0], "--mem-fraction-static") == "0.862"
    assert value(commands_of("vllm", "4x2xh100")[0], "--gpu-memory-utilization") == "0.9"


def test_shared_experts_count_all_ranks_in_sglang_and_those_of_a_copy_in_vllm() -> None:
    (vllm,) = commands_of("vllm", "1x8xh100-dp8-ep")
    assert value(vllm, "--tensor-parallel-size") == "1"
    assert value(vllm, "--data-parallel-size") == "8"
    assert "--enable-expert-parallel" in vllm.argv
    (sglang,) = commands_of("sglang", "1x8xh100-dp8-ep")
    assert value(sglang, "--tensor-parallel-size") == "8"
    assert value(sglang, "--data-parallel-size") == "8"
    assert value(sglang, "--expert-parallel-size") == "8"
    assert "--enable-dp-attention" in sglang.argv
    (plain,) = commands_of("sglang", "1x4xh100-dp2")
    assert value(plain, "--tensor-parallel-size") == "2"
    assert "--enable-dp-attention" not in plain.argv


def test_both_engines_take_lower_priorities_first() -> None:
    assert "--schedule-low-priority-values-first" in commands_of("sglang", "1x1xh100")[0].argv
    first_come = EngineSettings(scheduling="fcfs")
    (vllm,) = commands_of("vllm", "1x1xh100", first_come)
    assert value(vllm, "--scheduling-policy") == "fcfs"
    (sglang,) = commands_of("sglang", "1x1xh100", first_come)
    assert "--enable-priority-scheduling" not in sglang.argv


def test_pairs_of_prefill_and_decode() -> None:
    lines = commands_of("vllm", "1p3d-a40")
    sides = [line.env["VLLM_NIXL_SIDE_CHANNEL_PORT"] for line in lines]
    assert len(set(sides)) == 4
    for line in lines:
        transfer = json.loads(value(line, "--kv-transfer-config"))
        assert transfer == {"kv_connector": "NixlConnector", "kv_role": "kv_both"}
    modes = [value(line, "--disaggregation-mode") for line in commands_of("sglang", "1p3d-a40")]
    assert modes == ["prefill", "decode", "decode", "decode"]
    assert "--kv-transfer-config" not in commands_of("vllm", "4xa40")[0].argv


def test_reset_is_open_to_this_machine_only() -> None:
    assert commands_of("vllm", "1x1xh100")[0].env["VLLM_SERVER_DEV_MODE"] == "1"
    (line,) = commands_of("vllm", "1x1xh100", EngineSettings(host="0.0.0.0"))
    assert "VLLM_SERVER_DEV_MODE" not in line.env


def test_events_are_heard_on_this_machine_only() -> None:
    for engine in ("vllm", "sglang"):
        (line,) = commands_of(engine, "1x1xh100")
        told = json.loads(value(line, "--kv-events-config"))
        for endpoint in (told["endpoint"], told["replay_endpoint"]):
            assert endpoint.startswith(("ipc://", "tcp://127.0.0.1:"))
        assert told["endpoint"] != told["replay_endpoint"]
    silent = EngineSettings(kv_events=False)
    assert "--kv-events-config" not in commands_of("vllm", "1x1xh100", silent)[0].argv


def test_engine_and_topology_must_go_together() -> None:
    with pytest.raises(TopologyError, match="vllm needs GPUs"):
        commands_of("vllm", "cpu-tiny")
    with pytest.raises(TopologyError, match="vllm-cpu runs on CPUs"):
        commands_of("vllm-cpu", "1x1xh100")
    with pytest.raises(UsageError, match="NIXL"):
        commands_of("vllm", "1p3d-a40", EngineSettings(transfer="mooncake"))


def test_cores_are_shared_by_the_replicas_of_a_cpu() -> None:
    lines = commands_of("vllm-cpu", "cpu-tiny")
    assert [line.env["OMP_NUM_THREADS"] for line in lines] == ["4", "4"]  # 8 cores, 2 replicas
    assert environment_of("vllm-cpu").python == Path("/opt/engines/vllm-cpu/bin/python")
    spins = "VLLM_ENABLE_V1_MULTIPROCESSING"
    assert not any(spins in line.env for line in lines)
    alone = commands_of("vllm-cpu", "cpu-tiny", EngineSettings(cpu_threads=1))
    assert [line.env[spins] for line in alone] == ["0", "0"]


@pytest.mark.parametrize(
    ("field", "bad"),
    [("max_num_seqs", 0), ("base_port", 70_000), ("extra_env", ("X",)), ("stop_grace_s", 0.0)],
)
def test_settings_out_of_range_are_refused(field: str, bad: object) -> None:
    with pytest.raises(UsageError, match=field):
        EngineSettings(**{field: bad})  # type: ignore[arg-type]


def test_a_dry_run_needs_neither_engine_nor_gpu() -> None:
    lines = [c.line for c in planned_commands("vllm", cluster_of("4x2xh100"))]
    assert len(lines) == 4
    assert "--port 8103" in lines[3]
    assert str(environment(ENGINES["vllm"]).folder) in lines[0]
    with pytest.raises(TopologyError, match="needs GPUs"):
        planned_commands("sglang", cluster_of("cpu-tiny"))


def test_a_machine_with_fewer_or_smaller_gpus_is_refused() -> None:
    cluster, kind = cluster_of("4x2xh100"), ENGINES["vllm"]
    settings = EngineSettings()
    four = [LocalGpu(i, "NVIDIA H100", 81_559, i // 2) for i in range(4)]
    with pytest.raises(TopologyError, match="needs 8 GPUs, and this machine has 4"):
        lay_out(cluster, kind, settings, RUNTIME, four)
    small = [LocalGpu(i, "NVIDIA A40", 46_068, 0) for i in range(8)]
    with pytest.raises(TopologyError, match=r"h100 of 79\.6 GiB, and GPU 0 \(NVIDIA A40\) has 45"):
        lay_out(cluster, kind, settings, RUNTIME, small)


def test_replicas_are_bound_to_the_node_of_their_gpus() -> None:
    cluster, place = cluster_of("4x2xh100"), environment_of("vllm")
    settings = EngineSettings()
    # GPUs 0 to 2 on node 0, 3 to 7 on node 1: the second replica spans both.
    machine = [LocalGpu(i, "NVIDIA H100", 81_559, int(i > 2)) for i in range(8)]
    places = lay_out(cluster, place.kind, settings, RUNTIME, machine)
    assert [p.numa for p in places] == [0, None, 1, 1]
    bound = [
        command(p, cluster.model, place, settings, numactl="/usr/bin/numactl").argv[:3]
        for p in places
    ]
    assert bound[2] == ("/usr/bin/numactl", "--cpunodebind=1", "--membind=1")
    assert bound[1][0] == "/opt/engines/vllm/bin/vllm"


def test_own_ports_of_a_topology() -> None:
    text = (
        "name: t\nbase_port: 9000\nnodes:\n- {gpu: h100, gpus: 2}\nreplicas:\n"
        "- {tensor_parallel: 1}\n- {tensor_parallel: 1, port: 7777}\n"
    )
    cluster = resolve_cluster("qwen3-8b", read_topology(parse_document(text, "t.yaml")))
    places = lay_out(cluster, ENGINES["vllm"], EngineSettings(), RUNTIME)
    assert [place.port for place in places] == [9000, 7777]
    other = lay_out(cluster, ENGINES["vllm"], EngineSettings(base_port=5000), RUNTIME)
    assert [place.port for place in other] == [5000, 5001]
