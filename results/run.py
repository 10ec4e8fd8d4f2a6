"""A run read back: pandas tables over all of its cells, and what is not there."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Container, Iterator, Mapping
from dataclasses import MISSING, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd
import pyarrow as pa
from pyarrow import parquet

from agentsched import RunDirectoryError
from results.cells import CellId, disk
from results.frames import arrow_schema
from results.records import Label, TurnRecord
from results.writer import LOGS, PACKED

if TYPE_CHECKING:
    from results.store import CellState

IDENTITY = ("cell", "cell_workload", "scheduler", "workers", "seed")
"""Columns added in front of the records of a cell. `cell_workload` is the workload of the cell;
in a mixed one the records' own `workload` says which part a session came from."""


@dataclass(frozen=True)
class Run:
    """One run directory.

    `turns`, `sessions` and `replicas` hold the finished cells alone; times are nanoseconds since
    the start of the cell. What a killed or failed cell left is in `partial`, in no table.
    """

    path: Path
    manifest: Mapping[str, Any]
    label: Label
    states: tuple[CellState, ...]
    summaries: Mapping[CellId, Mapping[str, Any]]

    @property
    def name(self) -> str:
        return self.path.resolve().name

    @cached_property
    def cells(self) -> pd.DataFrame:
        """One row a cell, planned or found: identity, status, error, makespan_s, and a column a
        metric (NaN where it is unknown or the cell is not done)."""
        rows = []
        for state in self.states:
            row: dict[str, Any] = {**_identity(state.cell), "status": state.status}
            row |= {"error": state.error, "attempts": state.attempts}
            summary = self.summaries.get(state.cell)
            if summary is not None:
                row["makespan_s"] = summary["makespan_s"]
                row |= {tag: entry["value"] for tag, entry in summary["metrics"].items()}
            rows.append(row)
        return pd.DataFrame(rows, columns=None if rows else [*IDENTITY, "status", "error"])

    @cached_property
    def turns(self) -> pd.DataFrame:
        return self.records("turns")

    @cached_property
    def sessions(self) -> pd.DataFrame:
        return self.records("sessions")

    @cached_property
    def replicas(self) -> pd.DataFrame:
        return self.records("replicas")

    @cached_property
    def partial(self) -> pd.DataFrame:
        """Turns of cells that did not finish, as far as they reached the disk."""
        parts = []
        for state in self.states:
            log = state.path / LOGS["turns"][0]
            if state.status in ("partial", "failed") and log.is_file():
                parts.append(_labelled(read_log(log), state.cell))
        empty = _labelled(arrow_schema(TurnRecord).empty_table().to_pandas(), None)
        return pd.concat(parts, ignore_index=True) if parts else empty

    def records(self, kind: str, cells: Container[str] | None = None) -> pd.DataFrame:
        """`turns`, `sessions` or `replicas` of the finished cells, or of those so named."""
        parts = [
            _labelled(self.table(state.cell, kind), state.cell)
            for state in self.states
            if state.status == "done" and (cells is None or state.cell.name in cells)
        ]
        if not parts:
            return _labelled(arrow_schema(LOGS[kind][1]).empty_table().to_pandas(), None)
        return pd.concat(parts, ignore_index=True)

    def table(self, cell: CellId, kind: str) -> pd.DataFrame:
        """`turns`, `sessions` or `replicas` of one finished cell.

        What a run of an earlier version did not record is there and unknown.
        """
        path = self.path / "cells" / cell.name / f"{kind}.parquet"
        if not path.is_file():
            raise RunDirectoryError(
                f"{path}: missing", "remove the folder it is in and give the `agentsched run` again"
            )
        with disk(path, "read"):
            try:
                found = parquet.read_table(path)
            except pa.ArrowInvalid as error:
                raise RunDirectoryError(
                    f"{path}: damaged ({error})", "remove the folder it is in and run it again"
                ) from error
        wanted = arrow_schema(LOGS[kind][1])
        for field in wanted:
            if field.name not in found.column_names:
                found = found.append_column(field, pa.nulls(len(found), field.type))
        frame: pd.DataFrame = found.to_pandas()
        return frame

    def decisions(self, cell: CellId) -> Iterator[dict[str, Any]]:
        """The decision log of a cell, line by line."""
        folder = self.path / "cells" / cell.name
        path = folder / PACKED
        packed = path.is_file()  # an unfinished cell, and one of an earlier version, has it plain
        path = path if packed else folder / LOGS["decisions"][0]
        with (
            disk(path, "read"),
            (gzip.open if packed else open)(path, "rt", encoding="utf-8") as log,
        ):
            try:
                for line in log:
                    if line.endswith("\n"):
                        yield json.loads(line)
            except (ValueError, EOFError, zlib.error) as error:
                raise RunDirectoryError(
                    f"{path}: damaged ({error})", "remove the folder it is in and run it again"
                ) from error

    def unfinished(self) -> list[CellState]:
        return [state for state in self.states if state.status != "done"]


def _identity(cell: CellId) -> dict[str, Any]:
    return {
        "cell": cell.name,
        "cell_workload": cell.workload,
        "scheduler": cell.scheduler,
        "workers": cell.workers,
        "seed": cell.seed,
    }


def _labelled(frame: pd.DataFrame, cell: CellId | None) -> pd.DataFrame:
    values = dict.fromkeys(IDENTITY) if cell is None else _identity(cell)
    for position, (name, value) in enumerate(values.items()):
        frame.insert(position, name, value)
    return frame


def read_log(path: Path) -> pd.DataFrame:
    """Turns of an event log, without a last line that was cut off by a kill.

    Raises:
        RunDirectoryError: another line is damaged, which no kill can do; names the line.
    """
    names = [f.name for f in fields(TurnRecord)]
    later = {f.name: f.default for f in fields(TurnRecord) if f.default is not MISSING}
    columns: dict[str, list[Any]] = {name: [] for name in names}
    with disk(path, "read"), path.open("rb") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.endswith(b"\n"):
                break
            try:
                turn = later | json.loads(line)
                values = [turn[name] for name in names]
            except (ValueError, KeyError) as error:
                raise RunDirectoryError(
                    f"{path}, line {number}: damaged ({error})",
                    "remove the folder it is in; the cell will run again",
                ) from error
            for name, value in zip(names, values, strict=True):
                columns[name].append(value)
    frame: pd.DataFrame = pa.table(columns, schema=arrow_schema(TurnRecord)).to_pandas()
    return frame
