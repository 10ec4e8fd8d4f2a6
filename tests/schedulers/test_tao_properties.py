"""What must hold for TAO and its ablations whatever happens: random histories on a fake cluster."""

from __future__ import annotations

import random

import pytest

from schedulers import tao_view as view
from schedulers.commands import Command, Pause, Resume
from schedulers.registry import create
from schedulers.tao import Tao
from tests.schedulers.fake_cluster import Driver, FakeCluster, tool, unexplained

NAMES = (
    "tao",
    "tao-no-cache",
    "tao-no-decay",
    "tao-no-readiness",
    "tao-thunder-order",
    "tao-bfd",
    "oracle-tools",
)


class WatchedCluster(FakeCluster):
    """Checks every admission against the room that there is."""

    scheduler: Tao

    def carry_out(self, command: Command, now: int) -> None:
        if isinstance(command, Pause):
            assert not self.sessions[command.session].in_flight, "pauses a running session"
        super().carry_out(command, now)
        if isinstance(command, Resume) and "too long" not in command.why:
            replica = self.by_id[command.replica]
            assert view.room(replica, self, self.scheduler.config, now) >= 0, "over capacity"


class History:
    """A seeded run: agents that come, call tools, fail, leave; replicas that die and return."""

    def __init__(self, name: str, seed: int, settings: dict[str, object]) -> None:
        self.rng = random.Random(seed)
        scheduler = create(name, settings)
        assert isinstance(scheduler, Tao)
        replicas = self.rng.randint(1, 3)
        self.cluster = WatchedCluster(
            {f"r{i}": self.rng.choice((None, 8000, 12_000, 20_000)) for i in range(replicas)}
        )
        self.cluster.scheduler = scheduler
        self.driver = Driver(scheduler, self.cluster, self.rng.choice((0.0, 0.005, 0.03, 0.2)))
        self.opened = 0

    def run(self, steps: int) -> list[tuple[int, Command]]:
        for _ in range(steps):
            self.step()
        self.drain()
        return [(at, unexplained(command)) for at, command in self.driver.log]

    def step(self) -> None:
        rng, driver, sessions = self.rng, self.driver, list(self.cluster.sessions.values())
        running = [s.id for s in sessions if s.in_flight]
        acting = [s.id for s in sessions if s.phase == "acting"]
        waiting = [s.id for s in sessions if s.waiting_turns]
        choice = rng.random()
        if choice < 0.2 or not sessions:
            self.opened += 1
            driver.arrive(f"s{self.opened}", rng.randint(10, 6000))
        elif choice < 0.4 and running:
            name = rng.choice(running)
            driver.finish(name, output=rng.randint(0, 500))
            if self.cluster.sessions[name].phase == "acting":
                driver.tools(name, tool(rng.choice("ab"), rng.choice((None, "sleep 3"))))
        elif choice < 0.6 and acting:
            name = rng.choice(acting)
            driver.arrive(name, self.cluster.sessions[name].tokens + rng.randint(1, 800))
        elif choice < 0.65 and acting:
            driver.hint(rng.choice(acting), rng.uniform(0, 5))
        elif choice < 0.7 and acting:
            driver.close(rng.choice(acting))
        elif choice < 0.74 and running:
            name = rng.choice(running)
            driver.arrive(name, self.cluster.sessions[name].tokens)  # a parallel call
        elif choice < 0.76 and running:
            driver.fail(rng.choice(running))
        elif choice < 0.78 and running:
            driver.dispatch_failed(rng.choice(running))
        elif choice < 0.8 and (waiting or running):
            driver.client_gone(rng.choice(waiting or running))
        elif choice < 0.82:
            replica = rng.choice(self.cluster.replicas)
            (driver.lose if replica.healthy else driver.recover)(replica.id)
        elif choice < 0.86 and running:
            self.cluster.streamed[rng.choice(running)] = rng.randint(0, 2000)
        else:
            driver.advance(rng.choice((0.001, 0.05, 0.3, 2.0, 7.0)))

    def drain(self) -> None:
        """Agents finish what they have begun; nobody may be left waiting."""
        for replica in self.cluster.replicas:
            if not replica.healthy:
                self.driver.recover(replica.id)
        for _ in range(400):
            for session in list(self.cluster.sessions.values()):
                while session.in_flight:
                    self.driver.finish(session.id)
                if session.phase == "acting":
                    self.driver.close(session.id)
            if not self.cluster.sessions:
                return
            self.driver.advance(5.0)
        raise AssertionError(f"still waiting: {list(self.cluster.waiting)}")


SETTINGS: tuple[dict[str, object], ...] = (
    {},
    {"discard": "skip", "direct": False},
    {"quantum_tokens": 1000, "fill_rounding": False, "spread_ties": False},
    {"idle_ttl_s": 3.0, "forced_after_s": 20.0},
)


@pytest.mark.parametrize("name", NAMES)
def test_no_session_is_lost_and_no_plan_exceeds_capacity(name: str) -> None:
    """The fake cluster refuses double resumes, double dispatches and dead replicas by itself."""
    for seed in range(40):
        settings = SETTINGS[seed % len(SETTINGS)]
        History(name, seed, settings).run(150)


@pytest.mark.parametrize("name", NAMES)
def test_same_events_give_same_actions(name: str) -> None:
    for seed in range(6):
        first = History(name, seed, {}).run(120)
        assert History(name, seed, {}).run(120) == first


def test_footprint_minus_one_too() -> None:
    for seed in range(40):
        History("tao", seed, {"footprint_sign": -1}).run(150)
