"""SMetric: balance a session's first turn, follow the cache after it.

L = prompt, c_i = prompt's matched prefix on replica i, H = history (all in tokens of 4 bytes)
cost_i = n + n (L - n/2) / L_eq,  n = max(0, L - c_i)              (L_eq unset: cost_i = n)
load_i = queued_i + cost_i         queued_i: costs sent to i that have no first token yet
prev   = argmax c_i                                                 (tie: lower load_i)
turn > 0 and c_prev > hit_ratio * H and may_stick(prev): stick to prev
otherwise argmin load_i * in_flight_i                               (ties round robin)

Paper: SMetric (arXiv 2607.08565), first version, in which sticking asks for nothing more. The
formulas are those of the vLLM router's smetric policy. Over a prefill pool the balance score is
load_i alone, and the turn decodes on the decode replica with the fewest turns in flight.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import (
    ClientGone,
    DispatchFailed,
    Event,
    FirstToken,
    LegFinished,
    ReplicaLost,
    SessionClosed,
    TurnFailed,
    TurnFinished,
)
from schedulers.pools import Pool, Rotation, prefill_pool, serving_pool
from schedulers.prefix_tree import PrefixTree, Step
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView

BYTES_PER_TOKEN = 4


@dataclass(frozen=True, slots=True)
class SMetricConfig:
    hit_ratio: float = 0.5
    "Share of the history that must match to stick. vLLM router, smetric."
    first_turn_score: Literal["product", "prefill_load", "inflight"] = "product"
    """What a first turn is balanced by: load times turns in flight (vLLM router), load alone, or
    turns in flight alone. The paper's summary says only "pure load balance" (our choice)."""
    attention_tokens: float = 0.0
    """L_eq: context at which attention costs as much as the rest of the model; 0 leaves the
    attention term out. vLLM router: unset (6,923 for Qwen3-30B-A3B)."""
    max_tree_bytes: int = 2**26
    "Text remembered per replica. vLLM router, smetric."
    evict_every_s: float = 120.0
    "vLLM router, smetric."

    def __post_init__(self) -> None:
        if self.first_turn_score not in ("product", "prefill_load", "inflight"):
            raise ValueError(
                f"first_turn_score is {self.first_turn_score!r}, "
                "not product, prefill_load or inflight"
            )


class Candidate(NamedTuple):
    """One replica's numbers for the turn, in tokens."""

    replica: ReplicaView
    matched: float
    cost: float
    load: float


@dataclass(frozen=True, slots=True)
class Sent:
    """A dispatch without a first token yet."""

    replica: str
    cost: float
    at: int


