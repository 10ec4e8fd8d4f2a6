"""Ranks that step together: one rank is itself, several take the time of the fullest."""

from __future__ import annotations

from functools import cache

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import PerformanceDataError
from harness.capacity import resolve_cluster
from harness.models import find_model
from harness.sim.data_parallel import DataParallelStepTime
from harness.sim.layer_tables import read_layer_table
from harness.sim.step_costs import LayerCosts, Link
from harness.sim.step_time import TableStepTime, step_time_for

PS = 10**9


@cache
def rank(expert_ranks: int) -> TableStepTime:
    cluster = resolve_cluster("qwen3-30b-a3b", "1x1xrtx-pro-6000")
    return step_time_for(cluster.model, cluster.replicas[0], expert_ranks=expert_ranks)


batches = st.lists(st.tuples(st.integers(1, 900), st.integers(0, 9000)), min_size=1, max_size=4)


@settings(max_examples=60, deadline=None)
@given(chunks=batches, decodes=st.integers(1, 120), mean=st.integers(1, 9000))
def test_one_rank_is_itself_but_for_the_split_of_chunks(
    chunks: list[tuple[int, int]], decodes: int, mean: int
) -> None:
    alone = DataParallelStepTime(rank(1), 1)
    total = decodes * mean
    assert alone.decode_piece(decodes, total) == rank(1).decode_piece(decodes, total)
    assert alone.mixed_ps(chunks, decodes, total) == pytest.approx(
        rank(1).mixed_ps(chunks, decodes, total), rel=1e-12
    )


@settings(max_examples=60, deadline=None)
@given(chunk=batches, half=st.integers(1, 120), mean=st.integers(1, 9000))
def test_two_ranks_with_half_each_take_as_long_as_one_half(
    chunk: list[tuple[int, int]], half: int, mean: int
) -> None:
    two = DataParallelStepTime(rank(2), 2)
    total = half * mean
    assert two.mixed_ps([], 2 * half, 2 * total) == pytest.approx(
        rank(2).mixed_ps([], half, total), abs=total
    )
    pair = [chunk[0], chunk[0]]
    assert two.mixed_ps(pair, 2 * half, 2 * total) == rank(2).mixed_ps([chunk[0]], half, total)


@settings(max_examples=100, deadline=None)
@given(decodes=st.integers(1, 300), context=st.integers(0, 10**7))
def test_pieces_hold_to_their_end(decodes: int, context: int) -> None:
    two = DataParallelStepTime(rank(2), 2)
    piece = two.decode_piece(decodes, context)
    assert context < piece.context_end
    assert two.mixed_ps([], decodes, context) == piece.fixed_ps + piece.per_token_ps * context
    last = piece.context_end - 1
    if last < 10**12:
        assert two.decode_piece(decodes, last)[:2] == piece[:2]


def test_a_rank_with_half_the_experts() -> None:
    model = find_model("qwen3-30b-a3b")
    table = read_layer_table("llmservingsim_rtx-pro-6000_qwen3-30b-a3b_tp1", moe=True)
    link = Link(10.0, 20.0)
    one = LayerCosts(table, model, ranks=1, link=link)
    two = LayerCosts(table, model, ranks=1, link=link, expert_ranks=2)
    # At 2,048 tokens all experts are reached: 1,066.6 us with 128 of them, 681.888 with 64.
    # The exchange: gather and scatter of 4,096 tokens x 2 x (2,048 + 128) B = 17.8 MB, half of it
    # over the link: 20 us + 0.891 ms each, in 48 layers.
    exchange = 2 * (0.020 + 4096 * 2 * 2176 / 2 / 10e6)
    expected = 48 * ((681.888 - 1066.6) / 1e3 + exchange)
    got = two.tokens_ms(2048, mixed=True) - one.tokens_ms(2048, mixed=True)
    assert got == pytest.approx(expected, rel=1e-3)


def test_experts_are_shared_by_layer_tables_only() -> None:
    cluster = resolve_cluster("qwen3-30b-a3b", "1x1xh100")
    with pytest.raises(PerformanceDataError, match="has no expert parallelism"):
        step_time_for(cluster.model, cluster.replicas[0], expert_ranks=2)
    with pytest.raises(ValueError, match="at least one rank"):
        DataParallelStepTime(rank(1), 0)
    assert "experts shared by 2 ranks" in DataParallelStepTime(rank(2), 2).description
