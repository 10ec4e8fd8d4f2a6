"""Headroom that observes wrongly, to see what each signal is worth."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from schedulers.headroom import Headroom, HeadroomConfig, Rank
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView, SessionView

SIGNALS = ("context", "rate", "cached", "turns", "output")


@dataclass(frozen=True, slots=True)
class WrongConfig(HeadroomConfig):
    signal: str = "context"
    "Which signal is wrong: one of SIGNALS."
    error: float = 0.0
    "Each value is multiplied by 1 + error or divided by it, for each session or replica by chance."

    def __post_init__(self) -> None:
        HeadroomConfig.__post_init__(self)
        if self.signal not in SIGNALS:
            raise ValueError(f"signal is {self.signal!r}, not one of {', '.join(SIGNALS)}")


class WrongHeadroom(Headroom):
    """Same rules, one signal off by a factor that stays the same for a session or a replica."""

    name = "headroom-wrong"
    Config = WrongConfig
    config: WrongConfig

    def _factor(self, signal: str, key: str) -> float:
        if self.config.signal != signal:
            return 1.0
        up = Random(f"{signal}/{key}").random() < 0.5
        return 1 + self.config.error if up else 1 / (1 + self.config.error)

    def _used(
        self, replica: ReplicaView, me: SessionView, now: int, cluster: ClusterView, everyone: bool
    ) -> float:
        used = super()._used(replica, me, now, cluster, everyone)
        return used * self._factor("context", replica.id)

    def _uncached(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        lacks = super()._uncached(turn, replica, cluster)
        cached = turn.prompt.tokens - lacks
        believed = cached * self._factor("cached", f"{turn.session}/{replica.id}")
        return max(0.0, turn.prompt.tokens - believed)

    def _rank(self, session: SessionView, now: int) -> Rank:
        group, turns, arrived, name = super()._rank(session, now)
        return group, round(turns * self._factor("turns", session.id)), arrived, name

    def _turn_s(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        seconds = super()._turn_s(turn, replica, cluster)
        return seconds * self._factor("rate", replica.id) * self._factor("output", turn.session)
