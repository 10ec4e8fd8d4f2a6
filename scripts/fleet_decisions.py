"""What a routing decision costs with up to 1,000 replicas and 100,000 live sessions, alone.

    python -m scripts.fleet_decisions [--schedulers smetric ...] [--replicas 10 100 1000]

Events go straight to the control plane: no engine is simulated (scripts/fleet_size.py does that,
and takes minutes). A hundred sessions a replica send their first turn one after another; then
randomly drawn ones get a first token, end their turn and send the next, until each has had one
more turn in the mean. At any time every session has a turn in flight, so all are live.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from harness.control.ledger import ReplicaConfig
from harness.control.operations import Dispatch
from harness.control.plane import ControlPlane
from harness.control.records import Capacity
from schedulers import events as ev
from schedulers.registry import find
from schedulers.types import PromptRef, PromptRun, Turn, Usage
from scripts.fleet_size import GOAL_US, Watch, crowd, timed
from workloads.model import Prompt, PromptBuilder, Session

LIVE_PER_REPLICA = 100
GAP_NS = 100_000
"""Between two events."""
DEFAULT = ["round-robin", "least-loaded", "cache-aware", "smetric"]


@dataclass(frozen=True, slots=True)
class Point:
    """Mean CPU time of a decision in microseconds."""

    scheduler: str
    replicas: int
    sessions: int
    first_us: float
    """Of first turns, while the fleet fills."""
    later_us: float


class Crowd:
    """Sessions that send turn after turn through one control plane."""

    def __init__(self, plane: ControlPlane, sessions: Sequence[Session]) -> None:
        self._plane, self._now = plane, 0
        self._sessions = {one.id: one for one in sessions}
        self._prompts: dict[str, Iterator[Prompt]] = {
            one.id: PromptBuilder(one).prompts() for one in sessions
        }
        self._sent: dict[str, tuple[Turn, Dispatch]] = {}
        self._counts = dict.fromkeys(self._sessions, 0)

    def send(self, session: str) -> None:
        """Its next turn."""
        number = self._counts[session]
        self._counts[session] = number + 1
        made = next(self._prompts[session])
        runs = tuple(PromptRun(*segment) for segment in made.segments)
        turn = Turn(
            f"{session}/{number}", session, number, PromptRef(runs, made.assistant_messages)
        )
        self._now += GAP_NS
        (dispatch,) = self._plane.handle(ev.TurnArrived(self._now, turn))
        assert isinstance(dispatch, Dispatch)
        self._sent[session] = turn, dispatch

    def finish(self, session: str) -> None:
        """The turn that it has in flight."""
        turn, sent = self._sent[session]
        about = (session, turn.id, sent.attempt, sent.decode)
        output = self._sessions[session].turns[turn.index].output_tokens
        self._plane.handle(ev.FirstToken(self._now, *about))
        usage = Usage(turn.prompt.tokens, None, output)
        self._plane.handle(ev.TurnFinished(self._now, *about, usage))

    def may_go_on(self, session: str) -> bool:
        return self._counts[session] < len(self._sessions[session].turns)


def measure(scheduler: str, replicas: int) -> Point:
    watch = Watch()
    configs = [ReplicaConfig(f"r{i}", "mixed", Capacity(500_000)) for i in range(replicas)]
    plane = ControlPlane(timed(find(scheduler), watch)(), configs, lambda attempt, now: 0)
    sessions = crowd(LIVE_PER_REPLICA * replicas, 4)
    clients = Crowd(plane, sessions)
    for one in sessions:
        clients.send(one.id)
    first = watch.ns / watch.count / 1e3
    watch.ns = watch.count = 0
    rng = random.Random(0)
    while watch.count < len(sessions):
        session = sessions[rng.randrange(len(sessions))].id
        if clients.may_go_on(session):
            clients.finish(session)
            clients.send(session)
    return Point(scheduler, replicas, watch.most_open, first, watch.ns / watch.count / 1e3)


def row(point: Point) -> str:
    return (
        f"| {point.scheduler} | {point.replicas:,} | {point.sessions:,} "
        f"| {point.first_us:.1f} | {point.later_us:.1f} |"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--schedulers", nargs="*", default=DEFAULT)
    parser.add_argument("--replicas", nargs="*", type=int, default=[10, 100, 1000])
    given = parser.parse_args(arguments)
    print("| scheduler | replicas | live sessions | us, first turns | us, later turns |")
    print("|---|---:|---:|---:|---:|")
    points = []
    for name in given.schedulers:
        for replicas in given.replicas:
            points.append(measure(name, replicas))
            print(row(points[-1]), flush=True)
    slow = [p for p in points if (p.first_us + p.later_us) / 2 >= GOAL_US]
    print("\n".join(f"{p.scheduler}: over {GOAL_US:.0f} us with {p.replicas:,}" for p in slow))
    raise SystemExit(3 if slow else 0)


if __name__ == "__main__":
    main()
