"""When sessions arrive that no worker takes up."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from agentsched import UsageError
from workloads.model import Session

_LABEL = zlib.crc32(b"arrivals")
PROCESSES = ("poisson", "gamma", "recorded")
"""Names that `place` knows."""


def poisson(sessions: Sequence[Session], rate_per_s: float, seed: int) -> list[Session]:
    """The sessions, arriving in their order as a Poisson process; sub-agents follow their parents.

    Args:
        rate_per_s: mean top-level sessions a second.
        seed: of the gaps. The same seed gives every rate the same gaps but for their scale, so
            rates are compared on common random numbers.

    Raises:
        ValueError: the rate is not above 0.
    """
    rng = np.random.default_rng([seed, _LABEL])
    return _renewal(sessions, rate_per_s, lambda: float(rng.exponential()))


def gamma(
    sessions: Sequence[Session], rate_per_s: float, seed: int, variation: float
) -> list[Session]:
    """As `poisson`, with gaps of a Gamma law: bursts and lulls where they vary more.

    Args:
        rate_per_s, seed: as for poisson.
        variation: standard deviation of the gaps over their mean; 1 is as bursty as Poisson, 3
            bursty, 0 even. Load generators call 1 / variation**2 burstiness.

    Raises:
        ValueError: the rate is not above 0, or the variation below 0.
    """
    if not 0 <= variation <= 100:
        raise ValueError(f"variation is {variation}, must be from 0 to 100")
    rng = np.random.default_rng([seed, _LABEL])
    if variation == 0:
        return _renewal(sessions, rate_per_s, lambda: 1.0)
    shape = 1 / variation**2
    return _renewal(sessions, rate_per_s, lambda: float(rng.gamma(shape)) / shape)


def recorded(sessions: Sequence[Session], rate_per_s: float | None = None) -> list[Session]:
    """The sessions, arriving as they were recorded, the first at 0.

    Args:
        rate_per_s: mean top-level sessions a second that the recording is sped up or slowed down
            to; None: as fast as recorded.

    Raises:
        UsageError: a top-level session has no recorded arrival, or the rate cannot be reached.
    """
    times = [session.arrival_s for session in sessions if session.parent is None]
    known = [time for time in times if time is not None]
    if len(known) < len(times) or not known:
        raise UsageError(
            f"{len(times) - len(known)} of {len(times)} sessions have no recorded arrival",
            "use a trace with arrival_s, or let them arrive as poisson",
        )
    first, span = min(known), max(known) - min(known)
    scale = 1.0
    if rate_per_s is not None:
        if not rate_per_s > 0 or not span:
            raise UsageError(
                f"recorded arrivals cannot be brought to {rate_per_s} sessions/s",
                "give a rate above 0, and sessions that did not all arrive at once",
            )
        scale = (len(known) - 1) / rate_per_s / span
    return [
        session
        if session.arrival_s is None
        else replace(session, arrival_s=round((session.arrival_s - first) * scale, 9))
        for session in sessions
    ]


def place(
    sessions: Sequence[Session],
    process: str,
    rate_per_s: float | None,
    seed: int,
    *,
    variation: float = 3.0,
) -> list[Session]:
    """The sessions with arrivals of a process.

    Args:
        process: `poisson`, `gamma` (bursty, with `variation`), or `recorded`.
        rate_per_s: mean top-level sessions a second; None only for recorded arrivals.
        seed: of the gaps.

    Raises:
        UsageError: unknown process, no rate, or no recorded arrivals.
    """
    if process == "recorded":
        return recorded(sessions, rate_per_s)
    if process not in PROCESSES:
        raise UsageError(f"unknown arrivals {process!r}", f"use one of: {', '.join(PROCESSES)}")
    if rate_per_s is None or not rate_per_s > 0 or not 0 <= variation <= 100:
        raise UsageError(
            f"{process} arrivals at a rate of {rate_per_s} with variation {variation}",
            "give sessions a second above 0, and a variation from 0 to 100",
        )
    if process == "poisson":
        return poisson(sessions, rate_per_s, seed)
    return gamma(sessions, rate_per_s, seed, variation)


def _renewal(
    sessions: Sequence[Session], rate_per_s: float, gap: Callable[[], float]
) -> list[Session]:
    """Arrivals with independent gaps of mean 1 / rate."""
    if not rate_per_s > 0:
        raise ValueError(f"rate_per_s is {rate_per_s}, must be above 0")
    arrival = 0.0
    placed = []
    for session in sessions:
        if session.parent is None:
            arrival += gap() / rate_per_s
            session = replace(session, arrival_s=arrival)
        placed.append(session)
    return placed
