"""The figure of the map of regimes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from harness.advice.regimes import TIE, Cell
from results.drawing import looks, mark, new_axes, style, styled, to_png, to_svg


def winners(cells: Sequence[Cell], metric: str) -> list[tuple[tuple[float, ...], str, float]]:
    """(regime, the scheduler that is best on average over seeds, percent by which it leads the
    second)."""
    values: dict[tuple[float, ...], dict[str, list[float]]] = {}
    for cell in cells:
        values.setdefault(cell.asked, {}).setdefault(cell.scheduler, []).append(cell.levels[metric])
    found = []
    for regime, by_name in values.items():
        order = sorted((float(np.mean(v)), name) for name, v in by_name.items())
        (best, name), (second, _) = order[0], order[1]
        found.append((regime, name, 100 * (second - best) / second if second else 0.0))
    return found


def draw(cells: Sequence[Cell], out: Path) -> None:
    """Write regimes_latency and regimes_p95 as SVG and PNG."""
    out.mkdir(parents=True, exist_ok=True)
    for metric, name in (("latency_mean", "regimes_latency"), ("ttft_p95", "regimes_p95")):
        figure = _figure(winners(cells, metric), sorted({c.scheduler for c in cells}))
        with style():
            mark(figure, "simulated")
        (out / f"{name}.svg").write_text(to_svg(figure), "utf-8")
        (out / f"{name}.png").write_bytes(to_png(figure, dpi=110))


@styled
def _figure(found: Sequence[tuple[tuple[float, ...], str, float]], names: Sequence[str]) -> Figure:
    tools = sorted({regime[1] for regime, _, _ in found})
    rows = sorted({(regime[2], regime[3]) for regime, _, _ in found})
    sets = sorted({regime[0] for regime, _, _ in found})
    figure, axes = new_axes(1, len(tools), 3.4)
    look = looks(list(names))
    for column, tool in enumerate(tools):
        axis = axes[0, column]
        for regime, winner, lead in found:
            if regime[1] != tool:
                continue
            x, y = sets.index(regime[0]), rows.index((regime[2], regime[3]))
            tie = lead < TIE
            axis.scatter(
                [x], [y], s=50 + 7 * min(lead, 40), color=look[winner].colour,
                marker=look[winner].marker, alpha=0.35 if tie else 0.95,
            )  # fmt: skip
            text = f"{winner}\n{'tie' if tie else f'{lead:.0f} %'}"
            axis.annotate(text, (x, y), (0, -22), textcoords="offset points", ha="center", size=7)
        axis.set_xticks(range(len(sets)), [f"{value:g}" for value in sets])
        axis.set_yticks(range(len(rows)), [f"{c:g} workers, {p:.0%} prefill" for c, p in rows])
        if column:
            axis.set_yticklabels([])
        axis.set_xlim(-0.6, len(sets) - 0.4)
        axis.set_ylim(-0.8, len(rows) - 0.4)
        axis.set_xlabel("working set over KV")
        axis.set_title(f"tool time over model time {tool:g}")
    return figure
