"""The command itself: help, version, exit codes, bad input, pipes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.cli.command import agentsched, environment, tiny_spec, tiny_trace, turn

COMMANDS = ["run", "report", "compare", "explain", "list", "trace"]


@pytest.mark.parametrize("command", [*([name] for name in COMMANDS), [], ["trace", "convert"]])
def test_help(command: list[str], tmp_path: Path) -> None:
    done = agentsched(*command, "--help", cwd=tmp_path)
    assert done.returncode == 0
    assert done.stdout.startswith("Usage: agentsched")
    for name in COMMANDS:
        assert command or f"  {name} " in done.stdout


def test_version(tmp_path: Path) -> None:
    from agentsched import __version__

    done = agentsched("--version", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, f"agentsched {__version__}\n")


def test_help_loads_nothing_heavy(tmp_path: Path) -> None:
    script = (
        "import sys; sys.argv = ['agentsched', '--help']\n"
        "from agentsched import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "heavy = {'numpy', 'pandas', 'pyarrow', 'matplotlib', 'seaborn', 'pydantic', 'jinja2'}\n"
        "print('LOADED', sorted(heavy & set(sys.modules)))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert "LOADED []" in done.stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["run"], ["nothing to run", "agentsched run quickstart"]),
        (["run", "quikstart"], ["no preset and no file named `quikstart`", "`quickstart`?"]),
        (["run", "none.yaml"], ["none.yaml: cannot be read: No such file"]),
        (["run", "SPEC", "--model", "nope"], ["--model nope: no model `nope`", "qwen3-32b"]),
        (["run", "SPEC", "--topology", "nope"], ["--topology nope: no topology `nope`"]),
        (["run", "SPEC", "--topology", "1x1xh100", "--model", "glm-4.7"], ["does not fit", "GiB"]),
        (["run", "SPEC", "--workload", "nope", "--workers", "1"], ["unknown workload 'nope'"]),
        (["run", "SPEC", "--scheduler", "nope"], ["--scheduler nope: unknown scheduler `nope`"]),
        (["run", "SPEC", "--scheduler", "no.py:Mine"], ["no scheduler file no.py"]),
        (["run", "SPEC", "--workers", "0"], ["--workers 0: `workers` cannot be 0"]),
        (["run", "SPEC", "--workers", "4,x"], ["--workers 4,x: not a list of whole numbers"]),
        (
            ["run", "SPEC", "--engine", "vllm", "--set", "launch.base_port=70000"],
            ["`base_port` must be a port number, or 0"],
        ),
        (["run", "SPEC", "--engine", "sgl"], ['`engine` cannot be "sgl"', "`sglang`"]),
        (["run", "SPEC", "--seeds", "0"], ["--seeds 0: 0 seeds"]),
        (["run", "SPEC", "--set", "sim.x=1"], ["--set sim.x=1: unknown field `x`"]),
        (["run", "SPEC", "--set", "engine_settings.max_num_seqs=0"], ["max_num_seqs", "at least"]),
        (["run", "SPEC", "--set", "engine_settings.block_size=1"], ["set memory.block_size"]),
        (["run", "SPEC", "--set", "engine_settings.max_num_seq=1"], ["`max_num_seqs`?"]),
        (["run", "SPEC", "--set", "scheduler_settings.tao.x=1"], ["no setting `x`"]),
        (["run", "SPEC", "--set", "scheduler_settings.toa.x=1"], ["unknown scheduler `toa`"]),
        (["run", "SPEC", "--set", "memory.gpu_memory_utilization=0.1"], ["does not fit"]),
        (["run", "SPEC", "--jobs", "0"], ["--jobs"]),
        (["run", "SPEC", "--nope"], ["No such option"]),
        (["nope"], ["No such command 'nope'"]),
        (["list", "nope"], ["'nope' is not one of"]),
        (["list", "models", "nope"], ["no model `nope`"]),
        (["trace", "validate", "none.jsonl"], ["none.jsonl: cannot be read"]),
        (["verify-log", "none.jsonl"], ["none.jsonl: no such file", "  try: "]),
        (["report"], ["Missing argument"]),
    ],
)
def test_wrong_usage_ends_with_2_and_a_reason(
    arguments: list[str], words: list[str], tmp_path: Path
) -> None:
    spec = str(tiny_spec(tmp_path, schedulers=["tao"]))
    done = agentsched(*(spec if word == "SPEC" else word for word in arguments), cwd=tmp_path)
    assert done.returncode == 2, done.stderr
    for word in words:
        assert word in done.stderr
    assert not (tmp_path / "runs").exists()


def test_what_the_system_refuses_comes_with_a_remedy(tmp_path: Path) -> None:
    done = agentsched("verify-log", tmp_path, cwd=tmp_path)
    assert done.returncode == 1
    assert done.stderr.startswith(f"error: {tmp_path}: Is a directory\n  try: check the path")


def test_a_spec_cannot_run_code(tmp_path: Path) -> None:
    spec = tmp_path / "spec.yaml"
    spec.write_text("model: !!python/object/apply:os.mkdir ['owned']\n")
    done = agentsched("run", spec, cwd=tmp_path)
    assert done.returncode == 2
    assert f"error: {spec}, line 1: has the tag `!!python/object/apply:os.mkdir`" in done.stderr
    assert "  try: write a plain value" in done.stderr
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize("command", [["report", "."], ["compare", ".", "nothing"], ["grade", "."]])
def test_a_missing_run_is_told_with_what_to_do(tmp_path: Path, command: list[str]) -> None:
    done = agentsched(*command, cwd=tmp_path)
    assert done.returncode == 2
    assert "no run is stored here" in done.stderr


def bad_trace(tmp_path: Path, *lines: dict[str, Any] | str | bytes) -> Path:
    file = tmp_path / "bad.jsonl"
    with file.open("wb") as stream:
        for line in lines:
            raw = json.dumps(line) + "\n" if isinstance(line, dict) else line
            stream.write(raw if isinstance(raw, bytes) else raw.encode())
    return file


FIRST = turn("a", 0)


@pytest.mark.parametrize(
    ("lines", "words"),
    [
        ([FIRST, '{"v": 1, "session": "a", "tu'], ["line 2", "cut off"]),
        ([FIRST, turn("a", 1, new_tokens=-5)], ["line 2, field `new_tokens`", "-5"]),
        ([FIRST, turn("a", 2)], ["line 2, field `turn`", "turn 2 follows turn 0"]),
        ([FIRST, FIRST], ["line 2, field `turn`", "turn 0 is there twice"]),
        ([FIRST, turn("b", 0), turn("a", 1)], ["line 3, field `session`", "already complete"]),
        ([FIRST, b'{"x": "' + b"a" * 10_000_000 + b'"}\n'], ["line 2", "longer than"]),
        ([b"\x7fELF\x02\x01\x01\x00\xff\xfe\xfd" * 100], ["line 1", "not a text file"]),
        ([b"\x1f\x8b\x08\x00broken"], ["bad.jsonl"]),
        ([""], ["empty"]),
        (["[1, 2]\n"], ["line 1", "not a JSON object"]),
    ],
)
def test_bad_traces_name_line_and_field(
    lines: list[dict[str, Any] | str | bytes], words: list[str], tmp_path: Path
) -> None:
    file = bad_trace(tmp_path, *lines)
    spec = tiny_spec(tmp_path, workloads=[{"name": "bad.jsonl", "workers": [1]}])
    commands = (("trace", "validate", str(file)), ("trace", "stat", str(file)), ("run", str(spec)))
    for command in commands:
        done = agentsched(*command, cwd=tmp_path)
        assert done.returncode == 2, done.stderr
        assert done.stderr.splitlines()[-1].startswith("  try: ")
        for word in [str(file), *words]:
            assert word in done.stderr


def test_a_valid_trace_is_told_so(tmp_path: Path) -> None:
    done = agentsched("trace", "validate", tiny_trace(tmp_path), cwd=tmp_path)
    assert done.returncode == 0
    assert "valid; sessions 8, turns 32" in done.stdout


def test_trace_stat_counts(tmp_path: Path) -> None:
    done = agentsched(
        "trace", "stat", tiny_trace(tmp_path), "--context-limit", "1000", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    assert "tiny (recorded): 8 sessions" in done.stdout
    assert "44,800 prompt tokens, 3,200 output tokens" in done.stdout
    # Turns after the first keep 600, 1,200 and 1,800 of a session's 5,600 prompt tokens.
    assert "64.3% from the same session" in done.stdout
    assert "100.0% of sessions pass 1,000 tokens" in done.stdout


@pytest.mark.parametrize("kind", ["schedulers", "workloads", "models", "topologies", "presets"])
@pytest.mark.parametrize("columns", [80, 120])
def test_lists_keep_to_the_width(kind: str, columns: int, tmp_path: Path) -> None:
    done = agentsched("list", kind, cwd=tmp_path, columns=columns)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) > 2
    assert max(map(len, lines)) <= columns
    names = [line.split()[0] for line in lines[1:] if not line.startswith(" ")]
    detail = agentsched("list", kind, names[0], cwd=tmp_path, columns=columns)
    assert detail.returncode == 0, detail.stderr
    # A preset is listed by its path and names itself with a dash.
    assert names[0].replace("/", "-") in detail.stdout


def test_a_reader_that_goes_away_is_no_error_message(tmp_path: Path) -> None:
    done = subprocess.run(
        [
            "bash",
            "-c",
            f"{sys.executable} -m agentsched list workloads | true; echo ${{PIPESTATUS[0]}}",
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr == ""
    assert done.stdout.strip() in {"0", "1"}


def test_a_terminal_without_unicode_and_a_home_that_cannot_be_written(tmp_path: Path) -> None:
    assert agentsched("run", tiny_spec(tmp_path), "-o", "out", cwd=tmp_path).returncode == 0
    done = subprocess.run(
        [sys.executable, "-m", "agentsched", "report", "out"],
        cwd=tmp_path,
        env={**environment(), "PYTHONIOENCODING": "ascii", "HOME": "/proc"},
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert b"round-robin" in done.stdout
    assert (tmp_path / "out/report.html").exists()


def test_from_python_everything_promised_is_there_and_errors_say_what_to_do(tmp_path: Path) -> None:
    script = "from agentsched import *\nassert load_run and Route\nrun('quickstrt')"
    done = subprocess.run(
        [sys.executable, "-c", script],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert "UsageError: no preset and no file named `quickstrt`" in done.stderr
    assert "try: did you mean `quickstart`?" in done.stderr
