"""Two runs side by side: paired differences, and gates that fail a build."""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from agentsched import GateFailedError, UsageError
from results.cells import load_words
from results.formatting import number, signed
from results.groups import Group, groups_of, metric_named
from results.metrics import BY_TAG, MAIN, Metric
from results.run import Run
from results.statistics import (
    Estimate,
    Interval,
    bootstrap_generator,
    estimate,
    paired_difference,
    values_of,
)

_OPERATORS: Mapping[str, Callable[[float, float], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
}
_GATE = re.compile(
    r"\s*(?P<metric>[a-z_0-9]+(\.[a-z_0-9]+)*)\s*(?P<operator>>=|<=|>|<)\s*"
    r"(?P<threshold>[+-]?\d+(\.\d+)?)\s*(?P<percent>%)?\s*"
)


@dataclass(frozen=True, slots=True)
class Gate:
    """A condition under which a comparison fails."""

    text: str
    metric: Metric
    holds: Callable[[float, float], bool]
    threshold: float
    relative: bool
    """On the change from the first run to the second in percent; else on the second's value."""


@dataclass(frozen=True, slots=True)
class Change:
    """One metric of one scheduler in both runs."""

    metric: Metric
    before: Estimate | None
    after: Estimate | None
    percent: float | None
    """100 x (after - before) / before, over the common seeds where there are any."""
    interval: Interval | None
    n: int
    """Common seeds; 0: the runs share none, so the change is unpaired and has no interval."""

    @property
    def meaning(self) -> str:
        """`better`, `worse`, `same`, or `unclear`: the interval covers zero or there is none."""
        if self.before == self.after:
            return "same"
        if self.metric.better == "neither" or self.interval is None:
            return "unclear"
        if not self.interval.clear_of_zero():
            return "unclear"
        return "better" if (self.interval.low > 0) == (self.metric.better == "higher") else "worse"


@dataclass(frozen=True)
class Pair:
    """The cells of one workload, worker count and scheduler in both runs."""

    workload: str
    workers: int
    before: tuple[Group, str]
    """Group and scheduler of the first run."""
    after: tuple[Group, str]

    @property
    def name(self) -> str:
        names = dict.fromkeys((self.before[1], self.after[1]))
        return f"{self.workload}, {load_words(self.workers)}, {' -> '.join(names)}"

    @property
    def kind(self) -> str:
        """What the figures of both are: `simulated`, `emulated -> external`."""
        return " -> ".join(dict.fromkeys(group.label_of(name) for group, name in self.sides))

    @property
    def sides(self) -> tuple[tuple[Group, str], tuple[Group, str]]:
        return self.before, self.after

    def change(self, metric: Metric) -> Change:
        old, new = (
            values_of(group.cells, metric).get(scheduler, {})
            for group, scheduler in (self.before, self.after)
        )
        before, after = (
            estimate(list(v.values()), bootstrap_generator()) if v else None for v in (old, new)
        )
        paired = paired_difference(old, new, bootstrap_generator())
        if paired is not None:
            return Change(metric, before, after, *paired)
        percent = None
        if before is not None and after is not None and before.mean != 0:
            percent = 100 * (after.mean - before.mean) / before.mean
        return Change(metric, before, after, percent, None, 0)


@dataclass(frozen=True)
class Comparison:
    """What `compare` found."""

    before: Run
    after: Run
    pairs: tuple[Pair, ...]
    metrics: tuple[Metric, ...]
    failures: tuple[str, ...]
    """Gates that were met or could not be evaluated, one line each."""
    unmatched: tuple[str, ...]
    """What only one of the runs holds."""

    def check(self) -> None:
        """Raises GateFailedError if a gate was met or could not be evaluated."""
        if self.failures:
            raise GateFailedError(
                "\n       ".join(self.failures),
                "look into the change, or loosen the `--fail-if` gate",
            )


def compare(
    before: Run, after: Run, tags: Sequence[str] = MAIN, gates: Sequence[str] = ()
) -> Comparison:
    """Paired differences of the second run from the first, and the gates that they trip.

    Cells are matched by workload, workers and scheduler. Where a workload has a single scheduler
    in each run, these two are compared whatever they are called.

    Raises:
        UsageError: an unknown metric, a gate that makes no sense, or runs with nothing in common.
    """
    parsed = [parse_gate(text) for text in gates]
    metrics = tuple(metric_named(tag) for tag in tags)
    pairs, unmatched = _match(groups_of(before), groups_of(after))
    if not pairs:
        raise UsageError(
            f"{before.path} and {after.path} have no finished cells in common",
            "compare runs of the same workload and workers: " + "; ".join(unmatched[:4]),
        )
    failures = [line for gate in parsed for pair in pairs for line in _trip(gate, pair)]
    return Comparison(before, after, tuple(pairs), metrics, tuple(failures), tuple(unmatched))


def parse_gate(text: str) -> Gate:
    """`METRIC OPERATOR NUMBER[%]`, e.g. `ttft.p95 > +5%` or `sessions_failed > 0`.

    With `%` the number is the change from the first run to the second; without, the second's value
    in the metric's unit. A dot may stand for the underscore of a tag; `ttft` means `ttft_mean`.

    Raises:
        UsageError: it cannot be read, or names an unknown metric.
    """
    found = _GATE.fullmatch(text)
    if found is None:
        raise UsageError(
            f"gate `{text}` cannot be read", "write it like --fail-if 'ttft.p95 > +5%'"
        )
    tag = found["metric"].replace(".", "_")
    if tag not in BY_TAG and f"{tag}_mean" in BY_TAG:
        tag = f"{tag}_mean"
    return Gate(
        " ".join(text.split()),
        metric_named(tag),
        _OPERATORS[found["operator"]],
        float(found["threshold"]),
        found["percent"] is not None,
    )


def _trip(gate: Gate, pair: Pair) -> list[str]:
    invalid = [why for group, name in pair.sides for why in group.invalid_of(name)]
    if invalid:
        return [f"`{gate.text}` cannot be evaluated for {pair.name}: invalid: {invalid[0]}"]
    change = pair.change(gate.metric)
    if gate.relative:
        value, shown = change.percent, signed
    else:
        value, shown = (None if change.after is None else change.after.mean), number
    if value is None:
        return [f"`{gate.text}` cannot be evaluated for {pair.name}: the value is unknown"]
    if gate.holds(value, gate.threshold):
        return [f"`{gate.text}` is met by {pair.name}: {shown(value)}"]
    return []


def _match(before: Sequence[Group], after: Sequence[Group]) -> tuple[list[Pair], list[str]]:
    olds = {(group.workload, group.workers): group for group in before}
    news = {(group.workload, group.workers): group for group in after}
    pairs, unmatched = [], []
    for key in dict.fromkeys([*olds, *news]):
        old, new = olds.get(key), news.get(key)
        if old is None or new is None:
            which = "second" if old is None else "first"
            unmatched.append(f"{key[0]}, {load_words(key[1])}: in the {which} run alone")
            continue
        names = [name for name in old.schedulers if name in new.schedulers]
        couples = [(name, name) for name in names]
        if not names and len(old.schedulers) == len(new.schedulers) == 1:
            couples = [(old.schedulers[0], new.schedulers[0])]
        pairs += [Pair(*key, (old, one), (new, other)) for one, other in couples]
        taken = {name for couple in couples for name in couple}
        for group, which in ((old, "first"), (new, "second")):
            unmatched += [
                f"{key[0]}, {load_words(key[1])}, {name}: in the {which} run alone"
                for name in group.schedulers
                if name not in taken
            ]
    return pairs, unmatched
