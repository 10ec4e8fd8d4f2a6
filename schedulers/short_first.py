"""The short-first plan: which waiting sessions get a place, and where. Shared by ThunderAgent
(which calls it "BFD") and TAO (its fallback).

Source: ThunderAgent, `scheduler/router.py`, greedy resume. Although named best-fit decreasing
there, it places each session on the replica with the *most* room, which is worst-fit decreasing.
"""

from __future__ import annotations

from bisect import insort_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from schedulers.views import SessionView

BUFFER_TOKENS = 100
"""Room kept per session on top of its context (ThunderAgent, BUFFER_PER_PROGRAM)."""

RETURNING, NEW, IDLE = 0, 1, 2
"""Queue classes, served in this order."""


@dataclass(frozen=True, slots=True)
class Queued:
    """A session without a place.

    `queued_tokens` is its context when it was queued (the order goes by it), `tokens` its context
    now (what must fit).
    """

    session: str
    queue_class: int
    queued_tokens: int
    tokens: int


class Placement(NamedTuple):
    session: str
    replica: str


def steps(session: SessionView) -> int:
    """Turns that the session has sent so far, finished or not (ThunderAgent's step count)."""
    return session.turns_finished + session.in_flight + len(session.waiting)


def queue_class(step: int, reasoning: bool) -> int:
    """NEW while its first turn is its only one, else RETURNING if a turn of it waits, else IDLE."""
    if step <= 1:
        return NEW
    return RETURNING if reasoning else IDLE


def queue_order(queued: Sequence[Queued]) -> list[Queued]:
    """By class, then ascending context when queued, then as given."""
    return sorted(queued, key=lambda one: (one.queue_class, one.queued_tokens))


def select(queued: Sequence[Queued], total_room: int, buffer: int = BUFFER_TOKENS) -> list[Queued]:
    """Walk the queue and take each session that the room of all replicas together still holds.

    One that does not fit does not stop the walk.
    """
    taken: list[Queued] = []
    used = 0
    for one in queue_order(queued):
        if used + one.tokens + buffer <= total_room:
            taken.append(one)
            used += one.tokens + buffer
    return taken


def short_first_plan(
    queued: Sequence[Queued],
    room: Sequence[tuple[str, int]],
    buffer: int = BUFFER_TOKENS,
) -> list[Placement]:
    """Placements in the order in which they are made: largest session first.

    Args:
        queued: the waiting sessions, oldest first (ties keep this order).
        room: (replica, remaining tokens) in configured order (ties keep this order); only
            replicas that are healthy and whose capacity is known.
        buffer: tokens kept per session on top of its context.
    """
    open_replicas = [(remaining, replica) for replica, remaining in room if remaining > buffer]
    taken = select(queued, sum(remaining for remaining, _ in open_replicas), buffer)
    taken.sort(key=lambda one: -one.tokens)
    open_replicas.sort(key=_most_room_first)
    plan: list[Placement] = []
    for one in taken:
        if not open_replicas or taken[-1].tokens + buffer > open_replicas[0][0]:
            break
        remaining, replica = open_replicas[0]
        needed = one.tokens + buffer
        if needed > remaining:
            continue
        plan.append(Placement(one.session, replica))
        del open_replicas[0]
        if remaining - needed > buffer:
            # Before its equals, as a stable sort would leave it.
            insort_left(open_replicas, (remaining - needed, replica), key=_most_room_first)
    return plan


def _most_room_first(one: tuple[int, str]) -> int:
    return -one[0]
