"""Slow twins of two routing policies: they look at every replica, and at no index."""

from __future__ import annotations

from collections.abc import Sequence

from schedulers.cache_aware import CacheAware
from schedulers.pools import Pool, serving
from schedulers.smetric import BYTES_PER_TOKEN, Candidate, SMetric
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


class ScanningCacheAware(CacheAware):
    """Decides as `CacheAware` must."""

    def _pick(self, turn: Turn, cluster: ClusterView) -> tuple[ReplicaView, str]:
        config, replicas = self.config, serving(cluster)
        first = config.least_load_tie == "first"
        least = min(
            replicas, key=lambda r: (r.in_flight, 0 if first else self._chosen[r.id], r.index)
        )
        most = max(replica.in_flight for replica in replicas)
        if config.imbalance_gate == "fleet" and self._uneven(most, least):
            return least, "load is uneven"
        best = max(self._tree.match(turn.prompt).values(), default=0)
        if best <= config.threshold * turn.prompt.bytes:
            if config.fallback == "smallest-tree":
                least = min(replicas, key=lambda r: self._tree.size(r.id))
            return least, "no prefix match"
        target = self._choose_owner(replicas, list(self._tree.longest(turn.prompt).node.holders))
        if target is None:
            return replicas[0], "the matched replica is lost"
        mean = sum(replica.in_flight for replica in replicas) / len(replicas)
        limit = max(
            mean + min(config.balance_abs, max(4.0, 2 * mean**0.5)), mean * config.balance_rel
        )
        too_busy = {
            "fleet": False,
            "request": self._uneven(target.in_flight, least),
            "average": target.in_flight > limit,
        }
        if too_busy[config.imbalance_gate]:
            return least, "the matched replica is too busy"
        return target, f"prefix match {best / turn.prompt.bytes:.0%}"

    def _choose_owner(self, replicas: list[ReplicaView], names: list[str]) -> ReplicaView | None:
        healthy = [replica for replica in replicas if replica.id in names]
        if self.config.owner == "first-holder":
            return next((r for r in healthy if r.id == names[0]), None)
        if not healthy:
            return None
        fewest = min(replica.in_flight for replica in healthy)
        equal = [replica for replica in healthy if replica.in_flight == fewest]
        return equal[0] if self.config.owner == "least-load" else self.rng.choice(equal)


class ScanningSMetric(SMetric):
    """Decides as `SMetric` must."""

    def _pick(self, turn: Turn, pool: Pool, colocated: bool) -> tuple[Candidate, str]:
        everyone = self._numbers(turn, pool.members)
        turns, length = turn.prompt.assistant_messages, turn.prompt.bytes
        if turns and self._tree.match(turn.prompt):
            prev = min(everyone, key=lambda c: (-c.matched, c.load))
            history = min(self._history.get(turn.session, length), length) / BYTES_PER_TOKEN
            may = prev.matched > self.config.hit_ratio * history
            if may and self.may_stick(turn, prev, lambda: everyone):
                return prev, f"stays with {prev.matched:.0f} cached tokens"
        score = "product" if turns else self.config.first_turn_score
        scores = [self._value(c, score, colocated) for c in everyone]
        equal = [c for c, value in zip(everyone, scores, strict=True) if value == min(scores)]
        chosen = self._rotation.pick([c.replica for c in equal])
        return next(c for c in equal if c.replica is chosen), (
            "balanced" if turns else "first turn, balanced"
        )

    def _numbers(self, turn: Turn, replicas: Sequence[ReplicaView]) -> list[Candidate]:
        matches, length = self._tree.match(turn.prompt), turn.prompt.bytes / BYTES_PER_TOKEN
        found = []
        for replica in replicas:
            matched = matches.get(replica.id, 0) / BYTES_PER_TOKEN
            cost = new = max(0.0, length - matched)
            if self.config.attention_tokens:
                cost += new * (length - new / 2) / self.config.attention_tokens
            load = self._queued.get(replica.id, 0.0) + cost
            found.append(Candidate(replica, matched, cost, load))
        return found

    @staticmethod
    def _value(candidate: Candidate, score: str, colocated: bool) -> float:
        if score == "inflight":
            return candidate.replica.in_flight
        if score == "prefill_load" or not colocated:
            return candidate.load
        return candidate.load * candidate.replica.in_flight
