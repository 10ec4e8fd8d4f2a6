"""Power and energy of a replica's GPUs, with the band that assumed constants leave.

    P = idle + (board - idle) x u        u by phase: prefill (any step with a chunk), decode, idle

and never above the cap. A cap below what a phase draws lowers the clocks, and so slows that phase:

    clock = ((cap - idle) / (need - idle)) ^ exponent,  1 where cap >= need

Dynamic power grows with clock x voltage^2, so the exponent lies between 1/3 (voltage follows the
clock) and 1/2. Decoding draws far less than compute-bound work (137-300 W of 700 W on an H200,
arXiv 2605.11999), so a cap mostly acts on prefill. Power draws are assumptions with bands
(harness/gpus.py): give every energy with its band, and compare runs with
`tokens_per_joule_ratio`, which varies the
constants of both together.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import NamedTuple

from harness.gpus import Band, GpuKind

CLOCK_EXPONENT = Band(0.4, 1 / 3, 1 / 2)
"""Of the clock over the power that is left to it. Our choice between the two physical bounds."""


@dataclass(frozen=True, slots=True)
class PhaseSeconds:
    """Where a replica's time went, and on what GPUs. A step with a prefill chunk is prefill."""

    gpu: GpuKind
    gpus: int
    power_cap_w: float
    prefill: float
    decode: float
    idle: float


@dataclass(frozen=True, slots=True)
class Estimate:
    """A value with the lowest and highest that the assumed constants allow."""

    value: float
    low: float
    high: float


def clock_factor(need_w: float, cap_w: float, idle_w: float, exponent: float) -> float:
    """Clocks under a cap over free clocks, in (0, 1].

    Raises:
        ValueError: the cap is not above idle power.
    """
    if cap_w <= idle_w:
        raise ValueError(f"a cap of {cap_w:g} W is not above idle power of {idle_w:g} W")
    if need_w <= cap_w:
        return 1.0
    return float(((cap_w - idle_w) / (need_w - idle_w)) ** exponent)


def slowdowns(
    gpu: GpuKind, cap_w: float, exponent: float = CLOCK_EXPONENT.value
) -> tuple[float, float]:
    """Factors on the time of prefill and of decode steps under a power cap, each 1 or more."""
    power = gpu.power
    idle = power.idle_w.value
    prefill = 1 / clock_factor(power.prefill_need_w.value, cap_w, idle, exponent)
    decode = 1 / clock_factor(power.decode_need_w.value, cap_w, idle, exponent)
    return max(prefill, decode), decode


def joules(phases: Sequence[PhaseSeconds]) -> Estimate:
    """Energy of all GPUs over the time given."""
    return _banded(lambda at: _total(phases, at))


def tokens_per_joule(tokens: float, phases: Sequence[PhaseSeconds]) -> Estimate:
    """Tokens for each joule of all GPUs.

    Raises:
        ValueError: no time was spent, so there is no energy.
    """
    _need_time(phases)
    return _banded(lambda at: tokens / _total(phases, at))


def tokens_per_joule_ratio(
    tokens: float,
    phases: Sequence[PhaseSeconds],
    other_tokens: float,
    other_phases: Sequence[PhaseSeconds],
) -> Estimate:
    """Tokens per joule of one run over another's.

    The constants vary together in both, so the band is that of the comparison, narrower than two
    separate bands suggest.

    Raises:
        ValueError: a run spent no time, or the other made no tokens.
    """
    _need_time(phases)
    _need_time(other_phases)
    if other_tokens <= 0:
        raise ValueError("the other run made no tokens")
    return _banded(
        lambda at: tokens / _total(phases, at) / (other_tokens / _total(other_phases, at))
    )


class _Corner(NamedTuple):
    """Where in its band each assumed draw lies: 0 its value, -1 its low end, 1 its high end."""

    idle: int
    prefill: int
    decode: int


def _banded(figure: Callable[[_Corner], float]) -> Estimate:
    corners = [figure(_Corner(*ends)) for ends in product((-1, 1), repeat=3)]
    value = figure(_Corner(0, 0, 0))
    return Estimate(value, min(value, *corners), max(value, *corners))


def _at(band: Band, end: int) -> float:
    return (band.value, band.high, band.low)[end]


def _total(phases: Sequence[PhaseSeconds], at: _Corner) -> float:
    return sum(_joules(phase, at) for phase in phases)


def _joules(phase: PhaseSeconds, at: _Corner) -> float:
    power, cap = phase.gpu.power, phase.power_cap_w
    idle = min(_at(power.idle_w, at.idle), cap)
    prefill = min(_at(power.prefill_need_w, at.prefill), cap)
    decode = min(_at(power.decode_need_w, at.decode), cap)
    spent = phase.prefill * prefill + phase.decode * decode + phase.idle * idle
    return phase.gpus * spent


def _need_time(phases: Sequence[PhaseSeconds]) -> None:
    if not any(phase.prefill + phase.decode + phase.idle > 0 for phase in phases):
        raise ValueError("no time was spent, so there is no energy")
