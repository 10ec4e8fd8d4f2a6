"""Small simulated clusters with step times simple enough to compute by hand."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from harness.control.ledger import ReplicaConfig
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from harness.sim.async_engine import engine_for
from harness.sim.clock import Clock
from harness.sim.content import ContentIndex
from harness.sim.cpu_offload import CpuTier
from harness.sim.driver import SimDriver
from harness.sim.engine import Engine
from harness.sim.engine_types import DecodePiece, EngineParams, StepTime
from harness.sim.links import LinkSpec
from harness.sim.service import Listener, Service
from harness.sim.settings import SimSettings
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from schedulers.base import Scheduler
from schedulers.views import Role
from workloads.model import Session

MS = 1_000_000
"""Nanoseconds in a millisecond."""
PS_PER_MS = 10**9


class FlatStep:
    """Every step takes 10 ms, plus 1 ms for each prefill token."""

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(10 * PS_PER_MS, 0, 1 << 62)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        return (10 + sum(new for new, _ in chunks)) * PS_PER_MS


@dataclass
class Records:
    """A recorder that keeps everything."""

    turns: list[TurnRecord] = field(default_factory=list)
    sessions: list[SessionRecord] = field(default_factory=list)
    replicas: list[ReplicaRecord] = field(default_factory=list)
    decisions: list[DecisionRecord] = field(default_factory=list)

    def turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    def session(self, record: SessionRecord) -> None:
        self.sessions.append(record)

    def replica(self, record: ReplicaRecord) -> None:
        self.replicas.append(record)

    def decision(self, record: DecisionRecord) -> None:
        self.decisions.append(record)


@dataclass
class Played:
    """A finished simulation."""

    makespan: int
    records: Records
    plane: ControlPlane
    driver: SimDriver
    engines: dict[str, Engine]


def play(
    sessions: list[Session],
    scheduler: Scheduler,
    *,
    workers: int | None = 1,
    replicas: int = 1,
    blocks: int = 1000,
    settings: SimSettings | None = None,
    params: EngineParams | None = None,
    context_limit: int = 100_000,
    roles: Sequence[Role] = (),
    tiers: Mapping[str, CpuTier] | None = None,
    step_time: StepTime | None = None,
) -> Played:
    """Run sessions on replicas r0, r1, ..., with flat step times unless others are given."""
    steps = step_time or FlatStep()
    params = params or EngineParams(null_blocks=0)
    contents = ContentIndex(params.block_size)
    names = [f"r{i}" for i in range(replicas)]
    engines = {name: engine_for(params, steps, blocks, contents) for name in names}
    capacity = Capacity(blocks * params.block_size)
    records = Records()
    plane = ControlPlane(
        scheduler,
        [
            ReplicaConfig(name, roles[i] if roles else "mixed", capacity)
            for i, name in enumerate(names)
        ],
        progress=lambda attempt, now: driver.streamed(attempt, now),
        log=records.decision,
        max_wait_s=settings.max_wait_s if settings else None,
    )

    def serve(clock: Clock, listener: Listener) -> Service:
        return Service(
            clock,
            engines,
            contents,
            listener,
            bytes_per_token=dict.fromkeys(names, 1_000_000),
            link=LinkSpec(10, efficiency=0.5, latency_us=1000),
            store=settings.kv_store if settings else None,
            tiers=tiers,
        )

    driver = SimDriver(
        sessions,
        workers=workers,
        plane=plane,
        serve=serve,
        context_limit=context_limit,
        settings=settings or SimSettings(),
        recorder=records,
    )
    return Played(driver.run(), records, plane, driver, engines)
