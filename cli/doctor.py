"""`agentsched doctor`: is this machine fit for runs?"""

from __future__ import annotations

import typer

from cli import console


def doctor() -> None:
    """Look at GPUs, engines, models, ports, limits, clock and disk; say what to do.

    Leaves with 1 if anything is an error; warnings only narrow what can be run.
    """
    from harness.live.engines.doctor import examine

    findings = examine()
    rows = [
        (f.subject, f.level, f.message if f.remedy is None else f"{f.message}; try: {f.remedy}")
        for f in findings
    ]
    console.print_columns(("what", "state", "finding"), rows)
    if any(finding.level == "error" for finding in findings):
        raise typer.Exit(1)
