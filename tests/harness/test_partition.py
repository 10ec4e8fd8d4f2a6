"""Several gateways: who has which session, and that each sees its own part only."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import UsageError
from harness.control.ledger import ReplicaConfig
from harness.control.operations import Dispatch
from harness.control.records import Capacity
from harness.partition import PartitionedPlane, Split, divide, rendezvous
from schedulers import events as ev
from schedulers.base import Scheduler
from schedulers.registry import create
from schedulers.types import PromptRef, PromptRun, Turn, Usage
from schedulers.views import Role
from tests.cli.command import tiny_trace
from tests.harness import simulated
from workloads.model import Session


def config(name: str, role: Role = "mixed", tokens: int = 1000) -> ReplicaConfig:
    return ReplicaConfig(name, role, Capacity(tokens, tokens))


@given(st.integers(2, 8), st.integers(0, 7))
@settings(max_examples=40, deadline=None)
def test_a_node_that_goes_moves_its_own_keys_only(count: int, gone: int) -> None:
    nodes = [f"n{i}" for i in range(count)]
    left = [node for i, node in enumerate(nodes) if i != gone % count]
    for key in map(str, range(200)):
        before, after = nodes[rendezvous(key, nodes)], left[rendezvous(key, left)]
        assert after == before or before == nodes[gone % count]


def test_sessions_spread_evenly() -> None:
    counts = Counter(rendezvous(f"session-{i}", [f"g{n}" for n in range(4)]) for i in range(4000))
    # Binomial(4000, 1/4): mean 1000, standard deviation sqrt(4000 x 3/16) = 27.4; 5 of them.
    assert all(abs(count - 1000) < 137 for count in counts.values())


def test_capacity_is_divided() -> None:
    replicas = [config("a", tokens=1000), config("b", tokens=600)]
    usable = [[r.capacity.usable for r in part] for part in divide(replicas, 4, "shares")]
    assert usable == [[250, 150]] * 4
    split = [config("p0", "prefill"), config("d0", "decode"), config("d1", "decode")]
    with pytest.raises(UsageError, match="prefill replica each: there are 1"):
        divide(split, 2, "replicas")
    parts = divide([*split, config("p1", "prefill")], 2, "replicas")
    assert [[r.id for r in part] for part in parts] == [["p0", "d0"], ["d1", "p1"]]


def turn(session: str, number: int, parent: str | None = None) -> Turn:
    prompt = PromptRef((PromptRun(f"{session}.{number}", 10, 40),))
    return Turn(f"{session}#{number}", session, number, prompt, parent)


def test_gateways_see_their_own_sessions_and_attempts_keep_apart() -> None:
    policies = [create("least-loaded", {}, seed) for seed in range(3)]
    plane = PartitionedPlane(policies, [config("a"), config("b")], lambda attempt, now: 0)
    attempts: dict[str, Dispatch] = {}
    for i in range(30):
        (operation,) = plane.handle(ev.TurnArrived(i, turn(f"s{i}", 0)))
        assert isinstance(operation, Dispatch)
        attempts[f"s{i}"] = operation
    assert len({one.attempt for one in attempts.values()}) == 30
    assert len(plane.ledger.sessions) == 30
    owners = {s: g for g in range(3) for s in plane.planes[g].ledger.sessions}
    assert {s: plane.gateway(s) for s in attempts} == owners
    assert len(set(owners.values())) == 3
    # A sub-agent goes where the session is that started it, whatever its own name.
    for i in range(10):
        plane.handle(ev.TurnArrived(40, turn(f"child{i}", 0, parent="s3")))
        assert f"child{i}" in plane.planes[owners["s3"]].ledger.sessions
    for session, operation in attempts.items():
        plane.handle(
            ev.TurnFinished(
                50, session, f"{session}#0", operation.attempt, operation.decode, Usage(10, 0, 5)
            )
        )
        plane.handle(ev.SessionClosed(51, session, "finished"))
    assert len(plane.ledger.sessions) == 10


def test_a_lost_replica_is_lost_to_all() -> None:
    policies = [create("round-robin", {}, 0) for _ in range(2)]
    plane = PartitionedPlane(policies, [config("a"), config("b")], lambda attempt, now: 0)
    plane.handle(ev.ReplicaLost(1, "a", "test"))
    for i in range(10):
        (operation,) = plane.handle(ev.TurnArrived(2, turn(f"s{i}", 0)))
        assert isinstance(operation, Dispatch)
        assert operation.decode == "b"


def tiny_sessions(folder: Path) -> list[Session]:
    from workloads.catalog import load_workload

    return load_workload(str(tiny_trace(folder)), sessions=None, seed=0, settings={})


@pytest.mark.parametrize("name", ["tao", "smetric", "thunderagent"])
def test_one_gateway_of_the_partition_decides_as_a_plane_does(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = tiny_sessions(tmp_path)
    alone = simulated.play(sessions, create(name, {}, 0), workers=6, replicas=2, blocks=400)

    def partitioned(scheduler: Scheduler, *args: Any, **named: Any) -> PartitionedPlane:
        return PartitionedPlane([scheduler], *args, **named)

    monkeypatch.setattr(simulated, "ControlPlane", partitioned)
    divided = simulated.play(sessions, create(name, {}, 0), workers=6, replicas=2, blocks=400)
    assert alone.records.decisions
    assert divided.records.decisions == alone.records.decisions
    assert divided.records.turns == alone.records.turns


@pytest.mark.parametrize("split", ["shares", "replicas"])
@pytest.mark.parametrize("name", ["tao", "dynamo", "conserve"])
def test_runs_with_several_gateways_serve_every_turn(
    name: str, split: Split, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sessions = tiny_sessions(tmp_path)

    def partitioned(scheduler: Scheduler, *args: Any, **named: Any) -> PartitionedPlane:
        policies = [scheduler, *(create(name, {}, seed) for seed in (1, 2))]
        named["split"] = split
        return PartitionedPlane(policies, *args, **named)

    monkeypatch.setattr(simulated, "ControlPlane", partitioned)
    roles: tuple[Role, ...] = ("prefill", "decode") * 3 if name == "conserve" else ()
    played = simulated.play(
        sessions, create(name, {}, 0), workers=6, replicas=6, blocks=400, roles=roles
    )
    assert [one.status for one in played.records.sessions] == ["finished"] * 8
    assert len(played.records.turns) == 32
    where = {(t.session, t.replica) for t in played.records.turns}
    if split == "replicas":
        plane = played.plane
        assert isinstance(plane, PartitionedPlane)
        has = divide([config(f"r{i}", roles[i] if roles else "mixed") for i in range(6)], 3, split)
        for session, replica in where:
            assert replica in {r.id for r in has[plane.gateway(session)]}
