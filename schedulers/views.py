"""What a policy may see of the cluster: read-only, and only what a gateway can know."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, Protocol

from schedulers.types import Evidence, PromptRef, ReplicaSample, ToolSignal, Turn

Role = Literal["mixed", "prefill", "decode"]
Phase = Literal["reasoning", "acting"]
Lifecycle = Literal["active", "paused"]


class ReplicaView(Protocol):
    """One engine instance behind one URL."""

    @property
    def id(self) -> str: ...
    @property
    def index(self) -> int:
        """Position in the configured order; ties are broken by it."""
        ...

    @property
    def role(self) -> Role: ...
    @property
    def healthy(self) -> bool: ...
    @property
    def capacity_tokens(self) -> int | None:
        """KV tokens this gateway may use: what the engine reports times the gateway's share."""
        ...

    @property
    def in_flight(self) -> int:
        """Turns dispatched to it and not ended (the prefill leg counts at the prefill replica)."""
        ...

    @property
    def queued_prefill_tokens(self) -> int:
        """Estimated uncached prompt tokens of dispatches without a first token yet."""
        ...

    @property
    def sessions(self) -> Collection[str]:
        """Ids of active sessions whose home it is, in the order they came."""
        ...

    @property
    def sample(self) -> ReplicaSample | None:
        """The last poll of its gauges; as old as the polling interval."""
        ...

    @property
    def sampled_at(self) -> int | None: ...


class SessionView(Protocol):
    """One agent on one task."""

    @property
    def id(self) -> str: ...
    @property
    def parent(self) -> str | None: ...
    @property
    def phase(self) -> Phase:
        """`reasoning`: a turn is in flight or waiting; `acting`: between turns."""
        ...

    @property
    def lifecycle(self) -> Lifecycle: ...
    @property
    def home(self) -> str | None:
        """The replica it has a place on; None before its first dispatch and while paused."""
        ...

    @property
    def last_replica(self) -> str | None:
        """Where its last dispatch went; kept while paused."""
        ...

    @property
    def turns_finished(self) -> int: ...
    @property
    def in_flight(self) -> int: ...
    @property
    def waiting(self) -> Sequence[Turn]:
        """Its turns held at the gateway, oldest first (more than one only for parallel calls)."""
        ...

    @property
    def waiting_since(self) -> int | None:
        """Arrival of its oldest waiting turn."""
        ...

    @property
    def paused_at(self) -> int | None: ...
    @property
    def arrived_at(self) -> int:
        """Arrival of its first turn."""
        ...

    @property
    def idle_since(self) -> int | None:
        """When it became `acting`; None while reasoning."""
        ...

    @property
    def tools(self) -> tuple[ToolSignal, ...]:
        """The tools it is running (acting), as the last response told."""
        ...

    @property
    def tokens(self) -> int:
        """Context: usage (prompt + output) of the last finished turn, or the estimate of a newer
        prompt that has arrived since."""
        ...


class ClusterView(Protocol):
    """All of it. Iteration orders are deterministic (configured order; order of arrival)."""

    @property
    def replicas(self) -> Sequence[ReplicaView]: ...
    @property
    def sessions(self) -> Mapping[str, SessionView]:
        """Open sessions."""
        ...

    @property
    def waiting(self) -> Mapping[str, Turn]:
        """Turns that need or await a decision, by turn id, oldest first."""
        ...

    def replica(self, replica_id: str) -> ReplicaView: ...

    def tokens(self, session_id: str) -> int:
        """Context tokens now, output streamed so far included (asked of the driver)."""
        ...

    def evidence(self, session_id: str, replica_id: str) -> Evidence | None:
        """The session's KV on the replica, from its last response there. None: nothing known."""
        ...

    def cached_tokens(self, prompt: PromptRef, replica_id: str) -> int:
        """Longest prefix of the prompt that was sent to the replica before, in tokens.

        Upper bound: the engine may have evicted it since.
        """
        ...


class KeptClusterView(ClusterView, Protocol):
    """What a ledger keeps besides, so that policies for large clusters need not look at everyone.

    It says nothing that the view does not say. Policies ask by getattr, and look at everyone
    where a view does not have it: `schedulers.pools` for `pools`, `schedulers.tao_view` for the
    rest.
    """

    @property
    def pools(self) -> Callable[[], tuple[Any, Any]]:
        """Replicas that serve and that prefill, each a `schedulers.pools.Pool`."""
        ...

    @property
    def unplaced(self) -> Mapping[str, SessionView]:
        """Open sessions without a home."""
        ...

    @property
    def home_tokens(self) -> Mapping[str, int]:
        """Sum of `tokens` of the sessions at home on a replica, by its id."""
        ...

    @property
    def evidence_of(self) -> Callable[[str], Mapping[str, Evidence]]:
        """All evidence of a session, by replica."""
        ...
