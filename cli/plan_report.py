"""A plan as text and as a figure, and everything that was tried as JSON."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.planning.search import Found, Probe, slack
from results.cells import disk

if TYPE_CHECKING:
    from matplotlib.figure import Figure


def row(found: Found, probe: Probe) -> list[str]:
    """A probe as cells of a table: cost, topology, scheduler, each goal's value, slack, met."""
    values = [
        "-" if (value := probe.values[goal.tag]) is None else f"{value:.4g}" for goal in found.goals
    ]
    known = all(probe.values[goal.tag] is not None for goal in found.goals)
    return [
        f"{probe.cost:.2f}",
        probe.line.topology(probe.units),
        probe.line.scheduler,
        *values,
        f"{slack(probe, found.goals):.0%}" if known else "-",
        "yes" if probe.met else "no",
    ]


def head(found: Found) -> list[str]:
    """Titles of `row`."""
    return ["USD/h", "topology", "scheduler", *map(str, found.goals), "margin", "met"]


def text(found: Found) -> str:
    """The plan in Markdown."""
    best = found.best
    goals = " and ".join(map(str, found.goals))
    lines = [f"# Cheapest cluster for {goals}", ""]
    if best is None:
        lines.append(f"None of what was tried meets it with a margin of {found.margin:.0%}.")
    else:
        lines.append(
            f"**{best.line.topology(best.units)}** under **{best.line.scheduler}**, "
            f"{best.cost:.2f} USD/h, {best.line.gpus(best.units)} GPUs; margin "
            f"{slack(best, found.goals):.0%} (at least {found.margin:.0%} was asked for)."
        )
    lines += ["", "Figures are simulated; prices are those that were given.", "", "## Frontier", ""]
    lines += _table(found, found.frontier)
    lines += ["", f"## All {len(found.probes)} that were tried", ""]
    lines += _table(found, sorted(found.probes, key=lambda p: p.cost))
    failed = [p for p in found.probes if p.why_not is not None]
    if failed:
        lines += ["", "Without figures:", ""]
        lines += [f"- {p.line.topology(p.units)}, {p.line.scheduler}: {p.why_not}" for p in failed]
    lines += ["", "## What the search did not cover", ""]
    lines += [f"- {what}" for what in found.not_covered()]
    return "\n".join(lines) + "\n"


def _table(found: Found, probes: list[Probe]) -> list[str]:
    titles = head(found)
    lines = ["| " + " | ".join(titles) + " |", "|---:|---|---|" + "---:|" * (len(titles) - 3)]
    lines += ["| " + " | ".join(row(found, probe)) + " |" for probe in probes]
    return lines


def data(found: Found) -> dict[str, Any]:
    """Everything, for programs."""
    best = found.best

    def plain(probe: Probe) -> dict[str, Any]:
        return {
            "topology": probe.line.topology(probe.units),
            "gpu": probe.line.offer.gpu,
            "gpus": probe.line.gpus(probe.units),
            "scheduler": probe.line.scheduler,
            "usd_per_hour": probe.cost,
            "values": dict(probe.values),
            "met": probe.met,
            "why_not": probe.why_not,
        }

    return {
        "label": "simulated",
        "goals": [asdict(goal) for goal in found.goals],
        "margin": found.margin,
        "max_gpus": found.max_gpus,
        "load": asdict(found.load),
        "best": plain(best) if best is not None else None,
        "frontier": [plain(probe) for probe in found.frontier],
        "probes": [plain(probe) for probe in found.probes],
        "not_covered": found.not_covered(),
    }


def figure(found: Found) -> Figure:
    """The first goal's metric over cost: what was tried, the frontier, the goal, the plan."""
    from results.drawing import legend_below, looks, new_axes

    goal = found.goals[0]
    made, axes = new_axes(1, 1, 3.6)
    axis = axes[0, 0]
    names = list(dict.fromkeys(probe.line.scheduler for probe in found.probes))
    styles = looks(names)
    for name in names:
        points = [
            (probe.cost, value)
            for probe in found.probes
            if probe.line.scheduler == name and (value := probe.values[goal.tag]) is not None
        ]
        if points:
            costs, values = zip(*points, strict=True)
            axis.plot(costs, values, "o", ms=4.5, color=styles[name].colour, label=name)
    steps = [(probe.cost, probe.values[goal.tag]) for probe in found.frontier]
    if steps:
        costs, heights = zip(*steps, strict=True)
        axis.plot(costs, heights, "-", color="0.5", lw=1, label="frontier", zorder=0)
    axis.axhline(goal.bound, color="0.3", ls="--", lw=1, label=f"goal: {goal}")
    best = found.best
    if best is not None:
        where = (best.cost, best.values[goal.tag])
        axis.plot(*where, "o", ms=11, mfc="none", color="0.1", label="the plan")
    axis.set(xlabel="USD/h", ylabel=f"{goal.tag} ({goal.unit})", title="simulated")
    known = [v for p in found.probes if (v := p.values[goal.tag]) is not None and v > 0]
    if known and max(known) > 20 * min(known):
        axis.set_yscale("log")
    legend_below(made, axis, 4)
    return made


def write(found: Found, folder: Path) -> list[Path]:
    """plan.md, plan.json and frontier.png in the folder."""
    made = [folder / name for name in ("plan.md", "plan.json", "frontier.png")]
    with disk(folder, "write the plan"):
        folder.mkdir(parents=True, exist_ok=True)
        made[0].write_text(text(found), "utf-8")
        made[1].write_text(json.dumps(data(found), indent=1) + "\n", "utf-8")
        figure(found).savefig(made[2], dpi=150)
    return made
