"""A mix of workloads, generated or recorded, drawn by weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from agentsched import UsageError
from workloads.catalog import load_workload
from workloads.model import Session

_LABEL = 0x6D6978


def mixed_sessions(weights: Mapping[str, float], sessions: int, seed: int) -> list[Session]:
    """Top-level sessions of several workloads, in random order, each followed by its sub-agents.

    Every place is drawn by weight; the k-th session of a workload is the k-th that it has for this
    seed. Sessions keep their names, and their recorded arrivals.

    Args:
        weights: by workload name or trace file; above 0 in sum.
        sessions: how many, all workloads together.
        seed: of the draws and of each workload.

    Raises:
        UsageError: unknown workload, or no weight above 0.
        TraceError: a trace file cannot be read.
    """
    names = [name for name, weight in weights.items() if weight > 0]
    if not names:
        raise UsageError("all weights of the mix are 0", "give one of them more")
    shares = np.array([weights[name] for name in names])
    rng = np.random.default_rng([seed, _LABEL])
    drawn = rng.choice(len(names), size=sessions, p=shares / shares.sum()).tolist()
    families: dict[int, list[list[Session]]] = {}
    for index, name in enumerate(names):
        count = drawn.count(index)
        families[index] = _families(load_workload(name, sessions=count, seed=seed)) if count else []
    taken = dict.fromkeys(families, 0)
    result: list[Session] = []
    for index in drawn:
        result.extend(families[index][taken[index]])
        taken[index] += 1
    return result


def _families(found: list[Session]) -> list[list[Session]]:
    """Each top-level session with the sub-agents that follow it."""
    families: list[list[Session]] = []
    for session in found:
        if session.parent is None:
            families.append([session])
        else:
            families[-1].append(session)
    return families
