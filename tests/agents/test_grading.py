"""Grading: rewards are summed, patches go to swebench, and where that cannot be, it is said."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from harness.live.agents import grading
from results.cells import CellId
from results.run import Run
from results.store import RunStore, load_run
from results.writer import CellWriter

FAKE_SWEBENCH = """#!/bin/sh
# Takes what swebench's harness takes, and writes the report that it writes.
[ "$1" = -c ] && exit 0
while [ $# -gt 0 ]; do
  case $1 in --run_id) id=$2;; --predictions_path) p=$2;; --dataset_name) d=$2;; esac
  shift
done
echo "$d" > dataset
n=$(grep -c instance_id "$p")
printf '{"resolved_instances": 1, "completed_instances": %d, "empty_patch_instances": 0}' "$n" \\
  > "model.$id.json"
"""


def stored(out: Path, workload: str, sessions: dict[str, dict[str, object]]) -> Run:
    """A run with one finished cell that agents played.

    Args:
        sessions: by name, the facts of their ends; those with a patch also hand that in.
    """
    cell = CellId(workload, "tao", 2, 0)
    with (
        RunStore.open(out, "x: y\n", {"label": "emulated"}) as store,
        CellWriter(store.path, cell, "emulated") as writer,
    ):
        folder = writer.path / "agents"
        folder.mkdir()
        lines = []
        for name, facts in sessions.items():
            patch = facts.pop("patch", None)
            if patch is not None:
                (folder / name).mkdir()
                instance = name.partition("@")[0]
                handed = {"instance_id": instance, "model_patch": patch}
                (folder / name / "preds.json").write_text(json.dumps({instance: handed}))
            part = {"part": facts.pop("part")} if "part" in facts else {}
            line = {"session": name, "task": name, "status": "finished", "facts": facts}
            lines.append({**line, **part})
        text = "".join(json.dumps(line) + "\n" for line in lines)
        (folder / "sessions.jsonl").write_text(text)
        writer.finish(1, {}, {})
    return load_run(out)


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is all there is on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}:/bin:/usr/bin")
    return folder


def program(folder: Path, name: str, text: str) -> str:
    (folder / name).write_text(text)
    (folder / name).chmod(0o755)
    return str(folder / name)


def test_rewards(tmp_path: Path) -> None:
    sessions: dict[str, dict[str, object]] = {"a": {"reward": 1.0}, "b": {"reward": 0.0}, "c": {}}
    run = stored(tmp_path / "run", "swe-bench-standin", sessions)
    [grade] = grading.grade_rewards(run)
    assert (grade.sessions, grade.graded, grade.resolved) == (3, 2, 1.0)
    assert list(grading.predictions(run)) == []


def test_an_instance_done_twice_is_graded_in_two_rounds(tmp_path: Path, machine: Path) -> None:
    sessions: dict[str, dict[str, object]] = {
        "a": {"patch": "x"},
        "a@2": {"patch": "y"},
        "b": {"patch": ""},
    }
    run = stored(tmp_path / "run", "swe-bench-lite", sessions)
    [wanted] = grading.predictions(run)
    rounds = [json.loads(path.read_text()) for path in wanted.rounds]
    assert [[p["instance_id"] for p in r] for r in rounds] == [["a", "b"], ["a"]]
    program(machine, "docker", "#!/bin/sh\nexit 0\n")
    python = program(machine, "python", FAKE_SWEBENCH)
    assert grading.why_not(python) is None
    grade = grading.grade_patches(wanted, None, "test", 2, python)
    assert (grade.sessions, grade.graded, grade.resolved) == (3, 3, 2.0)
    used = (wanted.folder / "grading" / "dataset").read_text().strip()
    assert used == "SWE-bench/SWE-bench_Lite"
    grading.save(run, [grade])
    assert json.loads((wanted.folder / "grades.json").read_text())["resolved"] == 2.0
    program(machine, "python", "#!/bin/sh\necho 'no images' >&2; exit 1\n")
    for report in (wanted.folder / "grading").glob("*.json"):
        report.unlink()
    with pytest.raises(grading.GradingError, match="swebench failed: no images"):
        grading.grade_patches(wanted, None, "test", 2, python)


def test_why_a_machine_cannot_grade(machine: Path) -> None:
    program(machine, "docker", "#!/bin/sh\necho 'no daemon' >&2; exit 1\n")
    reason = grading.why_not(None)
    assert reason is not None
    assert reason[0] == "docker does not work (no daemon)"
    program(machine, "docker", "#!/bin/sh\nexit 0\n")
    reason = grading.why_not(program(machine, "python", "#!/bin/sh\nexit 1\n"))
    assert reason == ("swebench is not installed", "pip install swebench")


def test_the_command_says_plainly_that_it_cannot(tmp_path: Path, machine: Path) -> None:
    stored(tmp_path / "run", "swe-bench-lite", {"a": {"patch": "x"}})
    program(machine, "docker", "#!/bin/sh\necho 'no daemon' >&2; exit 1\n")
    done = subprocess.run(
        [sys.executable, "-m", "agentsched", "grade", str(tmp_path / "run")],
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 2
    assert "SWE-bench cannot be graded here: docker does not work (no daemon)" in done.stderr
    assert "python -m swebench.harness.run_evaluation" in done.stdout
    assert "SWE-bench/SWE-bench_Lite" in done.stdout


def test_of_a_mix_each_part_is_graded_in_its_own_way(tmp_path: Path) -> None:
    sessions: dict[str, dict[str, object]] = {
        "standin-1": {"part": "swe-bench-standin", "reward": 1.0, "patch": "p"},
        "lite-1": {"part": "swe-bench-lite", "patch": "p"},
        "lite-1@2": {"part": "swe-bench-lite", "patch": "q"},
        "verified-1": {"part": "swe-bench-verified", "patch": "r"},
    }
    run = stored(tmp_path / "run", "mixed-agents", sessions)
    [grade] = grading.grade_rewards(run)
    assert (grade.sessions, grade.graded, grade.resolved) == (4, 1, 1.0)
    lite, verified = grading.predictions(run)
    assert (lite.workload, len(lite.rounds), lite.sessions) == ("swe-bench-lite", 2, 2)
    assert (verified.workload, len(verified.rounds)) == ("swe-bench-verified", 1)
    line = grading.command(verified, 0, None, "test", 1, None)
    assert "SWE-bench/SWE-bench_Verified" in line
    [patch] = json.loads(verified.rounds[0].read_text())
    assert patch["model_patch"] == "r"
