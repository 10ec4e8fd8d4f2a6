"""Published measurements: what is compared, and that a gap is never left without its reason."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from harness.validation.published import (
    POINTS,
    ROUTERS,
    TOLERANCE,
    Compared,
    compare,
    engine_table,
    gain_table,
    lengths,
    play,
)

LOW_LOAD = [point for point in POINTS if point.concurrency is not None]
LONG = next(point for point in POINTS if "32,000" in point.name)


def test_lengths_add_up() -> None:
    rng = np.random.default_rng(1)
    assert lengths(10, 4, True, rng) == [3, 3, 2, 2]
    drawn = lengths(217_393, 1000, False, rng)
    assert sum(drawn) == 217_393
    assert min(drawn) >= 4
    assert max(drawn) <= 1025
    assert np.std(drawn) > 100


def test_an_engine_with_few_requests_is_as_fast_as_measured() -> None:
    """Qwen3-8B on one H100 of the kind that the tables are of."""
    for row in compare(LOW_LOAD):
        if row.metric != "ttft":
            assert abs(row.error) < TOLERANCE, (row.point.name, row.metric)


def test_one_sequence_at_a_time_takes_what_its_steps_take() -> None:
    """32,000-token prompts: two do not fit the 41,000 tokens of KV. So the duration is the sum of
    prefill and decode of all of them, and the mean TTFT half of it and one prefill more."""
    few = replace(LONG, requests=6, prompt_tokens=192_000, output_tokens=462)
    found = play(few)
    one = found["duration"] / 6
    decode = 76 * found["tpot"]
    assert found["ttft"] == pytest.approx(2.5 * one + one - decode, rel=0.02)


def test_every_gap_has_its_reason_beside_it() -> None:
    for point in POINTS:
        assert point.reason or point.concurrency is not None
    point = LOW_LOAD[0]
    near, far = Compared(point, "ttft", 1.0, 1.1), Compared(point, "ttft", 1.0, 1.2)
    assert near.error == pytest.approx(10)
    assert (near.reason, far.reason) == ("", point.reason)
    table = engine_table([near, far])
    assert [row[-2:] for row in table.rows] == [("+10.0 %", ""), ("+20.0 %", point.reason)]


def test_gains_are_compared_as_ratios() -> None:
    # Published: 671.8 / 375.4 = 1.79. Ours 240 / 140 = 1.71 (-4.2 %) and 240 / 200 = 1.2 (-33 %).
    table = gain_table({"round-robin": 140.0, "cache-aware": 200.0, "thunderagent": 240.0})
    assert [row[0] for row in table.rows] == list(ROUTERS)
    assert [row[3] for row in table.rows] == ["-4.2 %", "-32.9 %"]
    assert [bool(row[5]) for row in table.rows] == [False, True]
