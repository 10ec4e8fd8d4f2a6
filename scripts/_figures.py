"""Pictures of the reproduction scripts, in the style of the reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from results.drawing import INK, legend_below, looks, new_axes, styled
from results.published import Claim, Ours
from results.statistics import Estimate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

PUBLISHED = (0.84, 0.37, 0.0)
"""Vermilion of the colour-blind palette: published figures, always as open diamonds or bands."""
OURS = (0.0, 0.45, 0.70)


@styled
def forest(rows: Sequence[tuple[str, Claim | None, Ours | None]], xlabel: str) -> Figure:
    """One line a claim: our figure with its interval, the published value or range beside it."""
    figure, axes = new_axes(1, 1, 0.9 + 0.24 * len(rows))
    axis = axes[0, 0]
    for y, (_, claim, ours) in enumerate(rows):
        if claim is not None and claim.low is not None and claim.high is not None:
            axis.plot([claim.low, claim.high], [y, y], color=PUBLISHED, lw=5, alpha=0.3)
            axis.plot(
                [(claim.low + claim.high) / 2], [y], "D", mfc="none", color=PUBLISHED, ms=6,
                label="published" if y == _first(rows) else None,
            )  # fmt: skip
        if ours is not None:
            low, high = ours.interval or (ours.value, ours.value)
            axis.errorbar(
                [ours.value], [y], fmt="o",
                xerr=[[max(0.0, ours.value - low)], [max(0.0, high - ours.value)]],
                color=OURS, ms=4.5, capsize=2.5, lw=1.2,
                label="ours, simulated (95 % interval)" if y == 0 else None,
            )  # fmt: skip
    axis.axvline(0, color=INK, lw=0.8)
    axis.set_yticks(range(len(rows)))
    axis.set_yticklabels([label for label, _, _ in rows])
    axis.set_ylim(len(rows) - 0.4, -0.6)
    axis.set_xlabel(xlabel)
    bounds = [
        x
        for _, claim, ours in rows
        for x in (
            *((claim.low, claim.high) if claim else ()),
            *((ours.interval or (ours.value,)) if ours else ()),
        )
        if x is not None
    ]
    if bounds and max(map(abs, bounds)) > 200:
        axis.set_xscale("symlog", linthresh=20)
        axis.set_xticks([-500, -100, -20, 0, 20, 100])
        axis.xaxis.set_major_formatter("{x:g}")
        axis.set_xlim(1.3 * min(-20.0, *bounds), 1.3 * max(20.0, *bounds))
    legend_below(figure, axis, 2)
    return figure


def _first(rows: Sequence[tuple[str, Claim | None, Ours | None]]) -> int:
    return next(
        (
            y
            for y, (_, claim, _) in enumerate(rows)
            if claim is not None and claim.low is not None and claim.high is not None
        ),
        0,
    )


@styled
def bars(
    panels: Sequence[tuple[str, Mapping[str, Estimate | None], Mapping[str, float]]],
) -> Figure:
    """One panel a metric: (title, ours by arm, published by arm); zero need not be on the axis."""
    figure, axes = new_axes(1, len(panels), 1.2 + 0.3 * max(len(p[1]) for p in panels))
    for column, (title, ours, published) in enumerate(panels):
        axis = axes[0, column]
        style_of = looks(list(ours))
        for y, (name, found) in enumerate(ours.items()):
            if found is not None:
                axis.barh(y, found.mean, color=style_of[name].colour, height=0.62, alpha=0.85)
                if found.interval is not None:
                    low, high = found.interval
                    spread = [[max(0.0, found.mean - low)], [max(0.0, high - found.mean)]]
                    axis.errorbar(found.mean, y, xerr=spread, color=INK, capsize=2.5, lw=1)
            if name in published:
                axis.plot([published[name]], [y], "D", mfc="white", color=PUBLISHED, ms=6)
        axis.set_yticks(range(len(ours)))
        axis.set_yticklabels(list(ours) if column == 0 else [])
        axis.invert_yaxis()
        axis.grid(visible=False, axis="y")
        axis.set_title(title)
        if published:
            axis.set_xlabel("bars: ours, simulated; diamonds: published", fontsize=8)
    return figure


@styled
def lines(
    panels: Sequence[tuple[str, Mapping[str, Sequence[tuple[float, Estimate]]]]],
    xlabel: str,
    log: Sequence[bool] = (),
) -> Figure:
    """One panel a metric, a line an arm, over a load or an error rate."""
    figure, axes = new_axes(1, len(panels), 3.3)
    names = list(dict.fromkeys(name for _, arms in panels for name in arms))
    style_of = looks(names)
    for column, (title, arms) in enumerate(panels):
        axis = axes[0, column]
        for name, points in arms.items():
            x, means = [at for at, _ in points], [e.mean for _, e in points]
            ends = [e.interval or (e.mean, e.mean) for _, e in points]
            spread = [
                [max(0.0, m - low) for m, (low, _) in zip(means, ends, strict=True)],
                [max(0.0, high - m) for m, (_, high) in zip(means, ends, strict=True)],
            ]
            look = style_of[name]
            axis.errorbar(
                x, means, yerr=spread, label=name, color=look.colour, linestyle=look.line,
                marker=look.marker, ms=4.5, capsize=2.5,
            )  # fmt: skip
        axis.set_xlabel(xlabel)
        axis.set_title(title)
        means = [found.mean for points in arms.values() for _, found in points if found.mean > 0]
        if column < len(log) and log[column] and max(means) > 10 * min(means):
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter("{x:g}")
        else:
            axis.set_ylim(bottom=0)
    legend_below(figure, axes[0, 0], len(names))
    return figure
