"""Numbers as readers see them."""

from __future__ import annotations

from results.statistics import Estimate, Interval


def number(value: float, decimals: int | None = None) -> str:
    """About four significant digits: `1,402`, `812.3`, `12.35`, `0.972`."""
    places = decimals_of(value) if decimals is None else decimals
    text = f"{value:,.{places}f}"
    return text if text.strip("-0.,") else text.removeprefix("-")


def decimals_of(value: float) -> int:
    size = abs(value)
    if size >= 1000:
        return 0
    if size >= 100:
        return 1
    return 2 if size >= 1 or size == 0 else 3


def level(estimate: Estimate) -> str:
    """A mean and half the width of its interval, in the same number of decimals.

    A whole number that is the same for every seed, such as a count of failures, stands alone.
    """
    if estimate.mean.is_integer() and estimate.interval == (estimate.mean, estimate.mean):
        return f"{estimate.mean:,.0f}"
    places = decimals_of(estimate.mean)
    text = number(estimate.mean, places)
    if estimate.interval is None:
        return text
    half = (estimate.interval.high - estimate.interval.low) / 2
    return f"{text} ±{number(half, places)}"


def signed(value: float) -> str:
    return f"{_signed(value, 0 if abs(value) >= 100 else 1)} %"


def interval(value: Interval) -> str:
    """`[+5.1, +11.2]`; without decimals from 100 on."""
    places = 0 if max(abs(value.low), abs(value.high)) >= 100 else 1
    return f"[{_signed(value.low, places)}, {_signed(value.high, places)}]"


def tight_interval(value: Interval) -> str:
    """`[+5.1,+9.2]`, without decimals from 10 on."""
    places = 0 if max(abs(value.low), abs(value.high)) >= 10 else 1
    return f"[{_signed(value.low, places)},{_signed(value.high, places)}]"


def percent(value: float) -> str:
    return f"{value:.1f} %"


def _signed(value: float, places: int) -> str:
    rounded = round(value, places)
    return f"{rounded:+.{places}f}" if rounded else f"{0:.{places}f}"
