"""Step times straight from the rows of the shipped tables: every look-up searches all rows.

A table value is made monotone by its definition (the mean of the largest value at or below the
point and the smallest at or above it), and interpolated over the corners of its cell.
"""

from __future__ import annotations

import csv
from collections.abc import Callable, Sequence
from functools import cached_property
from itertools import pairwise, product
from math import prod
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

import harness

PERF = Path(harness.__file__).parent / "data" / "perf"

Point = tuple[float, ...]


class Values(dict[Point, float]):
    """Table values by point, with those already smoothed."""

    def __init__(self, items: dict[Point, float] | None = None) -> None:
        super().__init__(items or {})
        self.smooth: dict[Point, float] = {}

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        return np.array(list(self)), np.array(list(self.values()))


def smoothed(values: Values, point: Point) -> float:
    if point not in values.smooth:
        values.smooth[point] = _smoothed(values, point)
    return values.smooth[point]


def _smoothed(values: Values, point: Point) -> float:
    points, times = values.arrays
    below = times[(points <= np.array(point)).all(axis=1)].max()
    above = times[(points >= np.array(point)).all(axis=1)].min()
    return float(below + above) / 2


def interpolated(values: Values, at: Point) -> float:
    """Linear on each axis; straight on beyond the last two points, flat before the first."""
    axes = [sorted({p[k] for p in values}) for k in range(len(at))]
    ends: list[list[tuple[float, float]]] = []
    for axis, x in zip(axes, at, strict=True):
        if x <= axis[0]:
            ends.append([(axis[0], 1.0)])
            continue
        high = next((i for i in range(1, len(axis)) if axis[i] > x), len(axis) - 1)
        a, b = axis[high - 1], axis[high]
        weight = (x - a) / (b - a)
        ends.append([(a, 1 - weight), (b, weight)])
    return sum(
        prod(weight for _, weight in corner) * smoothed(values, tuple(x for x, _ in corner))
        for corner in product(*ends)
    )


def rows(name: str) -> list[dict[str, str]]:
    with (PERF / f"{name}.csv").open(newline="") as stream:
        return list(csv.DictReader(stream))


def padded(tokens: int) -> int:
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return next((size for size in sizes if size >= tokens), tokens)


def batch_time(values: Values, decodes: int, context: float) -> float:
    """A (batch, context) table at any batch and context.

    Context 0 lies on the line through a batch's first two contexts, not below 0 nor below the
    smaller batches'. Times never fall with the context, not even beyond the last batch.
    """
    batches = sorted({n for n, _ in values})
    contexts = sorted({c for _, c in values})
    a, b = contexts[:2]
    starts = Values()
    for n in batches:
        first, second = smoothed(values, (n, a)), smoothed(values, (n, b))
        lowest = max(0.0, first - (second - first) / (b - a) * a)
        starts[n,] = max([lowest, *starts.values()])
    line = [(0.0, interpolated(starts, (decodes,)))]
    for c in contexts:
        line.append((c, max(line[-1][1], interpolated(values, (decodes, c)))))
    for (xa, ya), (xb, yb) in pairwise(line):
        if context <= xb or xb == contexts[-1]:
            return ya + (yb - ya) * (context - xa) / (xb - xa)
    raise AssertionError


