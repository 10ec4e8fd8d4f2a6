"""What stands in the tables: cells, headings and captions, before any format is chosen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pandas as pd

from results.formatting import interval, level, percent, signed, tight_interval
from results.groups import Figure, Group, groups_of, metric_named
from results.metrics import BY_TAG, MAIN, Metric
from results.published import Claim
from results.records import Label
from results.run import Run
from results.statistics import ADVISED_SEEDS, FEWEST_SEEDS

SHORT_UNITS = {"percent": "%", "count": "", "ratio": ""}
UNKNOWN = "n/a"


@dataclass(frozen=True, slots=True)
class Entry:
    """One cell of a table as text, in up to three parts that a format may put on own lines."""

    value: str
    """Mean over seeds, with half the width of its interval: `812.3 ±5.6`."""
    change: str = ""
    """Difference against the best of the others: `+8.3 %`."""
    range: str = ""
    """Its interval: `[+5.1, +11.2]`."""
    tight: str = ""
    """The same where room is short: `[+5,+11]`."""
    best: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One scheduler's figures, or published ones. `label` says what the figures are."""

    name: str
    label: Label
    entries: tuple[Entry, ...]
    note: str = ""
    """For published figures, what they are compared with; for external ones, the run's label."""


@dataclass(frozen=True, slots=True)
class MetricTable:
    """One workload and worker count; `headings` and `units` are those of `metrics`."""

    title: str
    metrics: tuple[Metric, ...]
    rows: tuple[Row, ...]
    captions: tuple[str, ...]
    group: Group

    @property
    def headings(self) -> list[str]:
        return [metric.title for metric in self.metrics]

    @property
    def units(self) -> list[str]:
        return [SHORT_UNITS.get(metric.unit, metric.unit) for metric in self.metrics]


def tables(
    run: Run,
    tags: Sequence[str] = MAIN,
    baselines: Sequence[str] | None = None,
    *,
    named: bool = False,
) -> list[MetricTable]:
    """One table a workload and worker count of the run.

    Args:
        tags: the metrics, in the order of the columns.
        baselines: schedulers to compare with; None: all others but own variants.
        named: put the name of the run into the titles, where several runs stand together.

    Raises:
        UsageError: an unknown metric or baseline.
    """
    return [table_of(group, tags, named=named) for group in groups_of(run, baselines)]


def table_of(group: Group, tags: Sequence[str] = MAIN, *, named: bool = False) -> MetricTable:
    metrics = tuple(metric_named(tag) for tag in tags)
    figures = {metric.tag: group.figures(metric.tag) for metric in metrics}
    rows = []
    for name in group.schedulers:
        entries = tuple(_entry(figures[metric.tag][name]) for metric in metrics)
        label = group.label_of(name)
        # An external arm stands in a run that is measured or emulated, which still counts.
        rows.append(Row(name, label, entries, "" if label == group.label else group.label))
        rows += _published_rows(group, name, metrics)
    parts = [group.title]
    parts += [str(group.facts[key]) for key in ("model", "topology") if key in group.facts]
    title = ", ".join(parts)
    if named:
        title = f"{group.run}: {title}"
    return MetricTable(title, metrics, tuple(rows), _captions(group, metrics), group)


def _entry(figure: Figure) -> Entry:
    if figure.estimate is None:
        return Entry(UNKNOWN)
    text = level(figure.estimate)
    if figure.difference is None:
        return Entry(text, best=figure.best)
    change = signed(figure.difference.percent)
    if figure.difference.interval is None:
        return Entry(text, change, best=figure.best)
    spread = figure.difference.interval
    return Entry(text, change, interval(spread), tight_interval(spread), figure.best)


def _published_rows(group: Group, scheduler: str, metrics: Sequence[Metric]) -> list[Row]:
    """A row for each comparator that a paper names for this scheduler in this setting."""
    mine = [claim for claim in group.claims if claim.scheduler == scheduler]
    rows = []
    for comparator in dict.fromkeys(claim.comparator for claim in mine):
        beside = {}
        # The most specific claim last, so that it is the one that is shown.
        for claim in sorted(mine, key=lambda claim: -len(claim.workers)):
            if claim.comparator == comparator:
                beside[claim.metric] = claim
        if any(metric.tag in beside for metric in metrics):
            entries = tuple(_published_entry(beside.get(metric.tag)) for metric in metrics)
            rows.append(Row(scheduler, "published", entries, _against(comparator)))
    return rows


def _published_entry(claim: Claim | None) -> Entry:
    if claim is None:
        return Entry("")
    if claim.kind == "absolute":
        return Entry(claim.text())
    return Entry("", claim.text())


def _against(comparator: str | None) -> str:
    if comparator is None:
        return "level"
    return f"vs {'best' if comparator == 'best_baseline' else comparator}"


