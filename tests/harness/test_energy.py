"""Power, caps and energy bands, worked out by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from harness.gpus import find_gpu
from harness.sim.energy import (
    Estimate,
    PhaseSeconds,
    clock_factor,
    joules,
    slowdowns,
    tokens_per_joule,
    tokens_per_joule_ratio,
)

A40 = find_gpu("a40")


def phases(cap: float, prefill: float, decode: float, idle: float, gpus: int = 1) -> PhaseSeconds:
    return PhaseSeconds(A40, gpus, cap, prefill, decode, idle)


def test_energy_by_phase() -> None:
    # 10 s x 290 W + 20 s x 170 W + 5 s x 40 W = 6,500 J on each of two GPUs. The band: all low,
    # 10 x 250 + 20 x 120 + 5 x 30 = 5,050; all high, 10 x 300 + 20 x 220 + 5 x 80 = 7,800.
    assert joules([phases(300, 10, 20, 5, gpus=2)]) == Estimate(13_000, 10_100, 15_600)


def test_a_cap_bounds_every_draw() -> None:
    # At 200 W: 10 x 200 + 20 x 170 + 5 x 40; low 10 x 200 + 20 x 120 + 5 x 30; high 20 x 200 of
    # decode too.
    assert joules([phases(200, 10, 20, 5)]) == Estimate(5_600, 4_550, 6_400)


def test_tokens_per_joule_and_its_ratio() -> None:
    free, capped = [phases(300, 10, 0, 0)], [phases(200, 12, 0, 0)]
    # 2,900 J against 2,400 J for the same tokens.
    assert tokens_per_joule(2900, free).value == pytest.approx(1.0)
    ratio = tokens_per_joule_ratio(1000, capped, 1000, free)
    # 2,900 / 2,400; the need of prefill alone varies, in both runs together: 250 or 300 W free.
    assert ratio.value == pytest.approx(2900 / 2400)
    assert ratio.low == pytest.approx(2500 / 2400)
    assert ratio.high == pytest.approx(3000 / 2400)
    apart = tokens_per_joule(1000, capped), tokens_per_joule(1000, free)
    assert ratio.high - ratio.low <= apart[0].high / apart[1].low - apart[0].low / apart[1].high


def test_clocks_under_a_cap() -> None:
    assert clock_factor(290, 300, 40, 0.4) == 1.0
    # ((165 - 40) / (290 - 40)) ^ 0.5 = 0.5 ^ 0.5
    assert clock_factor(290, 165, 40, 0.5) == pytest.approx(0.5**0.5)
    with pytest.raises(ValueError, match="not above idle"):
        clock_factor(290, 40, 40, 0.4)


def test_caps_slow_prefill_before_decode() -> None:
    assert slowdowns(A40, 300) == (1.0, 1.0)
    prefill, decode = slowdowns(A40, 200)
    assert prefill == pytest.approx((250 / 160) ** 0.4)
    assert decode == 1.0
    prefill, decode = slowdowns(A40, 120)
    # (250 / 80) ^ 0.4 and, decode needing 170 W, (130 / 80) ^ 0.4
    assert prefill == pytest.approx(1.5774, abs=1e-3)
    assert decode == pytest.approx(1.2144, abs=1e-3)


@given(
    cap=st.floats(101, 300),
    lower=st.floats(0, 100),
    prefill=st.floats(0, 1e4),
    decode=st.floats(0, 1e4),
    idle=st.floats(1, 1e4),
)
def test_bands_hold_the_value_and_less_power_is_less_energy(
    cap: float, lower: float, prefill: float, decode: float, idle: float
) -> None:
    energy = joules([phases(cap, prefill, decode, idle)])
    assert 0 < energy.low <= energy.value <= energy.high
    assert joules([phases(cap - lower / 2, prefill, decode, idle)]).value <= energy.value
    slow = slowdowns(A40, cap)
    assert slow[0] >= slow[1] >= 1


def test_no_time_is_no_energy() -> None:
    with pytest.raises(ValueError, match="no time was spent"):
        tokens_per_joule(10, [phases(300, 0, 0, 0)])
    with pytest.raises(ValueError, match="made no tokens"):
        tokens_per_joule_ratio(1, [phases(300, 1, 0, 0)], 0, [phases(300, 1, 0, 0)])
