"""The live driver: whatever happens to turns, in whatever order, nothing is left behind."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SchedulerError
from harness.control.ledger import ReplicaConfig
from harness.control.operations import Dispatch
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from harness.live import eventlog
from harness.live.driver import LiveDriver
from harness.live.planners import FixedPlanner
from harness.live.turns import DriverSettings, LiveTurn
from harness.sim.clock import Clock
from schedulers import events as ev
from schedulers import registry
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Route
from schedulers.types import PromptRef, PromptRun, ReplicaSample, ToolSignal, Usage
from schedulers.views import ClusterView

REPLICAS = ("r0", "r1")


@dataclass(slots=True)
class Client:
    """Remembers what it was told."""

    live: LiveTurn | None = None
    dispatches: list[Dispatch] = field(default_factory=list)
    ended: str | None = None
    withdrawn: int = 0

    def dispatch(self, operation: Dispatch) -> None:
        assert self.ended is None
        self.dispatches.append(operation)

    def refuse(self, reason: str, retry_after_s: float | None) -> None:
        assert self.ended is None
        self.ended = "refused"

    def fail(self, reason: str) -> None:
        assert self.ended is None
        self.ended = "failed"

    def withdraw(self) -> None:
        self.withdrawn += 1

    def streamed(self) -> int:
        return 1

    def heard(self) -> int:
        return 0

    def fell_silent(self, reason: str) -> None:
        assert self.ended is None


class World:
    """A driver on a virtual clock, and the turns it was given."""

    def __init__(self, scheduler: str, log: eventlog.EventLog | None = None) -> None:
        self.clock = Clock()
        configs = [ReplicaConfig(name, "mixed", Capacity(1000)) for name in REPLICAS]
        self.driver = LiveDriver(
            lambda progress: ControlPlane(registry.create(scheduler), configs, progress),
            self.clock,
            FixedPlanner(self.clock, 1_000_000),
            DriverSettings(idle_expiry_s=50.0),
            on_event=log.write if log is not None else None,
        )
        self.clients: list[Client] = []

    @property
    def open(self) -> list[Client]:
        return [c for c in self.clients if c.live is not None and not c.live.ended]

    @property
    def running(self) -> list[Client]:
        return [c for c in self.open if c.live is not None and c.live.attempt is not None]

    def arrive(self, session: int, tokens: int, final: bool) -> None:
        name = f"s{session}"
        client = Client()
        prompt = PromptRef((PromptRun("shared", 20, 80), PromptRun(name, tokens, 4 * tokens)))
        client.live = self.driver.arrive(
            client, name, None, prompt, one_off=session == 0, final=final
        )
        self.clients.append(client)
        self.driver.decide(client.live)

    def step(self, kind: str, which: int, tokens: int) -> None:
        """One thing that may happen; which turn, session or replica is up to `which`."""
        driver, running, replica = self.driver, self.running, REPLICAS[which % 2]
        chosen = running[which % len(running)].live if running else None
        waiting = self.open
        if kind == "arrive":
            self.arrive(which % 5, tokens, final=which % 7 == 0)
        elif kind == "first" and chosen is not None:
            settled = driver.settled(chosen)
            assert driver.first_token(chosen) == settled
        elif kind == "finish" and chosen is not None:
            driver.first_token(chosen)
            tools = (ToolSignal("bash"),) if which % 2 else ()
            driver.finish(chosen, Usage(tokens, None, 7), tools)
        elif kind == "fail" and chosen is not None:
            driver.fail(chosen, "broken", again=chosen.first_token is None)
        elif kind == "gone" and waiting:
            live = waiting[which % len(waiting)].live
            assert live is not None
            driver.gone(live)
        elif kind == "release":
            driver.release(f"s{which % 5}")
        elif kind == "hint":
            driver.hint(f"s{which % 5}", 1.0)
        elif kind == "sample":
            driver.sampled(replica, ReplicaSample(1, 0, 0.5))
        elif kind == "lost":
            driver.lost(replica, "gone")
            for client in self.running:
                assert client.live is not None
                if client.live.replica == replica:
                    driver.fail(client.live, "lost", again=client.live.first_token is None)
        elif kind == "back":
            driver.recovered(replica)
        elif kind == "wait":
            until = self.clock.now + which * 100_000_000
            while self.clock._heap and self.clock._heap[0][0] <= until:
                self.clock.step()

    def finish_everything(self) -> None:
        """Bring replicas back, answer what runs, let time pass: at last nobody waits."""
        for name in REPLICAS:
            self.driver.recovered(name)
        for _ in range(20_000):
            for client in self.running:
                assert client.live is not None
                self.driver.finish(client.live, Usage(30, None, 1), ())
            if not self.open:
                break
            self.clock.step()
        assert not self.open
        for name in list(self.driver.sessions):
            self.driver.release(name)


KINDS = ("first", "fail", "gone", "release", "hint", "sample", "lost", "back", "wait")
STEPS = st.lists(
    st.tuples(
        st.sampled_from([*KINDS, *["arrive"] * 3, *["finish"] * 2]),
        st.integers(0, 60),
        st.integers(1, 400),
    ),
    max_size=40,
)


@pytest.mark.parametrize("scheduler", ["round-robin", "cache-aware", "thunderagent", "tao"])
@settings(max_examples=60, deadline=None)
@given(steps=STEPS)
def test_nothing_is_left_behind(scheduler: str, steps: list[tuple[str, int, int]]) -> None:
    world = World(scheduler)
    for step in steps:
        world.step(*step)
    world.finish_everything()
    ledger = world.driver.plane.ledger
    assert not ledger.waiting
    assert not ledger.attempts
    assert not ledger.session_states
    for name in REPLICAS:
        state = ledger.replica_states[name]
        assert (state.in_flight, state.queued_prefill_tokens, list(state.sessions)) == (0, 0, [])
    assert world.driver.facts() == {"sessions": 0, "in_flight": 0, "waiting": 0}
    for client in world.clients:
        assert client.live is not None
        assert client.live.attempts == len(client.dispatches) <= 3


@settings(max_examples=30, deadline=None)
@given(steps=STEPS)
def test_any_history_replays(
    steps: list[tuple[str, int, int]], tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("log") / "events.jsonl"
    with path.open("wb") as stream:
        configs = [ReplicaConfig(name, "mixed", Capacity(1000)) for name in REPLICAS]
        world = World("tao", eventlog.EventLog(stream, "tao", {}, 0, configs))
        for step in steps:
            world.step(*step)
        world.finish_everything()
    _, difference = eventlog.verify(path)
    assert difference is None


class Broken(AdmissionScheduler):
    """Holds the first turn and routes the second to a replica that is not there."""

    name = "broken"
    info = SchedulerInfo("test", "nothing", True, "inferred", "none")

    def on_event(self, event: ev.Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, ev.TurnArrived):
            if event.turn.session == "s1":
                yield Hold(event.turn.id)
            else:
                yield Route(event.turn.id, "nowhere")


def test_a_scheduler_that_breaks_its_contract(tmp_path: Path) -> None:
    """What waits is told, nothing new is decided, and the error goes where it can be seen."""
    seen: list[SchedulerError] = []
    world = World("round-robin")
    configs = [ReplicaConfig("r0", "mixed", Capacity(1000))]
    world.driver = LiveDriver(
        lambda progress: ControlPlane(Broken(), configs, progress),
        world.clock,
        FixedPlanner(world.clock, 1),
        on_error=seen.append,
    )
    world.arrive(1, 10, final=False)
    assert world.clients[0].ended is None
    world.arrive(2, 10, final=False)
    assert [client.ended for client in world.clients] == ["failed", "failed"]
    assert "nowhere" in seen[0].message
    assert world.driver.broken is seen[0]
    world.driver.release("s1")
    assert len(seen) == 1
