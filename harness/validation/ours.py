"""Our side of a comparison: a trace on a few engines with a simple step-time model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np

from agentsched import SimulationError
from harness.capacity import Cluster, resolve_cluster
from harness.sim.engine_types import DecodePiece, EngineParams
from harness.sim.run import SimOutcome, simulate
from harness.sim.settings import SimSettings
from harness.validation.dynamo_replay import LinearTiming, Replayed
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from schedulers.registry import create
from workloads.model import Session

_NO_END = 1 << 62
_PS_PER_US = 10**6


class LinearSteps:
    """`LinearTiming` for our engine.

    Prefill counts tokens as the replay does: sequences times the whole part of their mean. A step
    that computes a part of one prompt and nothing else hands out no token; it is known by its
    filling the budget.
    """

    source = "linear"

    def __init__(self, timing: LinearTiming, budget: int) -> None:
        self._token_ps = round(timing.token_us * _PS_PER_US)
        self._step_ps = round(timing.step_us * _PS_PER_US)
        self._budget = budget

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(self._step_ps, 0, _NO_END)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        if not chunks:
            return self._step_ps
        count = len(chunks)
        computed = sum(before for _, before in chunks)
        new = sum(tokens for tokens, _ in chunks)
        counted = count * ((new + computed) // count - computed // count)
        emits = decodes > 0 or count > 1 or new < self._budget
        return max(1, counted * self._token_ps + (self._step_ps if emits else 0))


@dataclass(slots=True)
class Turns:
    """A recorder that keeps finished turns."""

    turns: list[TurnRecord] = field(default_factory=list)

    def turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    def session(self, record: SessionRecord) -> None: ...
    def replica(self, record: ReplicaRecord) -> None: ...
    def decision(self, record: DecisionRecord) -> None: ...


def alike(replicas: int, kv_blocks: int, block_size: int = 16) -> Cluster:
    """So many equal replicas with so many blocks; what model they serve does not matter."""
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    first = cluster.replicas[0]
    return replace(
        cluster,
        replicas=tuple(
            replace(
                first,
                id=f"r{index}",
                index=index,
                block_size=block_size,
                kv_blocks=kv_blocks,
                kv_tokens=kv_blocks * block_size,
            )
            for index in range(replicas)
        ),
    )


def play(
    sessions: Sequence[Session],
    timing: LinearTiming,
    *,
    replicas: int,
    kv_blocks: int,
    scheduler: str = "round-robin",
    block_size: int = 16,
    max_num_seqs: int = 256,
    max_num_batched_tokens: int = 8192,
) -> tuple[Replayed, SimOutcome]:
    """Simulate the trace; sessions start at their arrival times.

    Raises:
        SimulationError: a turn was not served.
    """
    recorder = Turns()
    cluster = alike(replicas, kv_blocks, block_size)
    steps = LinearSteps(timing, max_num_batched_tokens)
    outcome = simulate(
        sessions,
        workers=None,
        scheduler=create(scheduler),
        cluster=cluster,
        settings=SimSettings(context_limit=10**9, record_decisions=False),
        engine=EngineParams(
            block_size=block_size,
            max_num_seqs=max_num_seqs,
            max_num_batched_tokens=max_num_batched_tokens,
            null_blocks=0,
            async_scheduling=False,  # the replay composes a step when the one before has ended
        ),
        recorder=recorder,
        step_times={replica.id: steps for replica in cluster.replicas},
    )
    return _summary(recorder.turns, outcome), outcome


def _summary(turns: Sequence[TurnRecord], outcome: SimOutcome) -> Replayed:
    for turn in turns:
        if turn.status != "ok" or turn.first_token is None:
            raise SimulationError(
                f"turn {turn.turn} of {turn.session} was not served ({turn.error})",
                "give the replicas more KV blocks",
            )
    first = np.array([(t.first_token or 0) - t.arrived for t in turns]) / 1e9
    whole = np.array([t.finished - t.arrived for t in turns]) / 1e9
    later = np.array([max(t.output_tokens - 1, 1) for t in turns])
    return Replayed(
        requests=len(turns),
        makespan_s=max(turn.finished for turn in turns) / 1e9,
        hit_rate=sum(t.cached_tokens or 0 for t in turns) / sum(t.prompt_tokens for t in turns),
        ttft_s=float(first.mean()),
        tpot_s=float(((whole - first) / later)[[t.output_tokens > 1 for t in turns]].mean()),
        e2e_s=float(whole.mean()),
        e2e_p99_s=float(np.percentile(whole, 99)),
        cpu_s=outcome.timing["cpu_s"],
    )
