"""A cell behind somebody else's router is told to end: its own client lets its turns end."""

from __future__ import annotations

import asyncio

from harness.live import cell
from harness.live.clock import LoopClock
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.parts import Ending
from harness.live.replay import Replayer, ReplaySettings
from harness.live.routers.base import Router, RouterSettings
from harness.live.routers.front import Found, RouterFront
from tests.live.rig import engines, run
from tests.live.test_virtual_run import Records
from workloads.model import Session, ToolCall, TurnSpec


def test_turns_behind_a_router_end_and_none_begins() -> None:
    tool = (ToolCall("bash", 0.01),)
    turns = tuple(
        TurnSpec(40 + 60 * i, 20, kept_turn=i - 1 if i else None, kept_tokens=60 * i, tools=tool)
        for i in range(200)
    )
    played = [Session(f"s{number}", turns, "long", "generated") for number in range(4)]
    records, router = Records(), RouterFront(Router("any", RouterSettings()), Found((), None))

    async def test() -> None:
        fleet = FleetServer(engines(1), EmulatorSettings(tick_s=0.002))
        await fleet.start()
        client = HttpClient(fleet.urls[0])  # as a router passes it on
        replayer = Replayer(
            played,
            workers=4,
            sender=client,
            clock=LoopClock(asyncio.get_running_loop()),
            recorder=records,
            settings=ReplaySettings(),
        )
        replayer.start()
        while replayer.counts.turns < 6 or not replayer.counts.in_flight:
            await asyncio.sleep(0.005)
        begun = replayer.counts.turns + replayer.counts.in_flight
        await cell._drain(router, Ending(replayer.drain))
        assert replayer.counts.turns == begun
        assert replayer.counts.in_flight == 0
        replayer.stop()
        await client.close()
        await fleet.close()

    run(test)
    assert {turn.status for turn in records.turns} == {"ok"}
