"""The SGLang gateway's prefix hash: the first 256 tokens choose the replica, load bounds it.

overloaded(i) = load_i > 1.25 * (total load + 1) / replicas
owner on the ring of hash(first 256 tokens); if overloaded: the least loaded replica that is not,
else the owner after all.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Reject, Route
from schedulers.hash_ring import VIRTUAL_NODES, HashRing
from schedulers.pools import least_in_flight, serving
from schedulers.types import PromptRef, Turn
from schedulers.views import ClusterView


@dataclass(frozen=True, slots=True)
class PrefixHashConfig:
    prefix_tokens: int = 256
    "SGLang gateway."
    load_factor: float = 1.25
    "SGLang gateway."
    virtual_nodes: int = VIRTUAL_NODES
    "SGLang gateway."


class PrefixHash(RoutingScheduler):
    name = "prefix-hash"
    info = SchedulerInfo(
        family="affinity",
        observes="first prompt tokens, turns in flight",
        holds=False,
        fidelity="source code read",
        reference="SGLang gateway, prefix_hash",
    )
    Config = PrefixHashConfig
    config: PrefixHashConfig

    def __init__(self, config: PrefixHashConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._rings: dict[tuple[str, ...], HashRing] = {}

    def choose(self, turn: Turn, cluster: ClusterView) -> Route | Reject:
        key = prefix_key(turn.prompt, self.config.prefix_tokens)
        if not key:
            return Reject(turn.id, "an empty prompt has no prefix to hash")
        replicas = serving(cluster)
        members = tuple(replica.id for replica in replicas)
        ring = self._rings.get(members)
        if ring is None:
            ring = self._rings[members] = HashRing(members, self.config.virtual_nodes)
        owner = cluster.replica(next(ring.walk(key)))
        total = sum(replica.in_flight for replica in replicas)
        bound = self.config.load_factor * (total + 1) / len(replicas)
        if owner.in_flight <= bound:
            return Route(turn.id, owner.id, why="prefix owner")
        free = [replica for replica in replicas if replica.in_flight <= bound]
        if free:
            return Route(turn.id, least_in_flight(free).id, why="prefix owner overloaded")
        return Route(turn.id, owner.id, why="all overloaded")


def prefix_key(prompt: PromptRef, tokens: int) -> str:
    """Equal for prompts that share their first `tokens` tokens; empty for an empty prompt."""
    parts = []
    for run in prompt.runs:
        take = min(tokens, run.tokens)
        if take > 0:
            parts.append(f"{run.segment}:{take}")
        tokens -= take
    return "/".join(parts)
