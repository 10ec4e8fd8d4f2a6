"""Published figures, and the verdict when ours stand beside them."""

from __future__ import annotations

import csv
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Literal, cast

from results.statistics import Interval

Kind = Literal["relative", "direction", "absolute", "bound", "count", "parameter"]
Verdict = Literal[
    "reproduced",
    "direction only",
    "inconclusive",
    "not reproduced",
    "contradicted",
    "not testable",
    "shown",
]

VERDICTS: dict[Verdict, str] = {
    "reproduced": "same sign, interval clear of zero, and within the size tolerance of the "
    "published value or inside its range",
    "direction only": "same sign, interval clear of zero, another size; the best there is where "
    "assumed constants decide the size",
    "inconclusive": "the interval covers zero, or there are too few seeds for one",
    "not reproduced": "opposite sign, under our reading of a summary; or a level outside tolerance",
    "contradicted": "opposite sign, where our scheduler follows the paper's text or source code",
    "not testable": "the reason is given",
    "shown": "a bound or a parameter: passes trivially, not counted",
}

SIZE_TOLERANCE = 0.30
"""A figure within 30 % of the published one counts as the same size."""


@dataclass(frozen=True, slots=True)
class Claim:
    """One published figure; columns as described in results/data/README.md."""

    id: str
    paper: str
    kind: Kind
    model: str | None
    topology: str | None
    workload: str | None
    workers: tuple[int, ...]
    scheduler: str | None
    comparator: str | None
    metric: str
    low: float | None
    high: float | None
    unit: str
    note: str

    def fits_topology(self, name: str) -> bool:
        """Whether one of our topologies, by its name, is the one of the claim.

        `4 nodes x 2xH100` is our `4x2xh100`, `A40: 300 W prefiller, 200 W decoders` any of ours
        that ends in `a40-300w-200w`, and `A40 cluster` any of ours on A40 alone without power
        limits.
        """
        text = self.topology or ""
        if nodes := re.match(r"(\d+) nodes? x (\d+)x(\w+)", text):
            return name == "x".join(nodes.groups()).lower()
        if limits := re.match(r"(\w+): (\d+) W \w+, (\d+) W", text):
            return name.endswith("{}-{}w-{}w".format(*limits.groups()).lower())
        if cluster := re.fullmatch(r"(\w+) cluster", text):
            return name.endswith(cluster[1].lower())
        return not text or name == text

    @property
    def counted(self) -> bool:
        return self.kind not in ("bound", "parameter")

    def text(self) -> str:
        """The figure as a table shows it, e.g. `+12.9…29.9 %` or `better`."""
        if self.kind == "direction":
            return "better"
        sign = "+" if self.kind in ("relative", "bound") and self.unit in ("percent", "pp") else ""
        unit = {"percent": " %", "count": ""}.get(self.unit, f" {self.unit}")
        if self.low is None or self.high is None:
            known = self.high if self.low is None else self.low
            return f"{'≤' if self.low is None else '≥'} {known:{sign}g}{unit}"
        if self.low == self.high:
            return f"{self.low:{sign}g}{unit}"
        return f"{self.low:{sign}g}…{self.high:g}{unit}"


@dataclass(frozen=True, slots=True)
class Ours:
    """Our figure for a claim: an improvement in the claim's unit, or a level."""

    value: float
    interval: Interval | None
    n: int
    """Seeds."""


@cache
def claims() -> tuple[Claim, ...]:
    """All published figures in the package."""
    text = files("results").joinpath("data/claims.csv").read_text("utf-8")
    return tuple(_claim(row) for row in csv.DictReader(text.splitlines()))


def find(
    *,
    paper: str | None = None,
    model: str | None = None,
    topology: str | None = None,
    workload: str | None = None,
    workers: int | None = None,
    scheduler: str | None = None,
    comparator: str | None = None,
    metric: str | None = None,
) -> list[Claim]:
    """The claims that fit everything that is given.

    A claim over several worker counts fits each of them. Figures for one worker count come before
    ranges over several.
    """
    wanted = {
        "paper": paper,
        "model": model,
        "topology": topology,
        "workload": workload,
        "scheduler": scheduler,
        "comparator": comparator,
        "metric": metric,
    }
    fitting = [
        claim
        for claim in claims()
        if all(value is None or getattr(claim, name) == value for name, value in wanted.items())
        and (workers is None or workers in claim.workers)
    ]
    return sorted(fitting, key=lambda claim: len(claim.workers))


