"""Emulated replicas of one cell, on ports of the cell's own process."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from harness.live.emulated_answers import read_script
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import EngineSpec, FleetServer
from harness.live.fronts import GatewayFront
from harness.live.parts import ReplicaAddress
from harness.sim.agents import nanoseconds
from harness.sim.clock import Priority
from harness.sim.faults import Fault
from harness.sim.links import LinkSpec


class EmulatedFleet:
    """Replicas that live as long as a cell; each cell has new ones.

    Args:
        script: file of scripted answers for real agents.
        speed: virtual seconds per real second.
        link: what replicas hand KV over; None: they do not.
        kv_events: publish KV events, on free ports.
    """

    def __init__(
        self,
        specs: Sequence[EngineSpec],
        settings: EmulatorSettings,
        *,
        script: Path | None = None,
        speed: float = 1.0,
        link: LinkSpec | None = None,
        kv_events: bool = False,
    ) -> None:
        answers = read_script(script) if script is not None else None
        self._names = [spec.name for spec in specs]
        kv_port = 0 if kv_events else None
        self.server = FleetServer(specs, settings, answers, speed, link, kv_port)

    async def start(self) -> list[ReplicaAddress]:
        await self.server.start()
        server = self.server
        addresses = [
            ReplicaAddress(spec.name, url, spec.role)
            for spec, url in zip(server.specs, server.urls, strict=True)
        ]
        if not server.publishers:
            return addresses
        return [
            replace(address, kv_events=publisher.address)
            for address, publisher in zip(addresses, server.publishers, strict=True)
        ]

    def schedule_faults(self, faults: Sequence[Fault], front: GatewayFront) -> None:
        """Let the faults come at their times."""
        for fault in faults:
            at = nanoseconds(fault.at_s)
            front.clock.at(at, Priority.FAULT, partial(self._fault, fault, front))

    def _fault(self, fault: Fault, front: GatewayFront) -> None:
        index = self._names.index(fault.replica)
        loop, server = asyncio.get_running_loop(), self.server
        if fault.kind == "lost":
            server.background(loop.create_task(server.stop_replica(index)))
        elif fault.kind == "recovered":
            server.background(loop.create_task(server.restart_replica(index)))
        elif fault.kind in ("slow", "normal"):
            server.set_slowdown(index, fault.factor if fault.kind == "slow" else 1.0)
        elif fault.kind == "metrics-stop":
            front.served.poller.blind.add(fault.replica)
        else:
            front.served.poller.blind.discard(fault.replica)

    async def close(self) -> None:
        await self.server.close()
