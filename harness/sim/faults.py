"""Failures of a simulated cluster: single ones, and seeded scenarios of many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from random import Random

from agentsched import UsageError

KINDS = ("lost", "recovered", "metrics-stop", "metrics-resume", "slow", "normal")
_ENDS = {"lost": "recovered", "metrics-stop": "metrics-resume", "slow": "normal"}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that happens to a replica at a time of the run (seconds)."""

    at_s: float
    replica: str
    kind: str
    """`lost`: gone with its KV; `recovered`: back, empty; `metrics-stop` / `metrics-resume`;
    `slow`: every step takes `factor` times as long, from the next one on, until `normal`."""
    factor: float = 2.0
    """Of `slow`. Our choice."""

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise ValueError(f"kind is `{self.kind}`, not one of {', '.join(KINDS)}")
        if not self.at_s >= 0:
            raise ValueError("at_s must not be negative")
        if not self.factor >= 1:
            raise ValueError("factor must be at least 1")


def check_faults(faults: Sequence[Fault], replicas: Sequence[str]) -> None:
    """Raises UsageError where a fault names a replica that is not there."""
    for fault in faults:
        if fault.replica not in replicas:
            raise UsageError(
                f"a fault names replica `{fault.replica}`", f"replicas: {', '.join(replicas)}"
            )


@dataclass(frozen=True, slots=True)
class FaultScenario:
    """Failures at random, the same for the same seed.

    One replica at a time is concerned: the next failure starts after the last has ended. Gaps and
    durations are exponential; kind and replica are drawn evenly. All values are our choice.
    """

    seed: int = 0
    mean_gap_s: float = 600.0
    mean_duration_s: float = 60.0
    kinds: tuple[str, ...] = ("lost", "slow", "metrics-stop")
    factor: float = 2.0
    """Of `slow`."""
    until_s: float = 36_000.0
    """No failure starts later."""

    def __post_init__(self) -> None:
        for name in ("mean_gap_s", "mean_duration_s", "until_s"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be above 0")
        if not self.factor >= 1:
            raise ValueError("factor must be at least 1")
        if not self.kinds or not set(self.kinds) <= set(_ENDS):
            raise ValueError(f"kinds must be some of {', '.join(_ENDS)}")

    def faults(self, replicas: Sequence[str]) -> Iterator[Fault]:
        """The failures of a cluster of these replicas, in order of time."""
        rng = Random(f"faults {self.seed}")
        now = rng.expovariate(1 / self.mean_gap_s)
        while now <= self.until_s:
            kind, replica = rng.choice(self.kinds), rng.choice(replicas)
            end = now + rng.expovariate(1 / self.mean_duration_s)
            yield Fault(now, replica, kind, self.factor)
            yield Fault(end, replica, _ENDS[kind])
            now = end + rng.expovariate(1 / self.mean_gap_s)
