"""SMetric's later, SLO-aware form: follow the cache only while it can answer in time.

meets_i = rate_i unknown  or  load_i / rate_i <= slack * (ttft0 + ttft1 * L / 1000)
stick if turn > 0 and c_prev > hit_ratio * H and (meets_prev or no replica meets)

rate_i is the 90th percentile of the last 64 observed cost / TTFT of replica i, once there are 8.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import ceil
from random import Random

from schedulers.base import SchedulerInfo
from schedulers.smetric import BYTES_PER_TOKEN, Candidate, Sent, SMetric, SMetricConfig
from schedulers.types import Turn


@dataclass(frozen=True, slots=True)
class SMetricSloConfig(SMetricConfig):
    slack: float = 1.0
    "vLLM router, smetric."
    ttft_base_s: float = 1.0
    "Time to first token allowed for an empty prompt (ttft0). vLLM router, smetric."
    ttft_per_1k_tokens_s: float = 0.0625
    "More for every 1,000 prompt tokens (ttft1). vLLM router, smetric."
    rate_percentile: float = 0.9
    "vLLM router, smetric. Nearest rank (our choice)."
    rate_window: int = 64
    "vLLM router, smetric."
    rate_min_samples: int = 8
    "vLLM router, smetric."


class SMetricSlo(SMetric):
    name = "smetric-slo"
    info = SchedulerInfo(
        family="cache and load",
        observes="prompt text, own queue of prefill work, turns in flight, time to first token",
        holds=False,
        fidelity="source code read",
        reference="vLLM router, src/policies/smetric.rs (later revision of arXiv 2607.08565)",
    )
    Config = SMetricSloConfig
    config: SMetricSloConfig

    def __init__(self, config: SMetricSloConfig | None = None, rng: Random | None = None) -> None:
        super().__init__(config, rng)
        self._rates: dict[str, deque[float]] = {}

    def may_stick(
        self, turn: Turn, prev: Candidate, candidates: Callable[[], Iterable[Candidate]]
    ) -> bool:
        return self._meets(turn, prev) or not any(self._meets(turn, c) for c in candidates())

    def observed(self, sent: Sent, seconds: float) -> None:
        # A fully cached prompt costs nothing and says nothing about speed (our choice).
        if sent.cost > 0 and seconds > 0:
            window = self._rates.setdefault(sent.replica, deque(maxlen=self.config.rate_window))
            window.append(sent.cost / seconds)

    def rate(self, replica_id: str) -> float | None:
        """Prefill tokens a second of the replica, or None while too few samples are known."""
        samples = sorted(self._rates.get(replica_id, ()))
        if len(samples) < self.config.rate_min_samples:
            return None
        return samples[ceil(self.config.rate_percentile * len(samples)) - 1]

    def _meets(self, turn: Turn, candidate: Candidate) -> bool:
        rate = self.rate(candidate.replica.id)
        if rate is None:
            return True
        length = turn.prompt.bytes / BYTES_PER_TOKEN
        allowed = self.config.ttft_base_s + self.config.ttft_per_1k_tokens_s * length / 1000
        return candidate.load / rate <= self.config.slack * allowed
