"""Where traffic lies: four ratios that decide what a scheduler can gain."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any

from agentsched import UsageError
from harness.capacity import Cluster
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams, StepTime
from harness.sim.replicas import replica_step_time
from harness.sim.settings import SimSettings
from workloads.model import Session

PS_PER_S = 10**12


@dataclass(frozen=True, slots=True)
class Place:
    """A workload on a cluster under a load. All are ratios but `workers_per_replica`."""

    working_set_kv: float
    """Workers x mean context of a turn over the KV tokens of all replicas. Above 1 not every
    session can keep its KV."""
    tool_model: float
    """Mean time between turns over mean time of a turn at the engine, nothing evicted."""
    workers_per_replica: float
    prefill_share: float
    """Of the engine's time, nothing evicted: prefill of new tokens over that and decoding."""


class TurnCost:
    """Seconds of prefill and decoding on one replica that has `batch` turns running."""

    def __init__(self, cluster: Cluster, step: StepTime | None = None) -> None:
        engine: dict[str, Any] = dict(engine_defaults(cluster))
        self._chunk = int(engine["max_num_batched_tokens"])
        self._step = step or replica_step_time(
            cluster.model, cluster.replicas[0], SimSettings(), EngineParams(**engine)
        )

    def prefill_s(self, tokens: float) -> float:
        """Of so many new tokens, at the speed of a full chunk."""
        return tokens * self._step.mixed_ps([(self._chunk, 0)], 0, 0) / self._chunk / PS_PER_S

    def step_s(self, batch: int, context: float) -> float:
        """Of one decode step of `batch` turns with `context` tokens each."""
        return self._step.mixed_ps([], batch, round(batch * context)) / PS_PER_S


def place_of(
    sessions: Sequence[Session], cluster: Cluster, workers: int, cost: TurnCost | None = None
) -> Place:
    """The place of sessions that `workers` take up in a closed loop.

    Turns beyond the context limit are left out, as in a run.

    Raises:
        UsageError: no turn fits the context limit.
    """
    cost = cost or TurnCost(cluster)
    limit = cluster.model.context_limit
    turns = [t for s in sessions for t in s.turns if t.prompt_tokens + t.output_tokens <= limit]
    if not turns:
        raise UsageError(
            f"no turn fits the context limit of {limit:,} tokens", "choose another model"
        )
    n = len(turns)
    context = sum(t.prompt_tokens + t.output_tokens / 2 for t in turns) / n
    new = sum(t.new_tokens for t in turns) / n
    output = sum(t.output_tokens for t in turns) / n
    tools = sum(t.tool_seconds + t.wait_s for t in turns) / n
    batch = max(1, ceil(workers / len(cluster.replicas)))
    prefill = cost.prefill_s(new)
    # How many decode at once hangs on the tool time, which is a share of it: two rounds settle it.
    running = batch
    for _ in range(2):
        turn_s = prefill + output * cost.step_s(running, context)
        running = max(1, round(batch * turn_s / (turn_s + tools)))
    step = cost.step_s(running, context)
    turn_s = prefill + output * step
    decode = output * step / running
    return Place(
        working_set_kv=workers * context / cluster.kv_tokens,
        tool_model=tools / turn_s,
        workers_per_replica=workers / len(cluster.replicas),
        prefill_share=prefill / (prefill + decode),
    )
