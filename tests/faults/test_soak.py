"""The soak of `make soak`, for less than a minute: every kind of fault once, 160 sessions."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from scripts._soak import MISBEHAVIOURS
from tests.cli.command import ROOT, environment


@pytest.mark.timeout(280)
def test_a_short_soak(tmp_path: Path) -> None:
    out = tmp_path / "soak.json"
    command = [sys.executable, "-m", "scripts.soak", "--minutes", "0.6", "--fault-every", "2"]
    done = subprocess.run(
        [*command, "--json", str(out)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=270,
        check=False,
    )
    report = json.loads(out.read_text())
    assert report["problems"] == [], done.stderr
    assert done.returncode == 0
    assert set(MISBEHAVIOURS) <= set(report["faults"])
    assert report["sessions"]["finished"] >= 160
