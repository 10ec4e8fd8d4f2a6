"""Replicas on a Ray cluster of this machine, with GPUs that are only numbers."""

from __future__ import annotations

import json
import time
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from agentsched import TopologyError, UsageError
from harness.capacity import resolve_cluster
from harness.experiment import run
from harness.fleets import fleet_of
from harness.live.parts import ReplicaAddress
from harness.overrides import Flags
from harness.plan import plan
from harness.ray.deployment import (
    RayFleet,
    Wanted,
    down,
    find_keeper,
    launch_settings,
    status,
    up,
)
from harness.ray.server import Order, alone
from harness.spec import load_spec
from results.store import load_run
from tests.ray.rig import ray_cluster

H100 = {"num_gpus": 4, "num_cpus": 5, "resources": {"accelerator_type:H100": 1}}
A40 = {"num_gpus": 4, "num_cpus": 3, "resources": {"accelerator_type:A40": 1}}


def generate(url: str) -> dict[str, Any]:
    body = json.dumps({"model": "qwen3-8b", "prompt": "a b c", "max_tokens": 3}).encode()
    request = urllib.request.Request(
        f"{url}/v1/completions", data=body, headers={"content-type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=30) as answer:
        found: dict[str, Any] = json.load(answer)
        return found


def wanted(topology: str) -> Wanted:
    return Wanted(resolve_cluster("qwen3-8b", topology), "emulator", {}, speed=100.0, cpus=0.1)


def test_the_topology_of_one_replica_is_that_of_the_replica() -> None:
    for name in ("a40-300w-200w", "1x4xh100-dp2", "4x2xh100"):
        cluster = resolve_cluster("qwen3-8b", name)
        for one, spec in zip(cluster.replicas, cluster.topology.replicas, strict=True):
            order = Order(one.id, "vllm", "qwen3-8b", alone(one.id, spec), "mixed")
            (same,) = order.cluster().replicas
            assert (same.kv_tokens, same.gpus, same.power_cap_w, same.role) == (
                one.kv_tokens,
                one.gpus,
                one.power_cap_w,
                one.role,
            )


def test_emulated_pools_are_refused() -> None:
    with pytest.raises(UsageError, match="one process only"):
        wanted("1p3d-h100").orders()


def test_settings_of_a_start() -> None:
    assert launch_settings(["launch.max_num_seqs=8"]).max_num_seqs == 8
    for wrong in ("launch.max_num_seqs=0", "launch.nothing=1", "sim.a=1", "launch.seed=x"):
        with pytest.raises(UsageError, match="launch"):
            launch_settings([wrong])


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_up_serve_restart_down(tmp_path: Path) -> None:
    with ray_cluster([{}, H100, A40]) as (cluster, _):
        import ray

        ray.init(address=cluster.address, namespace="agentsched", log_to_driver=False)
        # 8 GPUs of A40 are 4 too many; the H100 do not count.
        with pytest.raises(TopologyError, match=r"h100: needs 1 x 8 .* = 4; 4 too few"):
            up(wanted("1x8xh100"), None)
        assert find_keeper(ray) is None
        found = up(wanted("4x1xh100"), None)
        assert [one.name for one in found] == ["r0", "r1", "r2", "r3"]
        assert len({one.url for one in found}) == 4
        assert all(generate(one.url)["usage"]["completion_tokens"] == 3 for one in found)
        with pytest.raises(UsageError, match="up on this cluster already"):
            up(wanted("4xa40"), None)
        # All four GPUs of the H100 node are taken.
        with pytest.raises(TopologyError, match="= 0; 1 too few"):
            RayFleet(wanted("1x1xh100"), None, tmp_path).start()
        _restarts_after_a_kill(found[1])
        logs = tmp_path / "logs"
        told = status(None, logs)
        assert told is not None
        assert {one["state"] for one in told["replicas"].values()} == {"up"}
        assert (logs / "r1.log").read_bytes()
        assert down(None)
        assert not down(None)
        assert status(None) is None
        with pytest.raises(OSError, match="refused"):
            generate(found[0].url)
        _a_fleet_of_a_run(tmp_path)
        _a_run(tmp_path)


def run_flags(topology: str, *assignments: str) -> Flags:
    return Flags(
        schedulers=["smetric"],
        workloads=["lmcache-mini-swe-agent"],
        topology=topology,
        model="qwen3-8b",
        engine="emulator",
        workers=[2],
        seeds=1,
        assignments=[
            "workloads.0.sessions=2",
            "workloads.0.play=replay",
            "launch.on=ray",
            "live.time_scale=200",
            *assignments,
        ],
    )


def _a_run(folder: Path) -> None:
    """A run whose replicas are started on the cluster, and one whose replicas do not fit it."""
    with pytest.raises(TopologyError, match=r"h100: needs 1 x 8 .* = 4; 4 too few"):
        run("quickstart", out=folder / "large", flags=run_flags("1x8xh100"))
    result = run("quickstart", out=folder / "run", flags=run_flags("4x1xh100"))
    assert not result.failures  # invalid it may be: on a busy machine the client is late
    assert len(result.done) == 1
    facts = json.loads((result.path / "engines" / "fleet.json").read_text("utf-8"))
    assert facts["on"] == "ray"
    (summary,) = load_run(result.path).summaries.values()
    assert summary["label"] == "emulated"
    assert summary["metrics"]["decode_tps"]["value"] > 0
    assert (result.path / "engines" / "r0.log").exists()


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        (("live.virtual_clock=true", "live.time_scale=1.0"), "real time"),
        (('sim.faults=[{"at_s": 1, "replica": "r0", "kind": "lost"}]',), "not made on Ray"),
        (("topology=1p3d-h100",), "one process only"),
    ],
)
def test_runs_on_ray_that_are_refused(more: tuple[str, ...], problem: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=problem):
        run("quickstart", out=tmp_path / "run", flags=run_flags("4x1xh100", *more))
    assert not (tmp_path / "run" / "cells").exists()


