"""What TAO reads off the cluster: room, cache credit, value, candidates. No decisions."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from schedulers.pools import Pool, serving, serving_pool
from schedulers.readiness import ReadinessPredictor
from schedulers.short_first import BUFFER_TOKENS, queue_class, steps
from schedulers.tao_config import TaoConfig
from schedulers.tao_plan import UNLIMITED, Candidate, Snapshot
from schedulers.tao_solver import Value
from schedulers.types import NS
from schedulers.views import ClusterView, ReplicaView, SessionView


def room(
    replica: ReplicaView, cluster: ClusterView, config: TaoConfig, decayed_at: int = -1
) -> int:
    """Tokens left: capacity minus what sessions with a place hold and a buffer for each.

    With `decayed_at` (a time) the tokens of acting sessions are decayed as the settings say.
    """
    if replica.capacity_tokens is None:
        return UNLIMITED
    used = 0.0
    sessions, tokens_of = cluster.sessions, cluster.tokens
    half_life = config.acting_half_life_s * NS if decayed_at >= 0 else 0.0
    for name in replica.sessions:
        session = sessions[name]
        if session.phase == "acting":
            # Nothing of it runs, so its context is what its last turn left.
            tokens = session.tokens * config.acting_weight
            if half_life > 0 and session.idle_since is not None:
                tokens *= 2.0 ** (-(decayed_at - session.idle_since) / half_life)
            used += tokens + BUFFER_TOKENS
        else:
            used += tokens_of(name) + BUFFER_TOKENS
    return int(replica.capacity_tokens - used)


def most_rooms(pool: Pool, cluster: ClusterView, config: TaoConfig) -> list[tuple[int, int]]:
    """(room that it has at most, position) of each replica of the pool, most first.

    From what the ledger keeps, without a look at sessions: output that streams takes more.
    """
    tokens: Mapping[str, int] = {}
    if config.acting_weight >= 1 and config.acting_half_life_s == 0:
        tokens = getattr(cluster, "home_tokens", tokens)
    found = []
    for position, replica in enumerate(pool.members):
        most = UNLIMITED
        if replica.capacity_tokens is not None:
            buffers = BUFFER_TOKENS * len(replica.sessions)
            most = replica.capacity_tokens - tokens.get(replica.id, 0) - buffers
        found.append((most, position))
    found.sort(key=lambda one: (-one[0], one[1]))
    return found


def most_room(cluster: ClusterView, config: TaoConfig) -> int:
    """No replica that serves has more room; -1 if there is none."""
    found = most_rooms(serving_pool(cluster), cluster, config)
    return found[0][0] if found else -1


def credits(
    session: str, pool: Pool, now: int, cluster: ClusterView, config: TaoConfig
) -> dict[int, int]:
    """Cache credit on replicas of the pool, by position; only where there is some."""
    kept = getattr(cluster, "evidence_of", None)
    names: Iterable[str] = pool.position if kept is None else kept(session)
    found = {}
    for name in names:
        position = pool.position.get(name)
        if position is not None and (value := credit(session, name, now, cluster, config)):
            found[position] = value
    return found


def unplaced(cluster: ClusterView) -> Iterable[SessionView]:
    """Open sessions without a place."""
    kept: Mapping[str, SessionView] | None = getattr(cluster, "unplaced", None)
    if kept is not None:
        return kept.values()
    return (session for session in cluster.sessions.values() if session.home is None)


def credit(session: str, replica: str, now: int, cluster: ClusterView, config: TaoConfig) -> int:
    """Quantised cache credit: floor(E * 2^(-(now - t_E) / half-life) / quantum); 0 unknown."""
    evidence = cluster.evidence(session, replica) if config.use_cache else None
    if evidence is None:
        return 0
    tokens: float = evidence.tokens
    if config.cache_half_life_s > 0:
        tokens *= 2.0 ** (-(now - evidence.at) / (config.cache_half_life_s * NS))
    return int(tokens // config.credit_quantum_tokens)


def ready(session: SessionView, now: int, predictor: ReadinessPredictor, config: TaoConfig) -> int:
    """1 if a turn of it waits, or its tools are about to end."""
    if not config.use_readiness:
        return 0
    return int(bool(session.waiting) or predictor.ready(session.id, now))


def in_words(value: Value) -> str:
    """A value, for the decision log."""
    state = "ready" if value.ready else "not ready"
    return f"cache credit {value.credit}, {state}, {abs(value.footprint):,} tokens"


def is_candidate(session: SessionView, now: int, config: TaoConfig) -> bool:
    """Without a place, nothing of it running, and a turn waits or it has not been idle too long."""
    if session.home is not None or session.in_flight:
        return False
    if session.waiting:
        return True
    idle = now - session.idle_since if session.idle_since is not None else 0
    return session.turns_finished > 0 and (config.idle_ttl_s == 0 or idle < config.idle_ttl_s * NS)


def queue_key(session: SessionView) -> tuple[int, int, str]:
    """Order of the waiting pool: class, since when it waits, id."""
    waiting = session.waiting_since
    if waiting is None:
        return queue_class(steps(session), False), session.paused_at or 0, session.id
    return queue_class(steps(session), True), waiting, session.id


def candidates(cluster: ClusterView, now: int, config: TaoConfig) -> list[SessionView]:
    """The waiting pool in queue order, at most `max_candidates`."""
    pool = [s for s in unplaced(cluster) if is_candidate(s, now, config)]
    return sorted(pool, key=queue_key)[: config.max_candidates]


def is_only_candidate(name: str, cluster: ClusterView, now: int, config: TaoConfig) -> bool:
    """Whether the waiting pool is this session alone."""
    others = (s for s in unplaced(cluster) if s.id != name)
    return is_candidate(cluster.sessions[name], now, config) and not any(
        is_candidate(s, now, config) for s in others
    )


def rooms(cluster: ClusterView, now: int, config: TaoConfig) -> tuple[int, ...]:
    """Room of each replica that serves, acting sessions decayed."""
    return tuple(room(r, cluster, config, now) for r in serving(cluster))


def signature(session: SessionView, epoch: int) -> tuple[Any, ...]:
    """Changes when the session does: a plan made for another signature is not about it.

    `epoch` counts its arrivals and tool starts.
    """
    return (
        session.lifecycle,
        session.phase,
        steps(session),
        session.tokens,
        session.home,
        len(session.waiting),
        epoch,
    )


def snapshot(
    cluster: ClusterView,
    now: int,
    config: TaoConfig,
    predictor: ReadinessPredictor,
    queued_tokens: Mapping[str, int],
    epochs: Mapping[str, int],
    pool: Sequence[SessionView] | None = None,
    room_left: tuple[int, ...] | None = None,
) -> Snapshot:
    """Freeze what the planner needs; `pool` and `room_left` where the caller knows them."""
    replicas = serving_pool(cluster)
    frozen = []
    for session in candidates(cluster, now, config) if pool is None else pool:
        tokens = cluster.tokens(session.id)
        row = [0] * len(replicas)
        for position, value in credits(session.id, replicas, now, cluster, config).items():
            row[position] = value
        frozen.append(
            Candidate(
                session=session.id,
                tokens=tokens,
                credits=tuple(row),
                ready=ready(session, now, predictor, config),
                footprint=config.footprint_sign * tokens,
                queue_class=queue_class(steps(session), bool(session.waiting)),
                queued_tokens=queued_tokens.get(session.id, tokens),
                signature=signature(session, epochs.get(session.id, 0)),
            )
        )
    return Snapshot(
        now=now,
        replicas=tuple(replicas.position),
        room=rooms(cluster, now, config) if room_left is None else room_left,
        candidates=tuple(frozen),
        settings=config.plan_settings(),
    )


def pause_order(
    replica: ReplicaView,
    cluster: ClusterView,
    now: int,
    config: TaoConfig,
    predictor: ReadinessPredictor,
    acting: bool,
) -> Iterator[SessionView]:
    """Sessions with a place on the replica, the first to lose it first.

    By value on this replica, then longest idle (acting) or first come; or fewest tokens.
    """
    phase = "acting" if acting else "reasoning"
    here = [s for s in (cluster.sessions[name] for name in replica.sessions) if s.phase == phase]

    def rank(session: SessionView) -> tuple[Any, ...]:
        tokens = cluster.tokens(session.id)
        if config.pause_order == "thunder":
            return (tokens,)
        value = Value(
            credit(session.id, replica.id, now, cluster, config),
            ready(session, now, predictor, config) if acting else 1,
            config.footprint_sign * tokens,
        )
        return (value, session.idle_since if session.idle_since is not None else now)

    return iter(sorted(here, key=rank))
