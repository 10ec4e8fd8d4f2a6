"""`agentsched explain`: the decisions about a session, found in a run."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import agentsched, tiny_spec


def test_every_turn_of_a_session_is_told(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, schedulers=["round-robin", "thunderagent"], seeds=[0, 1])
    assert agentsched("run", spec, "-o", "out", cwd=tmp_path).returncode == 0
    every = agentsched("explain", "out", "--session", "s3", cwd=tmp_path)
    assert every.returncode == 0, every.stderr
    assert every.stdout.count("turn 0 goes to") == 4, "2 schedulers x 2 seeds"
    one = agentsched(
        *("explain", "out", "--session", "s3", "--scheduler", "round-robin", "--seed", "1"),
        cwd=tmp_path,
    )
    lines = one.stdout.splitlines()
    assert lines[0] == "tiny, round-robin, 4 workers, seed 1:"
    assert [line.split(" s  ")[1].split(" goes")[0] for line in lines[1:]] == [
        f"turn {number}" for number in range(4)
    ]
    assert "(moved from r" in one.stdout, "round-robin takes a session to another replica"


def test_an_unknown_session_is_told_with_one_that_is_there(tmp_path: Path) -> None:
    assert agentsched("run", tiny_spec(tmp_path), "-o", "out", cwd=tmp_path).returncode == 0
    wrong = agentsched("explain", "out", "--session", "s33", cwd=tmp_path)
    assert wrong.returncode == 2
    assert "no session `s33`" in wrong.stderr
    assert "for instance --session s3" in wrong.stderr
    nobody = agentsched("explain", "out", "--session", "s3", "--seed", "9", cwd=tmp_path)
    assert nobody.returncode == 2
    assert "no finished cell for that scheduler and seed" in nobody.stderr
