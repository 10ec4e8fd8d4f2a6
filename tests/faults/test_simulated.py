"""The same invariants in simulation: looked at after every event, under seeded failures."""

from __future__ import annotations

import pytest

from harness.control.operations import Operation
from harness.control.plane import ControlPlane
from harness.live.invariants import broken_in
from harness.sim.faults import FaultScenario
from harness.sim.settings import SimSettings
from schedulers import events as ev
from schedulers import registry
from tests.faults.matrix import fault
from tests.harness.simulated import play
from workloads.model import Session, TurnSpec


@fault(
    "replicas lost, slowed, without metrics, at random times of a seed",
    sees="turns that failed are sent again by the agents; every session finishes",
    retried="turns of which no token was delivered",
    freed="all accounts are zero in the end",
    where="simulated",
)
@pytest.mark.parametrize("name", sorted(registry.names()))
def test_replicas_fail_at_random(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    events = 0
    handle = ControlPlane.handle

    def checked(plane: ControlPlane, event: ev.Event) -> list[Operation]:
        nonlocal events
        operations = handle(plane, event)
        events += 1
        assert next(broken_in(plane), None) is None
        return operations

    monkeypatch.setattr(ControlPlane, "handle", checked)
    turns = tuple(
        TurnSpec(40, 20, kept_turn=i - 1 if i else None, kept_tokens=60 * i, wait_s=0.5)
        for i in range(4)
    )
    sessions = [Session(f"s{i}", turns, "test", "generated") for i in range(10)]
    scenario = FaultScenario(seed=5, mean_gap_s=0.5, mean_duration_s=0.5, until_s=60)
    what = SimSettings(fault_scenario=scenario, agent_retries=100, retry_delay_s=0.1)
    found = play(sessions, registry.create(name), workers=5, replicas=3, blocks=200, settings=what)
    assert {s.status for s in found.records.sessions} == {"finished"}
    assert events > 100
    ledger = found.plane.ledger
    assert not ledger.session_states
    assert not ledger.attempts
    for replica in ledger.replica_states.values():
        assert (replica.in_flight, replica.queued_prefill_tokens) == (0, 0)
