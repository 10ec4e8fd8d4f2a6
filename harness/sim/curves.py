"""Piecewise-linear curves and grids over measured points, monotone and exact at the points.

Measured tables carry noise: a larger batch may read faster than a smaller one by a percent. Step
times must not, so tables are made monotone first: the mean of the smallest monotone table above
them and the largest below.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def monotone(table: Array) -> Array:
    """A table that grows along every axis, as near to `table` as a mean of envelopes is."""
    upper, lower = table.copy(), table.copy()
    for axis in range(table.ndim):
        upper = np.maximum.accumulate(upper, axis=axis)
        flipped = np.flip(lower, axis=axis)
        lower = np.flip(np.minimum.accumulate(flipped, axis=axis), axis=axis)
    return (upper + lower) / 2


def largest_change(before: Array, after: Array) -> float:
    """The largest relative difference between two tables of positive values."""
    return float(np.max(np.abs(after - before) / before))


class Curve:
    """A piecewise-linear function of one number, flat below its first point and linear on above
    its last."""

    __slots__ = ("xs", "ys")

    def __init__(self, xs: Sequence[float], ys: Sequence[float]) -> None:
        self.xs, self.ys = [float(x) for x in xs], [float(y) for y in ys]

    def __call__(self, x: float) -> float:
        xs, ys = self.xs, self.ys
        if x <= xs[0] or len(xs) == 1:
            return ys[0]
        i = min(bisect_right(xs, x), len(xs) - 1)
        x0, y0 = xs[i - 1], ys[i - 1]
        return y0 + (ys[i] - y0) * (x - x0) / (xs[i] - x0)

    @property
    def end(self) -> float:
        return self.xs[-1]


def bracket(xs: Sequence[float], x: float) -> tuple[int, float]:
    """The cell of `x` on an axis and the weight of its upper end: above 1 beyond the last point,
    0 below the first."""
    if x <= xs[0] or len(xs) == 1:
        return 0, 0.0
    i = min(bisect_right(xs, x), len(xs) - 1) - 1
    return i, (x - xs[i]) / (xs[i + 1] - xs[i])
