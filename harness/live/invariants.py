"""What must hold of a gateway at all times; looked at continuously in tests and soaks.

`AGENTSCHED_CHECK=1` in the environment of `agentsched serve` turns it on: the first broken
invariant ends the gateway with its name.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

from agentsched import SchedulerError
from harness.control.facade import tampering
from harness.control.plane import ControlPlane
from harness.live.driver import LiveDriver

VARIABLE = "AGENTSCHED_CHECK"
STALLED_S = 30.0
"""Turns that wait this long while nothing is in flight and a replica is up are waiting in vain.
Our choice: longer than any policy's own interval."""


def asked_for(environment: Mapping[str, str] = os.environ) -> bool:
    return environment.get(VARIABLE, "") not in ("", "0")


def broken_in(plane: ControlPlane) -> Iterator[str]:
    """Invariants of the control plane that do not hold, in words.

    Accounted tokens and turns follow from the attempts; with none of these all are zero. Every
    waiting turn and every attempt belongs to a session that is open.
    """
    ledger = plane.ledger
    changed = tampering(ledger, plane.capacities)
    if changed is not None:
        yield f"accounts: {changed}"
    for replica in ledger.replica_states.values():
        if replica.in_flight < 0 or replica.queued_prefill_tokens < 0:
            yield f"accounts: replica {replica.id} has less than nothing to do"
    if not ledger.attempts:
        for replica in ledger.replica_states.values():
            if replica.in_flight or replica.queued_prefill_tokens:
                yield f"accounts: replica {replica.id} is charged for work that nobody does"
    for number, attempt in ledger.attempts.items():
        if attempt.turn.session not in ledger.session_states:
            yield f"owner: attempt {number} belongs to no open session"
    for turn in ledger.waiting_turns.values():
        if turn.session not in ledger.session_states:
            yield f"owner: turn {turn.id} belongs to no open session"


def broken_between(driver: LiveDriver) -> Iterator[str]:
    """Where the driver and the control plane do not agree on what is open."""
    if driver.broken is not None:
        return
    ledger = driver.plane.ledger
    open_turns = {live.turn.id: live for live in driver.open_turns()}
    for number, attempt in ledger.attempts.items():
        live = open_turns.get(attempt.turn.id)
        if live is None or live.attempt != number:
            yield f"owner: attempt {number} at {attempt.serving} belongs to no open turn"
    for turn_id in ledger.waiting_turns:
        if turn_id not in open_turns:
            yield f"owner: waiting turn {turn_id} has no client"
    for session in ledger.session_states:
        if session not in driver.sessions:
            yield f"owner: session {session} is the policy's alone"


@dataclass(slots=True)
class InvariantChecker:
    """Looks at a driver every `interval_s`. Use `start`, then `stop`.

    Args:
        broken: is given the error that says what does not hold.
    """

    driver: LiveDriver
    broken: Callable[[SchedulerError], None]
    interval_s: float = 0.5
    stalled_s: float = STALLED_S
    looks: int = 0
    _stalled_since: int | None = None
    _timer: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(self.interval_s, self._look)

    def stop(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _look(self) -> None:
        problem = self.problem()
        if problem is not None:
            scheduler, now = self.driver.plane.scheduler.name, self.driver.clock.now
            self.broken(SchedulerError(scheduler, "no event", now, f"invariant broken: {problem}"))
            return
        self.start()

    def problem(self) -> str | None:
        """The first invariant that does not hold now; None: all do."""
        self.looks += 1
        for found in (*broken_in(self.driver.plane), *broken_between(self.driver)):
            return found
        return self._stalled()

    def _stalled(self) -> str | None:
        """A turn waits though nobody works and there is room."""
        ledger, now = self.driver.plane.ledger, self.driver.clock.now
        up = any(replica.healthy for replica in ledger.replica_states.values())
        if not ledger.waiting_turns or ledger.attempts or not up:
            self._stalled_since = None
        elif self._stalled_since is None:
            self._stalled_since = now
        elif now - self._stalled_since > self.stalled_s * 1e9:
            waiting = next(iter(ledger.waiting_turns))
            return f"liveness: turn {waiting} waits for {self.stalled_s:g} s while nobody works"
        return None
