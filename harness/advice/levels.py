"""Plays one small simulated cell in memory and says how it went. Nothing is written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from agentsched import UsageError
from harness.capacity import Cluster
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from schedulers.registry import create
from workloads.model import Session


@dataclass(slots=True)
class Records:
    """Keeps what a cell records."""

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


@dataclass(frozen=True, slots=True)
class Levels:
    """Metrics of one cell, as docs/metrics.md defines them; times in seconds, shares 0 to 1."""

    latency_mean: float
    ttft_mean: float
    ttft_p95: float
    ttft_max: float
    tpot_ms: float
    decode_tps: float
    cache_hit: float
    held_share: float
    pause_mean: float
    moved: int
    finished: int
    makespan_s: float


def with_kv(cluster: Cluster, tokens: int) -> Cluster:
    """The cluster with `tokens` of KV on each replica, in whole blocks."""
    replicas = []
    for one in cluster.replicas:
        blocks = max(1, tokens // one.block_size)
        replicas.append(replace(one, kv_blocks=blocks, kv_tokens=blocks * one.block_size))
    return replace(cluster, replicas=tuple(replicas))


def play(
    sessions: Sequence[Session],
    cluster: Cluster,
    scheduler: str,
    *,
    workers: int | None,
    seed: int,
    settings: Mapping[str, Any] | None = None,
    sim: SimSettings | None = None,
    decisions: bool = False,
) -> tuple[Levels, Records]:
    """Play sessions on a simulated cluster.

    Args:
        workers: sessions active at once; None starts each at its recorded arrival.

    Raises:
        UsageError: no task finished, so there is nothing to measure.
        SchedulerError: the policy broke its contract.
    """
    records = Records()
    outcome = simulate(
        sessions,
        workers=workers,
        scheduler=create(scheduler, settings or {}, seed),
        cluster=cluster,
        settings=replace(sim or SimSettings(), record_decisions=decisions),
        engine=EngineParams(**engine_defaults(cluster)),  # type: ignore[arg-type]
        recorder=records,
    )
    return levels(records, outcome.makespan_ns), records


def levels(records: Records, makespan_ns: int) -> Levels:
    """Metrics of a cell's records."""
    served = [t for t in records.turns if t.status == "ok" and t.first_token is not None]
    done = [s for s in records.sessions if s.status == "finished"]
    if not served or not done:
        raise UsageError("no task finished", "raise the context limit or shorten the sessions")
    first = np.array([((t.first_token or 0) - t.arrived) / 1e9 for t in served])
    pause = np.array([((t.dispatched or t.arrived) - t.arrived) / 1e9 for t in served])
    gaps = [
        (t.finished - (t.first_token or 0)) / 1e6 / (t.output_tokens - 1)
        for t in served
        if t.output_tokens > 1
    ]
    prompt = sum(t.prompt_tokens for t in served)
    return Levels(
        latency_mean=float(np.mean([(s.finished - s.started) / 1e9 for s in done])),
        ttft_mean=float(first.mean()),
        ttft_p95=float(np.quantile(first, 0.95)),
        ttft_max=float(first.max()),
        tpot_ms=float(np.mean(gaps)) if gaps else 0.0,
        decode_tps=sum(t.output_tokens for t in served) / (makespan_ns / 1e9),
        cache_hit=sum(t.cached_tokens or 0 for t in served) / prompt if prompt else 0.0,
        held_share=sum(t.held for t in served) / len(served),
        pause_mean=float(pause.mean()),
        moved=sum(t.moved for t in served),
        finished=len(done),
        makespan_s=makespan_ns / 1e9,
    )
