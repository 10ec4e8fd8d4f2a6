"""When sessions arrive that no worker takes up."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from workloads.model import Session

_LABEL = zlib.crc32(b"arrivals")


def poisson(sessions: Sequence[Session], rate_per_s: float, seed: int) -> list[Session]:
    """The sessions, arriving in their order as a Poisson process; sub-agents follow their parents.

    Args:
        rate_per_s: mean top-level sessions a second.
        seed: of the gaps. The same seed gives every rate the same gaps but for their scale, so
            rates are compared on common random numbers.

    Raises:
        ValueError: the rate is not above 0.
    """
    if not rate_per_s > 0:
        raise ValueError(f"rate_per_s is {rate_per_s}, must be above 0")
    rng = np.random.default_rng([seed, _LABEL])
    arrival = 0.0
    placed = []
    for session in sessions:
        if session.parent is None:
            arrival += float(rng.exponential()) / rate_per_s
            session = replace(session, arrival_s=arrival)
        placed.append(session)
    return placed
