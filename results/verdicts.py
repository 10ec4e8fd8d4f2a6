"""Our figures for the published claims that a table covers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from results.formatting import interval as interval_text
from results.formatting import level, signed
from results.groups import Group
from results.metrics import BY_TAG
from results.published import Claim, Ours, Verdict, verdict
from results.statistics import (
    Estimate,
    Interval,
    bootstrap_generator,
    common_seeds,
    difference,
    estimate,
    values_of,
)


@dataclass(frozen=True, slots=True)
class Judged:
    """A claim, ours for the same setting, and what follows."""

    claim: Claim
    ours: Ours | None
    verdict: Verdict
    reason: str
    """Why it could not be tested; else empty."""

    @property
    def n(self) -> int:
        """Seeds behind ours."""
        return 0 if self.ours is None else self.ours.n

    def ours_text(self) -> str:
        if self.ours is None:
            return "n/a"
        if self.claim.kind in ("absolute", "count"):
            return level(Estimate(self.ours.value, self.ours.interval, self.ours.n))
        points = self.claim.unit == "pp"
        text = f"{self.ours.value:+.2f} pp" if points else signed(self.ours.value)
        return text if self.ours.interval is None else f"{text} {interval_text(self.ours.interval)}"


def judge(group: Group, follows_paper: Sequence[str] = ()) -> list[Judged]:
    """The claims beside one table. A claim over several worker counts is held to this one alone.

    Args:
        follows_paper: schedulers that follow their paper's text or source code; the others are our
            reading of a summary.
    """
    judged = []
    for claim in group.claims:
        found = ours_for(group, claim)
        result = verdict(
            claim,
            [] if found is None else [found],
            follows_paper=claim.scheduler in follows_paper,
            assumed_constants=claim.metric == "tokens_per_joule",
        )
        reason = "" if found is not None else _why_not(group, claim)
        judged.append(Judged(claim, found, result, reason))
    return judged


def ours_for(group: Group, claim: Claim) -> Ours | None:
    """Our figure in the claim's unit; None where the run cannot give one.

    An improvement against `best_baseline` is against the best of the other schedulers of the run,
    own variants aside.
    """
    metric = BY_TAG.get(claim.metric)
    if metric is None or claim.scheduler is None:
        return None
    values = values_of(group.cells, metric)
    own = values.get(claim.scheduler)
    if not own:
        return None
    if claim.kind in ("absolute", "count"):
        found = estimate(list(own.values()), bootstrap_generator())
        return Ours(found.mean, found.interval, found.n)
    against = [claim.comparator or ""]
    if claim.comparator == "best_baseline":
        against = group.rivals(claim.scheduler)
    if claim.unit == "pp":
        return _points(values, claim.scheduler, against)
    gap = difference(values, claim.scheduler, against, metric.better, bootstrap_generator())
    return None if gap is None else Ours(gap.percent, gap.interval, gap.n)


def _points(
    values: dict[str, dict[int, float]], scheduler: str, against: Sequence[str]
) -> Ours | None:
    """Own less the other's, in percentage points, over common seeds."""
    if len(against) != 1 or not values.get(against[0]):
        return None
    seeds = common_seeds(values, [scheduler, against[0]])
    if not seeds:
        return None
    gaps = np.array([values[scheduler][s] - values[against[0]][s] for s in seeds])
    found = estimate(gaps.tolist(), bootstrap_generator())
    spread = None if found.interval is None else Interval(*found.interval)
    return Ours(found.mean, spread, found.n)


def _why_not(group: Group, claim: Claim) -> str:
    if claim.metric not in BY_TAG:
        return f"`{claim.metric}` is measured by a script of its own"
    if claim.comparator not in (None, "best_baseline", *group.schedulers):
        return f"`{claim.comparator}` is not in this run"
    return f"`{claim.metric}` is unknown in this run, or there is nothing to compare it with"
