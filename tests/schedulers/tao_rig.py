"""What tests of TAO share: one on a fake cluster, and what its commands say."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from schedulers.commands import Command, Pause, Resume, Solve
from schedulers.registry import create
from schedulers.tao import Tao
from tests.schedulers.fake_cluster import Driver, FakeCluster


def tao(settings: Mapping[str, object] | None = None) -> Tao:
    scheduler = create("tao", settings)
    assert isinstance(scheduler, Tao)
    return scheduler


def setup(
    capacities: Mapping[str, int | None], **settings: object
) -> tuple[Driver, FakeCluster, Tao]:
    cluster, scheduler = FakeCluster(capacities), tao(settings)
    return Driver(scheduler, cluster), cluster, scheduler


def resumed(commands: Iterable[Command]) -> list[tuple[str, str]]:
    return [(c.session, c.replica) for c in commands if isinstance(c, Resume)]


def paused(commands: Iterable[Command]) -> list[str]:
    return [c.session for c in commands if isinstance(c, Pause)]


def solves(commands: Iterable[Command]) -> list[Solve]:
    return [c for c in commands if isinstance(c, Solve)]
