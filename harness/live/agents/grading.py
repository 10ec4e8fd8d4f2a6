"""Grades what agents handed in: stand-in tasks by their own tests, SWE-bench by its own harness.

Source of the command and its report: swebench 5.0, `swebench.harness.run_evaluation`.
"""

from __future__ import annotations

import json
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agentsched import AgentschedError, RunDirectoryError, UsageError
from harness.live.agents.player import FOLDER, SESSIONS
from results.run import Run

DATASETS = {
    "swe-bench-lite": "SWE-bench/SWE-bench_Lite",
    "swe-bench-verified": "SWE-bench/SWE-bench_Verified",
}
"""Names that swebench 5 gives the data sets of our workloads."""
RESULT = "grades.json"
"""File in a cell's folder of agents."""


class GradingError(AgentschedError):
    """swebench's harness failed."""


@dataclass(frozen=True, slots=True)
class Grade:
    """How the sessions of one cell did."""

    cell: str
    sessions: int
    """That ended, in whatever way."""
    graded: int
    resolved: float
    """Sum of the rewards; of SWE-bench, the number of resolved instances."""
    how: str


@dataclass(frozen=True, slots=True)
class Predictions:
    """Patches of one cell for swebench; an instance done twice is in the second round again."""

    cell: str
    workload: str
    folder: Path
    sessions: int
    rounds: Sequence[Path]


def grade_rewards(run: Run) -> Iterator[Grade]:
    """Cells whose agents brought rewards home: graded by the task's own tests.

    Raises:
        RunDirectoryError: a file of a cell cannot be read.
    """
    for title, _, folder in _cells(run):
        ends = _ended(folder)
        rewards = [end["facts"]["reward"] for end in ends if "reward" in end.get("facts", {})]
        if rewards:
            yield Grade(title, len(ends), len(rewards), sum(rewards), "the tasks' own tests")


def predictions(run: Run) -> Iterator[Predictions]:
    """Write the patches of cells that swebench can grade.

    Raises:
        RunDirectoryError: a file of a cell cannot be read or written.
    """
    for title, workload, folder in _cells(run):
        ends = _ended(folder)
        graded = {end.get("part", "") for end in ends if "reward" in end.get("facts", {})}
        parts = dict.fromkeys(end.get("part", "") for end in ends)
        for part in (part for part in parts if part not in graded):
            sessions = [end["session"] for end in ends if end.get("part", "") == part]
            rounds = _rounds(folder, sessions)
            paths: list[Path] = []
            for number, round_ in enumerate(rounds, 1):
                path = folder / f"predictions-{f'{part}-' if part else ''}{number}.json"
                path.write_text(json.dumps(round_, indent=1) + "\n", encoding="utf-8")
                paths.append(path)
            if paths:
                yield Predictions(title, part or workload, folder, len(sessions), paths)


def _rounds(folder: Path, sessions: Sequence[str]) -> list[list[Mapping[str, Any]]]:
    """Patches of the sessions, each instance once in a round."""
    rounds: list[list[Mapping[str, Any]]] = []
    for file in sorted(folder / session / "preds.json" for session in sessions):
        for name, found in _json(file).items() if file.exists() else ():
            room = next((r for r in rounds if all(p["instance_id"] != name for p in r)), None)
            if room is None:
                room = []
                rounds.append(room)
            room.append({**found, "model_patch": found.get("model_patch") or ""})
    return rounds


def why_not(python: str | None) -> tuple[str, str] | None:
    """Why swebench cannot grade on this machine, and what to do; None: it can."""
    program = shutil.which("docker")
    if program is None:
        return "there is no docker", "grade on a machine with Docker"
    done = subprocess.run([program, "info"], capture_output=True, text=True, timeout=60)
    if done.returncode != 0:
        said = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
        return f"docker does not work ({said})", "start docker, or grade on another machine"
    found = subprocess.run(
        [python or sys.executable, "-c", "import swebench"], capture_output=True, timeout=120
    )
    if found.returncode != 0:
        return "swebench is not installed", "pip install swebench"
    return None


def command(
    wanted: Predictions,
    number: int,
    dataset: str | None,
    split: str,
    workers: int,
    python: str | None,
) -> list[str]:
    """The command that grades one round of a cell.

    Raises:
        UsageError: the data set is not known.
    """
    name = dataset or DATASETS.get(wanted.workload)
    if name is None:
        raise UsageError(
            f"which data set do the instances of `{wanted.workload}` belong to?",
            f"give --dataset, such as {DATASETS['swe-bench-verified']}",
        )
    return [
        *(python or sys.executable, "-m", "swebench.harness.run_evaluation"),
        *("--dataset_name", name, "--split", split),
        *("--predictions_path", str(wanted.rounds[number].resolve())),
        *("--run_id", f"{wanted.folder.parent.name}-{number + 1}"),
        *("--max_workers", str(workers), "--report_dir", "."),
    ]


def grade_patches(
    wanted: Predictions, dataset: str | None, split: str, workers: int, python: str | None
) -> Grade:
    """Run swebench's harness on the patches of a cell; its logs stay in the cell's folder.

    Raises:
        GradingError: it failed, or wrote no report.
    """
    resolved = graded = 0
    folder = wanted.folder / "grading"
    folder.mkdir(exist_ok=True)
    for number in range(len(wanted.rounds)):
        argv = command(wanted, number, dataset, split, workers, python)
        done = subprocess.run(argv, cwd=folder, text=True, stderr=subprocess.PIPE)
        reports = list(folder.glob(f"*.{wanted.folder.parent.name}-{number + 1}.json"))
        if done.returncode != 0 or len(reports) != 1:
            said = (done.stderr.strip().splitlines() or ["it did not say why"])[-1]
            raise GradingError(f"swebench failed: {said}", f"try it by hand: {shlex.join(argv)}")
        report = _json(reports[0])
        resolved += int(report["resolved_instances"])
        graded += int(report["completed_instances"]) + int(report["empty_patch_instances"])
    return Grade(wanted.cell, wanted.sessions, graded, float(resolved), "swebench")


def save(run: Run, grades: Sequence[Grade]) -> None:
    """Keep the grades with their cells."""
    by_title = {title: folder for title, _, folder in _cells(run)}
    for one in grades:
        kept = {
            "sessions": one.sessions,
            "graded": one.graded,
            "resolved": one.resolved,
            "how": one.how,
        }
        (by_title[one.cell] / RESULT).write_text(json.dumps(kept, indent=1) + "\n")


def _cells(run: Run) -> Iterator[tuple[str, str, Path]]:
    """Title, workload and folder of the agents of finished cells that agents played."""
    for state in run.states:
        folder = state.path / FOLDER
        if state.status == "done" and (folder / SESSIONS).is_file():
            yield state.cell.title, state.cell.workload, folder


def _ended(folder: Path) -> list[dict[str, Any]]:
    file = folder / SESSIONS
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{file}: {error}", "run the cell again") from None


def _json(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise RunDirectoryError(f"{file}: {error}", "run the cell again") from None
    if not isinstance(found, dict):
        raise RunDirectoryError(f"{file}: not an object", "run the cell again")
    return found
