"""What the scripts on ConServe share: its runs over request rates."""

from __future__ import annotations

from collections.abc import Sequence

from results.groups import Group, groups_of
from results.run import Run
from scripts._reproduce import Study

RATES = (0.1, 0.3, 0.9)
"""Sessions a second: from light load to more than the decoders' KV holds."""
SESSIONS = 200


def run_of(
    report: Study,
    preset: str,
    name: str | None = None,
    settings: Sequence[str] = (),
    schedulers: Sequence[str] | None = None,
) -> Run:
    """The cells of a preset."""
    return report.play(
        f"conserve-{name or preset}",
        f"conserve/{preset}",
        sessions=SESSIONS,
        settings=settings,
        schedulers=schedulers,
    )


def play(report: Study, preset: str, settings: Sequence[str] = ()) -> list[Group]:
    """One table a rate, by rising rate."""
    return sorted(groups_of(run_of(report, preset, settings=settings)), key=rate_of)


def rate_of(group: Group) -> float:
    return float(group.setting["rate_per_s"])
