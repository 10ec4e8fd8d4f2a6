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

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Literal, NamedTuple

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
from schedulers.pools import Rotation, least_in_flight, prefillers, serving
from schedulers.prefix_tree import PrefixTree
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
        pool = prefillers(cluster)
        chosen, why = self._pick(turn, pool or serving(cluster), colocated=not pool)
        self._tree.insert(turn.prompt, chosen.replica.id, self._now)
        self._history[turn.session] = turn.prompt.bytes
        self._sent[turn.id] = Sent(chosen.replica.id, chosen.cost, self._now)
        self._queued[chosen.replica.id] = self._queued.get(chosen.replica.id, 0.0) + chosen.cost
        if not pool:
            return Route(turn.id, chosen.replica.id, why=why)
        decode = least_in_flight(serving(cluster))
        return Route(turn.id, decode.id, prefill=chosen.replica.id, why=why)

    def may_stick(
        self, turn: Turn, prev: Candidate, candidates: Callable[[], list[Candidate]]
    ) -> bool:
        """Whether a turn whose history is on `prev` may follow it; the first version: always.

        `candidates` makes the numbers of all replicas, which costs time in large clusters.
        """
        return True

    def observed(self, sent: Sent, seconds: float) -> None:
        """A streamed first token came `seconds` after the dispatch."""

    def _candidates(
        self, turn: Turn, replicas: list[ReplicaView], matches: dict[str, int]
    ) -> list[Candidate]:
        length = turn.prompt.bytes / BYTES_PER_TOKEN
        candidates = []
        for replica in replicas:
            matched = matches.get(replica.id, 0) / BYTES_PER_TOKEN
            new = max(0.0, length - matched)
            cost = new
            if self.config.attention_tokens:
                cost += new * (length - new / 2) / self.config.attention_tokens
            load = self._queued.get(replica.id, 0.0) + cost
            candidates.append(Candidate(replica, matched, cost, load))
        return candidates

    def _pick(
        self, turn: Turn, replicas: list[ReplicaView], colocated: bool
    ) -> tuple[Candidate, str]:
        matches = self._tree.match(turn.prompt)
        candidates = partial(self._candidates, turn, replicas, matches)
        return self._stay(turn, replicas, matches, candidates) or self._balance(
            turn, candidates(), colocated
        )

    def _stay(
        self,
        turn: Turn,
        replicas: list[ReplicaView],
        matches: dict[str, int],
        candidates: Callable[[], list[Candidate]],
    ) -> tuple[Candidate, str] | None:
        """Where the turn's history is, if it may follow it."""
        if turn.prompt.assistant_messages == 0:
            return None
        holders = _holders(replicas, matches)
        if not holders:
            return None
        prev = min(self._candidates(turn, holders, matches), key=lambda c: (-c.matched, c.load))
        history = min(self._history.get(turn.session, turn.prompt.bytes), turn.prompt.bytes)
        hit = prev.matched > self.config.hit_ratio * history / BYTES_PER_TOKEN
        if hit and self.may_stick(turn, prev, candidates):
            return prev, f"stays with {prev.matched:.0f} cached tokens"
        return None

    def _balance(
        self, turn: Turn, candidates: list[Candidate], colocated: bool
    ) -> tuple[Candidate, str]:
        first_turn = turn.prompt.assistant_messages == 0
        score = self.config.first_turn_score if first_turn else "product"
        scores = [self._score(c, score, colocated) for c in candidates]
        best = min(scores)
        tied = [c for c, value in zip(candidates, scores, strict=True) if value == best]
        replica = self._rotation.pick([c.replica for c in tied])
        chosen = next(c for c in tied if c.replica is replica)
        return chosen, "first turn, balanced" if first_turn else "balanced"

    @staticmethod
    def _score(candidate: Candidate, score: str, colocated: bool) -> float:
        if score == "inflight":
            return candidate.replica.in_flight
        if score == "prefill_load" or not colocated:
            return candidate.load
        return candidate.load * candidate.replica.in_flight

    def _prefilled(self, turn_id: str, got_token: bool) -> None:
        sent = self._sent.pop(turn_id, None)
        if sent is None:
            return
        self._queued[sent.replica] = max(0.0, self._queued[sent.replica] - sent.cost)
        if got_token:
            self.observed(sent, (self._now - sent.at) / NS)


def _holders(replicas: list[ReplicaView], matches: dict[str, int]) -> list[ReplicaView]:
    """Replicas with the longest match of all of them, in their order; none if nothing matches."""
    if not matches:
        return []
    most = max(matches.values())
    names = {name for name, matched in matches.items() if matched == most}
    found = [replica for replica in replicas if replica.id in names]
    if found:
        return found
    # Those that hold most are not among them: look at these alone.
    most = max((matches.get(replica.id, 0) for replica in replicas), default=0)
    return [replica for replica in replicas if most > 0 and matches.get(replica.id) == most]
