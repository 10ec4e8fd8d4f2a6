"""No turn waits longer than `max_wait_s`, whatever the scheduler, as long as a replica is up."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from harness.control.operations import Dispatch
from harness.control.plane import ControlPlane
from harness.sim.settings import SimSettings
from results.records import DecisionRecord
from schedulers import events as ev
from schedulers import registry
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Resume
from schedulers.views import ClusterView
from tests.harness.simulated import play
from tests.schedulers.plane_driver import mixed, text
from workloads.model import Session, TurnSpec

S = 1_000_000_000


class Miser(AdmissionScheduler):
    """Holds every turn, and resumes a session only when it has been told so by a test."""

    name = "miser"
    info = SchedulerInfo("test", "nothing", True, "inferred", "a test")

    def __init__(self) -> None:
        super().__init__()
        self.resumes: list[Resume] = []

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, (ev.TurnArrived, ev.DispatchFailed)):
            yield Hold(event.turn.id, why="never")
        yield from self.resumes
        self.resumes = []


def test_a_held_turn_is_sent_on_in_time_and_counted() -> None:
    from schedulers.types import Turn, Usage

    miser = Miser()
    plane = ControlPlane(miser, mixed("r0", "r1"), lambda attempt, now: 0, max_wait_s=10)
    turn = Turn("a/0", "a", 0, text(("a", 100)), None)
    (alarm,) = plane.handle(ev.TurnArrived(1 * S, turn))
    assert alarm.time == 11 * S  # type: ignore[union-attr]
    assert plane.handle(ev.Timer(11 * S - 1)) == []
    (sent,) = plane.handle(ev.Timer(11 * S))
    assert isinstance(sent, Dispatch)
    assert (sent.turn.id, sent.decode) == ("a/0", "r0")
    assert plane.forced_admissions == 1
    # The policy still thinks that the session waits: its late Resume is without effect.
    miser.resumes = [Resume("a", "r1", why="late")]
    assert plane.handle(ev.Timer(12 * S)) == []
    end = ev.TurnFinished(13 * S, "a", "a/0", sent.attempt, "r0", Usage(100, 0, 5))
    assert plane.handle(end) == []
    plane.handle(ev.SessionClosed(14 * S, "a", "released"))
    assert plane.ledger.replica_states["r0"].in_flight == 0


def test_with_no_replica_up_it_is_sent_on_when_one_returns() -> None:
    from schedulers.types import Turn

    plane = ControlPlane(Miser(), mixed("r0"), lambda attempt, now: 0, max_wait_s=10)
    plane.handle(ev.ReplicaLost(0, "r0", "test"))
    plane.handle(ev.TurnArrived(1 * S, Turn("a/0", "a", 0, text(("a", 100)), None)))
    assert plane.handle(ev.Timer(11 * S)) == []
    (sent,) = plane.handle(ev.ReplicaRecovered(50 * S, "r0"))
    assert isinstance(sent, Dispatch)


def crowd(sizes: list[int]) -> list[Session]:
    """Sessions of three turns, together too large for the replicas."""
    return [
        Session(
            f"s{number}",
            tuple(
                TurnSpec(
                    size + 60 * i,
                    20,
                    kept_turn=i - 1 if i else None,
                    kept_tokens=size + 60 * (i - 1) + 20 if i else 0,
                    wait_s=0.2,
                )
                for i in range(3)
            ),
            "test",
            "generated",
        )
        for number, size in enumerate(sizes)
    ]


def longest_wait(decisions: list[DecisionRecord]) -> int:
    """Nanoseconds from a turn's hold to the command that sent it on, at most."""
    since: dict[tuple[str | None, str | None], int] = {}
    longest = 0
    for decision in decisions:
        if decision.command == "hold":
            since.setdefault((decision.session, decision.turn), decision.time)
        elif decision.command in ("route", "reject", "resume"):
            for key in list(since):
                session, turn = key
                if session == decision.session and decision.turn in (None, turn):
                    longest = max(longest, decision.time - since.pop(key))
    assert not since
    return longest


@pytest.mark.parametrize("name", sorted(registry.names()))
@given(st.lists(st.integers(50, 300), min_size=6, max_size=9), st.sampled_from([0.1, 0.5]))
@settings(max_examples=2, deadline=None, phases=[Phase.generate])
def test_no_turn_waits_longer_under_any_scheduler(
    name: str, sizes: list[int], limit: float
) -> None:
    what = SimSettings(max_wait_s=limit, agent_retries=50, sampling_interval_s=0.5)
    found = play(
        crowd(sizes), registry.create(name), workers=9, replicas=2, blocks=60, settings=what
    )
    assert {s.status for s in found.records.sessions} <= {"finished", "too_long"}
    assert longest_wait(found.records.decisions) <= limit * S
    forced = sum(d.why.startswith("forced") for d in found.records.decisions)
    assert forced == found.plane.forced_admissions


@pytest.mark.parametrize(("limit", "forced"), [(None, False), (0.1, True)])
def test_the_bound_bites(limit: float | None, forced: bool) -> None:
    """Without it ThunderAgent lets turns of such a crowd wait for longer."""
    what = SimSettings(max_wait_s=limit)
    scheduler = registry.create("thunderagent")
    found = play(crowd([300] * 9), scheduler, workers=9, replicas=2, blocks=60, settings=what)
    assert (found.plane.forced_admissions > 0) == forced
    assert (longest_wait(found.records.decisions) > S // 10) == (not forced)
