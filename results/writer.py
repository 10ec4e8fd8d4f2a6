"""Writes the folder of one cell while it runs, and closes it with a summary."""

from __future__ import annotations

import gzip
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields
from json import JSONEncoder
from json.encoder import encode_basestring_ascii as quote
from operator import attrgetter
from pathlib import Path
from time import monotonic
from types import TracebackType
from typing import Any, BinaryIO, Self

from agentsched import AgentschedError
from results.cells import LAYOUT, CellId, canonical_json, create, disk, disk_error, put_atomically
from results.records import DecisionRecord, Label, ReplicaRecord, SessionRecord, TurnRecord

FLUSH_S = 0.5
"""Records reach the file at the first call this long after the last flush. Half of the promised
second, because a driver calls at least twice a second (it samples its replicas)."""

LOGS = {
    "turns": ("events.jsonl", TurnRecord),
    "sessions": ("sessions.jsonl", SessionRecord),
    "replicas": ("replicas.jsonl", ReplicaRecord),
    "decisions": ("decisions.jsonl", DecisionRecord),
}
"""Append-only files of a cell while it runs and what a line of each holds.

A done cell has TABLES in their place, which hold every field of every record, and PACKED.
"""
TABLES = ("turns", "sessions", "replicas")
PACKED = "decisions.jsonl.gz"

_BOOL = ("false", "true")
_encode = JSONEncoder(separators=(",", ":"), check_circular=False).encode


class CellWriter:
    """Records of one cell, from its first turn to its summary.

    A folder that is there already is renamed to `NAME.partial-N` first. All files are reached
    through the open folder, so a process that outlives its run and goes on writing after such a
    rename never touches the folder that took its place.

    Args:
        run: the run directory.
        cell: which cell.
        label: what its figures are: simulated, measured, ...
        clock: seconds, for flushing and for `timing.json` alone; never enters a result.

    Raises:
        RunDirectoryError: a full disk, a read-only folder, ... (from every method).
    """

    def __init__(
        self, run: Path, cell: CellId, label: Label, clock: Callable[[], float] = monotonic
    ) -> None:
        self.cell, self.label, self.path = cell, label, run / "cells" / cell.name
        self._clock = clock
        self._started = self._flushed = clock()
        self._turns: list[TurnRecord] = []
        self._sessions: list[SessionRecord] = []
        self._replicas: list[ReplicaRecord] = []
        with disk(self.path, "start the cell"):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            set_aside(self.path)
            self.path.mkdir()
            self._directory = os.open(self.path, os.O_RDONLY)
            head = canonical_json({"layout": LAYOUT, "label": label, **cell.as_dict()})
            put_atomically("cell.json", head, self._directory)
            self._files: dict[str, BinaryIO] = {
                kind: create(name, self._directory) for kind, (name, _) in LOGS.items()
            }

    def turn(self, record: TurnRecord) -> None:
        self._turns.append(record)
        self._write("turns", _turn_line(record))

    def session(self, record: SessionRecord) -> None:
        self._sessions.append(record)
        self._write("sessions", _line(record))

    def replica(self, record: ReplicaRecord) -> None:
        self._replicas.append(record)
        self._write("replicas", _line(record))

    def decision(self, record: DecisionRecord) -> None:
        self._write("decisions", _line(record))

    def tick(self) -> None:
        """Flushes if it is time. For drivers that may record nothing for a while."""
        if self._clock() - self._flushed >= FLUSH_S:
            self.flush()

    def flush(self) -> None:
        with disk(self.path, "write the event log"):
            for file in self._files.values():
                file.flush()
        self._flushed = self._clock()

    def finish(
        self,
        makespan_ns: int,
        counters: Mapping[str, float],
        facts: Mapping[str, Any],
        timing: Mapping[str, float] | None = None,
    ) -> dict[str, Any]:
        """Closes the cell; it is done once `summary.json` stands, which is written last.

        Args:
            makespan_ns: from the start of the cell to the end of its last session.
            counters: whatever the driver counted, by name with its unit; kept as given.
            facts: what metrics need to know of the setting (`results.metrics.FACTS`), no paths.
            timing: wall-clock measurements, in seconds; kept apart in `timing.json`.

        Returns:
            What `summary.json` holds: cell, label, makespan_s, metrics, counters, facts.
        """
        from results.frames import Frames, table
        from results.metrics import summarise

        self.close()
        tables = {
            "turns": table(TurnRecord, self._turns),
            "sessions": table(SessionRecord, self._sessions),
            "replicas": table(ReplicaRecord, self._replicas),
        }
        frames = Frames(
            **{name: content.to_pandas() for name, content in tables.items()},
            makespan_s=makespan_ns / 1e9,
            workers=self.cell.workers,
            facts=facts,
        )
        summary = {
            "layout": LAYOUT,
            "cell": self.cell.as_dict(),
            "label": self.label,
            "makespan_s": frames.makespan_s,
            "metrics": summarise(frames),
            "counters": dict(counters),
            "facts": dict(facts),
        }
        walls = {**(timing or {}), "wall_s": self._clock() - self._started}
        with disk(self.path, "write the results of the cell"):
            for name, content in tables.items():
                _put_parquet(f"{name}.parquet", content, self._directory)
            put_atomically("timing.json", canonical_json(walls), self._directory)
            _pack(LOGS["decisions"][0], PACKED, self._directory)
            put_atomically("summary.json", canonical_json(summary), self._directory)
            # Only now: whatever happens before, each record is in at least one file on disk.
            for name, _ in LOGS.values():
                os.unlink(name, dir_fd=self._directory)
        self._release()
        return summary

    def fail(self, error: BaseException) -> None:
        """Closes the cell as failed: `error.json` says why, what was recorded stays."""
        self.close()
        what: dict[str, Any] = {
            "error": type(error).__name__,
            "message": str(error) or type(error).__name__,
        }
        if isinstance(error, AgentschedError):
            what |= {"remedy": error.remedy, "exit_code": error.exit_code}
        with disk(self.path, "write why the cell failed"):
            put_atomically("error.json", canonical_json(what), self._directory)
        self._release()

    def close(self) -> None:
        """Flushes and closes the logs. A cell only closed counts as partial."""
        problems = [p for p in map(_close_on_disk, self._files.values()) if p is not None]
        if problems:
            raise disk_error(self.path, "write the event log", problems[0]) from problems[0]

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._directory >= 0:
            try:
                self.close()
            finally:
                self._release()

    def _write(self, kind: str, line: str) -> None:
        try:
            self._files[kind].write(line.encode())
        except OSError as error:
            raise disk_error(self.path, "write the event log", error) from error
        self.tick()

    def _release(self) -> None:
        if self._directory >= 0:
            os.close(self._directory)
            self._directory = -1


