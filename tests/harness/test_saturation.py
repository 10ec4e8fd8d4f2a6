"""The saturation search: bisection, objectives, and a run that meets one up to some load."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from agentsched import UsageError
from cli.main import app
from harness.overrides import Flags
from harness.saturation import Goal, Probe, bisect, parse_goal, saturate
from results.metrics import BY_TAG

UNITS = {tag: metric.unit for tag, metric in BY_TAG.items()}
SPEC = """
name: small
model: qwen3-32b
topology: 1x1xh100
workloads: [{name: swe-bench-mini-short, sessions: 12, workers: [1, 12]}]
schedulers: [round-robin]
"""


@given(st.integers(1, 200), st.integers(0, 200), st.integers(0, 260))
@settings(max_examples=200, deadline=None)
def test_the_largest_load_that_meets_the_goal(low: int, span: int, limit: int) -> None:
    high = low + span
    found, probes = bisect(low, high, lambda n: Probe(n, float(n), n <= limit))
    expected = min(high, limit) if limit >= low else None
    assert found == expected
    assert len({probe.workers for probe in probes}) == len(probes) <= 2 + span.bit_length()


def test_objectives() -> None:
    assert parse_goal("ttft.p95<=2", UNITS) == Goal("ttft_p95", True, 2.0, "s")
    assert parse_goal(" decode_tps >= 900 ", UNITS) == Goal("decode_tps", False, 900.0, "tok/s")
    assert str(parse_goal("ttft.p95<=2", UNITS)) == "ttft_p95 <= 2 s"
    goal = parse_goal("ttft_p95<=2", UNITS)
    assert (goal.met(2.0), goal.met(2.01), goal.met(None)) == (True, False, False)
    for wrong in ("ttft_p95", "ttft_p95<2", "speed<=2", "ttft_p95<=e"):
        with pytest.raises(UsageError):
            parse_goal(wrong, UNITS)


def test_a_search_finds_where_the_objective_is_lost(tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC)
    goal = parse_goal("tpot_mean<=32", UNITS)
    (found,) = saturate(spec, Flags(), goal, tmp_path / "runs", jobs=1)
    by_load = {probe.workers: probe for probe in found.probes}
    assert found.workers is not None
    assert by_load[found.workers].met
    assert 1 <= found.workers < 12
    assert not by_load[found.workers + 1].met
    # The same search again has nothing left to run.
    (again,) = saturate(spec, Flags(), goal, tmp_path / "runs", jobs=1)
    assert again == found


def test_the_command(tmp_path: Path) -> None:
    spec = tmp_path / "small.yaml"
    spec.write_text(SPEC)
    command = ["run", str(spec), "--workers", "1,2", "--saturate", "ttft.p95<=0.0001"]
    run = CliRunner().invoke(app, [*command, "-o", str(tmp_path / "out"), "--jobs", "1"])
    assert run.exit_code == 3, run.output
    assert "round-robin" in run.output
    assert "none" in run.output


def test_several_workloads_are_refused(tmp_path: Path) -> None:
    spec = tmp_path / "two.yaml"
    spec.write_text(
        SPEC.replace("]\nsch", ", {name: tb2-terminus2, sessions: 2, workers: 1}]\nsch")
    )
    with pytest.raises(UsageError, match="one workload"):
        saturate(spec, Flags(), parse_goal("ttft_p95<=2", UNITS), tmp_path / "runs")
