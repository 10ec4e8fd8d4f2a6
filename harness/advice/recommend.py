"""A recommendation for one trace, in words that say how far it can be trusted."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from agentsched import UsageError
from harness.advice.levels import Levels, play
from harness.advice.place import Place, place_of
from harness.advice.regimes import MAP, TIE, Standing, load_map, standings
from harness.capacity import resolve_cluster
from harness.sim.settings import SimSettings
from workloads.catalog import load_workload

FAR = 2.0
"""Distance to the nearest regime beyond which the map says little. Our choice."""
CHECKED = 3
NEVER_SCARCE = 0.35
"""Working set over KV below which KV counts as not scarce: a replica would need about three times
its fair share of contexts. Our choice."""


@dataclass(frozen=True, slots=True)
class Advice:
    """What `advise` found. Standings and lines are in the order in which they are shown."""

    place: Place
    standings: tuple[Standing, ...]
    distance: float
    recommended: str
    lines: tuple[str, ...]
    checked: tuple[tuple[str, Levels], ...] = ()
    """(scheduler, levels) of the trace itself, simulated."""


def advise(
    trace: str,
    *,
    workers: int,
    model: str,
    topology: str,
    sessions: int | None = None,
    seed: int = 0,
    check: bool = False,
    path: Path = MAP,
) -> Advice:
    """Place a trace on the map and recommend.

    Args:
        trace: a shipped workload, or a native trace file.
        sessions: how many to read; None: all.
        check: also play the trace under the best `CHECKED` schedulers.

    Raises:
        UsageError: unknown workload, model or topology, or nothing in the trace fits.
        TraceError: the trace cannot be read.
    """
    cluster = resolve_cluster(model, topology)
    if any(replica.role != "mixed" for replica in cluster.replicas):
        raise UsageError(
            f"the map has no regimes with separate prefill replicas, as {topology} has",
            "compare with `agentsched run --topology ... --scheduler ...` instead",
        )
    played = load_workload(trace, sessions=sessions, seed=seed)
    place = place_of(played, cluster, workers)
    found, nearest = standings(place, load_map(path))
    advice = Advice(
        place, tuple(found), nearest, found[0].scheduler, tuple(_lines(place, found, nearest))
    )
    if not check:
        return advice
    sim = SimSettings()
    checked = []
    for one in found[:CHECKED]:
        levels, _ = play(played, cluster, one.scheduler, workers=workers, seed=seed, sim=sim)
        checked.append((one.scheduler, levels))
    checked.sort(key=lambda pair: pair[1].latency_mean)
    best = checked[0][0]
    line = f"Played on this traffic, simulated, one seed: {best} is best."
    return replace(advice, recommended=best, checked=tuple(checked), lines=(*advice.lines, line))


def _lines(place: Place, found: list[Standing], nearest: float) -> list[str]:
    best = found[0]
    tied = [one.scheduler for one in found[1:] if one.behind - best.behind <= TIE]
    lines = [
        f"Recommended: {best.scheduler}, best or tied in {best.best_share:.0%} of the regimes "
        f"around, at most {best.high:.1f} % behind there."
    ]
    if tied:
        lines.append(f"Within {TIE:g} % of it: {', '.join(tied)}.")
    if place.working_set_kv < NEVER_SCARCE:
        lines.append("KV is not scarce here: whatever keeps sessions where they are will do.")
    if nearest > FAR:
        lines.append(
            f"The nearest played regime is far ({nearest:.1f}): take this as a guess, and play "
            "the trace itself with --check."
        )
    return lines
