"""Every number of the main table follows from the records, by a script that users get."""

from __future__ import annotations

import csv
import io
import subprocess
import sys
from pathlib import Path

import pytest

from results.metrics import MAIN
from results.store import load_run
from results.tables import tables
from tests.cli.command import ROOT, agentsched, environment, tiny_spec
from tests.results.synthetic import write_run

SCRIPTS = {name: ROOT / "examples" / f"{name}.py" for name in ("recompute", "recompute_intervals")}


def recompute(path: Path, script: str = "recompute") -> list[dict[str, str]]:
    done = subprocess.run(
        [sys.executable, str(SCRIPTS[script]), str(path)],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return list(csv.DictReader(io.StringIO(done.stdout)))


def check(path: Path) -> None:
    rows = recompute(path)
    found = tables(load_run(path))
    assert len(rows) == sum(len(table.group.schedulers) for table in found)
    for row in rows:
        (table,) = (
            t
            for t in found
            if (t.group.workload, str(t.group.workers)) == (row["cell_workload"], row["workers"])
        )
        for tag in MAIN:
            estimate = table.group.figures(tag)[row["scheduler"]].estimate
            assert estimate is not None
            assert float(row[tag]) == pytest.approx(estimate.mean, rel=1e-9), tag


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_script_is_short(script: str) -> None:
    code = [line for line in SCRIPTS[script].read_text("utf-8").splitlines() if line.strip()]
    assert len(code) <= 20


def test_differences_recomputed_from_a_run_of_five_seeds(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", schedulers=["tao", "smetric", "cache-aware"], sessions=6)
    (table,) = tables(load_run(path))
    rows = recompute(path, "recompute_intervals")
    assert len(rows) == 3 * 4
    for row in rows:
        gap = table.group.figures(row["metric"])[row["scheduler"]].difference
        assert gap is not None
        assert (float(row["low"]), float(row["high"])) == pytest.approx(gap.interval, abs=1e-3)


def test_recomputed_from_a_synthetic_run(tmp_path: Path) -> None:
    check(write_run(tmp_path / "run", schedulers=["tao", "smetric"], seeds=2))


def test_recomputed_from_a_simulated_run(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, schedulers=["round-robin", "smetric"], seeds=[0, 1])
    done = agentsched("run", spec, "-o", "out", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    check(tmp_path / "out")
