"""The sbatch file of a run on Ray: a head on the job's first machine, workers on the others.

After Ray's page "Deploying on Slurm": one `srun` for each, `ray start --block`, the run on the
first machine.
"""

from __future__ import annotations

import re
import shlex
from dataclasses import dataclass

from agentsched import UsageError

_TIME = re.compile(r"(\d+-)?\d{1,2}(:\d{2}){0,2}|\d+")
_MEMORY = re.compile(r"\d+[KMGT]?")
_WORD = re.compile(r"[A-Za-z0-9_.,-]+")


@dataclass(frozen=True, slots=True)
class SlurmJob:
    """What the file asks Slurm for, and what it runs."""

    spec: str
    """A preset, or the absolute path of a specification."""
    name: str
    out: str
    """Absolute path of the run folder."""
    activate: str
    """Script of the virtual environment on the machines."""
    nodes: int
    cpus: int
    gpus: int
    memory: str | None
    time: str
    partition: str | None = None
    account: str | None = None

    def __post_init__(self) -> None:
        for flag, value, form in (
            ("--time", self.time, _TIME),
            ("--memory", self.memory, _MEMORY),
            ("--partition", self.partition, _WORD),
            ("--account", self.account, _WORD),
        ):
            if value is not None and not form.fullmatch(value):
                raise UsageError(f"{flag} {value}: not of Slurm's form", "see `man sbatch`")
        for flag, value in (("the name of the run", self.name), ("--run-out", self.out)):
            if "\n" in value:
                raise UsageError(f"{flag} has a line break in it", "choose another")


def script(job: SlurmJob) -> str:
    """The file's text; runs with `sbatch FILE`."""
    directives = [
        f"--job-name=agentsched-{re.sub(r'[^A-Za-z0-9_.-]', '-', job.name)}",
        f"--nodes={job.nodes}",
        "--ntasks-per-node=1",
        f"--cpus-per-task={job.cpus}",
        f"--time={job.time}",
    ]
    directives += [f"--gpus-per-node={job.gpus}"] if job.gpus else []
    directives += [f"--mem={job.memory}"] if job.memory else []
    directives += [f"--partition={job.partition}"] if job.partition else []
    directives += [f"--account={job.account}"] if job.account else []
    head = "\n".join(f"#SBATCH {line}" for line in directives)
    values = {
        "SPEC": job.spec,
        "OUT": job.out,
        "ACTIVATE": job.activate,
        "CPUS": str(job.cpus),
        "GPUS": str(job.gpus),
    }
    settings = "\n".join(f"{name}={shlex.quote(value)}" for name, value in values.items())
    return f"#!/bin/bash\n{head}\n\nset -euo pipefail\n{settings}\n{_BODY}"


_BODY = r"""
source "$ACTIVATE"
export RAY_USAGE_STATS_ENABLED=0

# Jobs that share a machine must not share Ray's port.
port=$((20000 + SLURM_JOB_ID % 20000))
mapfile -t machines < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
first=${machines[0]}
address=$(srun --overlap --nodes=1 --ntasks=1 -w "$first" hostname --ip-address | awk '{print $1}')
temporary=$(mktemp -d "/tmp/ray-$SLURM_JOB_ID-XXXX")

stop() {
    kill $(jobs -p) 2> /dev/null || true
    wait || true
}
trap stop EXIT

srun --overlap --nodes=1 --ntasks=1 -w "$first" \
    ray start --head --block --node-ip-address="$address" --port="$port" \
    --num-cpus="$CPUS" --num-gpus="$GPUS" --include-dashboard=false --temp-dir="$temporary" &
for _ in $(seq 60); do
    ray health-check --address "$address:$port" 2> /dev/null && break
    sleep 1
done
ray health-check --address "$address:$port"
for machine in "${machines[@]:1}"; do
    srun --overlap --nodes=1 --ntasks=1 -w "$machine" \
        ray start --block --address="$address:$port" \
        --num-cpus="$CPUS" --num-gpus="$GPUS" &
done

# Machines that come later take part from then on; a lost one repeats only its cells.
RAY_ADDRESS="$address:$port" agentsched run "$SPEC" --executor ray -o "$OUT"
"""
