"""A live cell around an AgentPlayer: emulated replicas, our gateway, records in memory."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.live.agents.background import Background
from harness.live.agents.player import AgentPlayer
from harness.live.emulated_answers import Script
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.fronts import GatewayFront
from harness.live.parts import Played, ReplicaAddress, Stage
from harness.live.serving import ServeSettings, find_policy
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from tests.agents import fake_client
from tests.live.rig import engines
from workloads.agents.base import AgentDriver, AgentTask


@dataclass
class Records:
    turns: list[TurnRecord] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)

    def turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    def session(self, record: SessionRecord) -> None:
        self.sessions.append(record)

    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


class FakeDriver:
    """Runs `tests.agents.fake_client`."""

    name = "fake"
    about = "sleeps"

    def __init__(self, *arguments: str) -> None:
        self._arguments = arguments

    def check(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        return {}

    def tasks(
        self, settings: Mapping[str, Any], *, sessions: int | None, seed: int
    ) -> Sequence[AgentTask]:
        return ()

    def command(self, settings: Mapping[str, Any]) -> Sequence[str]:
        return [sys.executable, fake_client.__file__, *self._arguments]

    def environment(self, settings: Mapping[str, Any]) -> Mapping[str, str]:
        return {"PYTHONPATH": str(Path(__file__).parents[2])}

    def script(self, folder: Path, settings: Mapping[str, Any]) -> Path | None:
        return None


@dataclass
class Cell:
    """What was recorded of a cell that was played."""

    played: Played
    records: Records
    folder: Path

    def turns_of(self, session: str) -> list[TurnRecord]:
        return [turn for turn in self.records.turns if turn.session == session]

    @property
    def statuses(self) -> dict[str, str]:
        return {session.session: session.status for session in self.records.sessions}


async def play(
    folder: Path,
    tasks: Sequence[AgentTask],
    *,
    workers: int,
    driver: AgentDriver | None = None,
    settings: Mapping[str, Any] | None = None,
    scheduler: str = "round-robin",
    script: Script | None = None,
    through_router: bool = False,
    background: Background | None = None,
) -> Cell:
    """Play tasks on two emulated replicas.

    Args:
        through_router: the front is not ours: it has no admin port and tells nothing.
    """
    records = Records()
    player = AgentPlayer(driver or FakeDriver(), settings or {}, workers, tasks, background)
    fleet = FleetServer(engines(), EmulatorSettings(tick_s=0.002), script)
    front = GatewayFront(
        find_policy(scheduler, {}),
        ServeSettings(port=0, wait_s=5.0),
        records,
        "emulated",
        watcher=None if through_router else player.watcher,
    )
    try:
        await fleet.start()
        replicas = [ReplicaAddress(f"e{i}", url) for i, url in enumerate(fleet.urls)]
        await front.start(replicas)
        if through_router:
            front.admin_url = None
        clock = front.clock
        stage = Stage(front, records, clock, folder, "emulated", 1 << 17, lambda done, turns: None)
        return Cell(await player.play(stage), records, folder / "agents")
    finally:
        await front.close()
        await fleet.close()
