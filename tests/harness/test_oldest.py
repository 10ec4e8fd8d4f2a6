"""The list of oldest packages is that of the lower bounds."""

from __future__ import annotations

import re
import tomllib

from tests.cli.command import ROOT


def padded(version: str) -> tuple[int, ...]:
    """26.2 is 26.2.0."""
    parts = [int(part) for part in version.split(".")]
    return tuple(parts + [0] * (3 - len(parts)))


def test_the_oldest_versions_are_the_lower_bounds() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    bounds = {
        found[1]: padded(found[2])
        for each in project["dependencies"]
        if (found := re.match(r"([a-z0-9-]+)>=([\d.]+)", each))
    }
    lines = (ROOT / ".ci/oldest.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    assert len(bounds) == len(project["dependencies"])
    assert set(pins) - set(bounds) == {"click"}  # of typer
    assert {name: padded(pins[name]) for name in bounds} == bounds
