"""Cells on a Ray cluster: the same files as on one machine, whatever happens to a node."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pytest

from agentsched import UsageError
from harness.cells import CellFailure
from harness.experiment import RunResult, Silent, execute
from harness.overrides import Flags
from harness.plan import Plan, plan
from harness.ray.executor import address_of, check
from harness.ray.landing import Landing
from harness.spec import load_spec
from results.cells import CellId
from results.store import load_run
from tests.cli.command import tiny_spec
from tests.ray.rig import ray_cluster

BY_THE_CLOCK = {"timing.json"}
"""The one file of a cell that depends on the machine."""


def contents(run: Path) -> dict[str, bytes]:
    """Every file of the cells by its place, but what depends on the machine and on attempts."""
    return {
        str(file.relative_to(run)): file.read_bytes()
        for file in sorted((run / "cells").rglob("*"))
        if file.is_file() and file.name not in BY_THE_CLOCK and ".partial-" not in str(file)
    }


def sixty_four(folder: Path) -> Plan:
    planned = plan(
        load_spec(
            tiny_spec(
                folder,
                workloads=[{"name": "tiny.jsonl", "workers": [1, 2, 3, 4]}],
                schedulers=["round-robin", "smetric", "thunderagent", "tao"],
                seeds=[0, 1, 2, 3],
            )
        )
    )
    assert len(planned.cells) == 64
    return planned


class KillsANode(Silent):
    """Removes a node once some cells have ended, and others are running on it."""

    def __init__(self, cluster: Any, node: Any, after: int) -> None:
        self.cluster, self.node, self.after = cluster, node, after
        self.ended_cells = 0
        self.killed = False

    def ended(self, cell: CellId, failure: CellFailure | None) -> None:
        self.ended_cells += 1
        if self.ended_cells >= self.after and not self.killed:
            self.killed = True
            self.cluster.remove_node(self.node, allow_graceful=False)


@pytest.mark.timeout(600)
@pytest.mark.filterwarnings("ignore")
def test_a_sweep_with_a_node_killed_equals_the_sequential_one(tmp_path: Path) -> None:
    with ray_cluster([{}, {}, {}]) as (cluster, others):
        planned = sixty_four(tmp_path)
        import ray

        ray.init(address=cluster.address, namespace="agentsched", log_to_driver=False)
        assert sum(node["Alive"] for node in ray.nodes()) == 3
        killer = KillsANode(cluster, others[0], after=12)
        result = execute(planned, tmp_path / "ray", executor="ray", watcher=killer)
        # On a quick machine the sweep ends before the cluster has noticed that the node is gone.
        noticed = time.monotonic() + 90
        while sum(node["Alive"] for node in ray.nodes()) > 2 and time.monotonic() < noticed:
            time.sleep(0.5)
        assert sum(node["Alive"] for node in ray.nodes()) == 2
    assert killer.killed
    assert not result.failures
    assert len(result.done) == killer.ended_cells == 64
    sequential = execute(planned, tmp_path / "local", jobs=1)
    assert not sequential.failures
    ours, theirs = contents(tmp_path / "ray"), contents(tmp_path / "local")
    assert ours.keys() == theirs.keys()
    assert [name for name in ours if ours[name] != theirs[name]] == []
    assert (tmp_path / "ray" / "manifest.json").read_bytes() == (
        tmp_path / "local" / "manifest.json"
    ).read_bytes()
    assert len(load_run(tmp_path / "ray").summaries) == 64


@pytest.mark.timeout(300)
@pytest.mark.filterwarnings("ignore")
def test_failures_and_progress_come_back(tmp_path: Path) -> None:
    policy = tmp_path / "mine.py"
    policy.write_text(
        "from schedulers.base import RoutingScheduler, SchedulerInfo\n"
        "class Mine(RoutingScheduler):\n"
        "    name = 'mine'\n"
        "    info = SchedulerInfo('routing', 'nothing', False, 'inferred', 'test')\n"
        "    def choose(self, turn, cluster):\n"
        "        raise ValueError('no idea')\n"
    )

    class Seen(Silent):
        turns = 0

        def progressed(self, cell: CellId, sessions: int, turns: int) -> None:
            self.turns = max(self.turns, turns)

    with ray_cluster([{}]) as (cluster, _):
        import ray

        ray.init(address=cluster.address, namespace="agentsched", log_to_driver=False)
        flags = Flags(schedulers=[f"{policy}:Mine", "smetric"])
        planned = plan(load_spec(tiny_spec(tmp_path), flags))
        seen = Seen()
        result: RunResult = execute(planned, tmp_path / "run", executor="ray", watcher=seen)
        (failure,) = result.failures
        assert "no idea" in failure.message
        assert failure.remedy
        assert (tmp_path / "run" / "cells" / failure.cell.name / "error.json").exists()
        assert [cell.scheduler for cell in result.done] == ["smetric"]
        assert seen.turns == 32  # 8 sessions x 4 turns
        # The same again repeats what failed and keeps what is done.
        again = execute(planned, tmp_path / "run", executor="ray")
        assert [cell.scheduler for cell in again.kept] == ["smetric"]


def test_addresses() -> None:
    assert address_of("ray") is None
    assert address_of("ray://10.0.0.1:10001") == "ray://10.0.0.1:10001"
    for wrong in ("slurm", "ray:", "ray://host"):
        with pytest.raises(UsageError, match="no executor"):
            address_of(wrong)


def test_cells_timed_for_real_stay_here(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    emulated = plan(load_spec(tiny_spec(tmp_path, engine="emulator")))
    with pytest.raises(UsageError, match="this machine"):
        check("ray", emulated)
    virtual = plan(load_spec(tiny_spec(tmp_path, engine="emulator", live={"virtual_clock": True})))
    check("ray", virtual)


def test_lines_land_in_order_and_the_whole_folder_at_the_end(tmp_path: Path) -> None:
    path = tmp_path / "cells" / "one"
    first = Landing(path, {"layout": 1})
    first.lines("events.jsonl", 0, b"a\n")
    first.lines("events.jsonl", 4, b"c\n")  # what lies between has not come: not taken
    first.lines("elsewhere.txt", 0, b"x")
    assert (path / "events.jsonl").read_bytes() == b"a\n"
    assert not (path / "elsewhere.txt").exists()
    second = Landing(path, {"layout": 1})
    assert (path.with_name("one.partial-1") / "events.jsonl").read_bytes() == b"a\n"
    second.lines("events.jsonl", 0, b"a\n")
    second.finish({"turns.parquet": b"t", "summary.json": b"{}", "cell.json": b"{}"})
    assert sorted(file.name for file in path.iterdir()) == [
        "cell.json",
        "summary.json",
        "turns.parquet",
    ]
