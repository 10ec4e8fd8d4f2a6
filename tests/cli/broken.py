"""Schedulers that break the contract, each in its own way. Loaded by path, as a user's file is."""

from __future__ import annotations

import os
import random
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path

from schedulers.base import AdmissionScheduler, RoutingScheduler, SchedulerInfo
from schedulers.commands import Command, Hold, Reject, Route
from schedulers.events import Event, TurnArrived
from schedulers.types import Turn
from schedulers.views import ClusterView

INFO = SchedulerInfo("test", "nothing", True, "inferred", "tests")


class Loses(AdmissionScheduler):
    """Says nothing about a turn of the third session."""

    name, info = "loses", INFO

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, TurnArrived) and event.turn.session != "s2":
            yield Route(event.turn.id, cluster.replicas[0].id)


class NeverWakes(AdmissionScheduler):
    """Holds every turn and never lets one go."""

    name, info = "never-wakes", INFO

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, TurnArrived):
            yield Hold(event.turn.id)


class NamesUnknown(RoutingScheduler):
    name, info = "names-unknown", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        return Route(turn.id, "r99")


class Raises(RoutingScheduler):
    """Fails on the second turn of a session."""

    name, info = "raises", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        if turn.index == 1:
            raise KeyError("gone")
        return Route(turn.id, cluster.replicas[0].id)


class Exits(RoutingScheduler):
    name, info = "exits", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        sys.exit("enough")


class Interrupts(RoutingScheduler):
    name, info = "interrupts", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        raise KeyboardInterrupt


class CountsWords(RoutingScheduler):
    name, info = "counts-words", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        return Route(turn.id, "r0")

    def counters(self) -> dict[str, float]:
        return {"turns": "many"}  # type: ignore[dict-item]


class LeavesThreads(RoutingScheduler):
    """Starts a thread that outlives the cell; draws from the global generators."""

    name, info = "leaves-threads", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        if turn.index == 0:
            threading.Thread(target=time.sleep, args=(3600,)).start()
        replicas = {replica.id for replica in cluster.replicas}
        return Route(turn.id, random.choice([*replicas, "r0"]))


class Crashes(RoutingScheduler):
    """Takes its process down, as a fault in native code would."""

    name, info = "crashes", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError


class RejectsAll(AdmissionScheduler):
    name, info = "rejects-all", INFO

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, TurnArrived):
            yield Reject(event.turn.id, "no")


class Slow(RoutingScheduler):
    """Takes its time over every turn, so that a test can stop the run in the middle of a cell.

    Leaves the number of its process in the file `slow.pid`.
    """

    name, info = "slow", INFO

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        Path("slow.pid").write_text(str(os.getpid()))
        time.sleep(float(os.environ.get("SLOW_S", "0")))
        return Route(turn.id, cluster.replicas[turn.index % 2].id)
