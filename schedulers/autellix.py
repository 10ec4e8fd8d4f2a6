"""Autellix at a gateway: programs that have received the least service go first.

A program is a session with its sub-agents. Service is counted in tokens computed for its finished
calls: prompt without the cached part, plus output.
PLAS   a program's service is the sum over its calls
ATLAS  it is the longest path: a sub-agent's path starts with its parent's at the time of the call
The service falls into levels at 2,048, 8,192 and 32,768 tokens; the level is the request's
priority at the engine (lower first; the engine must run its priority policy).

Short calls (prompt at most 2,048 tokens) go to the least used replica, long ones to the program's
own. With `max_in_flight` set, turns beyond it wait here by level, then arrival; a program that has
waited beta times as long as it was served counts as level 0. Preemption is the engine's.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Route
from schedulers.events import (
    ClientGone,
    DispatchFailed,
    Event,
    ReplicaRecovered,
    SessionClosed,
    TurnArrived,
    TurnFailed,
    TurnFinished,
)
from schedulers.pools import by_id, least_in_flight, serving
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class AutellixConfig:
    order: Literal["plas", "atlas"] = "plas"
    "The paper has both; PLAS for single-threaded programs."
    level_tokens: tuple[int, ...] = (2048, 8192, 32768)
    "Upper limits of the levels. A public re-implementation."
    short_call_tokens: int = 2048
    "Prompts up to this length are balanced, longer ones stay with their program. Paper."
    max_in_flight: int = 0
    "Turns in flight per replica beyond which turns wait here; 0: no limit (our choice)."
    beta: float = 2.0
    "Waiting over service time at which a program is starving. A public re-implementation."

    def __post_init__(self) -> None:
        if self.order not in ("plas", "atlas"):
            raise ValueError(f"order is {self.order!r}, not plas or atlas")
        if list(self.level_tokens) != sorted(self.level_tokens):
            raise ValueError("level_tokens must ascend")


@dataclass(slots=True)
class Program:
    """Service received, and where its long calls go."""

    tokens: int = 0
    served_ns: int = 0
    waited_ns: int = 0
    replica: str | None = None
    sessions: dict[str, None] = field(default_factory=dict)


class Autellix(AdmissionScheduler):
    name = "autellix"
    info = SchedulerInfo(
        family="ordering",
        observes="service received by each program, prompt length, turns in flight",
        holds=True,
        fidelity="summary only",
        reference="Autellix, arXiv 2502.13965 (abstract), constants of a public re-implementation",
    )
    Config = AutellixConfig
    config: AutellixConfig

    def __init__(self, config: AutellixConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._root: dict[str, str] = {}
        self._programs: dict[str, Program] = {}
        self._paths: dict[str, int] = {}
        """Longest path of service that ends in the session (ATLAS)."""
        self._dispatched: dict[str, int] = {}
        self._queue: dict[str, int] = {}
        """Held turns by time of arrival."""

    def on_event(self, event: Event, cluster: ClusterView) -> Iterator[Command]:
        if isinstance(event, (TurnArrived, DispatchFailed)):
            self._meet(event.turn, cluster)
            self._dispatched.pop(event.turn.id, None)
            self._queue[event.turn.id] = event.now
            yield from self._drain(event.now, cluster)
            if event.turn.id in self._queue:
                yield Hold(event.turn.id, why="its replica is full, or none is healthy")
        elif isinstance(event, TurnFinished):
            self._serve(event)
            yield from self._drain(event.now, cluster)
        elif isinstance(event, (TurnFailed, ClientGone)):
            self._queue.pop(event.turn_id, None)
            self._dispatched.pop(event.turn_id, None)
            yield from self._drain(event.now, cluster)
        elif isinstance(event, ReplicaRecovered):
            yield from self._drain(event.now, cluster)
        elif isinstance(event, SessionClosed):
            self._part(event.session)

    def level(self, session: str) -> int:
        """0 for the least service."""
        program = self._programs[self._root[session]]
        service = program.tokens
        if self.config.order == "atlas":
            service = max(self._paths[member] for member in program.sessions)
        return sum(service > limit for limit in self.config.level_tokens)

    # Programs and their service.

    def _meet(self, turn: Turn, cluster: ClusterView) -> None:
        if turn.session in self._root:
            return
        root = self._root.get(turn.parent, turn.parent) if turn.parent else turn.session
        self._root[turn.session] = root
        program = self._programs.setdefault(root, Program())
        program.sessions[turn.session] = None
        self._paths[turn.session] = self._paths.get(turn.parent, 0) if turn.parent else 0

    def _part(self, session: str) -> None:
        root = self._root.pop(session, None)
        if root is not None:
            self._paths.pop(session)
            del self._programs[root].sessions[session]
            if not self._programs[root].sessions:
                del self._programs[root]

    def _serve(self, event: TurnFinished) -> None:
        program = self._programs[self._root[event.session]]
        tokens = event.usage.total - (event.usage.cached or 0)
        program.tokens += tokens
        program.served_ns += event.now - self._dispatched.pop(event.turn_id, event.now)
        self._paths[event.session] += tokens

    # Order and place.

    def _drain(self, now: int, cluster: ClusterView) -> Iterator[Command]:
        for turn_id in sorted(self._queue, key=lambda t: self._rank(t, now, cluster)):
            turn = cluster.waiting[turn_id]
            target = self._target(turn, cluster)
            if target is None:
                continue
            program = self._programs[self._root[turn.session]]
            program.waited_ns += now - self._queue.pop(turn_id)
            self._dispatched[turn_id] = now
            if turn.prompt.tokens > self.config.short_call_tokens:
                program.replica = target.id
            level = self.level(turn.session)
            yield Route(turn_id, target.id, annotations={"priority": level}, why=f"level {level}")

    def _rank(self, turn_id: str, now: int, cluster: ClusterView) -> tuple[int, int]:
        session = cluster.waiting[turn_id].session
        program = self._programs[self._root[session]]
        arrived = self._queue[turn_id]
        waited = program.waited_ns + now - arrived
        starving = program.served_ns > 0 and waited >= self.config.beta * program.served_ns
        return (0 if starving else self.level(session)), arrived

    def _target(self, turn: Turn, cluster: ClusterView) -> ReplicaView | None:
        """Its replica, or None while that is full."""
        replicas = serving(cluster)
        own = by_id(replicas, self._programs[self._root[turn.session]].replica)
        if own is None or turn.prompt.tokens <= self.config.short_call_tokens:
            own = least_in_flight(replicas) if replicas else None
        limit = self.config.max_in_flight
        return None if own is None or (limit and own.in_flight >= limit) else own
