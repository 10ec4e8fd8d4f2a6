"""Figures: distributions, main metrics with intervals, replicas over time, scaling, Pareto.

Every function takes a `Group` (or several) and returns a matplotlib figure that belongs to no
window. Every scheduler has its own colour, line style and marker, the same in all figures, so that
none depends on colour alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import cycle
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from results.drawing import INK, LINES, legend_below, looks, mark, new_axes, styled
from results.groups import Group, metric_named
from results.metrics import MAIN
from results.statistics import bootstrap_generator, difference, values_of
from results.tables import SHORT_UNITS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_ECDF_POINTS = 400
_WIDE = 10
"""Largest value over the median, from which a distribution gets a logarithmic axis."""


@styled
def distributions(group: Group, turns: pd.DataFrame, sessions: pd.DataFrame) -> Figure:
    """Empirical distribution of task latency and of TTFT, all seeds together."""
    figure, axes = new_axes(1, 2, 3.4)
    style_of = looks(group.schedulers)
    for name in group.schedulers:
        done = sessions[
            (sessions["scheduler"] == name)
            & (sessions["status"] == "finished")
            & sessions["parent"].isna()
        ]
        own = turns[(turns["scheduler"] == name) & (turns["status"] == "ok")]
        waits = (own["first_token"] - own["arrived"]).dropna()
        for axis, values in (
            (axes[0, 0], done["finished"] - done["started"]),
            (axes[0, 1], waits),
        ):
            x, y = _ecdf(values.to_numpy(np.float64) / 1e9)
            if x.size:
                look = style_of[name]
                axis.plot(x, y, color=look.colour, linestyle=look.line, label=name)
    for axis, what in ((axes[0, 0], "task latency"), (axes[0, 1], "TTFT")):
        axis.set_xlabel(f"{what} (s)")
        axis.set_ylim(0, 1.01)
        _log_if_wide(axis)
    axes[0, 0].set_ylabel("share of tasks")
    axes[0, 1].set_ylabel("share of turns")
    legend_below(figure, axes[0, 0], len(group.schedulers))
    mark(figure, f"{group.title}; {group.kind}")
    return figure


@styled
def main_metrics(group: Group, tags: Sequence[str] = MAIN) -> Figure:
    """One panel a metric: mean of each scheduler with its 95 % interval."""
    tags = [t for t in tags if any(f.estimate for f in group.figures(t).values())]
    per_row = min(3, max(1, len(tags)))
    rows = -(-len(tags) // per_row)
    figure, axes = new_axes(rows, per_row, rows * (0.75 + 0.27 * len(group.schedulers)))
    style_of = looks(group.schedulers)
    for place, tag in enumerate(tags):
        axis, metric = axes[divmod(place, per_row)], metric_named(tag)
        for row, name in enumerate(group.schedulers):
            found = group.figures(tag)[name].estimate
            if found is None:
                continue
            axis.barh(row, found.mean, color=style_of[name].colour, height=0.62, alpha=0.85)
            if found.interval is not None:
                spread = [[found.mean - found.interval.low], [found.interval.high - found.mean]]
                axis.errorbar(found.mean, row, xerr=spread, color=INK, capsize=2.5, lw=1)
        axis.set_yticks(range(len(group.schedulers)))
        axis.set_yticklabels(group.schedulers if place % per_row == 0 else [])
        axis.invert_yaxis()
        if not any(bar.get_width() for bar in axis.patches):  # nothing but zeros
            axis.set_xlim(0, 1)
        axis.grid(visible=False, axis="y")
        unit = SHORT_UNITS.get(metric.unit, metric.unit)
        arrow = {"lower": ", lower is better", "higher": ", higher is better"}
        axis.set_title(f"{metric.title} ({unit})" if unit else metric.title)
        axis.set_xlabel(arrow.get(metric.better, "").removeprefix(", "), fontsize=8)
    for place in range(len(tags), rows * per_row):
        axes[divmod(place, per_row)].set_visible(False)
    mark(figure, f"{group.title}; {group.kind}")
    return figure


@styled
def replicas_over_time(group: Group, replicas: pd.DataFrame, seed: int) -> Figure:
    """Requests and KV occupancy of each replica in the cell of one seed, by scheduler."""
    import seaborn as sns

    names = list(dict.fromkeys(replicas["replica"]))
    palette = sns.color_palette("colorblind", max(len(names), 1))
    schedulers = [n for n in group.schedulers if n in set(replicas["scheduler"])]
    figure, axes = new_axes(len(schedulers), 2, 0.55 + 1.25 * len(schedulers), sharex=True)
    load = replicas.assign(load=replicas["running"] + replicas["waiting"])
    ceiling = max(float(load["load"].max()), 1.0)
    for row, scheduler in enumerate(schedulers):
        own = load[load["scheduler"] == scheduler]
        for colour, line, name in zip(palette, cycle(LINES), names, strict=False):
            samples = own[own["replica"] == name].sort_values("time")
            minutes = samples["time"].to_numpy(np.float64) / 60e9
            for column, values in ((0, samples["load"]), (1, 100 * samples["kv_used"])):
                x, y = _thin(minutes, values.to_numpy(np.float64))
                axes[row, column].plot(x, y, color=colour, linestyle=line, lw=1.1, label=name)
        axes[row, 0].set_ylim(0, 1.05 * ceiling)
        axes[row, 1].set_ylim(0, 102)
        axes[row, 0].set_title(f"{scheduler}: requests")
        axes[row, 1].set_title(f"{scheduler}: KV used (%)")
    for column in (0, 1):
        axes[-1, column].set_xlabel(f"minutes since the start, seed {seed}")
    legend_below(figure, axes[0, 0], len(names))
    mark(figure, f"{group.title}, seed {seed}; {group.kind}")
    return figure


@styled
def against_workers(groups: Sequence[Group], tags: Sequence[str]) -> Figure:
    """Metrics against the number of workers, a line a scheduler, with 95 % intervals."""
    schedulers = list(dict.fromkeys(name for group in groups for name in group.schedulers))
    style_of = looks(schedulers)
    figure, axes = new_axes(1, len(tags), 3.2)
    ordered = sorted(groups, key=lambda group: group.workers)
    for column, tag in enumerate(tags):
        axis, metric = axes[0, column], metric_named(tag)
        for name in schedulers:
            points = [
                (group.workers, found.estimate)
                for group in ordered
                if (found := group.figures(tag).get(name)) is not None and found.estimate
            ]
            if not points:
                continue
            x, means = [w for w, _ in points], [e.mean for _, e in points]
            ends = [e.interval or (e.mean, e.mean) for _, e in points]
            spread = [
                [mean - low for mean, (low, _) in zip(means, ends, strict=True)],
                [high - mean for mean, (_, high) in zip(means, ends, strict=True)],
            ]
            look = style_of[name]
            axis.errorbar(
                x, means, yerr=spread, label=name, color=look.colour, linestyle=look.line,
                marker=look.marker, ms=4.5, capsize=2.5,
            )  # fmt: skip
        axis.set_xticks([group.workers for group in ordered])
        axis.set_xlabel("workers")
        axis.set_title(f"{metric.title} ({SHORT_UNITS.get(metric.unit, metric.unit)})")
    legend_below(figure, axes[0, 0], len(schedulers))
    mark(figure, f"{groups[0].workload}; {groups[0].kind}")
    return figure


@styled
def pareto(group: Group, x: str = "ttft_p95", y: str = "decode_tps") -> Figure:
    """Throughput against tail TTFT, one point a scheduler; up and to the left is better."""
    figure, axes = new_axes(1, 1, 3.6)
    axis = axes[0, 0]
    for name, look in looks(group.schedulers).items():
        across, up = group.figures(x)[name].estimate, group.figures(y)[name].estimate
        if across is None or up is None:
            continue
        spreads = [
            None if e.interval is None else [[e.mean - e.interval.low], [e.interval.high - e.mean]]
            for e in (across, up)
        ]
        axis.errorbar(
            across.mean, up.mean, xerr=spreads[0], yerr=spreads[1], color=look.colour,
            marker=look.marker, ms=7, lw=1, capsize=2, linestyle="none", label=name,
        )  # fmt: skip
    for metric, put in ((metric_named(x), axis.set_xlabel), (metric_named(y), axis.set_ylabel)):
        put(f"{metric.title} ({metric.unit})")
    axis.margins(0.12)
    axis.set_xlim(left=max(0.0, axis.get_xlim()[0]))
    figure.legend(
        *axis.get_legend_handles_labels(), loc="outside right center", title="up and left is better"
    )
    mark(figure, f"{group.title}; {group.kind}")
    return figure


@styled
def by_prompt_size(group: Group, turns: pd.DataFrame) -> Figure:
    """Mean TTFT by size of the prompt: does a scheduler favour short prompts?"""
    figure, axes = new_axes(1, 1, 3.2)
    axis = axes[0, 0]
    served = turns[(turns["status"] == "ok") & turns["first_token"].notna()]
    edges = np.unique(np.quantile(served["prompt_tokens"], np.linspace(0, 1, 9)))
    for name, look in looks(group.schedulers).items():
        own = served[served["scheduler"] == name]
        if own.empty or edges.size < 2:
            continue
        place = np.clip(
            np.searchsorted(edges, own["prompt_tokens"], "right") - 1, 0, edges.size - 2
        )
        wait = ((own["first_token"] - own["arrived"]) / 1e9).groupby(place).mean()
        size = own["prompt_tokens"].groupby(place).median()
        axis.plot(
            size / 1e3, wait, color=look.colour, linestyle=look.line, marker=look.marker, ms=4.5,
            label=name,
        )  # fmt: skip
    axis.set_xlabel("prompt (thousand tokens; equal shares of all turns)")
    axis.set_ylabel("mean TTFT (s)")
    axis.set_ylim(bottom=0)
    legend_below(figure, axis, len(group.schedulers))
    mark(figure, f"{group.title}; {group.kind}")
    return figure


@styled
def ablation(group: Group, root: str, tags: Sequence[str] = MAIN) -> Figure:
    """One panel a metric: how much better or worse each variant is than the whole, in percent.

    Positive is better, as in the tables; whiskers are 95 % intervals over common seeds.
    """
    variants = group.variants(root)
    gaps = {
        tag: {
            name: difference(
                values_of(group.cells, metric_named(tag)),
                name,
                [root],
                metric_named(tag).better,
                bootstrap_generator(),
            )
            for name in variants
        }
        for tag in tags
    }
    tags = [tag for tag in tags if any(gaps[tag].values())]
    per_row = min(3, max(1, len(tags)))
    rows = max(1, -(-len(tags) // per_row))
    figure, axes = new_axes(rows, per_row, rows * (0.8 + 0.27 * len(variants)))
    style_of = looks(group.schedulers)
    for place in range(rows * per_row):
        axis = axes[divmod(place, per_row)]
        if place >= len(tags):
            axis.set_visible(False)
            continue
        for row, name in enumerate(variants):
            gap = gaps[tags[place]][name]
            if gap is None:
                continue
            axis.barh(row, gap.percent, color=style_of[name].colour, height=0.62, alpha=0.85)
            if gap.interval is not None:
                low, high = gap.interval
                spread = [[max(0.0, gap.percent - low)], [max(0.0, high - gap.percent)]]
                axis.errorbar(gap.percent, row, xerr=spread, color=INK, capsize=2.5, lw=1)
        axis.axvline(0, color=INK, lw=0.8)
        axis.set_yticks(range(len(variants)))
        axis.set_yticklabels(variants if place % per_row == 0 else [])
        axis.set_ylim(len(variants) - 0.5, -0.5)
        axis.grid(visible=False, axis="y")
        axis.margins(x=0.1)
        axis.set_title(metric_named(tags[place]).title)
        axis.set_xlabel(f"% against {root}; positive is better", fontsize=8)
    mark(figure, f"{group.title}; {group.kind}")
    return figure


def _ecdf(values: np.ndarray[Any, np.dtype[np.float64]]) -> tuple[Any, Any]:
    """At most 400 points of the empirical distribution function."""
    if values.size == 0:
        return np.empty(0), np.empty(0)
    shares = np.linspace(0, 1, min(values.size, _ECDF_POINTS))
    return np.quantile(values, shares), shares


def _thin(x: Any, y: Any, most: int = 150) -> tuple[Any, Any]:
    """Means over equal runs of samples, so that a long run does not make a heavy figure."""
    if x.size <= most:
        return x, y
    size = -(-x.size // most)
    whole = x.size - x.size % size
    return x[:whole].reshape(-1, size).mean(1), y[:whole].reshape(-1, size).mean(1)


def _log_if_wide(axis: Axes) -> None:
    """A logarithmic axis where a few values would press all others against the edge."""
    data = [line.get_xdata() for line in axis.get_lines()]
    values = np.concatenate(data) if data else np.empty(0)
    values = values[values > 0]
    if values.size and values.max() > _WIDE * np.median(values):
        axis.set_xscale("log")
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlim(left=float(np.quantile(values, 0.02)))
