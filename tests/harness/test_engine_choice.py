"""Which engine a run simulates: vLLM or SGLang, one rank or several that step together."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from agentsched import UsageError
from harness.capacity import resolve_cluster
from harness.plan import plan
from harness.sim.content import ContentIndex
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams, EngineRequest
from harness.sim.kv_store import StoreSpec
from harness.sim.links import LinkSpec
from harness.sim.replicas import replica_engine, replica_step_time
from harness.sim.run import SimOutcome, simulate
from harness.sim.settings import SimSettings
from harness.sim.sglang_engine import SglangEngine
from harness.sim.sglang_settings import SglangSettings
from harness.spec import load_spec
from schedulers.registry import create
from tests.harness.simulated import Records
from workloads.catalog import load_workload
from workloads.model import Session, TurnSpec


def params_of(model: str, topology: str, **settings: Any) -> EngineParams:
    values: dict[str, Any] = {**engine_defaults(resolve_cluster(model, topology)), **settings}
    return EngineParams(**values)


def run(
    model: str,
    topology: str,
    *,
    sim: SimSettings | None = None,
    sessions: list[Session] | None = None,
    **settings: Any,
) -> tuple[SimOutcome, Records]:
    records = Records()
    outcome = simulate(
        sessions or load_workload("swe-bench-mini-short", sessions=6, seed=1),
        workers=6,
        scheduler=create("session-affinity"),
        cluster=resolve_cluster(model, topology),
        settings=sim or SimSettings(),
        engine=params_of(model, topology, **settings),
        recorder=records,
    )
    return outcome, records


def test_sglang_is_one_setting_away() -> None:
    theirs, records = run("qwen3-32b", "4x2xh100", engine="sglang")
    ours, others = run("qwen3-32b", "4x2xh100")
    assert (theirs.facts["simulated_engine"], ours.facts["simulated_engine"]) == ("sglang", "vllm")
    assert len(records.sessions) == len(others.sessions) == 6
    assert len(records.turns) == len(others.turns)
    # Pages of one token: all of a first prompt but its last token can be found, and what vLLM's
    # blocks of 16 cut off.
    found = [sum(t.cached_tokens or 0 for t in r.turns) for r in (records, others)]
    assert found[0] > found[1]
    assert theirs.counters["engine.prefill_tokens"] < ours.counters["engine.prefill_tokens"]


def test_its_settings_apply() -> None:
    turn = [Session("s", (TurnSpec(9000, 2), TurnSpec(20, 1, 0, 9002)), "test", "generated")]
    for cached in (True, False):
        _, records = run(
            "qwen3-32b", "4x2xh100", sessions=turn, engine="sglang", prefix_caching=cached
        )
        assert records.turns[1].cached_tokens == (9001 if cached else 0)
    steps = {}
    for chunk in (8192, 1024):
        outcome, _ = run(
            "qwen3-32b",
            "4x2xh100",
            sessions=turn[:1],
            engine="sglang",
            sglang=SglangSettings(chunked_prefill=chunk),
        )
        steps[chunk] = outcome.counters["engine.steps"]
    # 9,000 tokens in chunks of 8,192: 2 steps; of 1,024: 9. The rest is alike.
    assert steps[1024] - steps[8192] == 7


def test_a_specification_names_it_and_the_manifest_shows_its_settings() -> None:
    spec = load_spec("quickstart").model_copy(
        update={"engine_settings": {"engine": "sglang", "sglang": {"policy": "lpm"}}}
    )
    found = plan(spec)
    assert found.engine.sglang == SglangSettings(policy="lpm")
    shown = found.manifest("simulated")["engine"]
    assert shown["engine"] == "sglang"
    assert (shown["sglang"]["policy"], shown["sglang"]["page_size"]) == ("lpm", 1)


@pytest.mark.parametrize(
    ("name", "value", "instead"),
    [
        ("max_num_seqs", 8, "max_running_requests"),
        ("max_num_batched_tokens", 512, "chunked_prefill"),
        ("async_scheduling", True, "plain one"),
        ("null_blocks", 0, "leave it out"),
    ],
)
def test_settings_that_only_vllm_has_are_refused(name: str, value: int, instead: str) -> None:
    given = {name: value}
    spec = load_spec("quickstart")
    with pytest.raises(UsageError, match=name) as caught:
        plan(spec.model_copy(update={"engine_settings": {"engine": "sglang", **given}}))
    assert instead in caught.value.remedy
    ours = plan(spec.model_copy(update={"engine_settings": given})).engine
    assert getattr(ours, name) == value


def test_what_it_cannot_do_is_refused() -> None:
    for settings, problem in (
        ({"watermark": 0.1}, "no engine setting `watermark`"),
        ({"policy": "priority"}, "no engine setting `policy`"),
        ({"sequence_blocks": 3}, "sliding windows"),
    ):
        with pytest.raises(UsageError, match=problem):
            EngineParams(engine="sglang", **settings)
    with pytest.raises(UsageError, match="settings of SGLang for a vLLM engine"):
        EngineParams(sglang=SglangSettings())
    with pytest.raises(UsageError, match="exchange KV"):
        run("qwen3-32b", "4p4d-h100", engine="sglang")
    store = SimSettings(kv_store=StoreSpec(100_000, LinkSpec(10.0)))
    with pytest.raises(UsageError, match="no `kv_store`"):
        run("qwen3-32b", "4x2xh100", sim=store, engine="sglang")


def test_ranks_that_step_together_are_one_engine_with_the_room_of_all() -> None:
    cluster = resolve_cluster("qwen3-8b", "1x4xh100-dp2")
    replica = cluster.replicas[0]
    params = params_of("qwen3-8b", "1x4xh100-dp2", max_num_seqs=10)
    contents = ContentIndex(params.text_block)
    steps = replica_step_time(cluster.model, replica, SimSettings(), params)
    engine = replica_engine(params, steps, replica, contents)
    assert (engine.params.max_num_seqs, engine.params.max_num_batched_tokens) == (20, 16384)
    assert engine.params.long_prefill_token_threshold == 8192
    alone = replica_step_time(
        cluster.model, replace(replica, data_parallel=1), SimSettings(), params
    )
    # Two equal chunks go to a rank each, and take as long as one.
    both, one = [(4096, 0), (4096, 0)], [(4096, 0)]
    assert steps.mixed_ps(both, 0, 0) == alone.mixed_ps(one, 0, 0)
    line = contents.intern([("t", 101)])
    engine.submit(EngineRequest(1, line, 100, 1), 0)
    assert not isinstance(engine, SglangEngine)
    outcome, records = run("qwen3-8b", "1x4xh100-dp2")
    assert len(records.sessions) == 6
    assert outcome.makespan_ns > 0
