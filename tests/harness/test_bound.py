"""The upper bound on decode throughput, against what simulated schedulers reach."""

from __future__ import annotations

import pytest

from harness.capacity import resolve_cluster
from harness.sim.bound import throughput_bound
from harness.sim.engine_types import EngineParams
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from schedulers.registry import create
from tests.harness.simulated import FlatStep, Records
from workloads.catalog import load_workload
from workloads.model import Session, ToolCall, TurnSpec


def session(**more: float | str) -> Session:
    turns = (
        TurnSpec(32, 4, tools=(ToolCall("bash", 0.5),), wait_s=0.25),
        TurnSpec(10, 3, kept_turn=0, kept_tokens=36),
        TurnSpec(10, 9, kept_turn=1, kept_tokens=49),
    )
    return Session("a", turns, "test", "generated", **more)  # type: ignore[arg-type]


def test_one_session_by_hand() -> None:
    """Flat steps: 10 ms, a prefill token 1 ms. The third turn would pass the limit of 60 tokens.
    Turn 0: 42 ms + 3 x 10 + 750 of tools and waiting. Turn 1: 20 ms + 2 x 10; its tools do not
    count. 7 tokens in 862 ms."""
    bound = throughput_bound(
        [session()], FlatStep(), replicas=1, workers=1, context_limit=60, chunk_tokens=8192
    )
    assert bound is not None
    assert bound.limit in ("sessions", "longest session")
    assert bound.tokens_per_s == pytest.approx(7 / 0.862)


def test_no_bound_where_its_model_does_not_hold() -> None:
    def bound(one: Session, workers: int | None = 1, limit: int = 99) -> object:
        return throughput_bound(
            [one], FlatStep(), replicas=1, workers=workers, context_limit=limit, chunk_tokens=9
        )

    assert bound(session()) is not None
    assert bound(session(), workers=None) is None
    assert bound(session(deadline_s=1.0)) is None
    assert bound(session(parent="p")) is None
    assert bound(session(), limit=20) is None


@pytest.mark.parametrize("name", ["round-robin", "smetric", "thunderagent", "tao"])
@pytest.mark.parametrize(("sessions", "workers"), [(6, 2), (40, 40)])
def test_no_scheduler_passes_it(name: str, sessions: int, workers: int) -> None:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    recorder = Records()
    outcome = simulate(
        load_workload("swe-bench-mini", sessions=sessions, seed=1),
        workers=workers,
        scheduler=create(name),
        cluster=cluster,
        settings=SimSettings(),
        engine=EngineParams(),
        recorder=recorder,
    )
    output = sum(t.output_tokens for t in recorder.turns if t.status == "ok")
    reached = output / (outcome.makespan_ns / 1e9)
    bound = float(outcome.facts["decode_tps_bound"])
    assert reached <= bound
    assert reached > 0.2 * bound  # it is a bound worth printing