def test_a_run_finds_its_fleet_on_ray(tmp_path: Path) -> None:
    """Nothing is started yet."""
    assignments = ["launch.ray=10.0.0.1:6379", "memory.gpu_memory_utilization=0.5"]
    planned = plan(load_spec("quickstart", run_flags("4x1xh100", *assignments)))
    with fleet_of(planned, tmp_path) as fleet:
        assert isinstance(fleet, RayFleet)
        assert fleet.label == "emulated"
        assert fleet._address == "10.0.0.1:6379"
        orders = fleet._wanted.orders()
    assert [one.name for one in orders] == ["r0", "r1", "r2", "r3"]
    assert {(one.engine, one.speed, one.launch) for one in orders} == {("emulator", 200.0, None)}
    assert orders[0].cluster().kv_tokens == planned.cluster.replicas[0].kv_tokens


def _restarts_after_a_kill(replica: ReplicaAddress) -> None:
    """The server's process is killed; the keeper starts it again, at the same address."""
    port = replica.url.rpartition(":")[2]
    killed = False
    for folder in Path("/proc").iterdir():
        if not folder.name.isdigit():
            continue
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if b"emulate" in words and port.encode() in words and b"--grace" not in words:
            import os
            import signal

            os.kill(int(folder.name), signal.SIGKILL)
            killed = True
    assert killed
    deadline = time.monotonic() + 90
    while time.monotonic() < deadline:
        told = status(None)
        assert told is not None
        if told["replicas"]["r1"]["restarts"] == 1 and told["replicas"]["r1"]["state"] == "up":
            break
        time.sleep(1)
    else:
        pytest.fail("not restarted")
    assert told["replicas"]["r1"]["url"] == replica.url
    assert generate(replica.url)["usage"]["completion_tokens"] == 3


def _a_fleet_of_a_run(folder: Path) -> None:
    fleet = RayFleet(wanted("1x1xh100"), None, folder / "fleet")
    assert fleet.label == "emulated"
    try:
        (replica,) = fleet.start()
        assert generate(replica.url)["usage"]["completion_tokens"] == 3
        assert "restarted" in fleet.reset("cell")["r0"]
        assert generate(replica.url)["usage"]["completion_tokens"] == 3
        assert fleet.facts()["on"] == "ray"
    finally:
        fleet.close()
        fleet.close()
    assert (folder / "fleet" / "r0.log").exists()
