"""The decision log of a session in words: why it waited, and why it moved."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from agentsched import UsageError
from harness.specfile import closest
from schedulers.types import NS

if TYPE_CHECKING:
    from results.cells import CellId
    from results.run import Run

_VERBS = {
    "route": "{turn} goes to {replica}",
    "hold": "{turn} is held at the gateway",
    "pause": "the session loses its place on {replica}",
    "resume": "the session gets a place on {replica}",
    "reject": "{turn} is rejected",
    "abort": "the dispatch of {turn} to {replica} is called back",
}

_OCCASIONS = {
    "TurnArrived": "a turn arrived",
    "DispatchFailed": "a dispatch failed",
    "FirstToken": "a first token came",
    "TurnFinished": "a turn finished",
    "TurnFailed": "a turn failed",
    "ClientGone": "a client left",
    "ToolStarted": "tools started",
    "ToolHint": "a tool reported progress",
    "SessionClosed": "a session ended",
    "ReplicaSampled": "gauges were read",
    "ReplicaLost": "a replica was lost",
    "ReplicaRecovered": "a replica came back",
    "PlanReady": "a plan was ready",
    "Timer": "a timer rang",
    "LegFinished": "a prefill leg ended",
}


def cells_with(run: Run, session: str, scheduler: str | None, seed: int | None) -> list[CellId]:
    """Finished cells whose decision log names the session.

    Raises:
        UsageError: there is none; the remedy names a session that is close.
    """
    chosen = [
        cell
        for cell in run.summaries
        if scheduler in (None, cell.scheduler) and seed in (None, cell.seed)
    ]
    if not chosen:
        raise UsageError(
            f"{run.path} has no finished cell for that scheduler and seed",
            "`agentsched report` shows which cells are done",
        )
    known: dict[str, None] = {}
    found = []
    for cell in chosen:
        names = dict.fromkeys(run.table(cell, "sessions")["session"])
        known.update(names)
        if session in names:
            found.append(cell)
    if not found:
        near = closest(session, list(known)) or next(iter(known), None)
        hint = f"for instance --session {near}" if near else "the run has no sessions"
        raise UsageError(f"no session `{session}` in {run.path}", hint)
    return found


def explain_session(decisions: Iterable[Mapping[str, Any]], session: str) -> Iterator[str]:
    """One line a decision about the session, oldest first.

    A wait is told with its length, a change of replica with where the session came from.
    """
    held_at: int | None = None
    last_replica: str | None = None
    for decision in decisions:
        if decision["session"] != session:
            continue
        command, replica = decision["command"], decision["replica"]
        text = _VERBS.get(command, command).format(
            turn=_turn(decision["turn"]), replica=replica or "the gateway"
        )
        if command in ("route", "resume"):
            if held_at is not None:
                text += f" after {(decision['time'] - held_at) / NS:.1f} s of waiting"
            if last_replica is not None and replica != last_replica:
                text += f" (moved from {last_replica})"
            held_at, last_replica = None, replica
        elif command == "hold" and held_at is None:
            held_at = decision["time"]
        occasion = _OCCASIONS.get(decision["event"], decision["event"])
        why = f": {decision['why']}" if decision["why"] else ""
        yield f"{decision['time'] / NS:10.3f} s  {text}{why} [when {occasion}]"


def _turn(turn_id: str | None) -> str:
    return f"turn {turn_id.rpartition('/')[2]}" if turn_id else "the turn"