class OperatorOracle:
    """Milliseconds from an aic_*.csv table, no host terms."""

    def __init__(self, name: str) -> None:
        self.attention = {"prefill": Values(), "decode": Values()}
        others: dict[str, dict[Point, list[float]]] = {"prefill": {}, "decode": {}}
        comm: dict[Point, list[float]] = {}
        for row in rows(name):
            if row["phase"] == "mixed":
                continue
            column = "new_tokens" if row["phase"] == "prefill" else "num_decode_or_batch"
            tokens = float(row[column])
            step, attention, moved = (float(row[c]) for c in ("step_ms", "attention_ms", "comm_ms"))
            point = (tokens, float(row["prefix_or_context_tokens"]))
            self.attention[row["phase"]][point] = attention
            others[row["phase"]].setdefault((tokens,), []).append(step - attention - moved)
            comm.setdefault((tokens,), []).append(moved)
        self.others = {k: _means(v) for k, v in others.items()}
        self.comm = _means(comm)

    def step_ms(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> float:
        tokens = padded(decodes + sum(new for new, _ in chunks))
        linear = interpolated(self.others["decode"], (tokens,))
        if chunks:
            linear = max(linear, interpolated(self.others["prefill"], (tokens,)))
        linear += interpolated(self.comm, (tokens,))
        alone = (
            batch_time(self.attention["decode"], decodes, context_sum / decodes) if decodes else 0.0
        )
        if not chunks:
            return linear + alone
        table = self.attention["prefill"]
        floor = smoothed(table, min(table))
        extra = sum(interpolated(table, (float(n), float(c))) - floor for n, c in chunks)
        return linear + max(floor, alone) + extra


def _means(values: dict[Point, list[float]]) -> Values:
    return Values({point: sum(found) / len(found) for point, found in values.items()})


class LayerOracle:
    """Milliseconds from llmservingsim_*.csv tables, no host terms.

    Args:
        all_reduce, all_gather: milliseconds for a number of bytes.
    """

    def __init__(
        self,
        stem: str,
        *,
        layers: int,
        hidden: int,
        vocabulary: int,
        all_reduce: Callable[[int], float],
        all_gather: Callable[[int], float],
    ) -> None:
        self.layers, self.hidden, self.vocabulary = layers, hidden, vocabulary
        self.all_reduce, self.all_gather = all_reduce, all_gather
        self.decode = Values()
        self.mixed = Values()
        for row in rows(f"{stem}_attention"):
            chunk, cached, n, context, time = (float(value) for value in row.values())
            if any(not _doubling(x) for x in (chunk, cached, context)):
                continue
            if chunk == 0:
                self.decode[n, context] = time
            elif n == 0:
                for power in range(4, 15):
                    self.mixed[chunk, cached, 0, 2.0**power] = time
            else:
                self.mixed[chunk, cached, n, context] = time
        linear: dict[float, float] = {}
        for row in rows(f"{stem}_dense"):
            many = {"layernorm": 2 * layers, "embedding": 1, "final_layernorm": 1}
            times = many.get(row["layer"], layers)
            at = float(row["tokens"])
            linear[at] = linear.get(at, 0.0) + times * float(row["time_us"]) / 1e3
        self.linear = Values({(x,): y for x, y in linear.items()})
        head: dict[float, float] = {}
        for row in rows(f"{stem}_per_sequence"):
            at = float(row["sequences"])
            head[at] = head.get(at, 0.0) + float(row["time_us"]) / 1e3
        self.head = Values({(x,): y for x, y in head.items()})

    def step_ms(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> float:
        tokens = padded(decodes + sum(new for new, _ in chunks))
        sequences = decodes + len(chunks)
        fixed = interpolated(self.linear, (tokens,))
        fixed += (2 * self.layers + 1) * self.all_reduce(tokens * self.hidden * 2)
        fixed += interpolated(self.head, (sequences,))
        fixed += self.all_gather(sequences * self.vocabulary * 2)
        context = context_sum / decodes if decodes else 0.0
        alone = batch_time(self.decode, decodes, context) if decodes else 0.0
        if not chunks:
            return fixed + alone * self.layers / 1e3
        together = [self._together((n, c), decodes, context) for n, c in chunks]
        floor = smoothed(self.mixed, min(self.mixed))
        extra = [interpolated(self.mixed, (n, c, 0, 0)) - floor for n, c in chunks]
        attention = max(together) + sum(extra) - max(extra)
        if decodes:
            # Beyond the grid: what decodes beside the smallest chunk grow by.
            attention += self._beside(decodes, context)
            attention -= self._beside(min(decodes, 128), min(context, 16384))
        return fixed + max(alone, attention) * self.layers / 1e3

    def _together(self, chunk: tuple[int, int], decodes: int, context: float) -> float:
        """The mixed table at the nearest point of its range, and beyond it what the chunk alone
        grows by."""
        new, cached = min(chunk[0], 2048), min(chunk[1], 16384)
        inside = (new, cached, min(decodes, 128), min(context, 16384))
        growth = interpolated(self.mixed, (*chunk, 0, 0)) - interpolated(
            self.mixed, (new, cached, 0, 0)
        )
        return interpolated(self.mixed, inside) + growth

    def _beside(self, decodes: int, context: float) -> float:
        return batch_time(self._smallest, decodes, context)

    @cached_property
    def _smallest(self) -> Values:
        return Values({p[2:]: smoothed(self.mixed, p) for p in self.mixed if p[:2] == (16, 0)})


def _doubling(value: float) -> bool:
    return value == 0 or any(value == 2.0**power for power in range(4, 15))
