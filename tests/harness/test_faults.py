"""Slow replicas, seeded fault scenarios, and what is refused of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import UsageError
from harness.sim.engine_types import EngineParams
from harness.sim.faults import Fault, FaultScenario, check_faults
from harness.sim.settings import SimSettings
from schedulers.registry import create
from tests.harness.simulated import MS, Played, play
from workloads.model import Session, TurnSpec


def one_turn(output: int = 10) -> list[Session]:
    return [Session("s", (TurnSpec(20, output),), "test", "generated")]


def played(faults: tuple[Fault, ...], fast_forward: bool = True) -> Played:
    return play(
        one_turn(),
        create("round-robin"),
        settings=SimSettings(faults=faults),
        params=EngineParams(null_blocks=0, fast_forward=fast_forward),
    )


def test_a_slow_replica_takes_longer_from_its_next_step_on() -> None:
    # 20 prompt tokens: 30 ms; then nine decode steps of 10 ms, the first ends at 40 ms. Slow at
    # 45 ms: the step that runs ends at 50 ms, the next two take 20 ms each, to 90 ms. Normal at
    # 85 ms: five steps of 10 ms are left, to 140 ms.
    faults = (Fault(0.045, "r0", "slow", 2.0), Fault(0.085, "r0", "normal"))
    # A nanosecond later in the engine: no step starts at the time of its request's arrival.
    assert played(faults).makespan // MS == 140
    assert played(()).makespan // MS == 120


def test_a_slow_prefill_takes_longer() -> None:
    # Slow from the start by 1.5: 45 ms of prefill and nine steps of 15 ms.
    assert played((Fault(0.0, "r0", "slow", 1.5),)).makespan // MS == 180


times = st.floats(0, 0.3)


@given(st.lists(st.tuples(times, st.sampled_from(("slow", "normal")), st.floats(1, 9))))
@settings(max_examples=60, deadline=None)
def test_fast_forward_changes_nothing(drawn: list[tuple[float, str, float]]) -> None:
    faults = tuple(Fault(at, "r0", kind, factor) for at, kind, factor in drawn)
    jumped, stepped = played(faults), played(faults, fast_forward=False)
    assert jumped.records.turns == stepped.records.turns
    assert jumped.makespan == stepped.makespan


def test_a_scenario_is_the_same_for_the_same_seed() -> None:
    names = ["r0", "r1"]
    scenario = FaultScenario(seed=3, mean_gap_s=100, mean_duration_s=20, until_s=2000)
    found = list(scenario.faults(names))
    assert found == list(scenario.faults(names))
    assert found != list(replace(scenario, seed=4).faults(names))
    assert len(found) > 10
    assert {fault.replica for fault in found} == set(names)
    assert all(a.at_s <= b.at_s for a, b in pairwise(found))
    # Each failure ends on the replica that it began on, before the next one begins.
    for begun, ended in zip(found[::2], found[1::2], strict=True):
        assert begun.replica == ended.replica
        assert (begun.kind, ended.kind) in {
            ("lost", "recovered"),
            ("slow", "normal"),
            ("metrics-stop", "metrics-resume"),
        }


@pytest.mark.parametrize("name", ["smetric", "thunderagent", "tao"])
def test_sessions_outlive_a_scenario(name: str) -> None:
    turns = tuple(
        TurnSpec(40, 20, kept_turn=i - 1 if i else None, kept_tokens=60 * i, wait_s=0.5)
        for i in range(6)
    )
    sessions = [Session(f"s{i}", turns, "test", "generated") for i in range(12)]
    scenario = FaultScenario(seed=1, mean_gap_s=0.5, mean_duration_s=0.5)
    what = SimSettings(fault_scenario=scenario, agent_retries=100, retry_delay_s=0.1)
    found = play(sessions, create(name), workers=4, replicas=2, settings=what)
    assert {s.status for s in found.records.sessions} == {"finished"}
    assert sum(t.status == "ok" for t in found.records.turns) == 72


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"kind": "tired"}, "not one of lost"),
        ({"at_s": -1.0}, "at_s"),
        ({"factor": 0.5}, "factor"),
    ],
)
def test_impossible_faults_are_refused(wrong: dict[str, object], message: str) -> None:
    values: dict[str, object] = {"at_s": 1.0, "replica": "r0", "kind": "slow"} | wrong
    with pytest.raises(ValueError, match=message):
        Fault(**values)  # type: ignore[arg-type]


def test_a_fault_of_an_unknown_replica_is_refused() -> None:
    with pytest.raises(UsageError, match="nobody"):
        check_faults([Fault(1.0, "nobody", "lost")], ["r0", "r1"])


@pytest.mark.parametrize("wrong", [{"kinds": ()}, {"kinds": ("normal",)}, {"mean_gap_s": 0.0}])
def test_impossible_scenarios_are_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ValueError, match="must be"):
        FaultScenario(**wrong)  # type: ignore[arg-type]