def set_aside(path: Path) -> None:
    """Rename what an earlier attempt left at `path` to the next free `NAME.partial-N`."""
    if not path.exists():
        return
    number = 1
    while (aside := path.with_name(f"{path.name}.partial-{number}")).exists():
        number += 1
    path.rename(aside)


def _close_on_disk(file: BinaryIO) -> OSError | None:
    """Closes whatever happens, so that one full disk does not leave other logs open."""
    problem = None
    try:
        if not file.closed:
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        problem = error
    try:
        file.close()
    except OSError as error:
        problem = problem or error
    return problem


def _put_parquet(name: str, content: Any, directory: int) -> None:
    from pyarrow import parquet

    with create(name, directory) as file:
        parquet.write_table(content, file, compression="zstd")
        file.flush()
        os.fsync(file.fileno())


def _pack(source: str, target: str, directory: int) -> None:
    """A compressed copy of a log; the same log gives the same bytes."""

    def reader(path: str, flags: int) -> int:
        return os.open(path, flags, dir_fd=directory)

    with create(target, directory) as file:
        with (
            open(source, "rb", opener=reader) as log,
            gzip.GzipFile("", "wb", compresslevel=3, fileobj=file, mtime=0) as packed,
        ):
            shutil.copyfileobj(log, packed, 1 << 20)
        file.flush()
        os.fsync(file.fileno())


def _columns(kind: type) -> tuple[str, ...]:
    return tuple(field.name for field in fields(kind))


_READERS: dict[type, Callable[[Any], Sequence[Any]]] = {
    kind: attrgetter(*_columns(kind)) for kind in (SessionRecord, ReplicaRecord, DecisionRecord)
}
_NAMES = {kind: _columns(kind) for kind in _READERS}


def _line(record: SessionRecord | ReplicaRecord | DecisionRecord) -> str:
    kind = type(record)
    return _encode(dict(zip(_NAMES[kind], _READERS[kind](record), strict=True))) + "\n"


def _number(value: int | None) -> int | str:
    return "null" if value is None else value


def _text(value: str | None) -> str:
    return "null" if value is None else quote(value)


def _turn_line(t: TurnRecord) -> str:
    """The turn as JSON, by hand: a fifth of the time of the general encoder, on the hot path."""
    return (
        f'{{"session":{quote(t.session)},"turn":{t.turn},"workload":{quote(t.workload)},'
        f'"status":"{t.status}","arrived":{t.arrived},"dispatched":{_number(t.dispatched)},'
        f'"first_token":{_number(t.first_token)},"finished":{t.finished},'
        f'"replica":{_text(t.replica)},"prefill_replica":{_text(t.prefill_replica)},'
        f'"attempts":{t.attempts},"prompt_tokens":{t.prompt_tokens},'
        f'"cached_tokens":{_number(t.cached_tokens)},"output_tokens":{t.output_tokens},'
        f'"visible":{_BOOL[t.visible]},"last":{_BOOL[t.last]},"held":{_BOOL[t.held]},'
        f'"moved":{_BOOL[t.moved]},"tool_end":{_number(t.tool_end)},'
        f'"tool_s":{float(t.tool_s)!r},"wait_s":{float(t.wait_s)!r},'
        f'"longest_gap":{_number(t.longest_gap)},"error":{_text(t.error)},'
        f'"prefilled":{_number(t.prefilled)},"kv_sent":{_number(t.kv_sent)},'
        f'"kv_received":{_number(t.kv_received)}}}\n'
    )
