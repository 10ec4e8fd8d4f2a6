"""`agentsched run --saturate`: the most workers under which an objective is still met."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from agentsched import InvalidRunError
from cli import console

if TYPE_CHECKING:
    from harness.overrides import Flags
    from harness.saturation import Probe, Saturation


def search(
    spec: str | None, flags: Flags, goal_text: str, out: Path | None, jobs: int | None
) -> None:
    """Search for every scheduler and print what was found.

    Raises:
        InvalidRunError: no scheduler meets the objective even under the smallest load.
    """
    from harness.saturation import parse_goal, saturate
    from harness.spec import load_spec
    from results.metrics import BY_TAG

    goal = parse_goal(goal_text, {tag: metric.unit for tag, metric in BY_TAG.items()})
    folder = out if out is not None else Path("runs") / f"{load_spec(spec, flags).name}-saturation"
    found = saturate(spec, flags, goal, folder, jobs=jobs, done=_tell)
    print(f"\nMost workers with {goal}:")
    console.print_columns(
        ("scheduler", "workers", goal.tag, "probes"),
        [(one.scheduler, *_best(one), str(len(one.probes))) for one in found],
    )
    print(f"run folders: {folder}")
    if all(one.workers is None for one in found):
        raise InvalidRunError(
            "no scheduler meets the objective under any load searched",
            "search smaller loads with --workers LOW,HIGH, or relax the objective",
        )


def _tell(found: Saturation) -> None:
    for probe in found.probes:
        print(f"{found.scheduler}, {probe.workers} workers: {_value(probe)}")


def _value(probe: Probe) -> str:
    if probe.value is None:
        return f"not met ({probe.why_not or 'not known'})"
    return f"{probe.value:.4g}, {'met' if probe.met else 'not met'}"


def _best(found: Saturation) -> tuple[str, str]:
    if found.workers is None:
        return "none", "-"
    best = next(probe for probe in found.probes if probe.workers == found.workers)
    return str(found.workers), "-" if best.value is None else f"{best.value:.4g}"
