"""Headroom that observes wrongly, to see what each signal is worth."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from random import Random

from schedulers.headroom import Headroom, Rank
from schedulers.headroom_config import HeadroomConfig
from schedulers.headroom_room import Room, Union
from schedulers.types import PromptRef, Turn
from schedulers.views import ClusterView, ReplicaView, SessionView

Factor = Callable[[str, str], float]
"""(signal, session or replica) -> by how much it is off."""
SIGNALS = ("capacity", "context", "rate", "cached", "turns", "output")


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


class WrongUnion(Union):
    """Contexts seem to have other lengths than they have."""

    def __init__(self, prompts: Mapping[str, PromptRef], factor: Factor) -> None:
        super().__init__(prompts)
        self._factor = factor

    def adds(self, session: str, tokens: float) -> float:
        return super().adds(session, tokens * self._factor("context", session))


class WrongRoom(Room):
    """Room counted with the wrong capacity, or with contexts of other lengths."""

    def __init__(self, config: HeadroomConfig, factor: Factor) -> None:
        super().__init__(config.measure_capacity, config.share_text)
        self._factor = factor

    def reported(self, replica: ReplicaView) -> float:
        return super().reported(replica) * self._factor("capacity", replica.id)

    def union(self) -> Union:
        return WrongUnion(self._prompts, self._factor)


class WrongHeadroom(Headroom):
    """Same rules, one signal off by a factor that stays the same for a session or a replica."""

    name = "headroom-wrong"
    Config = WrongConfig
    config: WrongConfig

    def __init__(self, config: HeadroomConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self.room = WrongRoom(self.config, self._factor)

    def _factor(self, signal: str, key: str) -> float:
        if self.config.signal != signal:
            return 1.0
        up = Random(f"{signal}/{key}").random() < 0.5
        return 1 + self.config.error if up else 1 / (1 + self.config.error)

    def _uncached(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        lacks = super()._uncached(turn, replica, cluster)
        cached = turn.prompt.tokens - lacks
        believed = cached * self._factor("cached", f"{turn.session}/{replica.id}")
        return max(0.0, turn.prompt.tokens - believed)

    def _rank(self, session: SessionView, now: int) -> Rank:
        group, work, arrived, name = super()._rank(session, now)
        return group, round(work * self._factor("turns", session.id)), arrived, name

    def _turn_s(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        seconds = super()._turn_s(turn, replica, cluster)
        return seconds * self._factor("rate", replica.id) * self._factor("output", turn.session)
