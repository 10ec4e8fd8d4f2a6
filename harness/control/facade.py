"""What a policy is given of the ledger, and the check that it changed nothing in it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from harness.control.ledger import Ledger
from schedulers.pools import Pool
from schedulers.types import Evidence, PromptRef, Turn
from schedulers.views import ReplicaView, SessionView


@dataclass(frozen=True, slots=True)
class Facade:
    """`schedulers.views.KeptClusterView`, and nothing else of the ledger; its mappings are
    read-only.

    Sessions and replicas are the ledger's own records, since a policy reads them far too often
    for wrappers; `tampering` finds what a policy wrote into them.
    """

    replicas: Sequence[ReplicaView]
    sessions: Mapping[str, SessionView]
    waiting: Mapping[str, Turn]
    replica: Callable[[str], ReplicaView]
    tokens: Callable[[str], int]
    evidence: Callable[[str, str], Evidence | None]
    cached_tokens: Callable[[PromptRef, str], int]
    pools: Callable[[], tuple[Pool, Pool]]
    unplaced: Mapping[str, SessionView]
    home_tokens: Mapping[str, int]
    evidence_of: Callable[[str], Mapping[str, Evidence]]


def facade(ledger: Ledger) -> Facade:
    """Stays true as the ledger changes."""
    return Facade(
        ledger.replicas,
        MappingProxyType(ledger.session_states),
        MappingProxyType(ledger.waiting_turns),
        ledger.replica,
        ledger.tokens,
        ledger.evidence,
        ledger.cached_tokens,
        ledger.pools,
        MappingProxyType(ledger.unplaced),
        MappingProxyType(ledger.home_tokens),
        lambda session: MappingProxyType(ledger.evidence_of(session)),
    )


def tampering(ledger: Ledger, capacities: Mapping[str, int | None]) -> str | None:
    """The first entry of the records that does not follow from the others; None if all do.

    Args:
        capacities: tokens that each replica was configured with, by id.
    """
    return next(_tampered(ledger, capacities), None)


def _tampered(ledger: Ledger, capacities: Mapping[str, int | None]) -> Iterator[str]:
    in_flight = dict.fromkeys(ledger.replica_states, 0)
    queued = dict.fromkeys(ledger.replica_states, 0)
    attempts: dict[str, list[int]] = {}
    for number, attempt in ledger.attempts.items():
        in_flight[attempt.serving] += 1
        if not attempt.first_token_seen and attempt.serving == (attempt.prefill or attempt.decode):
            queued[attempt.serving] += attempt.uncached_tokens
        attempts.setdefault(attempt.turn.session, []).append(number)
    homes: dict[str, set[str]] = {}
    tokens = dict.fromkeys(ledger.replica_states, 0)
    waiting = set[str]()
    for name, session in ledger.session_states.items():
        paused = session.lifecycle == "paused"
        waiting.update(session.waiting_turns)
        for field, right in (
            ("id", session.id == name),
            ("home", session.home is None or session.home in ledger.replica_states),
            ("lifecycle", session.lifecycle in ("active", "paused")),
            ("paused_at", (session.paused_at is not None) == paused),
            ("in_flight", sorted(session.attempts) == sorted(attempts.get(name, ()))),
            ("idle_since", session.idle_since is None or session.phase == "acting"),
        ):
            if not right:
                yield f"session {name}: {field}"
        if session.home is not None:
            homes.setdefault(session.home, set()).add(name)
            tokens[session.home] += session.tokens
    if set().union(*homes.values(), ledger.unplaced) != set(ledger.session_states):
        yield "sessions"
    if waiting != set(ledger.waiting_turns):
        yield "waiting"
    for position, (name, replica) in enumerate(ledger.replica_states.items()):
        for field, right in (
            ("id", replica.id == name and replica.index == position),
            ("capacity_tokens", replica.capacity_tokens == capacities[name]),
            ("in_flight", replica.in_flight == in_flight[name]),
            ("queued_prefill_tokens", replica.queued_prefill_tokens == queued[name]),
            ("sessions", set(replica.homes) == homes.get(name, set())),
            ("tokens of its sessions", ledger.home_tokens[name] == tokens[name]),
        ):
            if not right:
                yield f"replica {name}: {field}"
    for pool in ledger.pools():
        for replica_view, count in zip(pool.members, pool.in_flight.tolist(), strict=True):
            if replica_view.in_flight != count:
                yield f"replica {replica_view.id}: in_flight"
