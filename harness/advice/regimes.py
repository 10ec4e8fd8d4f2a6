"""The map: played cells, and what they say about a place that was not played."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from math import exp, log, log2
from pathlib import Path

from agentsched import UsageError
from harness.advice.place import Place

MAP = Path(__file__).parents[1] / "data" / "regimes.csv"
METRICS = ("latency_mean", "ttft_mean", "ttft_p95")
NEIGHBOURS = 6
TIE = 1.0
"""Percent within which two schedulers count as equal."""


@dataclass(frozen=True, slots=True)
class Cell:
    """One scheduler at one place under one seed."""

    asked: tuple[float, float, float, float]
    """The place asked for; cells of one regime have it in common."""
    place: Place
    scheduler: str
    seed: int
    levels: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Standing:
    """How far a scheduler is behind the best one, over the regimes around a place."""

    scheduler: str
    behind: float
    """Percent of mean task latency, weighted mean over neighbours and seeds."""
    low: float
    high: float
    """Smallest and largest among them: the spread is the uncertainty."""
    behind_p95: float
    """The same of p95 TTFT."""
    best_share: float
    """Weighted share of neighbours and seeds where it is within `TIE` percent of the best."""


def load_map(path: Path = MAP) -> list[Cell]:
    """Read a map.

    Raises:
        UsageError: no such file, or a column is missing or not a number.
    """
    if not path.exists():
        raise UsageError(f"there is no map at {path}", "make it with `python -m scripts.regimes`")
    cells = []
    with path.open(newline="", encoding="utf-8") as file:
        for line, row in enumerate(csv.DictReader(file), start=2):
            try:
                cells.append(_cell(row))
            except (KeyError, TypeError, ValueError) as error:
                raise UsageError(
                    f"{path}, line {line}: {error}", "make it with `python -m scripts.regimes`"
                ) from None
    return cells


def _cell(row: Mapping[str, str]) -> Cell:
    names = [field.name for field in fields(Place)]
    asked = [float(row[f"asked_{n}"]) for n in (names[0], names[1], "per_replica", names[3])]
    return Cell(
        asked=(asked[0], asked[1], asked[2], asked[3]),
        place=Place(*(float(row[name]) for name in names)),
        scheduler=row["scheduler"],
        seed=int(row["seed"]),
        levels={name: float(row[name]) for name in METRICS},
    )


def distance(one: Place, other: Place) -> float:
    """In doublings; the prefill share as odds."""

    def odds(share: float) -> float:
        kept = min(0.99, max(0.01, share))
        return log(kept / (1 - kept), 4)

    parts = (
        2 * log2(max(one.working_set_kv, 0.05) / max(other.working_set_kv, 0.05)),
        log(max(one.tool_model, 0.05) / max(other.tool_model, 0.05), 3),
        log(one.workers_per_replica / other.workers_per_replica, 3),
        odds(one.prefill_share) - odds(other.prefill_share),
    )
    return float(sum(part * part for part in parts) ** 0.5)


def standings(place: Place, cells: Sequence[Cell]) -> tuple[list[Standing], float]:
    """Every scheduler of the map around a place, the least behind first, and the distance to the
    nearest regime.

    Raises:
        UsageError: the map is empty.
    """
    groups: dict[tuple[object, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault((cell.asked, cell.seed), []).append(cell)
    if not groups:
        raise UsageError("the map is empty", "make it with `python -m scripts.regimes`")
    near = sorted(groups.values(), key=lambda group: distance(place, group[0].place))
    seeds = len({cell.seed for cell in cells})
    near = near[: NEIGHBOURS * seeds]
    nearest = distance(place, near[0][0].place)
    weights = [exp(-0.5 * (distance(place, group[0].place) - nearest)) for group in near]
    found = []
    for name in dict.fromkeys(cell.scheduler for group in near for cell in group):
        gaps, gaps95, shares = [], [], []
        for group in near:
            gap = _behind(name, group, "latency_mean")
            gaps.append(gap)
            gaps95.append(_behind(name, group, "ttft_p95"))
            shares.append(float(gap <= TIE))
        found.append(
            Standing(
                name,
                _mean(gaps, weights),
                min(gaps),
                max(gaps),
                _mean(gaps95, weights),
                _mean(shares, weights),
            )
        )
    return sorted(found, key=lambda one: one.behind), nearest


def _behind(name: str, group: Sequence[Cell], metric: str) -> float:
    best = min(cell.levels[metric] for cell in group)
    own = next(cell.levels[metric] for cell in group if cell.scheduler == name)
    return 100 * (own - best) / best if best > 0 else 0.0


def _mean(values: Sequence[float], weights: Sequence[float]) -> float:
    return sum(v * w for v, w in zip(values, weights, strict=True)) / sum(weights)