def beside(
    *, model: str, topology: str, workload: str | None, workers: int, schedulers: Sequence[str]
) -> list[Claim]:
    """The counted claims that belong beside the table of one of our settings.

    The workload must be the claim's, and one of the schedulers; a setting that the paper leaves
    open fits any of ours.
    """
    return [
        claim
        for claim in find(workload=workload)
        if workload is not None
        and claim.counted
        and claim.scheduler in schedulers
        and claim.model in (None, model)
        and claim.fits_topology(topology)
        and (not claim.workers or workers in claim.workers)
    ]


def verdict(
    claim: Claim,
    ours: Sequence[Ours],
    *,
    follows_paper: bool,
    assumed_constants: bool = False,
) -> Verdict:
    """What our figures say of a claim.

    Args:
        ours: one figure a setting that the claim covers (several for a range over worker counts);
            empty: not testable.
        follows_paper: our scheduler follows the paper's text or source code, rather than our
            reading of a summary.
        assumed_constants: the size hangs on constants that we assumed (energy).
    """
    if not claim.counted:
        return "shown"
    if not ours:
        return "not testable"
    if claim.kind in ("absolute", "count"):
        fits = all(_right_size(claim, figure.value) for figure in ours)
        return _capped("reproduced" if fits else "not reproduced", assumed_constants)
    opposite: Verdict = "contradicted" if follows_paper else "not reproduced"
    sign = -1 if claim.kind == "relative" and _middle(claim) < 0 else 1
    if claim.kind == "relative" and claim.low == claim.high == 0:
        return _no_effect(ours, opposite)
    if any(figure.interval is None for figure in ours):
        return "inconclusive"
    lows = [sign * (f.interval.low if sign > 0 else f.interval.high) for f in ours if f.interval]
    highs = [sign * (f.interval.high if sign > 0 else f.interval.low) for f in ours if f.interval]
    if any(high < 0 for high in highs):
        return opposite
    if any(low <= 0 for low in lows):
        return "inconclusive"
    sized = claim.kind == "direction" or all(_right_size(claim, f.value) for f in ours)
    return _capped("reproduced" if sized else "direction only", assumed_constants)


def tally(verdicts: Iterable[Verdict]) -> dict[Verdict, int]:
    """How many of each, in the order of VERDICTS, zeros included."""
    counts = Counter(verdicts)
    return {name: counts[name] for name in VERDICTS}


def tally_text(verdicts: Iterable[Verdict]) -> str:
    """The same in words: `3 reproduced, 1 inconclusive`."""
    return ", ".join(f"{count} {name}" for name, count in tally(verdicts).items() if count)


def _no_effect(ours: Sequence[Ours], opposite: Verdict) -> Verdict:
    """Of a claim that nothing changes: an effect clear of zero contradicts it."""
    if all(figure.value == 0 for figure in ours):
        return "reproduced"
    clear = any(f.interval is not None and f.interval.clear_of_zero() for f in ours)
    return opposite if clear else "inconclusive"


def _capped(found: Verdict, assumed_constants: bool) -> Verdict:
    return "direction only" if assumed_constants and found == "reproduced" else found


def _right_size(claim: Claim, value: float) -> bool:
    low = claim.low if claim.low is not None else claim.high
    high = claim.high if claim.high is not None else claim.low
    if low is None or high is None:
        return True
    return low - SIZE_TOLERANCE * abs(low) <= value <= high + SIZE_TOLERANCE * abs(high)


def _middle(claim: Claim) -> float:
    bounds = [bound for bound in (claim.low, claim.high) if bound is not None]
    return sum(bounds) / len(bounds)


def _claim(row: dict[str, str]) -> Claim:
    kind = cast(Kind, row["kind"])
    return Claim(
        id=row["id"],
        paper=row["paper"],
        kind=kind,
        model=row["model"] or None,
        topology=row["topology"] or None,
        workload=row["workload"] or None,
        workers=tuple(int(n) for n in row["workers"].split("|") if n),
        scheduler=row["scheduler"] or None,
        comparator=row["comparator"] or None,
        metric=row["metric"],
        low=float(row["low"]) if row["low"] else None,
        high=float(row["high"]) if row["high"] else None,
        unit=row["unit"],
        note=row["note"],
    )
