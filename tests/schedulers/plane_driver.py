"""Drives a scheduler through the real control plane, event by event, for routing tests.

    driver = PlaneDriver(scheduler, mixed("r0", "r1"))
    driver.arrive("s", text(("system", 100), ("s", 50)))      # -> Route(...)
    driver.first_token("s"); driver.finish("s", output=10)

`FakeCluster` (fake_cluster.py) serves tests that hold and pause; this one has prefill legs, real
prefix matching and prompts of several segments.
"""

from __future__ import annotations

from harness.control.ledger import Ledger, ReplicaConfig
from harness.control.operations import Dispatch, Operation, Refuse
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from results.records import DecisionRecord
from schedulers import events as ev
from schedulers.base import Scheduler
from schedulers.commands import Solve, WakeAt
from schedulers.types import NS, PromptRef, PromptRun, ReplicaSample, ToolSignal, Turn, Usage
from schedulers.views import Role


def text(*runs: tuple[str, int], replies: int = 0) -> PromptRef:
    """A prompt of (segment, tokens) with four bytes a token."""
    return PromptRef(tuple(PromptRun(name, n, 4 * n) for name, n in runs), replies)


def mixed(*names: str, capacity: int | None = 100_000) -> list[ReplicaConfig]:
    return [replica(name, "mixed", capacity) for name in names]


def replica(name: str, role: Role, capacity: int | None = 100_000) -> ReplicaConfig:
    return ReplicaConfig(name, role, Capacity(capacity))


class PlaneDriver:
    def __init__(self, scheduler: Scheduler, replicas: list[ReplicaConfig]) -> None:
        self.scheduler = scheduler
        self.decisions: list[DecisionRecord] = []
        self.streamed: dict[int, int] = {}
        """Output tokens streamed so far, by attempt."""
        self.plane = ControlPlane(
            scheduler,
            replicas,
            lambda attempt, now: self.streamed.get(attempt, 0),
            self.decisions.append,
        )
        self.now = 0
        self.timers: list[int] = []
        self.open: dict[int, Dispatch] = {}
        """Dispatches that have not ended, by attempt."""
        self.refused: list[Refuse] = []
        self.solves: list[Solve] = []
        self.turns: dict[str, int] = {}

    @property
    def view(self) -> Ledger:
        return self.plane.ledger

    def arrive(self, session: str, prompt: PromptRef, parent: str | None = None) -> list[Operation]:
        """The session's next turn arrives; the operations it led to."""
        index = self.turns.get(session, 0)
        self.turns[session] = index + 1
        turn = Turn(f"{session}/{index}", session, index, prompt, parent)
        return self.handle(ev.TurnArrived(self.now, turn))

    def place(self, session: str, prompt: PromptRef, parent: str | None = None) -> str:
        """As `arrive`, for a turn that must be dispatched at once: the decode replica."""
        dispatch = self.dispatch(session, prompt, parent)
        return dispatch.decode

    def dispatch(self, session: str, prompt: PromptRef, parent: str | None = None) -> Dispatch:
        found = [op for op in self.arrive(session, prompt, parent) if isinstance(op, Dispatch)]
        assert len(found) == 1, f"{len(found)} dispatches"
        return found[0]

    def leg(self, session: str) -> list[Operation]:
        """The prefill leg of the session's oldest turn ends."""
        number, one = self.oldest(session)
        assert one.prefill is not None
        return self.handle(ev.LegFinished(self.now, session, one.turn.id, number, one.prefill))

    def first_token(self, session: str) -> list[Operation]:
        number, one = self.oldest(session)
        return self.handle(ev.FirstToken(self.now, session, one.turn.id, number, one.decode))

    def finish(self, session: str, output: int = 0, cached: int | None = None) -> list[Operation]:
        number, one = self.oldest(session)
        del self.open[number]
        usage = Usage(one.turn.prompt.tokens, cached, output)
        return self.handle(
            ev.TurnFinished(self.now, session, one.turn.id, number, one.decode, usage)
        )

    def fail(self, session: str) -> list[Operation]:
        number, one = self.oldest(session)
        del self.open[number]
        return self.handle(
            ev.TurnFailed(self.now, session, one.turn.id, number, one.decode, "error")
        )

    def dispatch_failed(self, session: str) -> list[Operation]:
        number, one = self.oldest(session)
        del self.open[number]
        where = self.plane.ledger.attempts[number].serving
        return self.handle(ev.DispatchFailed(self.now, one.turn, number, where, "lost"))

    def client_gone(self, session: str) -> list[Operation]:
        """The client of the session's waiting turn leaves, or else of its oldest in flight."""
        waiting = self.plane.ledger.session_states[session].waiting
        if waiting:
            return self.handle(ev.ClientGone(self.now, session, waiting[0].id, None, None))
        number, one = self.oldest(session)
        del self.open[number]
        where = self.plane.ledger.attempts[number].serving
        return self.handle(ev.ClientGone(self.now, session, one.turn.id, number, where))

    def tool(self, session: str, *names: str) -> list[Operation]:
        signals = tuple(ToolSignal(name) for name in names)
        return self.handle(ev.ToolStarted(self.now, session, signals))

    def close(self, session: str) -> list[Operation]:
        return self.handle(ev.SessionClosed(self.now, session, "done"))

    def lose(self, name: str) -> list[Operation]:
        """The replica goes; its turns fail one by one right after."""
        operations = self.handle(ev.ReplicaLost(self.now, name, "crashed"))
        attempts = self.plane.ledger.attempts
        hit = [n for n, attempt in attempts.items() if name in (attempt.serving, attempt.decode)]
        for number in hit:
            turn, started = self.open.pop(number).turn, attempts[number].first_token_seen
            if started:
                failed: ev.Event = ev.TurnFailed(
                    self.now, turn.session, turn.id, number, name, "crashed"
                )
            else:
                failed = ev.DispatchFailed(self.now, turn, number, name, "crashed")
            operations += self.handle(failed)
        return operations

    def recover(self, name: str) -> list[Operation]:
        return self.handle(ev.ReplicaRecovered(self.now, name))

    def sampled(self, name: str, sample: ReplicaSample) -> list[Operation]:
        return self.handle(ev.ReplicaSampled(self.now, name, sample))

    def advance(self, seconds: float) -> list[Operation]:
        """Let time pass: pending solves are answered at once, timers when due, in order."""
        end = self.now + round(seconds * NS)
        operations = self._answer()
        while self.timers and min(self.timers) <= end:
            self.now = min(self.timers)
            self.timers.remove(self.now)
            operations += self.handle(ev.Timer(self.now))
            operations += self._answer()
        self.now = end
        return operations

    def _answer(self) -> list[Operation]:
        operations: list[Operation] = []
        while self.solves:
            solve = self.solves.pop(0)
            plan = solve.solver(solve.snapshot)
            operations += self.handle(ev.PlanReady(self.now, solve.solve_id, plan))
        return operations

    def handle(self, event: ev.Event) -> list[Operation]:
        operations = self.plane.handle(event)
        for one in operations:
            if isinstance(one, Dispatch):
                self.open[one.attempt] = one
            elif isinstance(one, Refuse):
                self.refused.append(one)
            elif isinstance(one, Solve):
                self.solves.append(one)
            elif isinstance(one, WakeAt) and one.time not in self.timers:
                self.timers.append(one.time)
        return operations

    def oldest(self, session: str) -> tuple[int, Dispatch]:
        return next(pair for pair in self.open.items() if pair[1].turn.session == session)
