"""`agentsched trace`, as a user runs it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from agentsched import UsageError
from cli.trace import app
from tests.workloads.claude_code_log import write_log
from workloads.trace import load_trace


def _run(*arguments: str | Path) -> str:
    done = CliRunner().invoke(
        app, [str(argument) for argument in arguments], env={"COLUMNS": "120"}
    )
    if done.exception is not None:
        raise done.exception
    return done.stdout


def test_convert_stat_validate_and_compare(tmp_path: Path) -> None:
    write_log(tmp_path / "projects")
    native = tmp_path / "cc.jsonl.gz"
    assert "3 sessions" in _run("convert", tmp_path / "projects", "-o", native)
    assert [session.parent is None for session in load_trace(native)] == [True, False, False]
    for source in (native, tmp_path / "projects"):
        assert "valid; sessions 3, turns 7" in _run("validate", source)
        stat = _run("stat", source, "--context-limit", "10130")
        assert "claude-code (recorded): 3 sessions" in stat
        # Turn 1 of the main agent ends at 10,160 tokens; the sub-agents stay below.
        assert "33.3% of sessions pass 10,130 tokens" in stat
        assert "7 turns, 5 tool calls, 2 sub-agents, 1 compactions" in stat
    rows = [line.split() for line in _run("compare", native, native).splitlines()[1:]]
    assert rows
    assert all("0.00" in row for row in rows)


def test_settings_and_formats_are_passed_on(tmp_path: Path) -> None:
    write_log(tmp_path / "projects")
    out = tmp_path / "out.jsonl"
    _run("convert", tmp_path / "projects", "--from", "claude-code", "-o", out,
         "--set", "shared_tokens=100")  # fmt: skip
    assert load_trace(out)[0].turns[0].shared[0].tokens == 100
    rows = tmp_path / "aiperf.jsonl"
    assert "7 turns" in _run("convert", out, "--to", "aiperf", "-o", rows)
    first = json.loads(rows.read_text().splitlines()[0])
    assert (first["input_length"], first["output_length"]) == (10000, 80)
    assert "valid; sessions 3" in _run("validate", rows)
    with pytest.raises(UsageError, match="no setting"):
        _run("convert", tmp_path / "projects", "-o", out, "--set", "a=1")
    with pytest.raises(UsageError, match="not NAME=VALUE"):
        _run("convert", tmp_path / "projects", "-o", out, "--set", "a")
    with pytest.raises(UsageError, match="unknown trace format"):
        _run("validate", out, "--from", "csv")


def test_outputs_never_overwrite_their_source(tmp_path: Path) -> None:
    log = write_log(tmp_path)
    before = log.read_bytes()
    with pytest.raises(UsageError, match="source itself"):
        _run("convert", log, "-o", log)
    with pytest.raises(UsageError, match="source itself"):
        _run("convert", tmp_path, "-o", log)
    with pytest.raises(UsageError, match="not the name of a trace"):
        _run("convert", log, "-o", tmp_path / "x.txt")
    with pytest.raises(UsageError, match="not the name of a trace"):
        _run("convert", log, "--to", "aiperf", "-o", tmp_path / "x.jsonl.gz")
    assert log.read_bytes() == before


def test_mix_with_bursty_arrivals(tmp_path: Path) -> None:
    out = tmp_path / "mix.jsonl"
    arguments = ("mix", "automationbench=2", "azure-chat", "--sessions", "30", "-o", out)
    assert "30 sessions" in _run(*arguments, "--arrivals", "gamma", "--rate", "2")
    sessions = load_trace(out)
    assert {session.workload for session in sessions} == {"automationbench", "azure-chat"}
    arrivals = [session.arrival_s for session in sessions if session.arrival_s is not None]
    assert len(arrivals) == 30
    assert arrivals == sorted(arrivals)
    with pytest.raises(UsageError, match="--rate without"):
        _run(*arguments, "--rate", "2")
    with pytest.raises(UsageError, match="give sessions a second"):
        _run(*arguments, "--arrivals", "poisson")
    with pytest.raises(UsageError, match="no recorded arrival"):
        _run(*arguments, "--arrivals", "recorded")
    assert "gamma" not in _run(*arguments)
    assert load_trace(out)[0].arrival_s is None