class SMetric(RoutingScheduler):
    name = "smetric"
    info = SchedulerInfo(
        family="cache and load",
        observes="prompt text, own queue of prefill work, turns in flight",
        holds=False,
        fidelity="summary only",
        reference="SMetric, arXiv 2607.08565v1; formulas of the vLLM router, policies/smetric.rs",
    )
    Config = SMetricConfig
    config: SMetricConfig

    def __init__(self, config: SMetricConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._tree = PrefixTree()
        self._now = self._evict_at = 0
        self._queued: dict[str, float] = {}
        self._queues: tuple[Pool, NDArray[np.float64]] | None = None
        self._sent: dict[str, Sent] = {}
        # Prompt bytes of each session's last turn: in the next prompt, that is the text before
        # the last assistant message, which a router reads from the messages.
        self._history: dict[str, int] = {}
        self._rotation = Rotation()

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if event.now >= self._evict_at:
            self._tree.evict_to(self.config.max_tree_bytes)
            self._evict_at = event.now + round(self.config.evict_every_s * NS)
        if isinstance(event, (FirstToken, LegFinished)):
            self._prefilled(event.turn_id, got_token=True)
        elif isinstance(event, (TurnFinished, TurnFailed, ClientGone)):
            self._prefilled(event.turn_id, got_token=False)
        elif isinstance(event, DispatchFailed):
            self._prefilled(event.turn.id, got_token=False)
        elif isinstance(event, ReplicaLost):
            self._tree.forget(event.replica)
        elif isinstance(event, SessionClosed):
            self._history.pop(event.session, None)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        prefill = prefill_pool(cluster)
        chosen, why = self._pick(
            turn, prefill if len(prefill) else serving_pool(cluster), colocated=not len(prefill)
        )
        self._tree.insert(turn.prompt, chosen.replica.id, self._now)
        self._history[turn.session] = turn.prompt.bytes
        self._sent[turn.id] = Sent(chosen.replica.id, chosen.cost, self._now)
        queued = self._queued.get(chosen.replica.id, 0.0)
        self._set_queued(chosen.replica.id, queued + chosen.cost)
        if not len(prefill):
            return Route(turn.id, chosen.replica.id, why=why)
        decode = serving_pool(cluster).least_in_flight()
        return Route(turn.id, decode.id, prefill=chosen.replica.id, why=why)

    def may_stick(
        self, turn: Turn, prev: Candidate, candidates: Callable[[], Iterable[Candidate]]
    ) -> bool:
        """Whether a turn whose history is on `prev` may follow it; the first version: always.

        `candidates` makes the numbers of all replicas, which costs time in large clusters.
        """
        return True

    def observed(self, sent: Sent, seconds: float) -> None:
        """A streamed first token came `seconds` after the dispatch."""

    def _pick(self, turn: Turn, pool: Pool, colocated: bool) -> tuple[Candidate, str]:
        steps = list(self._tree.steps(turn.prompt))
        return self._stay(turn, pool, steps) or self._balance(turn, pool, steps, colocated)

    def _stay(self, turn: Turn, pool: Pool, steps: list[Step]) -> tuple[Candidate, str] | None:
        """Where the turn's history is, if it may follow it."""
        if turn.prompt.assistant_messages == 0:
            return None
        holders, most = _holders(pool, steps)
        if not len(holders):
            return None
        cost = float(self._costs(turn, np.array([most], dtype=np.int64))[0])
        loads = self._queues_of(pool)[holders] + cost
        first = int(loads.argmin())
        replica = pool.members[int(holders[first])]
        prev = Candidate(replica, most / BYTES_PER_TOKEN, cost, float(loads[first]))
        history = min(self._history.get(turn.session, turn.prompt.bytes), turn.prompt.bytes)
        hit = prev.matched > self.config.hit_ratio * history / BYTES_PER_TOKEN
        if hit and self.may_stick(turn, prev, partial(self._candidates, turn, pool, steps)):
            return prev, f"stays with {prev.matched:.0f} cached tokens"
        return None

    def _balance(
        self, turn: Turn, pool: Pool, steps: Sequence[Step], colocated: bool
    ) -> tuple[Candidate, str]:
        first_turn = turn.prompt.assistant_messages == 0
        score = self.config.first_turn_score if first_turn else "product"
        matched = _matched(pool, steps)
        costs = self._costs(turn, matched)
        loads = self._queues_of(pool) + costs
        scores = self._scores(pool, loads, score, colocated)
        tied = np.flatnonzero(scores == scores.min())
        i = int(tied[self._rotation.next_of(len(tied))])
        chosen = Candidate(
            pool.members[i], int(matched[i]) / BYTES_PER_TOKEN, float(costs[i]), float(loads[i])
        )
        return chosen, "first turn, balanced" if first_turn else "balanced"

    def _candidates(self, turn: Turn, pool: Pool, steps: Sequence[Step]) -> Iterator[Candidate]:
        """The numbers of all replicas, in their order."""
        matched = _matched(pool, steps)
        costs = self._costs(turn, matched)
        loads = self._queues_of(pool) + costs
        columns = ((matched / BYTES_PER_TOKEN).tolist(), costs.tolist(), loads.tolist())
        return map(Candidate, pool.members, *columns)

    def _costs(self, turn: Turn, matched: NDArray[np.int64]) -> NDArray[np.float64]:
        """Work that the turn is on replicas with so many matched bytes."""
        length = turn.prompt.bytes / BYTES_PER_TOKEN
        new = np.maximum(0.0, length - matched / BYTES_PER_TOKEN)
        if not self.config.attention_tokens:
            return new
        return new + new * (length - new / 2) / self.config.attention_tokens

    @staticmethod
    def _scores(
        pool: Pool, loads: NDArray[np.float64], score: str, colocated: bool
    ) -> NDArray[np.float64]:
        if score == "inflight":
            return pool.in_flight.astype(np.float64)
        if score == "prefill_load" or not colocated:
            return loads
        return loads * pool.in_flight

    # Queued work, by replica and as an array for the pool that was asked for last.

    def _queues_of(self, pool: Pool) -> NDArray[np.float64]:
        if self._queues is None or self._queues[0] is not pool:
            queued = [self._queued.get(replica.id, 0.0) for replica in pool.members]
            self._queues = pool, np.array(queued, dtype=np.float64)
        return self._queues[1]

    def _set_queued(self, replica: str, tokens: float) -> None:
        self._queued[replica] = tokens
        if self._queues is not None:
            pool, queues = self._queues
            if replica in pool.position:
                queues[pool.position[replica]] = tokens

    def _prefilled(self, turn_id: str, got_token: bool) -> None:
        sent = self._sent.pop(turn_id, None)
        if sent is None:
            return
        self._set_queued(sent.replica, max(0.0, self._queued[sent.replica] - sent.cost))
        if got_token:
            self.observed(sent, (self._now - sent.at) / NS)


def _matched(pool: Pool, steps: Iterable[Step]) -> NDArray[np.int64]:
    """(members,) bytes that each replica of the pool has of the prompt."""
    matched = np.zeros(len(pool), dtype=np.int64)
    for reached, node in steps:
        matched[node.positions(pool)] = reached
    return matched


def _holders(pool: Pool, steps: Sequence[Step]) -> tuple[NDArray[np.int64], int]:
    """Positions of the replicas with the longest match, and its bytes; none if nothing matches."""
    last = len(steps) - 1
    while last >= 0:
        # Nodes that end at the same byte (text of no length lies between) count alike.
        most = steps[last].matched
        first = last
        while first > 0 and steps[first - 1].matched == most:
            first -= 1
        found = steps[first].node.positions(pool)
        if len(found):
            # Only where nobody at all has more may a match of no length be the longest.
            return (found, most) if most > 0 or last == len(steps) - 1 else (_NOBODY, 0)
        last = first - 1
    return _NOBODY, 0


_NOBODY: NDArray[np.int64] = np.empty(0, dtype=np.int64)
