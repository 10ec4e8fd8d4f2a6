"""The sbatch file: bash takes it, and it says what was asked for."""

from __future__ import annotations

import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from agentsched import UsageError
from harness.ray.slurm import SlurmJob, script
from tests.cli.command import agentsched

JOB = SlurmJob(
    spec="/data/it's here/spec.yaml",
    name="a name with spaces",
    out="/data/run$HOME",
    activate="/opt/env/bin/activate",
    nodes=3,
    cpus=16,
    gpus=2,
    memory="64G",
    time="1-00:00:00",
    partition="long",
    account="me",
)


def test_bash_takes_it_and_reads_the_values_as_given(tmp_path: Path) -> None:
    file = tmp_path / "job.sbatch"
    file.write_text(script(JOB))
    subprocess.run(["bash", "-n", file], check=True)
    shown = "".join(
        line + "\n" for line in file.read_text().splitlines() if line.startswith(("SPEC=", "OUT="))
    )
    said = subprocess.run(
        ["bash", "-c", shown + 'printf "%s|%s" "$SPEC" "$OUT"'],
        check=True,
        capture_output=True,
        text=True,
    )
    assert said.stdout == f"{JOB.spec}|{JOB.out}"


def test_directives() -> None:
    lines = [line for line in script(JOB).splitlines() if line.startswith("#SBATCH")]
    assert lines == [
        "#SBATCH --job-name=agentsched-a-name-with-spaces",
        "#SBATCH --nodes=3",
        "#SBATCH --ntasks-per-node=1",
        "#SBATCH --cpus-per-task=16",
        "#SBATCH --time=1-00:00:00",
        "#SBATCH --gpus-per-node=2",
        "#SBATCH --mem=64G",
        "#SBATCH --partition=long",
        "#SBATCH --account=me",
    ]
    plain = script(replace(JOB, gpus=0, memory=None, partition=None, account=None))
    assert "--gpus-per-node" not in plain
    assert "--mem" not in plain


@pytest.mark.parametrize("change", [{"time": "soon"}, {"memory": "lots"}, {"partition": "a b"}])
def test_wrong_values_are_refused(change: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="Slurm"):
        replace(JOB, **change)


def test_command(tmp_path: Path) -> None:
    done = agentsched("slurm-script", "quickstart", "-o", "job.sbatch", cwd=tmp_path)
    assert done.stdout == "next: sbatch job.sbatch\n"
    subprocess.run(["bash", "-n", tmp_path / "job.sbatch"], check=True)
    assert agentsched("slurm-script", "nothing", cwd=tmp_path).returncode == 2
