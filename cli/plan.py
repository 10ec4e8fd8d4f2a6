"""`agentsched plan`: the cheapest cluster and scheduler that meet an objective."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from agentsched import InvalidRunError, UsageError
from cli import console

if TYPE_CHECKING:
    from harness.cells import Arrivals
    from harness.planning.search import Load, Probe

SCHEDULERS = ("least-loaded", "smetric", "tao", "disaggregated")


def plan(
    trace: Annotated[
        str, typer.Argument(metavar="TRACE|WORKLOAD", help="What the cluster is to serve.")
    ],
    model: Annotated[str, typer.Option(help="The model; `agentsched list models`.")],
    gpu: Annotated[
        list[str],
        typer.Option(metavar="KIND:USD", help="A GPU and its price for an hour; repeatable."),
    ],
    slo: Annotated[
        list[str],
        typer.Option(metavar="TAG<=VALUE", help="What must be met, as ttft.p95<=2; repeatable."),
    ],
    scheduler: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help=f"To try; {', '.join(SCHEDULERS)} unless given."),
    ] = None,
    workers: Annotated[int | None, typer.Option(min=1, help="Sessions active at once.")] = None,
    rate: Annotated[
        float | None, typer.Option(help="Sessions that arrive a second (Poisson).")
    ] = None,
    sessions: Annotated[
        int | None, typer.Option(min=1, help="Only so many of the workload.")
    ] = None,
    max_gpus: Annotated[int, typer.Option(min=1, help="No cluster has more.")] = 16,
    margin: Annotated[
        float, typer.Option(min=0, max=0.9, help="Share of the bound to stay away from it.")
    ] = 0.1,
    seeds: Annotated[int, typer.Option(min=1, help="Runs of each; figures are means.")] = 1,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", help="Folder; plans/NAME unless given.")
    ] = None,
) -> None:
    """Search topologies, replica counts, prefill/decode splits and schedulers by simulation.

    Without --workers or --rate, sessions arrive as the trace recorded them.
    """
    from cli.plan_report import head, row, write
    from harness.models import find_model
    from harness.planning.candidates import Offer, lines_of
    from harness.planning.search import Simulated, search
    from harness.saturation import parse_goal
    from results.metrics import BY_TAG
    from schedulers.registry import SHIPPED

    served = find_model(model)
    offers = [Offer.parse(text) for text in gpu]
    units = {tag: metric.unit for tag, metric in BY_TAG.items()}
    goals = [parse_goal(text, units) for text in slo]
    names = scheduler or list(SCHEDULERS)
    for name in names:
        if name not in SHIPPED:
            raise UsageError(f"no scheduler `{name}`", "see `agentsched list schedulers`")
    load = _load(trace, sessions, workers, rate, seeds)
    lines, refused = lines_of(served, offers, names, max_gpus)

    def tell(probe: Probe) -> None:
        value = probe.values[goals[0].tag]
        shown = "-" if value is None else f"{value:.4g}"
        print(
            f"{probe.line.topology(probe.units)} {probe.line.scheduler}: {goals[0].tag} {shown}, "
            f"{probe.cost:.2f} USD/h, {'met' if probe.met else 'not met'}",
            file=sys.stderr,
        )

    found = search(
        lines,
        goals,
        load,
        Simulated(served, goals, load, margin),
        max_gpus=max_gpus,
        margin=margin,
        refused=refused,
        tell=tell,
    )
    folder = out if out is not None else Path("plans") / Path(load.workload).stem
    made = write(found, folder)
    best = found.best
    if best is not None:
        console.print_columns(head(found), [row(found, best)])
    print("not covered:")
    for what in found.not_covered():
        print(f"  {what}")
    print(f"written: {', '.join(map(str, made))}")
    if best is None:
        raise InvalidRunError(
            f"nothing that was tried meets {' and '.join(map(str, goals))} with a margin of "
            f"{margin:.0%}",
            "raise --max-gpus, offer other GPUs, or relax the objective",
        )


def _load(
    trace: str, sessions: int | None, workers: int | None, rate: float | None, seeds: int
) -> Load:
    """Raises UsageError or TraceError for what cannot be played."""
    from harness.cells import Arrivals
    from harness.planning.search import Load
    from workloads.arrivals import recorded
    from workloads.catalog import load_workload

    if workers is not None and rate is not None:
        raise UsageError("--workers and --rate are two kinds of load", "give one of them")
    if rate is not None and not 0 < rate < 1e6:
        raise UsageError(f"--rate {rate:g}: not above 0", "write sessions a second")
    source = str(Path(trace).resolve()) if Path(trace).is_file() else trace
    played = load_workload(source, sessions=sessions, seed=0, settings={})
    arrivals: Arrivals | None = None
    if rate is not None:
        arrivals = Arrivals("poisson", rate, 1.0)
    elif workers is None:
        recorded(played)  # raises where the trace does not say
        arrivals = Arrivals("recorded", None, 1.0)
    count = sum(session.parent is None for session in played)
    if workers is not None and workers > count:
        raise UsageError(
            f"{count} sessions cannot keep {workers} workers busy",
            "lower --workers, or give more sessions",
        )
    return Load(source, sessions, workers, arrivals, tuple(range(seeds)))
