"""A gateway before two engines that misbehave on demand, its invariants checked all the time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from agentsched import SchedulerError
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.invariants import InvariantChecker
from harness.live.polling import PollSettings
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.turns import DriverSettings
from tests.live.rig import Got, chat, engines, post

CHAT = "/v1/chat/completions"


@dataclass
class Faulted:
    """What a test has in hand."""

    fleet: FleetServer
    served: ServedGateway
    client: HttpClient
    checker: InvariantChecker
    broken: list[SchedulerError]

    @property
    def counts(self) -> dict[str, int]:
        return self.served.driver.counts

    def misbehave(self, kind: str, *, replica: int = 0, count: int = -1) -> None:
        self.fleet.faults[replica].misbehave(kind, count=count)

    async def ask(self, *, session: str = "s", **fields: Any) -> Got:
        """One turn, answered."""
        return await post(self.client, CHAT, chat(**fields), {"x-session-id": session})

    async def settled(self, limit_s: float = 10.0) -> None:
        """Wait until nothing is open, then look at all accounts."""
        driver = self.served.driver
        async with asyncio.timeout(limit_s):
            while driver.facts()["in_flight"] or driver.facts()["waiting"]:
                await asyncio.sleep(0.01)
        assert self.checker.problem() is None
        for replica in driver.plane.ledger.replica_states.values():
            assert (replica.in_flight, replica.queued_prefill_tokens) == (0, 0)
        for session in list(driver.sessions):
            driver.release(session)
        assert not driver.plane.ledger.session_states


@asynccontextmanager
async def faulted(
    *, scheduler: str = "round-robin", idle_s: float = 0.4, poll: PollSettings | None = None
) -> AsyncIterator[Faulted]:
    """Two engines and a gateway that gives up on silence after `idle_s`."""
    fleet = FleetServer(engines(2), EmulatorSettings(tick_s=0.002), misbehave=True)
    await fleet.start()
    served = ServedGateway(
        find_policy(scheduler, {}),
        fleet.urls,
        ServeSettings(
            port=0,
            wait_s=5.0,
            driver=DriverSettings(turn_idle_s=idle_s),
            poll=poll or PollSettings(interval_s=0.1, retry_s=0.05, failures=2, timeout_s=0.5),
        ),
    )
    broken: list[SchedulerError] = []
    try:
        await served.start()
        checker = InvariantChecker(served.driver, broken.append, interval_s=0.01)
        checker.start()
        client = HttpClient(served.url)
        made = Faulted(fleet, served, client, checker, broken)
        yield made
        await made.settled()
        checker.stop()
        assert broken == []
        assert checker.looks > 0
        await client.close()
    finally:
        await served.close()
        await fleet.close()
