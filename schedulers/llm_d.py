"""llm-d's inference scheduler: a weighted sum of scores in [0, 1], the highest total wins.

prefix        matched / total 16-token blocks, of at most 256 blocks
queue         (most - waiting) / (most - least), 1 if all are equal
running       the same with running requests
kv            1 - KV usage
load-aware    0.5 with nothing waiting, else 0.5 * (1 - waiting / 128), not below 0
token-load    1 - min(1, tokens in flight / 4,194,304)
affinity      1 for the replica the session was on

Ties are broken at random. Gauges are those of the last poll: the project polls many times a second,
and with a slow poll everybody follows the same old gauge. With a prefill pool, a turn whose
decode replica misses at least `remote_prefill_tokens` of the prompt is prefilled there, chosen by
2 * prefix + 1 * queue in both pools.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import Event, ReplicaLost
from schedulers.pools import prefillers, serving
from schedulers.prefix_tree import PrefixTree
from schedulers.types import PromptRef, PromptRun, Turn
from schedulers.views import ClusterView, ReplicaView

BYTES_PER_TOKEN = 4
QUEUE_SCALE = 128
TOKEN_SCALE = 4_194_304


@dataclass(frozen=True, slots=True)
class LlmDConfig:
    prefix_weight: float = 3.0
    "Helm chart default."
    queue_weight: float = 2.0
    "Helm chart default."
    kv_weight: float = 2.0
    "Helm chart default (kv-cache-utilization)."
    running_weight: float = 0.0
    "Not in the Helm default."
    load_aware_weight: float = 0.0
    "Not in the Helm default."
    token_load_weight: float = 0.0
    "Not in the Helm default; recommended for agents in the project's discussion."
    affinity_weight: float = 0.0
    "Not in the Helm default."
    block_tokens: int = 16
    "Approximate prefix scorer."
    max_blocks: int = 256
    "Approximate prefix scorer: only the first 4,096 tokens can match."
    blocks_per_replica: int = 31_250
    "Approximate prefix scorer, LRU capacity."
    remote_prefill_tokens: int = 0
    "nonCachedTokens of the disaggregation decider: 0, the default, never prefills remotely."


class LlmD(RoutingScheduler):
    name = "llm-d"
    info = SchedulerInfo(
        family="cache and load",
        observes="prompt text, engine queue and KV usage",
        holds=False,
        fidelity="source code read",
        reference="llm-d inference scheduler at 520af47, Helm default weights",
    )
    Config = LlmDConfig
    config: LlmDConfig

    def __init__(self, config: LlmDConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._tree = PrefixTree()
        self._now = 0

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if isinstance(event, ReplicaLost):
            self._tree.forget(event.replica)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        config = self.config
        prompt = self._visible(turn.prompt)
        matches = self._tree.match(prompt)
        prefix = {r.id: self._prefix_score(prompt, matches, r) for r in cluster.replicas}
        pool = prefillers(cluster)
        if not pool:
            total = self._totals(turn, cluster, serving(cluster), prefix)
            chosen = self._pick(serving(cluster), total)
            self._remember(prompt, chosen)
            return Route(turn.id, chosen.id, why=f"score {max(total):.3f}")
        decode = self._pick(serving(cluster), self._pool_totals(serving(cluster), prefix))
        missing = turn.prompt.tokens - matches.get(decode.id, 0) // BYTES_PER_TOKEN
        self._remember(prompt, decode)
        if not config.remote_prefill_tokens or missing < config.remote_prefill_tokens:
            return Route(turn.id, decode.id, why="prefills where it decodes")
        worker = self._pick(pool, self._pool_totals(pool, prefix))
        self._remember(prompt, worker)
        return Route(turn.id, decode.id, prefill=worker.id, why=f"{missing} tokens not cached")

    def _totals(
        self,
        turn: Turn,
        cluster: ClusterView,
        replicas: Sequence[ReplicaView],
        prefix: dict[str, float],
    ) -> list[float]:
        config = self.config
        queue = spread([waiting(r) for r in replicas])
        running = spread([running_requests(r) for r in replicas])
        home = cluster.sessions[turn.session].last_replica
        return [
            config.prefix_weight * prefix[r.id]
            + config.queue_weight * queue[i]
            + config.kv_weight * (1 - kv_usage(r))
            + config.running_weight * running[i]
            + config.load_aware_weight * load_aware(waiting(r))
            + config.token_load_weight * (1 - min(1.0, self._tokens(r, cluster) / TOKEN_SCALE))
            + config.affinity_weight * (r.id == home)
            for i, r in enumerate(replicas)
        ]

    @staticmethod
    def _pool_totals(replicas: Sequence[ReplicaView], prefix: dict[str, float]) -> list[float]:
        queue = spread([waiting(r) for r in replicas])
        return [2 * prefix[r.id] + queue[i] for i, r in enumerate(replicas)]

    def _pick(self, replicas: Sequence[ReplicaView], totals: Sequence[float]) -> ReplicaView:
        best = max(totals)
        tied = [r for r, total in zip(replicas, totals, strict=True) if total == best]
        return tied[0] if len(tied) == 1 else self.rng.choice(tied)

    # Prefix index: whole blocks, the first `max_blocks` only.

    def _visible(self, prompt: PromptRef) -> PromptRef:
        left = self.config.block_tokens * self.config.max_blocks
        runs = []
        for segment, tokens, size in prompt.runs:
            take = min(left, tokens)
            if take > 0:
                runs.append(PromptRun(segment, take, size * take // tokens))
            left -= take
        return PromptRef(tuple(runs))

    def _prefix_score(
        self, prompt: PromptRef, matches: dict[str, int], replica: ReplicaView
    ) -> float:
        block = self.config.block_tokens * BYTES_PER_TOKEN
        total = prompt.bytes // block
        return (matches.get(replica.id, 0) // block) / total if total else 0.0

    def _remember(self, prompt: PromptRef, replica: ReplicaView) -> None:
        self._tree.insert(prompt, replica.id, self._now)
        limit = self.config.blocks_per_replica * self.config.block_tokens * BYTES_PER_TOKEN
        if self._tree.size(replica.id) > limit:
            self._tree.evict_to(limit)

    @staticmethod
    def _tokens(replica: ReplicaView, cluster: ClusterView) -> int:
        """Context tokens of the sessions with a turn on the replica."""
        sessions = (cluster.sessions[s] for s in replica.sessions)
        return sum(s.tokens for s in sessions if s.in_flight)


def spread(loads: Sequence[int]) -> list[float]:
    """1 for the least, 0 for the most, linear between; all 1 if equal."""
    low, high = min(loads), max(loads)
    return [1.0 if high == low else (high - load) / (high - low) for load in loads]


def waiting(replica: ReplicaView) -> int:
    return (replica.sample.waiting or 0) if replica.sample else 0


def running_requests(replica: ReplicaView) -> int:
    return (replica.sample.running or 0) if replica.sample else 0


def kv_usage(replica: ReplicaView) -> float:
    return (replica.sample.kv_usage or 0.0) if replica.sample else 0.0


def load_aware(queue: int) -> float:
    return 0.5 if queue == 0 else 0.5 * max(0.0, 1 - queue / QUEUE_SCALE)