def _captions(group: Group, metrics: Sequence[Metric]) -> tuple[str, ...]:
    lines = [_provenance(group), _sample(group)]
    if "decode_tps_bound" in group.facts:
        lines.append(
            f"No scheduler can pass {group.facts['decode_tps_bound']} tok/s of decode on these "
            f"sessions (no eviction, perfect balance; limited by "
            f"{group.facts['decode_tps_bound_by']}; first seed)."
        )
    if any(f.difference for m in metrics for f in group.figures(m.tag).values()):
        lines.append(
            f"* best mean. Signed figures: difference against {group.against}; positive = better"
            + ("; in brackets its 95 % bootstrap interval." if _has_intervals(group) else ".")
        )
    lines += _warnings(group, metrics)
    if group.unfinished:
        lines.append(f"Missing: {_several(group.unfinished)}")
    return tuple(lines)


def _several(lines: Sequence[str], most: int = 5) -> str:
    more = len(lines) - most
    return "; ".join(lines[:most]) + (f"; and {more} more." if more > 0 else ".")


def _provenance(group: Group) -> str:
    """What the figures are, which sessions they come from, and where step times come from."""
    parts = [f"Figures {group.kind}"]
    sources = [v for k, v in group.facts.items() if k.startswith("step_time")]
    if sources:
        parts.append(f"step times: {', '.join(dict.fromkeys(map(str, sources)))}")
    if "cache_source" in group.facts:
        parts.append(f"cache hits: {group.facts['cache_source']}")
    origins = group.setting.get("origins")
    if origins:
        count = group.setting.get("sessions")
        number = f"{count:,} " if isinstance(count, int) and len(origins) == 1 else ""
        parts.append(f"sessions: {number}{' and '.join(origins)}")
    return "; ".join(parts) + "."


def _sample(group: Group) -> str:
    counts = sorted(set(group.seeds.values()))
    least = counts[0]
    if len(counts) == 1:
        n = f"n = {least} seed{'s' if least > 1 else ''}"
    else:
        n = "n = " + ", ".join(f"{name} {count}" for name, count in group.seeds.items()) + " seeds"
    if not _has_intervals(group):
        return f"{n}: no interval (at least {FEWEST_SEEDS} seeds are needed; use --seeds)."
    text = f"{n}; ± half the width of the 95 % bootstrap interval over seeds."
    if least < FEWEST_SEEDS:
        text += " A single seed gives no interval."
    elif least < ADVISED_SEEDS:
        text += f" Fewer than {ADVISED_SEEDS} seeds: intervals are too narrow."
    return text


def _has_intervals(group: Group) -> bool:
    return max(group.seeds.values()) >= FEWEST_SEEDS


def _warnings(group: Group, metrics: Sequence[Metric]) -> list[str]:
    lines = []
    if group.invalid:
        lines.append(f"Not to be used, the run was not what it says: {_several(group.invalid)}")
    ended = _unserved(group)
    if ended:
        lines.append(f"Not finished, and in no timing figure: {ended}.")
    reached = group.cells["concurrency_share"].dropna()
    if len(reached) and reached.min() < 100:
        lines.append(
            f"Target concurrency not reached: at most {percent(float(reached.min()))} of "
            f"{group.workers} workers were active in the worst cell."
        )
    tags = {metric.tag for metric in metrics}
    trimmed = group.cells["steady_trimmed"].dropna()
    if len(trimmed) and tags & {"decode_tps", "decode_tps_steady"}:
        line = (
            f"Steady window (first to last instant with 90 % of the workers active): "
            f"{percent(float(trimmed.min()))} to {percent(float(trimmed.max()))} of the makespan "
            "trimmed."
        )
        if "decode_tps_steady" not in tags:
            line += f" Decode in it: {_steady(group)}."
        lines.append(line)
    return lines


def _steady(group: Group) -> str:
    """Decode throughput over the steady window, beside that over the makespan."""
    figures = group.figures("decode_tps_steady")
    parts = [
        f"{name} {UNKNOWN if found is None else level(found)}"
        for name in group.schedulers
        for found in (figures[name].estimate,)
    ]
    return f"{', '.join(parts)} tok/s"


def _unserved(group: Group) -> str:
    """Sessions that did not finish and turns that failed, over all seeds; equal ones together."""
    by_text: dict[str, list[str]] = {}
    for name in group.schedulers:
        counts = _unserved_counts(group.cells[group.cells["scheduler"] == name])
        if counts:
            by_text.setdefault(", ".join(counts), []).append(name)
    return "; ".join(
        f"{'each scheduler' if len(names) == len(group.schedulers) > 1 else ', '.join(names)}: "
        f"{text}"
        for text, names in by_text.items()
    )


def _unserved_counts(cells: pd.DataFrame) -> list[str]:
    """`15 of 384 sessions context exceeded`, ...; turns only where no session ended by them."""
    counts = []
    seen: dict[str, int] = {}
    for noun, fine in (("sessions", "finished"), ("turns", "ok")):
        columns = [tag for tag in BY_TAG if tag.startswith(f"{noun}_")]
        total = int(cells[columns].sum().sum())
        for column in columns:
            status, number = column.removeprefix(f"{noun}_"), int(cells[column].sum())
            if number and status != fine and seen.get(status) != number:
                counts.append(f"{number:,} of {total:,} {noun} {status.replace('_', ' ')}")
            seen[status] = number
    return counts
