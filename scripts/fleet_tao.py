"""TAO's plan by clusters of replicas against the joint optimum.

    python -m scripts.fleet_tao [--every 10] [--plot docs/img/fleet_tao] [--out fleet_tao.json]

On recorded planning snapshots of 4 replicas, whose joint optimum is proven: clusters of 1 and 2.
On larger made-up ones, 8 to 1,000 replicas: recorded snapshots side by side, in shuffled order,
each candidate credited on its own four; with all candidates, and with as many as TAO plans for at
once, drawn at random. Their joint optimum is not known; what is, is the bound that comes with each
plan. And the planner's time.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import fmean

from schedulers.tao_decomposed import make_plan_by_parts
from schedulers.tao_plan import Candidate, PlanSettings, Snapshot, make_plan
from schedulers.tao_solver import Value
from scripts.tao_snapshots import from_row, read

ROUNDS = 3
LIMIT = 256
"""Candidates that TAO plans for at once."""
SIZES = (8, 40, 200, 1000)
BUDGET_MS = 50.0
"""TAO's for a plan."""


@dataclass(frozen=True, slots=True)
class Row:
    """Plans by parts against the joint optimum, or the bound; shares are of that."""

    replicas: int
    cluster: int
    candidates: int
    """Mean."""
    snapshots: int
    proven: float
    """Share of snapshots with all the credit and readiness that the bound allows."""
    same: float
    """Share of snapshots with credit and readiness of the reference, or better."""
    credit: float
    ready: float
    footprint: float
    plan_ms: float
    joint_ms: float | None


def compare(
    frozen: Sequence[Snapshot],
    optima: Sequence[Value] | None,
    cluster: int,
    joint_ms: float | None,
) -> Row:
    """Args:
    optima: of each snapshot; None: they are not known.
    """
    began = time.process_time()
    plans = [make_plan_by_parts(one, cluster_replicas=cluster, rounds=ROUNDS) for one in frozen]
    spent = (time.process_time() - began) / len(frozen)
    bounds = [plan.bound for plan in plans]
    reference = bounds if optima is None else optima

    def share(field: int) -> float:
        whole = sum(value[field] for value in reference)
        return sum(plan.value[field] for plan in plans) / whole if whole else 1.0

    pairs = list(zip(plans, reference, strict=True))
    return Row(
        replicas=round(fmean(len(one.replicas) for one in frozen)),
        cluster=cluster,
        candidates=round(fmean(len(one.candidates) for one in frozen)),
        snapshots=len(frozen),
        proven=fmean(p.value[:2] >= b[:2] for p, b in zip(plans, bounds, strict=True)),
        same=fmean(plan.value[:2] >= value[:2] for plan, value in pairs),
        credit=share(0),
        ready=share(1),
        footprint=share(2),
        plan_ms=1e3 * spent,
        joint_ms=joint_ms,
    )


def side_by_side(parts: Sequence[Snapshot], rng: random.Random) -> Snapshot:
    """Many clusters as one: each candidate has credit on its own replicas alone; their order is
    shuffled, so that neighbours in the order do not belong together."""
    offsets = [sum(len(p.replicas) for p in parts[:i]) for i in range(len(parts))]
    count = sum(len(p.replicas) for p in parts)
    order = list(range(count))
    rng.shuffle(order)
    place = {old: new for new, old in enumerate(order)}
    rooms = [room for part in parts for room in part.room]
    candidates: list[Candidate] = []
    for number, (part, offset) in enumerate(zip(parts, offsets, strict=True)):
        for one in part.candidates:
            credits = [0] * count
            for n, credit in enumerate(one.credits):
                credits[place[offset + n]] = credit
            name = f"{number}.{one.session}"
            candidates.append(replace(one, session=name, credits=tuple(credits)))
    return Snapshot(
        now=0,
        replicas=tuple(f"r{n}" for n in range(count)),
        room=tuple(rooms[order[n]] for n in range(count)),
        candidates=tuple(candidates),
        settings=parts[0].settings,
    )


def study(every: int, sizes: Sequence[int]) -> list[Row]:
    """All rows."""
    frozen = [from_row(row, PlanSettings()) for row in read()[::every]]
    began = time.process_time()
    joint = [make_plan(one) for one in frozen]
    joint_ms = 1e3 * (time.process_time() - began) / len(frozen)
    assert all(plan.proven for plan in joint)
    optima = [plan.value for plan in joint]
    rows = [compare(frozen, optima, cluster, joint_ms) for cluster in (1, 2)]
    rng = random.Random(0)
    for size in sizes:
        chosen = [rng.randrange(len(frozen)) for _ in range(max(1, size // 4))]
        together = side_by_side([frozen[i] for i in chosen], rng)
        some = min(LIMIT, len(together.candidates))
        drawn = replace(together, candidates=tuple(rng.sample(together.candidates, some)))
        both = (drawn, together) if some < len(together.candidates) else (together,)
        rows += [compare([one], None, 4, None) for one in both]
    return rows


def table(rows: Sequence[Row]) -> list[str]:
    lines = [
        "| replicas | cluster | candidates | snapshots | proven | as good | credit | readiness "
        "| ms a plan | ms a joint plan |",
        "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|",
    ]
    for row in rows:
        joint = "-" if row.joint_ms is None else f"{row.joint_ms:.1f}"
        lines.append(
            f"| {row.replicas:,} | {row.cluster} | {row.candidates:,} | {row.snapshots} "
            f"| {row.proven:.1%} | {row.same:.1%} | {row.credit:.1%} | {row.ready:.1%} "
            f"| {row.plan_ms:.1f} | {joint} |"
        )
    return lines


def plot(rows: Sequence[Row], path: Path) -> None:
    """Value kept and time of a plan over replicas, as .png and .svg."""
    from results.drawing import new_axes

    large = [row for row in rows if row.cluster == 4]
    figure, axes = new_axes(1, 2, 2.8)
    for few, style in ((True, "-"), (False, ":")):
        mine = [row for row in large if (row.candidates <= LIMIT) == few]
        sizes = [row.replicas for row in mine]
        said = f"{LIMIT} candidates" if few else "all candidates"
        for name in ("credit", "ready"):
            shares = [100 * getattr(row, name) for row in mine]
            axes[0, 0].plot(sizes, shares, style, marker="o", ms=3.5, label=f"{name}, {said}")
        times = [row.plan_ms for row in mine]
        axes[0, 1].plot(sizes, times, style, marker="o", ms=3.5, label=said)
    axes[0, 0].set(xscale="log", xlabel="replicas", title="value (% of what is proven possible)")
    axes[0, 1].set(xscale="log", yscale="log", xlabel="replicas", title="CPU time of a plan (ms)")
    axes[0, 1].axhline(BUDGET_MS, color="0.5", ls="--", lw=1)
    axes[0, 0].set_ylim(0, 105)
    for axis in axes[0]:
        axis.legend(fontsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    for kind in ("png", "svg"):
        figure.savefig(path.with_suffix(f".{kind}"), dpi=150)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--every", type=int, default=10, help="every so many recorded snapshots")
    parser.add_argument("--sizes", nargs="*", type=int, default=list(SIZES))
    parser.add_argument("--out", type=Path, help="figures as JSON")
    parser.add_argument("--plot", type=Path, help="path of the figure, without its ending")
    given = parser.parse_args(arguments)
    rows = study(given.every, given.sizes)
    print("\n".join(table(rows)))
    if given.out is not None:
        given.out.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n", "utf-8")
    if given.plot is not None:
        plot(rows, given.plot)


if __name__ == "__main__":
    main()
