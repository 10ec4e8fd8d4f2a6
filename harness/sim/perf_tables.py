"""Read the shipped performance tables; a hole or a value that is no time is an error that names
file and line."""

from __future__ import annotations

import csv
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from importlib.resources import files
from importlib.resources.abc import Traversable
from typing import NoReturn

import numpy as np

from agentsched import PerformanceDataError
from harness.sim.curves import Array

_REMEDY = "restore the file, or reinstall the package"


class TableFile:
    """One CSV file: rows of numbers, each with its line."""

    def __init__(self, path: Traversable, columns: Sequence[str]) -> None:
        self.name = path.name
        self._path, self._columns = path, columns

    def rows(self) -> Iterator[tuple[int, dict[str, str]]]:
        """Line number and fields of each row.

        Raises:
            PerformanceDataError: the file or a column is missing.
        """
        try:
            text = self._path.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise PerformanceDataError(f"{self.name}: cannot be read: {error}", _REMEDY) from None
        reader = csv.DictReader(text.splitlines())
        missing = [c for c in self._columns if c not in (reader.fieldnames or ())]
        if missing:
            self.fail(1, f"lacks the column `{missing[0]}`")
        for row in reader:
            yield reader.line_num, row

    def time(self, row: dict[str, str], column: str, line: int, *, zero: bool = False) -> float:
        """A time above 0 (or 0, where `zero` allows it)."""
        value = self.number(row, column, line)
        if value < 0 or (value == 0 and not zero):
            self.fail(line, f"`{column}` is {value:g}, not a time above 0")
        return value

    def count(self, row: dict[str, str], column: str, line: int) -> int:
        value = self.number(row, column, line)
        if value < 0 or value != int(value):
            self.fail(line, f"`{column}` is {value:g}, not a whole number of 0 or more")
        return int(value)

    def number(self, row: dict[str, str], column: str, line: int) -> float:
        text = row[column]
        try:
            value = float(text)
        except (TypeError, ValueError):
            self.fail(line, f"`{column}` is `{text}`, not a number")
        if not math.isfinite(value):
            self.fail(line, f"`{column}` is {text}, not a finite number")
        return value

    def fail(self, line: int | None, problem: str) -> NoReturn:
        where = self.name if line is None else f"{self.name}, line {line}"
        raise PerformanceDataError(f"{where}: {problem}", _REMEDY)

    def grid(
        self,
        cells: dict[tuple[int, ...], tuple[float, int]],
        axes: Sequence[tuple[str, Sequence[int]]],
    ) -> Array:
        """The full table over `axes`, from cells of (value, line).

        Raises:
            PerformanceDataError: a point of the grid is missing.
        """
        table = np.empty([len(values) for _, values in axes])
        for index in np.ndindex(*table.shape):
            point = tuple(axes[k][1][i] for k, i in enumerate(index))
            if point not in cells:
                named = ", ".join(f"{axes[k][0]} {point[k]}" for k in range(len(axes)))
                near = max((line for _, line in cells.values()), default=None)
                self.fail(near, f"the table has a hole: no row for {named} up to this line")
            table[index] = cells[point][0]
        return table


def perf_folder() -> Traversable:
    """Where the shipped tables are."""
    return files("harness") / "data" / "perf"


@dataclass(frozen=True, slots=True)
class OperatorTable:
    """Step times in ms by phase, split into attention, communication and the rest.

    `decode_other` and `prefill_other` are over tokens of a step; attention is over
    (new tokens, cached tokens) of one prefill and (batch, context) of a decode batch.
    """

    name: str
    tokens: tuple[int, ...]
    comm: tuple[float, ...]
    """Over `tokens`."""
    decode_tokens: tuple[int, ...]
    decode_other: tuple[float, ...]
    prefill_tokens: tuple[int, ...]
    prefill_other: tuple[float, ...]
    prefixes: tuple[int, ...]
    prefill_attention: Array
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_attention: Array
    mixed: tuple[tuple[int, int, int, float], ...]
    """Rows (decodes, new tokens, cached tokens, step ms) of the source's own mixed steps."""


_OPERATOR_COLUMNS = (
    "phase",
    "num_decode_or_batch",
    "new_tokens",
    "prefix_or_context_tokens",
    "step_ms",
    "attention_ms",
    "comm_ms",
)

Cells = dict[tuple[int, ...], tuple[float, int]]


def read_operator_table(path: Traversable) -> OperatorTable:
    """The table in one aic_*.csv file.

    Raises:
        PerformanceDataError: a hole, a duplicate, or a value that is no time; names the line.
    """
    table = TableFile(path, _OPERATOR_COLUMNS)
    attention: dict[str, Cells] = {"prefill": {}, "decode": {}}
    others: dict[str, dict[int, list[float]]] = {"prefill": {}, "decode": {}}
    comm: dict[int, list[float]] = {}
    mixed = []
    for line, row in table.rows():
        phase = row["phase"]
        batch = table.count(row, "num_decode_or_batch", line)
        new = table.count(row, "new_tokens", line)
        cached = table.count(row, "prefix_or_context_tokens", line)
        step = table.time(row, "step_ms", line)
        if phase == "mixed":
            mixed.append((batch, new, cached, step))
            continue
        if phase not in attention:
            table.fail(line, f"`phase` is `{phase}`, not prefill, decode or mixed")
        tokens = new if phase == "prefill" else batch
        if (tokens, cached) in attention[phase]:
            first = attention[phase][tokens, cached][1]
            table.fail(line, f"repeats the point of line {first}")
        spent = table.time(row, "attention_ms", line)
        moved = table.time(row, "comm_ms", line, zero=True)
        if step - spent - moved <= 0:
            table.fail(line, "`step_ms` is not above `attention_ms` + `comm_ms`")
        attention[phase][tokens, cached] = (spent, line)
        others[phase].setdefault(tokens, []).append(step - spent - moved)
        comm.setdefault(tokens, []).append(moved)
    prefill_axes = _axes(attention["prefill"], ("new tokens", "cached tokens"), table)
    decode_axes = _axes(attention["decode"], ("batch", "context"), table)
    tokens_axis = tuple(sorted(comm))
    return OperatorTable(
        name=table.name,
        tokens=tokens_axis,
        comm=_means(comm, tokens_axis),
        decode_tokens=decode_axes[0][1],
        decode_other=_means(others["decode"], decode_axes[0][1]),
        prefill_tokens=prefill_axes[0][1],
        prefill_other=_means(others["prefill"], prefill_axes[0][1]),
        prefixes=prefill_axes[1][1],
        prefill_attention=table.grid(attention["prefill"], prefill_axes),
        batches=decode_axes[0][1],
        contexts=decode_axes[1][1],
        decode_attention=table.grid(attention["decode"], decode_axes),
        mixed=tuple(mixed),
    )


def _axes(
    cells: Cells, names: tuple[str, ...], table: TableFile
) -> list[tuple[str, tuple[int, ...]]]:
    if not cells:
        table.fail(None, f"has no rows over {' and '.join(names)}")
    return [(name, tuple(sorted({point[k] for point in cells}))) for k, name in enumerate(names)]


def _means(values: dict[int, list[float]], axis: Iterable[int]) -> tuple[float, ...]:
    return tuple(sum(values[x]) / len(values[x]) for x in axis)
