"""Calibration: known scalars come back from a run that was simulated with them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner

from agentsched import InputError, UsageError
from cli.main import app
from harness.capacity import Cluster, resolve_cluster
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from harness.validation.calibration import (
    RecordedTurn,
    calibrate,
    profile_text,
    read_turns,
)
from harness.validation.ours import Turns
from schedulers.registry import create
from workloads.catalog import load_workload

TRUE = {"host_fixed_us": 2500.0, "bandwidth_scale": 0.8}


@cache
def setting() -> tuple[Cluster, EngineParams]:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    return cluster, EngineParams(max_model_len=cluster.replicas[0].context_limit)


@cache
def recorded() -> tuple[RecordedTurn, ...]:
    """A run with a slower host and less bandwidth than shipped."""
    cluster, engine = setting()
    recorder = Turns()
    simulate(
        load_workload("swe-bench-mini-short", sessions=5, seed=3),
        workers=5,
        scheduler=create("session-affinity"),
        cluster=cluster,
        settings=SimSettings(host_fixed_us=2500.0, bandwidth_scale=0.8),
        engine=engine,
        recorder=recorder,
    )
    found = [
        RecordedTurn(
            t.session,
            t.turn,
            t.replica or "",
            t.dispatched or 0,
            t.first_token or 0,
            t.finished,
            t.prompt_tokens,
            t.cached_tokens or 0,
            t.output_tokens,
        )
        for t in recorder.turns
        if t.status == "ok"
    ]
    return tuple(sorted(found, key=lambda turn: (turn.dispatched, turn.session, turn.turn)))


def test_known_scalars_come_back() -> None:
    cluster, engine = setting()
    found = calibrate(recorded(), cluster, engine)
    # 1 ms of a step of about 20 ms is what batch sizes this alike can tell apart.
    assert found.scalars["host_fixed_us"] == pytest.approx(TRUE["host_fixed_us"], abs=1000)
    assert found.scalars["bandwidth_scale"] == pytest.approx(TRUE["bandwidth_scale"], abs=0.05)
    assert found.turns == len(recorded())
    errors = {(r.metric, r.statistic): r.error for r in found.residuals}
    for metric in ("ttft", "tpot", "e2e"):
        assert abs(errors[metric, "mean"]) < 1
    assert found.simulated_hit == pytest.approx(found.measured_hit, abs=0.005)


def test_what_is_not_fitted_stays_as_shipped_and_shows_in_the_errors() -> None:
    cluster, engine = setting()
    found = calibrate(recorded(), cluster, engine, fit=("host_fixed_us",))
    assert found.scalars["bandwidth_scale"] == 1.0
    # Host time alone has to make up for slower weights: more of it than there was.
    assert found.scalars["host_fixed_us"] > TRUE["host_fixed_us"] + 1000


def test_the_profile_is_a_section_of_a_specification() -> None:
    cluster, engine = setting()
    found = calibrate(recorded()[:50], cluster, engine, fit=("host_fixed_us",))
    text = profile_text(found, "a run")
    section = yaml.safe_load(text)["sim"]
    assert SimSettings(**section).host_fixed_us == pytest.approx(
        found.scalars["host_fixed_us"], rel=1e-5
    )
    assert "E2E  p99" in text


def test_what_cannot_be_calibrated_is_refused() -> None:
    cluster, engine = setting()
    with pytest.raises(UsageError, match="no scalar `speed`"):
        calibrate(recorded(), cluster, engine, fit=("speed",))
    stranger = replace(recorded()[0], replica="r9")
    with pytest.raises(UsageError, match="r9"):
        calibrate([stranger], cluster, engine)
    long = replace(recorded()[0], prompt_tokens=10**6)
    with pytest.raises(UsageError, match="does not fit"):
        calibrate([long], cluster, engine)
    with pytest.raises(InputError, match="no served turn"):
        read_turns(pd.DataFrame({"status": ["failed"], "first_token": [None]}), Path("x"))


def test_the_command_says_what_is_wrong(tmp_path: Path) -> None:
    run = CliRunner().invoke(app, ["calibrate", str(tmp_path), "-o", str(tmp_path / "p.yaml")])
    assert run.exit_code != 0
    assert "try:" in run.output
