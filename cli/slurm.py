"""`agentsched slurm-script`: an sbatch file that starts Ray and runs a specification on it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def slurm_script(
    spec: Annotated[str, typer.Argument(metavar="PRESET|SPEC.yaml", help="What to run.")],
    nodes: Annotated[int, typer.Option(min=1, help="Machines.")] = 2,
    cpus: Annotated[int, typer.Option(min=1, help="CPUs of each: cells at the same time.")] = 8,
    gpus: Annotated[int, typer.Option(min=0, help="GPUs of each; simulated runs need none.")] = 0,
    memory: Annotated[
        str | None, typer.Option(metavar="16G", help="Memory of each, as --mem takes it.")
    ] = None,
    time: Annotated[str, typer.Option(metavar="D-HH:MM:SS", help="Limit of the job.")] = "04:00:00",
    partition: Annotated[str | None, typer.Option(help="Partition of the job.")] = None,
    account: Annotated[str | None, typer.Option(help="Account of the job.")] = None,
    activate: Annotated[
        str | None,
        typer.Option(
            metavar="FILE",
            help="Script of the virtual environment on the machines; the one in use here unless "
            "given.",
        ),
    ] = None,
    run_out: Annotated[
        Path | None, typer.Option("--run-out", metavar="DIR", help="The run folder.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option("-o", "--out", metavar="FILE", help="Write it here.")
    ] = None,
) -> None:
    """Write an sbatch file: Ray on all machines of a job, and the run on it.

    The run folder must be on a disk that the first machine keeps. Submitting the file again
    continues the run.
    """
    from harness.ray.slurm import SlurmJob, script
    from harness.spec import load_spec

    name = load_spec(spec).name  # refuses what could not run
    text = script(
        SlurmJob(
            spec=str(Path(spec).resolve()) if Path(spec).exists() else spec,
            name=name,
            out=str((run_out or Path("runs") / name).resolve()),
            activate=activate or str(Path(sys.prefix) / "bin" / "activate"),
            nodes=nodes,
            cpus=cpus,
            gpus=gpus,
            memory=memory,
            time=time,
            partition=partition,
            account=account,
        )
    )
    if out is None:
        print(text, end="")
        return
    out.write_text(text, "utf-8")
    print(f"next: sbatch {out}")
