"""`agentsched compare`, also as a gate."""

from __future__ import annotations

from pathlib import Path

from tests.cli.command import agentsched, tiny_spec


def test_a_gate_fails_a_worse_run_and_passes_the_same(tmp_path: Path) -> None:
    spec = tiny_spec(tmp_path, seeds=[0, 1])
    slower = ["--set", "engine_settings.max_num_batched_tokens=256"]
    assert agentsched("run", spec, "-o", "a", cwd=tmp_path).returncode == 0
    assert agentsched("run", spec, "-o", "b", *slower, cwd=tmp_path).returncode == 0
    gate = ["--fail-if", "ttft > +5%"]
    same = agentsched("compare", "a", "a", *gate, cwd=tmp_path)
    assert same.returncode == 0, same.stderr
    worse = agentsched("compare", "a", "b", *gate, cwd=tmp_path)
    assert worse.returncode == 4
    assert "`ttft > +5%` is met by tiny, 4 workers, round-robin" in worse.stderr
    assert "TTFT" in worse.stdout
    for form, words in (("md", "| TTFT"), ("csv", "ttft_mean,")):
        printed = agentsched("compare", "a", "b", "--format", form, cwd=tmp_path)
        assert printed.returncode == 0
        assert words in printed.stdout


def test_a_wrong_gate_or_metric_is_told(tmp_path: Path) -> None:
    assert agentsched("run", tiny_spec(tmp_path), "-o", "a", cwd=tmp_path).returncode == 0
    for wrong in (["--fail-if", "ttft much"], ["--metric", "nope"], ["--fail-if", "nope > 1"]):
        done = agentsched("compare", "a", "a", *wrong, cwd=tmp_path)
        assert done.returncode == 2
        assert "  try: " in done.stderr
