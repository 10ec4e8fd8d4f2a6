"""KV in the memory of a replica's host."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import TopologyError, UsageError
from harness.capacity import resolve_cluster
from harness.sim.cpu_offload import CpuTier, OffloadSpec, tiers_of
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams
from harness.sim.faults import Fault
from harness.sim.kv_store import StoreSpec
from harness.sim.links import LinkSpec
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from schedulers.registry import create
from tests.harness.simulated import MS, Played, Records, play
from tests.oracles.block_cache import Hasher, OracleBlockCache
from workloads.catalog import load_workload
from workloads.model import Session, TurnSpec

LINK = LinkSpec(10.0, efficiency=0.5, latency_us=1000)
"""5 MB a millisecond, and 1 ms more."""


def tier(tokens: int = 10_000, chunk: int = 16) -> CpuTier:
    return CpuTier(tokens, chunk, 1_000_000, LINK)


def session(name: str, *turns: TurnSpec) -> Session:
    return Session(name, turns, "test", "generated")


def test_what_was_evicted_is_copied_back() -> None:
    """One replica of 5 blocks of 16 tokens. Turn 0: 64 tokens (74 ms), a second one 10 ms later;
    64 tokens have KV, 4 chunks, copied out in 12.8 + 1 ms. Another session of 80 tokens takes all
    blocks. Turn 1 then has 64 of its 70 tokens copied back: 13.8 ms, and computes 6: 16 ms."""
    first = session("a", TurnSpec(64, 2, wait_s=1.0), TurnSpec(4, 1, kept_turn=0, kept_tokens=66))
    other = replace(session("b", TurnSpec(80, 1)), arrival_s=0.5)
    host = tier()
    played = play(
        [first, other],
        create("round-robin"),
        workers=None,
        blocks=5,
        params=EngineParams(null_blocks=0),
        tiers={"r0": host},
    )
    turn = next(t for t in played.records.turns if (t.session, t.turn) == ("a", 1))
    assert turn.cached_tokens == 64
    assert turn.first_token is not None
    notice = turn.first_token - turn.arrived - (13_800_000 + 16 * MS)
    assert 0 <= notice <= 2  # a load is announced a nanosecond after it could begin
    assert host.loaded_tokens == 64
    # 4 chunks of a, 5 of b, and what a's second turn adds: nothing, 70 tokens fill 4 chunks.
    assert host.to_cpu.moved_bytes == 144_000_000
    assert played.driver.service_counters()["offload.loaded_tokens"] == 64
    without = play(
        [first, other],
        create("round-robin"),
        workers=None,
        blocks=5,
        params=EngineParams(null_blocks=0),
    )
    assert [t.cached_tokens for t in without.records.turns] == [0, 0, 0]


STEPS = st.lists(
    st.tuples(
        st.booleans(),
        st.sampled_from("ab"),
        st.integers(0, 12),
        st.sampled_from("xyz"),
        st.integers(0, 12),
    ),
    max_size=40,
)


@settings(max_examples=300, deadline=None)
@given(STEPS, st.integers(1, 8), st.integers(1, 3))
def test_chunks_equal_a_store_that_looks_at_each(
    steps: list[tuple[bool, str, int, str, int]], capacity: int, chunk: int
) -> None:
    """Against a list of chunks in order of use; and none is ever lost or held."""
    host = tier(capacity * chunk, chunk)
    slow, hasher = OracleBlockCache(capacity), Hasher(chunk)
    for write, name, shared, own, tokens in steps:
        text = [(name, shared), (own, tokens)]
        keys = hasher.hashes([part for part in text if part[1]])
        if write:
            _, publish = host.keep(text, shared + tokens, 0)
            publish()
            keys = keys[:capacity]
            holding = slow.acquire(keys, slow.match(keys, len(keys)))
            new = min(len(keys) - len(holding.blocks), slow.free)
            slow.allocate(holding, new)
            slow.fill(holding, len(holding.blocks))
            slow.release(holding)
        else:
            found = slow.match(keys, len(keys))
            assert host.found(text, shared + tokens) == len(found) * chunk
            slow.release(slow.acquire(keys, found))
        assert host.chunks._chunks.free == slow.free == capacity
        assert host.chunks._chunks.cached == slow.cached


def test_a_copy_under_way_is_lost_with_the_replica() -> None:
    host = tier()
    text = [("a", 32)]
    done, publish = host.keep(text, 32, 0)
    assert done == 7_400_000  # 32 MB, and the latency
    host.lose()
    publish()
    assert host.found(text, 32) == 0
    _, publish = host.keep(text, 32, 0)
    publish()
    assert host.found(text, 32) == 32


TURNS = st.lists(st.tuples(st.integers(1, 60), st.integers(1, 20)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(
    st.lists(TURNS, min_size=1, max_size=6),
    st.integers(1, 4),
    st.integers(1, 30),
    st.sampled_from([None, 1, 2]),
    st.booleans(),
)
def test_no_block_is_lost_and_it_happens_again_the_same_way(
    made: list[list[tuple[int, int]]], workers: int, chunks: int, dies: int | None, ahead: bool
) -> None:
    sessions = [session(f"s{i}", *_turns(turns)) for i, turns in enumerate(made)]
    faults: tuple[Fault, ...] = ()
    if dies is not None:
        faults = (Fault(dies * 0.1, "r0", "lost"), Fault(dies * 0.1 + 1, "r0", "recovered"))

    def once(fast: bool) -> Played:
        hosts = {name: tier(chunks * 16) for name in ("r0", "r1")}
        played = play(
            sessions,
            create("round-robin"),
            workers=workers,
            replicas=2,
            blocks=22,
            settings=SimSettings(faults=faults),
            params=EngineParams(null_blocks=0, async_scheduling=ahead, fast_forward=fast),
            tiers=hosts,
        )
        for engine in played.engines.values():
            engine.advance(played.makespan + 10**9)
            assert engine.state().held_blocks == 0
        for host in hosts.values():
            assert host.chunks._chunks.free == chunks
            assert host.chunks._chunks.cached <= chunks
        return played

    one = once(True)
    assert {s.session for s in one.records.sessions} == {s.id for s in sessions}
    assert one.records.turns == once(False).records.turns == once(True).records.turns


def _turns(made: list[tuple[int, int]]) -> list[TurnSpec]:
    turns: list[TurnSpec] = []
    for number, (new, output) in enumerate(made):
        kept = turns[-1].prompt_tokens + turns[-1].output_tokens if turns else 0
        turns.append(TurnSpec(new, output, number - 1 if turns else None, kept, wait_s=0.05))
    return turns


def test_a_cluster_whose_cache_is_scarce_computes_less_with_it() -> None:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    values = engine_defaults(cluster)
    small = replace(
        cluster,
        replicas=tuple(replace(r, kv_blocks=2600, kv_tokens=2600 * 16) for r in cluster.replicas),
    )
    computed = {}
    for offload in (None, OffloadSpec(gib=64)):
        outcome = simulate(
            load_workload("swe-bench-mini-short", sessions=12, seed=1),
            workers=12,
            scheduler=create("session-affinity"),
            cluster=small,
            settings=SimSettings(cpu_offload=offload),
            engine=EngineParams(**values),  # type: ignore[arg-type]
            recorder=Records(),
        )
        computed[offload is not None] = outcome.counters["engine.prefill_tokens"]
    assert computed[True] < 0.7 * computed[False]
    assert outcome.counters["offload.to_gpu_gb"] > 0


def test_sizes_and_limits() -> None:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    # 64 GiB at 262,144 bytes a token over both GPUs: 262,144 tokens. Each GPU has half of the KV
    # and its own link: 16 tokens are 2 MiB at 64 x 0.8 GB/s, 40.96 us, and 20 us more.
    host = tiers_of(OffloadSpec(gib=64), cluster)["r0"]
    assert host.chunks.spec.capacity_tokens == 262_144
    assert host.chunks.spec.chunk_tokens == 16
    assert host.load(16, 0) == 60_960
    with pytest.raises(TopologyError, match="a chunk has 256"):
        tiers_of(OffloadSpec(gib=0.05, chunk_tokens=256), cluster)
    for bad in ({"gib": 0}, {"gib": 1, "efficiency": 2}, {"gib": 1, "chunk_tokens": 0}):
        with pytest.raises(ValueError):  # noqa: PT011
            OffloadSpec(**bad)
    with pytest.raises(ValueError, match="cannot be combined"):
        SimSettings(cpu_offload=OffloadSpec(gib=1), kv_store=StoreSpec(1000, LINK))


@pytest.mark.parametrize(
    ("model", "topology", "engine", "problem"),
    [
        ("deepseek-v4-flash", "2x4xh100", "vllm", "window states"),
        ("qwen3-32b", "4x2xh100", "sglang", "no `cpu_offload`"),
    ],
)
def test_what_is_not_simulated_is_refused(
    model: str, topology: str, engine: str, problem: str
) -> None:
    cluster = resolve_cluster(model, topology)
    values = {**engine_defaults(cluster), "engine": engine}
    with pytest.raises(UsageError, match=problem):
        simulate(
            [session("s", TurnSpec(10, 1))],
            workers=1,
            scheduler=create("round-robin"),
            cluster=cluster,
            settings=SimSettings(cpu_offload=OffloadSpec(gib=8)),
            engine=EngineParams(**values),  # type: ignore[arg-type]
            recorder=Records(),
        )
