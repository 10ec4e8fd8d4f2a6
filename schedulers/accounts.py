"""ThunderAgent's books: what it believes every session holds on every replica.

A policy keeps its own books because they may differ from the control plane's: a session that was
never released stays on them, and its tokens are estimated as the gateway's code estimates them.
Source: ThunderAgent, `program/state.py`, `backend/state.py` and `scheduler/router.py`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp2, inf

from schedulers.types import NS, PromptRef, Usage
from schedulers.views import ClusterView, ReplicaView

STREAM_STEP = 20
"""Streamed tokens are counted in steps of this many events."""


class TokenEstimate:
    """Prompt tokens from its bytes, by a ratio learned from the usage of finished turns."""

    def __init__(self, ratio: float = 5.0, weight: float = 0.2) -> None:
        self.ratio = ratio
        self._weight = weight
        self._learned = False

    def __call__(self, prompt: PromptRef) -> int:
        return int(prompt.bytes / self.ratio)

    def learn(self, prompt_bytes: int, usage: Usage) -> None:
        """The first sample replaces the initial ratio, later ones move it."""
        if usage.prompt <= 0 or prompt_bytes <= 0:
            return
        sample = prompt_bytes / usage.prompt
        if self._learned:
            sample = self._weight * sample + (1 - self._weight) * self.ratio
        self.ratio, self._learned = sample, True


@dataclass(slots=True)
class Account:
    """One session. `replica` is None while it has no place (queued or paused)."""

    session: str
    step: int = 0
    """Turns it has sent."""
    tokens: int = 0
    """Usage of the last finished turn, or the estimate of a newer prompt."""
    reasoning: bool = False
    """A turn is in flight or waiting."""
    replica: str | None = None
    origin: str | None = None
    """Where it was before it lost its place."""
    acting_since: int = 0
    last_seen: int = 0
    marked: bool = False
    """To be paused when its turn ends."""
    queued_at: int = 0
    queued_tokens: int = 0
    """Context when it was queued; the resume order goes by it."""
    waiting_since: int | None = None
    """Since when a turn of it waits."""
    deadline: int = 0
    """When that turn is let in whatever the room."""


class Accounts:
    """All sessions known, in the order they came; those with a place also by replica."""

    def __init__(self, buffer_tokens: int, acting_weight: float) -> None:
        self.all: dict[str, Account] = {}
        self.queue: dict[str, Account] = {}
        self._placed: dict[str, dict[str, Account]] = {}
        self._buffer = buffer_tokens
        self._acting_weight = acting_weight

    def open(self, session: str, step: int) -> Account:
        account = self.all[session] = Account(session, step)
        return account

    def close(self, account: Account) -> None:
        self._leave(account)
        self.queue.pop(account.session, None)
        del self.all[account.session]

    def place(self, account: Account, replica: str) -> None:
        self._leave(account)
        self.queue.pop(account.session, None)
        account.replica = account.origin = replica
        account.marked, account.waiting_since = False, None
        self._placed.setdefault(replica, {})[account.session] = account

    def enqueue(self, account: Account, now: int) -> None:
        """It loses its place, or waits for its first."""
        self._leave(account)
        account.marked = False
        account.queued_at, account.queued_tokens = now, account.tokens
        self.queue[account.session] = account

    def on(self, replica: str) -> list[Account]:
        """Sessions with a place on the replica, in the order they came to it."""
        return list(self._placed.get(replica, {}).values())

    def _leave(self, account: Account) -> None:
        if account.replica is not None:
            del self._placed[account.replica][account.session]
            account.replica = None

    # Tokens and capacity.

    @staticmethod
    def tokens(account: Account, cluster: ClusterView) -> int:
        """Context now, with what its running turns have streamed."""
        session = cluster.sessions.get(account.session)
        if session is None or not account.reasoning or not session.in_flight:
            return account.tokens
        streamed = cluster.tokens(account.session) - session.tokens
        return account.tokens + streamed // STREAM_STEP * STREAM_STEP

    def reasoning_tokens(self, replica: ReplicaView, cluster: ClusterView) -> int:
        return sum(self.tokens(a, cluster) for a in self.on(replica.id) if a.reasoning)

    def active(self, replica: ReplicaView, cluster: ClusterView) -> float:
        """Tokens of reasoning sessions plus weighted tokens of acting ones."""
        acting = sum(a.tokens for a in self.on(replica.id) if not a.reasoning)
        return self.reasoning_tokens(replica, cluster) + self._acting_weight * acting

    def active_decayed(
        self, replica: ReplicaView, cluster: ClusterView, now: int, tau_s: float = 1.0
    ) -> float:
        """As `active`, but acting tokens halve every `tau_s` seconds."""
        acting = sum(
            a.tokens * exp2(-(now - a.acting_since) / NS / tau_s)
            for a in self.on(replica.id)
            if not a.reasoning
        )
        return self.reasoning_tokens(replica, cluster) + acting

    def shared(self, replica: ReplicaView, cluster: ClusterView) -> float:
        """Tokens counted for several sessions but held once, by the engine's KV gauge."""
        usage = replica.sample.kv_usage if replica.sample else None
        if usage is None or replica.capacity_tokens is None:
            return 0.0
        counted = self.reasoning_tokens(replica, cluster)
        return max(0.0, counted - usage * replica.capacity_tokens)

    def remaining(self, replica: ReplicaView, active: float, shared: float = 0.0) -> float:
        """Capacity minus what is held and a buffer per session; infinite if unknown."""
        if replica.capacity_tokens is None:
            return inf
        buffers = self._buffer * len(self._placed.get(replica.id, {}))
        return replica.capacity_tokens - (active - shared + buffers)
