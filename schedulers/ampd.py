"""AMPD: at each turn, prefill on the bound decoder or on a prefill worker?

A session is bound at its first turn to the decode worker with the least memory in use, which
keeps its KV. With T_pre from a quadratic model, T_kv linear:
T_local     = queue(decoder) + T_pre
T_remote(p) = queue(p) + T_pre + T_kv(what the decoder lacks)
harm        = T_pre / mean output: the stall, as a rise of each running turn's mean ITL
local if ITL + harm <= ITL objective and T_local <= least T_remote
else the prefill worker of least T_remote, if that meets the TTFT objective
else whatever has the least TTFT
Prefill order: least slack first, SLO - T_pre; those that cannot make it, last (as the request's
priority; the engine must run its priority policy).

The paper's exact rule was not available: this is a stand-in of ours. `error_rate` flips the
decision at random, which makes it ConServe's baseline "disaggregation by prediction".
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from random import Random

from schedulers.base import RoutingScheduler, SchedulerInfo
from schedulers.commands import Route
from schedulers.events import Event, FirstToken, TurnFailed, TurnFinished
from schedulers.pools import by_id, prefillers, serving, uncached_tokens
from schedulers.types import NS, Turn
from schedulers.views import ClusterView, ReplicaView

LAST = 1_000_000
"""Priority of turns that cannot make their TTFT; slack is in milliseconds."""


@dataclass(frozen=True, slots=True)
class AmpdConfig:
    ttft_objective_s: float = 2.0
    "Our choice."
    itl_objective_s: float = 0.05
    "Our choice."
    window_s: float = 10.0
    "Over which a decoder's ITL is averaged. A reading note of the paper."
    prefill_base_s: float = 0.066
    "T_pre = base + linear k + square k^2, k thousand tokens. vLLM router, program scheduling."
    prefill_per_1k_s: float = 0.0570
    "As above."
    prefill_per_1k_squared_s: float = 0.00441
    "As above."
    kv_base_s: float = 0.001
    "Of T_kv (our choice)."
    kv_per_1k_s: float = 0.01
    "Of T_kv: about 256 KB a token at 25 GB/s (our choice)."
    mean_output_tokens: float = 200.0
    "Of a turn, until some have finished (our choice)."
    error_rate: float = 0.0
    "Chance that a decision is turned round."

    def __post_init__(self) -> None:
        if not 0 <= self.error_rate <= 1:
            raise ValueError(f"error_rate is {self.error_rate}, must lie between 0 and 1")
        if self.mean_output_tokens <= 0 or self.window_s <= 0:
            raise ValueError("mean_output_tokens and window_s must be positive")


class Ampd(RoutingScheduler):
    name = "ampd"
    info = SchedulerInfo(
        family="disaggregation",
        observes="queued prefill tokens, cached prefix, inter-token latency, pinned contexts",
        holds=False,
        fidelity="inferred",
        reference="AMPD, arXiv 2602.14516, by a reading note; the rule itself is ours",
    )
    Config = AmpdConfig
    config: AmpdConfig

    def __init__(self, config: AmpdConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._now = 0
        self._first_token: dict[str, int] = {}
        self._itl: dict[str, deque[tuple[int, float]]] = {}
        self._outputs = self._output_tokens = 0
        self._counts = dict.fromkeys(("local", "remote", "flipped"), 0)

    def counters(self) -> dict[str, float]:
        return {name: float(count) for name, count in self._counts.items()}

    def observe(self, event: Event, cluster: ClusterView) -> None:
        self._now = event.now
        if isinstance(event, FirstToken):
            self._first_token[event.turn_id] = event.now
        elif isinstance(event, TurnFinished):
            began = self._first_token.pop(event.turn_id, None)
            self._outputs += 1
            self._output_tokens += event.usage.output
            if began is not None and event.usage.output > 1:
                itl = (event.now - began) / NS / (event.usage.output - 1)
                self._itl.setdefault(event.replica, deque()).append((event.now, itl))
        elif isinstance(event, TurnFailed):
            self._first_token.pop(event.turn_id, None)

    def choose(self, turn: Turn, cluster: ClusterView) -> Route:
        decoder = self._bound(turn, cluster)
        pool = prefillers(cluster)
        local = self._local_s(turn, decoder, cluster)
        if not pool:
            return self._route(turn, decoder, None, self._prefill_s(turn, decoder, cluster), "")
        times = [self._remote_s(turn, p, decoder, cluster) for p in pool]
        remote = min(times)
        prefiller = pool[times.index(remote)]
        stays = self._stays_local(turn, decoder, local, remote, cluster)
        flipped = self.config.error_rate > 0 and self.rng.random() < self.config.error_rate
        self._counts["flipped"] += flipped
        why = f"local {local:.3f} s, remote {remote:.3f} s" + (", flipped" if flipped else "")
        if stays is not flipped:
            cost = self._prefill_s(turn, decoder, cluster)
            return self._route(turn, decoder, None, cost, why)
        cost = self._prefill_s(turn, prefiller, cluster)
        return self._route(turn, decoder, prefiller, cost, why)

    def _stays_local(
        self, turn: Turn, decoder: ReplicaView, local: float, remote: float, cluster: ClusterView
    ) -> bool:
        harm = self._prefill_s(turn, decoder, cluster) / self._mean_output()
        if self.itl_s(decoder.id) + harm <= self.config.itl_objective_s and local <= remote:
            return True
        return remote > self.config.ttft_objective_s and local <= remote

    def _bound(self, turn: Turn, cluster: ClusterView) -> ReplicaView:
        decoders = serving(cluster)
        bound = by_id(decoders, cluster.sessions[turn.session].last_replica)

        def memory(replica: ReplicaView) -> float:
            used = sum(cluster.tokens(session) for session in replica.sessions)
            return used / (replica.capacity_tokens or 1)

        return bound or min(decoders, key=memory)

    def _route(
        self,
        turn: Turn,
        decoder: ReplicaView,
        prefiller: ReplicaView | None,
        prefill_s: float,
        why: str,
    ) -> Route:
        self._counts["remote" if prefiller else "local"] += 1
        slack = self.config.ttft_objective_s - prefill_s
        priority = round(slack * 1000) if slack >= 0 else LAST
        where = prefiller.id if prefiller else None
        return Route(turn.id, decoder.id, where, annotations={"priority": priority}, why=why)

    # The model.

    def _local_s(self, turn: Turn, decoder: ReplicaView, cluster: ClusterView) -> float:
        return self._queue_s(decoder) + self._prefill_s(turn, decoder, cluster)

    def _remote_s(
        self, turn: Turn, prefiller: ReplicaView, decoder: ReplicaView, cluster: ClusterView
    ) -> float:
        lacking = uncached_tokens(cluster, turn, decoder) / 1000
        transfer = self.config.kv_base_s + self.config.kv_per_1k_s * lacking
        return self._queue_s(prefiller) + self._prefill_s(turn, prefiller, cluster) + transfer

    def _queue_s(self, replica: ReplicaView) -> float:
        return self.config.prefill_per_1k_s * replica.queued_prefill_tokens / 1000

    def _prefill_s(self, turn: Turn, replica: ReplicaView, cluster: ClusterView) -> float:
        """T_pre(history, increment): the quadratic term grows from history to the whole."""
        whole = turn.prompt.tokens / 1000
        new = uncached_tokens(cluster, turn, replica) / 1000
        square = whole * whole - (whole - new) ** 2
        config = self.config
        return (
            config.prefill_base_s
            + config.prefill_per_1k_s * new
            + config.prefill_per_1k_squared_s * square
        )

    def itl_s(self, decoder: str) -> float:
        """Mean inter-token latency over the window; 0 while nothing is known."""
        samples = self._itl.get(decoder)
        oldest = self._now - round(self.config.window_s * NS)
        while samples and samples[0][0] < oldest:
            samples.popleft()
        return sum(itl for _, itl in samples) / len(samples) if samples else 0.0

    def _mean_output(self) -> float:
        if not self._output_tokens:
            return self.config.mean_output_tokens
        return self._output_tokens / self._outputs
