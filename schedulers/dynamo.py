"""NVIDIA Dynamo's KV router: the worker with the lowest cost in KV blocks.

raw    = (active prefill tokens + prompt tokens) / block
decay  = 1 / (1 + d * ((active prefill - least active prefill) / block) / prompt blocks)
credit = overlap_credit * decay * cached blocks
cost   = prefill_load_scale * max(0, raw - credit) + decode blocks + w_req * active requests

Decode blocks are those of the worker's running requests with this one added. Temperature 0 takes
the least cost, ties at random; otherwise P ~ exp(-(cost - min) / ((max - min) * temperature)).
Turns queue at the router while every worker has more than queue_threshold batches of prefill
tokens ahead; with a busy threshold set, busy workers are no candidates, and none left is a
refusal.

With a prefill pool the prefill worker is chosen by this cost, and the decode worker by
max(0, decode blocks - credit) + w_req * active requests. `bypass` lets the decode worker prefill
itself: `isl` if eff < 2048 and eff / prompt < 0.7, eff the tokens it does not have cached;
`prefill-load` if the prefill worker is busy; `isl-or-load` if either.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from math import ceil, exp
from random import Random
from typing import Literal

from schedulers.active_text import ActiveText
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Reject, Route
from schedulers.events import (
    ClientGone,
    DispatchFailed,
    Event,
    LegFinished,
    TurnArrived,
    TurnFailed,
    TurnFinished,
)
from schedulers.pools import prefillers, serving
from schedulers.types import PromptRef, Turn
from schedulers.views import ClusterView, ReplicaView

Bypass = Literal["never", "isl", "prefill-load", "isl-or-load"]
Cost = Callable[[ReplicaView], float]


@dataclass(frozen=True, slots=True)
class DynamoConfig:
    block_tokens: int = 16
    "Must equal the engine's block size; vLLM's default."
    overlap_credit: float = 1.0
    "kv-router scheduling/config.rs."
    prefill_load_scale: float = 1.0
    "kv-router scheduling/config.rs."
    credit_decay: float = 0.0
    "d. A newer field whose default was not read; 0 leaves the decay out (our choice)."
    active_request_weight: float = 0.0
    "w_req. A newer field whose default was not read; 0 leaves it out (our choice)."
    temperature: float = 0.0
    "kv-router scheduling/config.rs."
    queue_threshold: float = 16.0
    "Batches of prefill tokens ahead of every worker beyond which turns queue; 0: no queue. Code."
    batch_tokens: int = 8192
    "The engine's max_num_batched_tokens; vLLM's default for a server on H100."
    queue_policy: Literal["fcfs", "lcfs"] = "fcfs"
    "Code. Its wspt and session policies were not read and are left out."
    busy_decode_share: float = 0.0
    "Share of KV in active blocks beyond which a worker is busy; 0: off, the default."
    busy_prefill_tokens: int = 0
    "Active prefill tokens beyond which a worker is busy; 0: off, the default."
    bypass: Bypass = "never"
    "Conditional disaggregation (conditional_disagg.rs); off unless configured."
    bypass_tokens: int = 2048
    "conditional_disagg.rs."
    bypass_share: float = 0.7
    "conditional_disagg.rs."

    def __post_init__(self) -> None:
        if self.block_tokens < 1:
            raise ValueError("block_tokens must be at least 1")
        if self.queue_policy not in ("fcfs", "lcfs"):
            raise ValueError(f"queue_policy is {self.queue_policy!r}, not fcfs or lcfs")
        if self.bypass not in ("never", "isl", "prefill-load", "isl-or-load"):
            raise ValueError(
                f"bypass is {self.bypass!r}, not never, isl, prefill-load or isl-or-load"
            )


class Dynamo(AdmissionScheduler):
    name = "dynamo"
    info = SchedulerInfo(
        family="cache and load",
        observes="cached prefix, queued prefill tokens, blocks of running requests",
        holds=True,
        fidelity="source code read",
        reference="ai-dynamo/dynamo, lib/kv-router, scheduling/selector/default.rs",
    )
    Config = DynamoConfig
    config: DynamoConfig

    def __init__(self, config: DynamoConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._active: dict[str, ActiveText] = {}
        self._running: dict[str, list[tuple[str, PromptRef]]] = {}
        self._queue: deque[str] = deque()
        self._counts = dict.fromkeys(("queued", "refused", "bypassed"), 0)

    def counters(self) -> dict[str, float]:
        return {name: float(count) for name, count in self._counts.items()}

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        if isinstance(event, (TurnFinished, TurnFailed, ClientGone)):
            self._ended(event.turn_id)
        elif isinstance(event, LegFinished):
            self._left(event.turn_id, event.replica)
        elif isinstance(event, DispatchFailed):
            self._ended(event.turn.id)
        if isinstance(event, (TurnArrived, DispatchFailed)):
            self._queue.append(event.turn.id)
        yield from self._drain(cluster)
        if isinstance(event, (TurnArrived, DispatchFailed)) and event.turn.id in self._queue:
            self._counts["queued"] += 1
            yield Hold(event.turn.id, why="every worker has prefill work ahead")

    def _drain(self, cluster: ClusterView) -> Iterator[Command]:
        while self._queue and not self._all_behind(cluster):
            lcfs = self.config.queue_policy == "lcfs"
            turn_id = self._queue.pop() if lcfs else self._queue.popleft()
            if turn_id in cluster.waiting:
                yield self._decide(cluster.waiting[turn_id], cluster)

    def _all_behind(self, cluster: ClusterView) -> bool:
        pool = prefillers(cluster) or serving(cluster)
        if self.config.queue_threshold <= 0:
            return not pool
        limit = self.config.queue_threshold * self.config.batch_tokens
        return all(replica.queued_prefill_tokens > limit for replica in pool)

    def _decide(self, turn: Turn, cluster: ClusterView) -> Command:
        decoders = [r for r in serving(cluster) if not self._busy(r)]
        pool = prefillers(cluster)
        workers = [r for r in pool if not self._busy(r)]
        if not decoders or (pool and not workers):
            self._counts["refused"] += 1
            return Reject(turn.id, "all workers are busy", retry_after_s=1.0)
        if not workers:
            chosen, cost = self._select(decoders, self._cost(turn, decoders, cluster))
            return self._route(turn, chosen, None, f"cost {cost:.1f} blocks")
        decoder, cost = self._select(decoders, self._decode_cost(turn, cluster))
        prefiller, _ = self._select(workers, self._cost(turn, workers, cluster))
        if self._bypasses(turn, decoder, prefiller, cluster):
            self._counts["bypassed"] += 1
            return self._route(turn, decoder, None, "prefills where it decodes")
        return self._route(turn, decoder, prefiller, f"decode cost {cost:.1f} blocks")

    # Costs, in blocks.

    def _cost(self, turn: Turn, workers: Sequence[ReplicaView], cluster: ClusterView) -> Cost:
        config = self.config
        least = min(worker.queued_prefill_tokens for worker in workers)
        prompt_blocks = max(1, ceil(turn.prompt.tokens / config.block_tokens))

        def cost(worker: ReplicaView) -> float:
            raw = (worker.queued_prefill_tokens + turn.prompt.tokens) / config.block_tokens
            ahead = (worker.queued_prefill_tokens - least) / config.block_tokens
            decay = 1 / (1 + config.credit_decay * ahead / prompt_blocks)
            credit = config.overlap_credit * decay * self._cached_blocks(turn, worker, cluster)
            prefill = config.prefill_load_scale * max(0.0, raw - credit)
            active = config.active_request_weight * worker.in_flight
            return prefill + self._decode_blocks(turn, worker) + active

        return cost

    def _decode_cost(self, turn: Turn, cluster: ClusterView) -> Cost:
        def cost(worker: ReplicaView) -> float:
            cached = self._cached_blocks(turn, worker, cluster)
            blocks = self._decode_blocks(turn, worker) - self.config.overlap_credit * cached
            return max(0.0, blocks) + self.config.active_request_weight * worker.in_flight

        return cost

    def _cached_blocks(self, turn: Turn, worker: ReplicaView, cluster: ClusterView) -> int:
        return cluster.cached_tokens(turn.prompt, worker.id) // self.config.block_tokens

    def _decode_blocks(self, turn: Turn, worker: ReplicaView) -> int:
        tokens = self._text(worker.id).with_prompt(turn.prompt)
        return ceil(tokens / self.config.block_tokens)

    def _select(self, workers: Sequence[ReplicaView], cost: Cost) -> tuple[ReplicaView, float]:
        costs = [cost(worker) for worker in workers]
        low, high = min(costs), max(costs)
        if self.config.temperature <= 0 or low == high:
            best = [w for w, c in zip(workers, costs, strict=True) if c == low]
            return (best[0] if len(best) == 1 else self.rng.choice(best)), low
        scale = (high - low) * self.config.temperature
        weights = [exp(-(c - low) / scale) for c in costs]
        index = self.rng.choices(range(len(workers)), weights)[0]
        return workers[index], costs[index]

    def _busy(self, worker: ReplicaView) -> bool:
        share, tokens = self.config.busy_decode_share, self.config.busy_prefill_tokens
        capacity = worker.capacity_tokens
        if share > 0 and capacity and self._text(worker.id).tokens > share * capacity:
            return True
        return tokens > 0 and worker.queued_prefill_tokens > tokens

    def _bypasses(
        self, turn: Turn, decoder: ReplicaView, prefiller: ReplicaView, cluster: ClusterView
    ) -> bool:
        config = self.config
        cached = self._cached_blocks(turn, decoder, cluster) * config.block_tokens
        effective = turn.prompt.tokens - cached
        short = (
            effective < config.bypass_tokens
            and effective < config.bypass_share * turn.prompt.tokens
        )
        limit = config.busy_prefill_tokens or config.queue_threshold * config.batch_tokens
        loaded = prefiller.queued_prefill_tokens > limit
        return (short and config.bypass in ("isl", "isl-or-load")) or (
            loaded and config.bypass in ("prefill-load", "isl-or-load")
        )

    # Books of running requests.

    def _route(
        self, turn: Turn, decoder: ReplicaView, prefiller: ReplicaView | None, why: str
    ) -> Route:
        for replica in (decoder, prefiller):
            if replica is not None:
                self._text(replica.id).add(turn.prompt)
                self._running.setdefault(turn.id, []).append((replica.id, turn.prompt))
        return Route(turn.id, decoder.id, prefiller.id if prefiller else None, why=why)

    def _text(self, replica_id: str) -> ActiveText:
        return self._active.setdefault(replica_id, ActiveText())

    def _ended(self, turn_id: str) -> None:
        for replica_id, prompt in self._running.pop(turn_id, ()):
            self._active[replica_id].remove(prompt)

    def _left(self, turn_id: str, replica_id: str) -> None:
        """A prefill leg ended; the decode worker keeps the request."""
        entries = self._running.get(turn_id, [])
        for entry in [e for e in entries if e[0] == replica_id]:
            entries.remove(entry)
            self._active[replica_id].remove(entry[1])
