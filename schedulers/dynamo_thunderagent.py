"""Dynamo's port of ThunderAgent, with watermarks and soft demotion.

used(L) = undecayed tokens on L + 100 a session, C the capacity
pause    if used > 0.95 C, down to 0.80 C
resume   while used stays at or below 0.85 C
demote   0.80 C < used <= 0.95 C: the sessions that would be paused next run later for 1.5 rounds
A new session goes to the least decayed load among the replicas where it fits under 0.95 C.
A turn forced in goes to the most decayed room; a session whose replica is lost and that fits
nowhere passes without a place instead of waiting.

Priorities follow the engine's sense, lower runs first: Dynamo's -2.0 for demoted turns is +2
here, its +1.0 for resumed ones -1. Marking ends only when all are marked, as in the port.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from schedulers.accounts import Account
from schedulers.base import SchedulerInfo
from schedulers.commands import NO_ANNOTATIONS, Command, Route
from schedulers.pools import serving
from schedulers.thunderagent import Annotations, ThunderAgent, ThunderAgentConfig
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class DynamoThunderAgentConfig(ThunderAgentConfig):
    count_future_pauses: bool = False
    "The port marks as the original does."
    aging_s: float = 0.0
    "The port has none."
    lease_idle_s: float = 0.0
    "The port has none."
    pause_above: float = 0.95
    "thunderagent_router."
    pause_to: float = 0.80
    "thunderagent_router."
    resume_up_to: float = 0.85
    "thunderagent_router: 0.95 less a hysteresis of 0.10."
    demote_rounds: float = 1.5
    "thunderagent_router."
    decay_tau_s: float = 1.0
    "Acting tokens halve in this time, for ranking only. thunderagent_router."
    max_running: int = 0
    "Most reasoning sessions on a replica that a new or resumed one may join; 0: no limit."

    def __post_init__(self) -> None:
        ThunderAgentConfig.__post_init__(self)
        if not 0 < self.pause_to <= self.resume_up_to <= self.pause_above:
            raise ValueError("needs 0 < pause_to <= resume_up_to <= pause_above")


class DynamoThunderAgent(ThunderAgent):
    name = "dynamo-thunderagent"
    info = SchedulerInfo(
        family="admission",
        observes="context tokens, phase, capacity",
        holds=True,
        fidelity="source code read",
        reference="ai-dynamo/dynamo at 08cda65, components thunderagent_router",
    )
    Config = DynamoThunderAgentConfig
    config: DynamoThunderAgentConfig
    resume_annotations: ClassVar[Annotations] = {"priority": -1}

    def __init__(
        self, config: DynamoThunderAgentConfig | None = None, rng: Random | None = None
    ) -> None:
        super().__init__(config, rng)
        self._demoted_until: dict[str, int] = {}

    def stay_annotations(self, account: Account, now: int) -> Annotations:
        demoted = self._demoted_until.get(account.session, 0) > now
        return {"priority": 2} if demoted else NO_ANNOTATIONS

    def roomiest(self, account: Account, now: int, cluster: ClusterView) -> ReplicaView | None:
        needed = account.tokens + self.config.buffer_tokens
        fitting = [
            r
            for r in serving(cluster)
            if self._room(r, self.config.pause_above, cluster) >= needed and self.may_join(r)
        ]
        return min(fitting, key=lambda r: self._decayed(r, now, cluster), default=None)

    def displaced(
        self, account: Account, turn: Turn, now: int, cluster: ClusterView
    ) -> Iterator[Command]:
        replicas = serving(cluster)
        replica = self.roomiest(account, now, cluster)
        alone = len(cluster.sessions[turn.session].waiting) == 1
        if replica is not None:
            yield from self.resume(account, replica.id, cluster, "its replica is lost")
        elif replicas and alone:
            self.accounts.close(account)
            least = min(replicas, key=lambda r: self._decayed(r, now, cluster))
            yield Route(turn.id, least.id, why="its replica is lost, passes without a place")
        else:
            yield from super().displaced(account, turn, now, cluster)

    def resume_room(self, replica: ReplicaView, now: int, cluster: ClusterView) -> float:
        return self._room(replica, self.config.resume_up_to, cluster)

    def relieve(self, replica: ReplicaView, now: int, cluster: ClusterView) -> Iterator[Command]:
        yield from super().relieve(replica, now, cluster)
        over = -self._room(replica, self.config.pause_to, cluster)
        until = now + round(self.config.demote_rounds * self.config.interval_s * NS)
        acting = [a for a in self.accounts.on(replica.id) if not a.reasoning]
        for account in sorted(acting, key=lambda a: a.tokens):
            if over <= 0:
                return
            over -= account.tokens + self.config.buffer_tokens
            self._demoted_until[account.session] = until

    def excess(self, replica: ReplicaView, cluster: ClusterView) -> float:
        if self._room(replica, self.config.pause_above, cluster) >= 0:
            return 0.0
        return -self._room(replica, self.config.pause_to, cluster)

    def forced_place(self, account: Account, now: int, cluster: ClusterView) -> str | None:
        def room(replica: ReplicaView) -> float:
            return self.accounts.remaining(replica, self._decayed(replica, now, cluster))

        best = max(serving(cluster), key=room, default=None)
        return best.id if best else None

    def _room(self, replica: ReplicaView, share: float, cluster: ClusterView) -> float:
        """Tokens left below the share of the capacity; infinite if that is unknown."""
        capacity = replica.capacity_tokens or 0
        return self.remaining(replica, cluster) - (capacity - round(share * capacity))

    def _decayed(self, replica: ReplicaView, now: int, cluster: ClusterView) -> float:
        return self.accounts.active_decayed(replica, cluster, now, self.config.decay_tau_s)

    def may_join(self, replica: ReplicaView) -> bool:
        running = sum(a.reasoning for a in self.accounts.on(replica.id))
        return not self.config.max_running or running < self.config.max_running
