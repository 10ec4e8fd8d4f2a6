"""`agentsched calibrate`: fit the simulator's scalars to a recorded run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from agentsched import InputError, UsageError
from cli import console

if TYPE_CHECKING:
    from results.cells import CellId
    from results.run import Run


def calibrate(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="A run folder.")],
    out: Annotated[
        Path, typer.Option("-o", "--out", metavar="PROFILE.yaml", help="Where the fit goes.")
    ],
    cell: Annotated[
        str | None, typer.Option(help="Name of the cell to fit on; the first unless given.")
    ] = None,
    scalar: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="What to fit: host_fixed_us, host_per_seq_us, bandwidth_scale; repeatable. "
            "The first and the last unless given.",
        ),
    ] = None,
) -> None:
    """Fit host terms and bandwidth so that the simulator's times are those of a recorded run.

    Writes a `sim` section for a specification, and shows the errors that are left.
    """
    from harness.capacity import resolve_cluster
    from harness.sim.defaults import engine_defaults
    from harness.sim.engine_types import EngineParams
    from harness.validation.calibration import FITTED, calibrate, profile_text, read_turns
    from results.store import load_run

    loaded = load_run(run)
    chosen = _cell(loaded, cell)
    spec = _spec(loaded)
    cluster = resolve_cluster(spec["model"], spec["topology"], **(spec.get("memory") or {}))
    values: dict[str, Any] = {**engine_defaults(cluster), **(spec.get("engine_settings") or {})}
    turns = read_turns(loaded.table(chosen, "turns"), run)
    found = calibrate(turns, cluster, EngineParams(**values), fit=scalar or FITTED)
    text = profile_text(found, f"{loaded.name}, {chosen.name} ({loaded.label})")
    out.write_text(text, "utf-8")
    console.print_columns(
        ("metric", "statistic", "measured s", "simulated s", "error"),
        [
            (
                row.metric.upper(),
                row.statistic,
                f"{row.measured:.4f}",
                f"{row.simulated:.4f}",
                f"{row.error:+.2f} %",
            )
            for row in found.residuals
        ],
    )
    print()
    print(f"cached prompt tokens: {found.measured_hit:.2%} measured, {found.simulated_hit:.2%} now")
    for name, value in found.scalars.items():
        print(f"{name}: {value:.6g}")
    print(f"written: {out}; put its `sim` section into a specification")


def _cell(loaded: Run, name: str | None) -> CellId:
    cells = list(loaded.summaries)
    if not cells:
        raise InputError(
            "holds no finished cell", "finish the run with the same command", file=loaded.path
        )
    if name is None:
        return cells[0]
    for one in cells:
        if one.name == name:
            return one
    raise UsageError(
        f"{loaded.path} has no finished cell `{name}`",
        f"cells: {', '.join(one.name for one in cells)}",
    )


def _spec(loaded: Run) -> dict[str, Any]:
    spec = loaded.manifest.get("spec")
    if not isinstance(spec, dict) or not {"model", "topology"} <= spec.keys():
        raise InputError(
            "does not say model and topology", "use a folder of `agentsched run`", file=loaded.path
        )
    return spec
