"""Whatever is killed or interrupted: what was done stays, and no process is left behind."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from results.store import RunStore
from tests.cli.command import agentsched
from tests.durability.processes import emulated_spec, kill, marked, start, turns_in, wait_until

CELL = "tiny+round-robin+4w+s0"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_ctrl_c_lets_running_turns_end(tmp_path: Path, number: signal.Signals) -> None:
    """First: no turn is begun any more, running ones end. The same command then goes on."""
    spec, mark = emulated_spec(tmp_path), f"drain {tmp_path}"
    run = start("run", spec, "-o", "out", cwd=tmp_path, mark=mark)
    folder = tmp_path / "out/cells" / CELL
    wait_until(lambda: len(turns_in(folder)) >= 2, "two turns", process=run)
    begun = len(turns_in(folder))
    run.send_signal(number)
    _, err = run.communicate(timeout=120)
    assert run.returncode == 130, err
    assert "running turns may end" in err
    assert "interrupted; what was done is kept" in err
    assert "Traceback" not in err
    assert marked(mark) == []
    turns = turns_in(folder)
    assert len(turns) > begun  # those that ran have ended, or are there as given up
    assert {turn["status"] for turn in turns} <= {"ok", "client_gone"}
    assert all(turn["error"] == "interrupted" for turn in turns if turn["status"] != "ok")
    assert not (folder / "error.json").exists()
    (state,) = RunStore.read(tmp_path / "out").states()
    assert state.status == "partial"
    again = agentsched("run", spec, "-o", "out", cwd=tmp_path)
    assert again.returncode in (0, 3), again.stderr  # 3: this client may have been too slow here
    (state,) = RunStore.read(tmp_path / "out").states()
    assert (state.status, state.attempts) == ("done", 1)  # one was set aside


def test_a_second_ctrl_c_stops_at_once(tmp_path: Path) -> None:
    """Answers of 2,000 tokens take far longer than the test waits."""
    import json

    spec, mark = emulated_spec(tmp_path), f"twice {tmp_path}"
    trace = tmp_path / "tiny.jsonl"
    lines = [json.loads(line) for line in trace.read_text().splitlines()]
    long = [line | {"output_tokens": 8000} for line in lines if line["turn"] == 0]
    trace.write_text("".join(json.dumps(line) + "\n" for line in long))
    run = start("run", spec, "-o", "out", cwd=tmp_path, mark=mark)
    log = tmp_path / "out/cells" / CELL / "gateway.jsonl"
    wait_until(
        lambda: log.exists() and b"FirstToken" in log.read_bytes(), "a first token", process=run
    )
    run.send_signal(signal.SIGINT)
    assert run.stderr is not None
    said = ""
    while "Ctrl-C again" not in said:
        said = run.stderr.readline()
        assert said, "it ended before it said that it waits"
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=60)
    assert run.returncode == 130
    assert marked(mark) == []


@pytest.mark.parametrize("victim", ["run", "cell"])
def test_kill_9_of_a_live_run_or_its_cell(tmp_path: Path, victim: str) -> None:
    spec, mark = emulated_spec(tmp_path), f"{victim} {tmp_path}"
    run = start("run", spec, "-o", "out", cwd=tmp_path, mark=mark)
    folder = tmp_path / "out/cells" / CELL
    wait_until(lambda: len(turns_in(folder)) >= 2, "two turns", process=run)
    before = turns_in(folder)
    if victim == "run":
        run.kill()
        run.communicate()
    else:
        writers = [pid for pid in marked(mark) if _writes(pid, folder / "events.jsonl")]
        assert len(writers) == 1
        kill(writers[0], signal.SIGKILL)
        _, err = run.communicate(timeout=120)
        assert run.returncode == 1
        assert "the process of the cell died (signal SIGKILL)" in err
    wait_until(lambda: marked(mark) == [], "every process to end")
    assert turns_in(folder)[: len(before)] == before
    again = agentsched("run", spec, "-o", "out", cwd=tmp_path)
    assert again.returncode in (0, 3), again.stderr
    aside = folder.with_name(f"{CELL}.partial-1")
    assert turns_in(aside)[: len(before)] == before  # kept, and not part of the new attempt


def _writes(pid: int, path: Path) -> bool:
    try:
        return any(link.resolve() == path for link in Path(f"/proc/{pid}/fd").iterdir())
    except OSError:
        return False


PLANNER = """
import asyncio
from harness.live.planners import ProcessPlanner
from schedulers.commands import Solve

async def main():
    planner = ProcessPlanner("round-robin", print)
    done = asyncio.get_running_loop().create_future()
    planner.solve(Solve(1, -3, abs), done.set_result)
    print(await done, *planner._pool._processes, flush=True)
    await asyncio.sleep(60)

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_a_planner_does_not_outlive_its_gateway(tmp_path: Path) -> None:
    script = tmp_path / "gateway.py"
    script.write_text(PLANNER)
    from tests.cli.command import environment

    mark = f"planner {tmp_path}"
    gateway = subprocess.Popen(
        [sys.executable, script],
        env={**environment(), "DURABILITY_MARK": mark},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert gateway.stdout is not None
    answer, worker = gateway.stdout.readline().split()
    assert answer == "3"
    assert int(worker) in marked(mark)
    gateway.kill()
    gateway.communicate()
    wait_until(lambda: marked(mark) == [], "the planner to end")


def test_serve_and_emulate_end_on_ctrl_c_and_leave_nothing(tmp_path: Path) -> None:
    from scripts._soak import fetch, free_port

    ports, mark = [free_port() for _ in range(3)], f"serve {tmp_path}"
    command = ["emulate", "--topology", "1x1xh100", "--port", str(ports[0]), "--kv-blocks", "500"]
    engine = start(*command, cwd=tmp_path, mark=mark)
    command = ["serve", "--port", str(ports[1]), "--admin-port", str(ports[2]), "--wait", "60"]
    command += ["--backend", f"http://127.0.0.1:{ports[0]}"]
    gateway = start(*command, cwd=tmp_path, mark=mark)
    wait_until(
        lambda: fetch(f"http://127.0.0.1:{ports[1]}/v1/models"), "the gateway", process=gateway
    )
    for process in (gateway, engine):
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
        assert process.returncode == 0, err
        assert "Traceback" not in err
    assert marked(mark) == []
