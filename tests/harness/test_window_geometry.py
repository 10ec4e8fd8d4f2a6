"""Models with sliding windows beside compressed attention: what fits, and where hits end."""

from __future__ import annotations

import pytest

from agentsched import TopologyError
from harness.capacity import resolve_cluster
from harness.sim.defaults import engine_defaults
from harness.sim.engine_types import EngineParams, WindowHits
from harness.sim.run import simulate
from harness.sim.settings import SimSettings
from schedulers.registry import create
from tests.harness.simulated import Records, play
from workloads.model import Session, TurnSpec

TURNS = (
    TurnSpec(600, 300),
    TurnSpec(100, 20, kept_turn=0, kept_tokens=900),
    TurnSpec(80, 1, kept_turn=1, kept_tokens=1020),
)


def session(name: str) -> Session:
    return Session(name, TURNS, "test", "generated")


def cached(window_hits: WindowHits, window_tokens: int = 0) -> list[int | None]:
    params = EngineParams(
        block_size=256, sequence_blocks=26, window_hits=window_hits, window_tokens=window_tokens
    )
    played = play([session("s")], create("round-robin"), blocks=100, params=params)
    return [turn.cached_tokens for turn in played.records.turns]


def test_where_hits_end() -> None:
    # Turn 2 finds 899 tokens with KV: 3 blocks of 256; turn 3 1,019 and 1,020: 3 again.
    assert cached("dense") == [0, 768, 768]
    # The last 128 of them are computed again.
    assert cached("replay", 128) == [0, 640, 640]
    # Prompt 1 ended at 600: a state after 2 blocks. Turn 2 found 3 blocks without a state at their
    # end, so it leaves one there, as at its own end (999 // 256).
    assert cached("prompt_ends") == [0, 512, 768]


def test_a_replayed_hit_no_longer_than_the_window_saves_nothing() -> None:
    assert cached("replay", 768) == [0, 0, 0]


def test_blocks_beside_the_text_are_held_and_given_back() -> None:
    params = EngineParams(block_size=256, null_blocks=0, sequence_blocks=26)
    # 26 and 4 blocks for 901 tokens: 29 are too few, and the session is told so.
    short = play([session("s")], create("round-robin"), blocks=29, params=params)
    [ended] = short.records.sessions
    assert ended.status == "too_long"
    assert ended.error is not None
    assert "exceed the KV cache (768)" in ended.error
    long = play([session("s")], create("round-robin"), blocks=31, params=params)
    assert long.records.sessions[0].status == "finished"
    assert long.engines["r0"].state().held_blocks == 0


def test_the_defaults_of_the_hybrid_model_are_its_geometry() -> None:
    cluster = resolve_cluster("deepseek-v4-flash", "2x4xh100")
    params = EngineParams(**engine_defaults(cluster))  # type: ignore[arg-type]
    assert (params.block_size, params.sequence_blocks) == (256, 26)
    assert (params.window_hits, params.window_tokens) == ("prompt_ends", 128)
    # 29.5 GiB hold 31,600 blocks of 1,002,240 bytes: 8.09 million tokens; a sequence of the longest
    # length takes 4,096 blocks and 26.
    replica = cluster.replicas[0]
    assert replica.kv_blocks == int(replica.kv_gib * 2**30 // 1_002_240)
    assert replica.context_limit == 1_048_576
    assert engine_defaults(resolve_cluster("qwen3-32b", "4x2xh100"))["sequence_blocks"] == 0


def test_four_ranks_hold_no_more_than_one() -> None:
    for topology in ("2x4xh100", "1x8xh100"):
        plan = resolve_cluster("deepseek-v4-flash", topology).replicas[0]
        assert plan.kv_bytes_per_token == 3915


def test_memory_for_windows_alone_is_no_room_for_text() -> None:
    # 26 blocks of 1,002,240 bytes are 0.0243 GiB.
    with pytest.raises(TopologyError, match="each sequence 26 blocks beside"):
        resolve_cluster("deepseek-v4-flash", "2x4xh100", overhead_gib=34.46)


def test_a_scheduler_can_be_made_to_believe_another_capacity() -> None:
    """The named hypothesis: what a replica reports is not what it has."""
    cluster = resolve_cluster("deepseek-v4-flash", "2x4xh100", max_model_len=262_144)
    held = {}
    for reported in (None, 4096):
        recorder = Records()
        simulate(
            [session(f"s{i}") for i in range(12)],
            workers=12,
            scheduler=create("tao"),
            cluster=cluster,
            settings=SimSettings(reported_kv_tokens=reported),
            engine=EngineParams(**engine_defaults(cluster)),  # type: ignore[arg-type]
            recorder=recorder,
        )
        assert len(recorder.sessions) == 12
        held[reported] = sum(turn.held for turn in recorder.turns)
    assert held[None] == 0 < held[4096]
