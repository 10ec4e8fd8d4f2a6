"""Full disaggregation: every turn prefills on the prefill pool and is sent over to decode.

The prefill replica is the one with the least prefill work left, this prompt's uncached part
included; the decode replica has the fewest turns in flight, or the session's last one.
Without a healthy prefill replica the decode replica prefills itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Literal

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.pools import by_id, least_in_flight, prefillers, serving, uncached_tokens
from schedulers.types import Turn
from schedulers.views import ClusterView, ReplicaView


@dataclass(frozen=True, slots=True)
class DisaggregatedConfig:
    decode: Literal["least-loaded", "sticky"] = "least-loaded"
    "Choice of the decode replica per turn. The papers do not say (our choice)."

    def __post_init__(self) -> None:
        if self.decode not in ("least-loaded", "sticky"):
            raise ValueError(f"decode is {self.decode!r}, not least-loaded or sticky")


class Disaggregated(RoutingScheduler):
    name = "disaggregated"
    info = SchedulerInfo(
        family="disaggregation",
        observes="queued prefill tokens, cached prefix, turns in flight",
        holds=False,
        fidelity="inferred",
        reference="baseline of ConServe, arXiv 2606.01839",
    )
    Config = DisaggregatedConfig
    config: DisaggregatedConfig

    def __init__(
        self, config: DisaggregatedConfig | None = None, rng: Random | None = None
    ) -> None:
        super().__init__(config, rng)
        self._transfers = 0

    def counters(self) -> dict[str, float]:
        return {"kv_transfers": float(self._transfers)}

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        decoders, pool = serving(cluster), prefillers(cluster)
        decode = least_in_flight(decoders)
        if self.config.decode == "sticky":
            last = by_id(decoders, cluster.sessions[turn.session].last_replica)
            decode = last or decode
        if not pool:
            return Route(turn.id, decode.id, why="one pool is left")

        def work(replica: ReplicaView) -> int:
            return replica.queued_prefill_tokens + uncached_tokens(cluster, turn, replica)

        prefill = min(pool, key=work)
        self._transfers += 1
        return Route(turn.id, decode.id, prefill=prefill.id, why=f"{work(prefill)} tokens ahead")
