"""Statistics of sessions, by hand and against slow counts."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.stats import distances, ks_distance, trace_stats

TWO = [
    Session(
        "a",
        (
            TurnSpec(20, 10, shared=(Segment("s", 80, 320),), tools=(ToolCall("t", 4.0),)),
            TurnSpec(30, 5, kept_turn=0, kept_tokens=110, wait_s=7.0),
            TurnSpec(10, 5, kept_turn=1, kept_tokens=80, compaction=True),
        ),
        "w",
        "recorded",
    ),
    Session(
        "b",
        (TurnSpec(40, 10, shared=(Segment("s", 60, 240),)),),
        "w",
        "recorded",
        parent="a",
        spawn_turn=0,
    ),
]


def test_totals_by_hand() -> None:
    stats = trace_stats(TWO)
    assert (stats.sessions, stats.sub_agents, stats.turns, stats.tool_calls) == (2, 1, 4, 1)
    # Prompts of 100, 140, 90 and 100 tokens.
    assert (stats.prompt_tokens, stats.output_tokens, stats.compactions) == (430, 30, 1)
    assert stats.kept_share == (110 + 80) / 430
    # Known before: nothing; 110; 80; the 60 of b's shared segment.
    assert stats.reuse_share == (110 + 80 + 60) / 430
    assert stats.workloads == (("w", "recorded", 2),)


def test_rows_by_hand() -> None:
    rows = {row.quantity: row for row in trace_stats(TWO).rows}
    # Sorted prompts 90, 100, 100, 140: p90 lies 0.7 of the way from the third to the fourth.
    prompt = rows["prompt"]
    assert (prompt.count, prompt.mean, prompt.p50, prompt.maximum) == (4, 107.5, 100.0, 140.0)
    assert prompt.p90 == pytest.approx(128.0)
    # a: 145 after its second turn; b: 110.
    assert rows["peak context"].maximum == 145.0
    assert rows["new tokens a later turn"].count == 2
    assert rows["wait after a turn"].count == 1
    assert rows["tool time a turn"].mean == 4.0


def test_no_sessions_have_no_rows() -> None:
    stats = trace_stats([])
    assert (stats.sessions, stats.reuse_share, stats.rows) == (0, 0.0, ())


SAMPLE = st.lists(st.integers(0, 6), min_size=1, max_size=12)


@settings(max_examples=200, deadline=None)
@given(SAMPLE, SAMPLE)
def test_ks_distance_is_the_largest_gap(one: list[int], other: list[int]) -> None:
    gaps = [
        abs(sum(x <= at for x in one) / len(one) - sum(x <= at for x in other) / len(other))
        for at in range(7)
    ]
    left, right = (np.sort(np.array(sample, dtype=np.float64)) for sample in (one, other))
    assert ks_distance(left, right) == pytest.approx(max(gaps))


def test_distances_of_a_set_to_itself_are_0() -> None:
    found = distances(TWO, TWO)
    assert {d.quantity for d in found} >= {"turns a session", "prompt", "output a turn"}
    assert all(d.ks == 0.0 and d.first == d.second for d in found)
