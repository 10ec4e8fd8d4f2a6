"""`agentsched run` as users meet it: results, resuming, and what each way of failing says."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.command import agentsched, environment, tiny_spec

BROKEN = Path(__file__).with_name("broken.py")


def summaries(run: Path) -> dict[str, bytes]:
    """Cell -> its summary, byte for byte."""
    return {p.parent.name: p.read_bytes() for p in (run / "cells").glob("*/summary.json")}


def wait_until(holds: Callable[[], bool], what: str) -> None:
    for _ in range(1200):
        if holds():
            return
        time.sleep(0.05)
    pytest.fail(f"waited a minute in vain for {what}")


def alive(process: int) -> bool:
    """Whether a process runs (one that has died but was not yet collected does not)."""
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in ("Z", "X")


def test_a_run_says_its_plan_first_and_where_it_went(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, schedulers=["round-robin", "smetric"], seeds=[0, 1])
    done = agentsched("run", spec, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "cells       4 = 1 load x 2 schedulers x 2 seeds" in done.stderr
    # 8 sessions x 4 turns; prompts 500, 1,100, 1,700, 2,300 = 5,600 a session; 4 x 100 output.
    assert "8 sessions, 32 turns, 44,800 prompt and 3,200 output tokens" in done.stderr
    # 79.6 x 0.9 - 61.02 / 2 - 3 = 38.13 GiB a GPU.
    assert "79.6 GiB = 30.5 weights + 38.1 KV cache + 3.0 overhead + 8.0 left free" in done.stderr
    assert "[4/4]" in done.stderr
    assert "4 of 4 cells done in runs/tiny" in done.stdout
    assert len(summaries(tmp_path / "runs/tiny")) == 4


def test_dry_run_shows_the_plan_and_writes_nothing(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    before = sorted(tmp_path.iterdir())
    done = agentsched("run", spec, "--dry-run", cwd=tmp_path)
    assert done.returncode == 0
    assert "cells       1" in done.stdout
    assert done.stderr == ""
    assert sorted(tmp_path.iterdir()) == before


def test_same_seed_same_bytes_whatever_runs_beside_it(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, schedulers=["round-robin", "cache-aware", "smetric"], seeds=[0, 1])
    first = agentsched("run", spec, "-o", "one", "--jobs", "1", cwd=tmp_path)
    second = agentsched("run", spec, "-o", "two", "--jobs", "3", cwd=tmp_path)
    assert (first.returncode, second.returncode) == (0, 0)
    one, two = summaries(tmp_path / "one"), summaries(tmp_path / "two")
    assert len(one) == 6
    assert one == two
    for kind in ("turns.parquet", "sessions.parquet", "replicas.parquet", "decisions.jsonl.gz"):
        for cell in one:
            ours, theirs = (tmp_path / run / "cells" / cell / kind for run in ("one", "two"))
            assert ours.read_bytes() == theirs.read_bytes()


def test_other_seed_other_order(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, seeds=[0, 1])
    assert agentsched("run", spec, "-o", "out", cwd=tmp_path).returncode == 0
    logs = [p.read_bytes() for p in (tmp_path / "out/cells").glob("*/turns.parquet")]
    assert logs[0] != logs[1]


def test_a_killed_run_goes_on_where_it_was(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, schedulers=["round-robin"], seeds=[0, 1])
    arguments = ["run", str(spec), "--scheduler", "round-robin"]
    arguments += ["--scheduler", f"{BROKEN}:Slow", "--jobs", "1"]
    whole = agentsched(*arguments, "-o", "whole", cwd=tmp_path)
    assert whole.returncode == 0, whole.stderr

    (tmp_path / "slow.pid").unlink()
    killed = subprocess.Popen(
        [sys.executable, "-m", "agentsched", *arguments, "-o", "cut"],
        cwd=tmp_path,
        env={**environment(), "SLOW_S": "0.3"},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    cut = tmp_path / "cut"
    log = cut / "cells/tiny+slow+4w+s0/events.jsonl"
    wait_until(lambda: log.exists() and log.stat().st_size > 0, "the first turns of the slow cell")
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    cell = int((tmp_path / "slow.pid").read_text())
    wait_until(lambda: not alive(cell), "the cell to end with its run")
    done_before = summaries(cut)
    assert list(done_before) == ["tiny+round-robin+4w+s0"]
    kept = (cut / "cells/tiny+round-robin+4w+s0/summary.json").stat()

    resumed = agentsched(*arguments, "-o", "cut", cwd=tmp_path)
    assert resumed.returncode == 0, resumed.stderr
    assert "1 of 4 cells are done already" in resumed.stderr
    assert summaries(cut) == summaries(tmp_path / "whole")
    again = (cut / "cells/tiny+round-robin+4w+s0/summary.json").stat()
    assert (again.st_ino, again.st_mtime_ns) == (kept.st_ino, kept.st_mtime_ns)
    assert (cut / "cells/tiny+slow+4w+s0.partial-1/events.jsonl").stat().st_size > 0


def test_ctrl_c_keeps_what_was_done(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    run = subprocess.Popen(
        [
            *(sys.executable, "-m", "agentsched", "run", str(spec), "-o", "out", "--jobs", "1"),
            *("--scheduler", "round-robin", "--scheduler", f"{BROKEN}:Slow"),
        ],
        cwd=tmp_path,
        env={**environment(), "SLOW_S": "0.3"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    wait_until((tmp_path / "slow.pid").exists, "the slow cell to start")
    os.killpg(run.pid, signal.SIGINT)  # a terminal sends it to the whole group
    _, err = run.communicate(timeout=60)
    assert run.returncode == 130
    assert "interrupted; what was done is kept" in err
    assert "Traceback" not in err
    assert list(summaries(tmp_path / "out")) == ["tiny+round-robin+4w+s0"]
    assert agentsched("report", "out", cwd=tmp_path).returncode == 0


@pytest.mark.parametrize(
    ("scheduler", "words"),
    [
        ("Loses", ["scheduler `loses` at", " s, on TurnArrived turn s2/0", "neither routed"]),
        ("NeverWakes", ["scheduler `never-wakes`", " s, on ", "wait"]),
        ("NamesUnknown", ["scheduler `names-unknown` at", "TurnArrived turn", "'r99'"]),
        ("Raises", ["scheduler `raises` at", "TurnArrived turn", "raised KeyError: 'gone'"]),
        ("Exits", ["scheduler `exits` at", "TurnArrived turn", "raised SystemExit: enough"]),
        ("CountsWords", ["scheduler `counts-words` at", "the end of the run", "'turns': 'many'"]),
        ("Interrupts", ["unexpected KeyboardInterrupt"]),
        ("Crashes", ["the process of the cell died (signal SIGKILL)"]),
    ],
)
def test_a_broken_scheduler_fails_its_own_cell_only(
    tmp_path: Path, scheduler: str, words: list[str]
) -> None:
    spec = tiny_spec(tmp_path)
    done = agentsched(
        *("run", spec, "-o", "out", "--scheduler", f"{BROKEN}:{scheduler}"),
        *("--scheduler", "round-robin"),
        cwd=tmp_path,
    )
    assert done.returncode == 1
    for word in words:
        assert word in done.stderr
    assert "1 of 2 cells done" in done.stdout
    assert list(summaries(tmp_path / "out")) == ["tiny+round-robin+4w+s0"]
    assert agentsched("report", "out", cwd=tmp_path).returncode == 0


def test_careless_schedulers_neither_hang_nor_differ_from_run_to_run(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    for out in ("one", "two"):
        chosen = ["--scheduler", f"{BROKEN}:LeavesThreads"]
        assert agentsched("run", spec, "-o", out, *chosen, cwd=tmp_path).returncode == 0
    assert summaries(tmp_path / "one") == summaries(tmp_path / "two")


def test_debug_shows_where_a_scheduler_raised(tmp_path: Path) -> None:
    arguments = ["run", str(tiny_spec(tmp_path)), "--debug", "--scheduler", f"{BROKEN}:Raises"]
    done = subprocess.run(
        [sys.executable, "-m", "agentsched", *arguments],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert 'raise KeyError("gone")' in done.stderr


def test_a_failed_cell_is_tried_again(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN.read_text().replace('"r99"', '"r0"'))
    spec = tiny_spec(tmp_path)
    file.write_text(BROKEN.read_text())
    arguments = ["run", str(spec), "-o", "out", "--scheduler", f"{file}:NamesUnknown"]
    assert agentsched(*arguments, cwd=tmp_path).returncode == 1
    assert agentsched(*arguments, cwd=tmp_path).returncode == 1
    assert (tmp_path / "out/cells/tiny+names-unknown+4w+s0.partial-1").is_dir()


def test_an_edited_scheduler_does_not_go_on_with_the_old_ones_run(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(BROKEN.read_text())
    arguments = ["run", str(tiny_spec(tmp_path)), "-o", "out", "--scheduler", f"{file}:Slow"]
    assert agentsched(*arguments, cwd=tmp_path).returncode == 0
    file.write_text(BROKEN.read_text().replace("% 2", "% 3"))
    done = agentsched(*arguments, cwd=tmp_path)
    assert done.returncode == 1
    assert "holds another run" in done.stderr
    assert "inputs.scheduler slow: " in done.stderr


def test_too_few_sessions_for_the_workers_is_finished_but_invalid(tmp_path: Path) -> None:
    done = agentsched("run", tiny_spec(tmp_path), "--workers", "9", "-o", "out", cwd=tmp_path)
    assert done.returncode == 3
    assert "8 sessions cannot keep 9 workers busy" in done.stderr
    assert "target concurrency not reached: at most 8 sessions" in done.stderr
    assert len(summaries(tmp_path / "out")) == 1
    again = agentsched("run", tiny_spec(tmp_path), "--workers", "9", "-o", "out", cwd=tmp_path)
    assert again.returncode == 3, "still invalid when nothing is left to run"


def test_too_many_failures_is_finished_but_invalid(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    done = agentsched("run", spec, "--scheduler", f"{BROKEN}:RejectsAll", cwd=tmp_path)
    assert done.returncode == 3
    assert "8 of 8 sessions failed or were rejected" in done.stderr
    allowed = agentsched(
        *("run", spec, "--scheduler", f"{BROKEN}:RejectsAll", "-o", "b"),
        *("--set", "max_failed_share=1"),
        cwd=tmp_path,
    )
    assert allowed.returncode == 3
    assert "no turn was served" in allowed.stderr


def test_a_folder_in_use_or_of_another_kind_is_refused(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    other = agentsched("run", spec, "-o", ".", cwd=tmp_path)
    assert other.returncode == 1
    assert "holds other files" in other.stderr
    assert agentsched("run", spec, "-o", "out", cwd=tmp_path).returncode == 0
    changed = agentsched("run", spec, "-o", "out", "--workers", "3", cwd=tmp_path)
    assert changed.returncode == 1
    assert "holds another run" in changed.stderr
    assert "[4] -> [3]" in changed.stderr or "workers" in changed.stderr


def test_a_trace_is_found_beside_its_specification(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    done = agentsched("run", spec, cwd=elsewhere)
    assert done.returncode == 0, done.stderr
    assert len(summaries(elsewhere / "runs/tiny")) == 1


def test_a_trace_named_as_a_flag_is_found_from_here(tmp_path: Path) -> None:
    tiny_spec(tmp_path)
    done = agentsched(
        *("run", "--workload", "tiny.jsonl", "--workers", "2", "--scheduler", "round-robin"),
        *("--model", "qwen3-32b", "--topology", "4x2xh100"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert len(summaries(tmp_path / "runs/run")) == 1


def test_a_script_needs_no_guard_around_run(tmp_path: Path) -> None:
    tiny_spec(tmp_path)
    script = tmp_path / "script.py"
    script.write_text(
        "from agentsched import load_run, run\n"
        "result = run('spec.yaml', out='out', jobs=2)\n"
        "result.check()\n"
        "print(len(load_run('out').cells), 'cell')\n"
    )
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "1 cell\n"), done.stderr


def test_the_manifest_says_how_it_came_about(tmp_path: Path) -> None:
    agentsched("run", tiny_spec(tmp_path), "-o", "out", "--set", "gateway_share=0.5", cwd=tmp_path)
    manifest = json.loads((tmp_path / "out/manifest.json").read_text())
    assert manifest["spec"]["gateway_share"] == 0.5
    assert manifest["workloads"]["tiny"]["origins"] == ["recorded"]
    assert manifest["engine"]["max_num_batched_tokens"] == 8192
    assert len(manifest["spec"]["inputs"]["workload tiny"]) == 64
    assert (tmp_path / "out/spec.yaml").read_text() == (tmp_path / "spec.yaml").read_text()
