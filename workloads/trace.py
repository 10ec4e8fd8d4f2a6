"""The native trace: JSON Lines, one turn a line, optionally gzipped (`.gz`).

docs/trace.md documents every field with its unit. The lines of a session stand together, in turn
order, so a reader holds one session at a time; a sub-agent may stand before or after its parent.
"""

from __future__ import annotations

import gzip
import json
import os
import zlib
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, NoReturn, cast

from agentsched import TraceError, UsageError
from workloads.model import Session, TurnSpec
from workloads.spill import Counts
from workloads.trace_fields import SessionFields, is_name, parse_turn

VERSION = 1
MAX_LINE_BYTES = 1 << 20
"""Longest line accepted, in bytes: the longest turn of a 16-token-block trace stays well below."""

Row = tuple[int, dict[str, Any]]


def read_trace(path: str | Path) -> Iterator[Session]:
    """Sessions of a native trace, in file order, as they are read.

    Args:
        path: a `.jsonl` or `.jsonl.gz` file.

    Raises:
        TraceError: the file is not a native trace; names file, line, field and remedy. What
            concerns the whole file (an unknown parent) is found at its end.
    """
    file = Path(path)
    family = _Family(file)
    block: list[Row] = []
    current: str | None = None
    for line, row in json_lines(file):
        name = _session_id(file, line, row)
        if block and name != current:
            yield family.add(_session(file, block), block[0][0])
            block = []
        if not block:
            family.check_new(name, line)
        current = name
        block.append((line, row))
    if not block:
        raise TraceError("the trace has no turns", "record or convert a trace first", file=file)
    yield family.add(_session(file, block), block[0][0])
    family.check_parents()


def load_trace(path: str | Path) -> list[Session]:
    """All sessions of a native trace. Raises TraceError as read_trace does."""
    return list(read_trace(path))


def write_trace(path: str | Path, sessions: Iterable[Session]) -> int:
    """Write sessions as a native trace; what is written reads back equal. Returns the count.

    The file appears whole or not at all; the same sessions give the same bytes.

    Raises:
        TraceError: a session cannot be written (its counts or times break the format).
        UsageError: the file cannot be written.
    """
    file = Path(path)
    family = _Family(file)
    draft = file.with_name(f".{file.name}.{os.getpid()}.tmp")
    line = 1
    try:
        with _open_for_writing(draft, compress=file.suffix == ".gz") as stream:
            for session in sessions:
                family.check_new(session.id, line)
                family.add(session, line)
                line += _write_session(stream, session, file, line)
            if line == 1:
                raise TraceError("no sessions to write", "choose at least one session", file=file)
            family.check_parents()
        draft.replace(file)
    except OSError as error:
        raise UsageError(
            f"cannot write {file}: {error.strerror or error}", "choose a writable place"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return family.count


def json_lines(path: Path, longest: int = MAX_LINE_BYTES) -> Iterator[Row]:
    """(line number, object) of each non-blank line of a plain or gzipped JSON Lines file.

    Holds one line at a time, and refuses one over `longest` bytes before reading it whole.

    Raises:
        TraceError: unreadable, binary, cut off or not JSON objects; names file and line.
    """
    number = 0
    with open_binary(path) as stream:
        while raw := _next_line(stream, path, number + 1, longest):
            number += 1
            if len(raw) > longest:
                raise TraceError(
                    f"the line is longer than {longest} bytes",
                    "a turn needs one short line; split or convert the file",
                    file=path,
                    line=number,
                )
            if raw.strip():
                yield number, _json_object(raw, path, number)
    if number == 0:
        raise TraceError("the file is empty", "record or convert a trace first", file=path)


@contextmanager
def open_binary(path: Path) -> Iterator[IO[bytes]]:
    """The bytes of a file, unpacked where it is gzip.

    Raises:
        TraceError: the file cannot be opened.
    """
    try:
        raw = path.open("rb")
    except OSError as error:
        raise TraceError(
            f"cannot be read: {error.strerror or error}", "check the path", file=path
        ) from error
    with raw:
        if raw.peek(2)[:2] == b"\x1f\x8b":
            with gzip.GzipFile(fileobj=raw) as unpacked:
                yield cast(IO[bytes], unpacked)
        else:
            yield raw


def _next_line(stream: IO[bytes], path: Path, line: int, longest: int) -> bytes:
    try:
        return stream.readline(longest + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(
            f"cannot be read further: {error}",
            "the file is cut off or damaged; copy or record it again",
            file=path,
            line=line,
        ) from error


def _json_object(raw: bytes, path: Path, line: int) -> dict[str, Any]:
    def refuse(message: str, remedy: str) -> NoReturn:
        raise TraceError(message, remedy, file=path, line=line)

    try:
        text = raw.decode("utf-8-sig" if line == 1 else "utf-8")
    except UnicodeDecodeError:
        refuse("not a text file", "give a JSON Lines trace (.jsonl or .jsonl.gz)")
    if "\0" in text:
        refuse("not a text file", "give a JSON Lines trace (.jsonl or .jsonl.gz)")
    try:
        value = json.loads(text, parse_constant=_Constant, object_pairs_hook=_unique)
    except _DuplicateKeyError as error:
        raise TraceError(
            "the field is there twice", "keep one of them", file=path, line=line, field=str(error)
        ) from None
    except (ValueError, RecursionError) as error:
        if not raw.endswith(b"\n"):
            refuse("the last line is cut off", "remove the line, or record the trace again")
        refuse(f"not JSON: {str(error)[:80]}", "every line must be one JSON object")
    if not isinstance(value, dict):
        refuse("not a JSON object", "every line must be one JSON object")
    return value


class _DuplicateKeyError(Exception):
    """A JSON object names a field twice."""


class _Constant(str):
    """NaN or an infinity: no field accepts it, so the check of that field names it."""


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
    if len(result) != len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise _DuplicateKeyError(key[:80])
            seen.add(key)
    return result


def _session_id(file: Path, line: int, row: dict[str, Any]) -> str:
    version = row.get("v")
    if version != VERSION or isinstance(version, bool):
        known = "is missing" if version is None else f"{str(version)[:40]!r} is unknown"
        raise TraceError(
            f"trace version {known}",
            f"this program reads version {VERSION}; `agentsched trace convert` reads other formats",
            file=file,
            line=line,
            field="v",
        )
    name = row.get("session")
    if not is_name(name):
        raise TraceError(
            f"{str(name)[:80]!r} is not a session id",
            "use 1 to 256 printable characters",
            file=file,
            line=line,
            field="session",
        )
    return str(name)


def _session(file: Path, rows: list[Row]) -> Session:
    turns: list[TurnSpec] = []
    lengths: list[int] = []
    head: SessionFields | None = None
    for line, row in rows:
        fields, turn = parse_turn(row, lengths, file, line)
        head = head or fields
        turns.append(turn)
        lengths.append(turn.prompt_tokens + turn.output_tokens)
    if head is None:
        raise TraceError("the session has no first turn", "start at turn 0", file=file)
    return Session(
        id=str(rows[0][1]["session"]),
        turns=tuple(turns),
        workload=head.workload,
        origin=head.origin,
        parent=head.parent,
        spawn_turn=head.spawn_turn,
        arrival_s=head.arrival_s,
        setup_s=head.setup_s,
        deadline_s=head.deadline_s,
    )


class _Family:
    """Ids, turn counts and parents seen so far: what must hold over the whole file."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._turns = Counts()
        self._children: list[tuple[int, str, str, int]] = []

    @property
    def count(self) -> int:
        return len(self._turns)

    def check_new(self, name: str, line: int) -> None:
        if name in self._turns:
            raise TraceError(
                f"session {name!r} was already complete when this line came",
                "put the lines of a session together, and name every session once",
                file=self._file,
                line=line,
                field="session",
            )

    def add(self, session: Session, line: int) -> Session:
        self._turns.add(session.id, len(session.turns))
        if session.parent is not None and session.spawn_turn is not None:
            self._children.append((line, session.id, session.parent, session.spawn_turn))
        return session

    def check_parents(self) -> None:
        parents = {name: parent for _, name, parent, _ in self._children}
        for line, name, parent, spawn in self._children:
            turns = self._turns.get(parent)
            if turns is None:
                self._refuse(line, "parent", f"parent {parent!r} is not in the trace")
            if spawn >= turns:
                self._refuse(
                    line,
                    "spawn_turn",
                    f"turn {spawn} of parent {parent!r} does not exist: it has {turns} turns",
                )
            above: str | None = parent
            steps = 0
            while above is not None and steps <= len(parents):
                if above == name:
                    self._refuse(line, "parent", f"session {name!r} is its own ancestor")
                above, steps = parents.get(above), steps + 1

    def _refuse(self, line: int, field: str, message: str) -> NoReturn:
        raise TraceError(
            message,
            "name a session of this trace and one of its turns, or leave both fields out",
            file=self._file,
            line=line,
            field=field,
        )


@contextmanager
def _open_for_writing(path: Path, *, compress: bool) -> Iterator[IO[bytes]]:
    with path.open("wb") as raw:
        if compress:
            # No name and no time in the header: the same sessions give the same file.
            with gzip.GzipFile(
                filename="", mode="wb", compresslevel=9, fileobj=raw, mtime=0
            ) as packed:
                yield cast(IO[bytes], packed)
        else:
            yield raw


def _write_session(stream: IO[bytes], session: Session, file: Path, line: int) -> int:
    if not session.turns:
        raise TraceError(
            f"session {session.id!r} has no turns", "drop it", file=file, line=line, field="turn"
        )
    rows = [(line + index, _row(session, index)) for index in range(len(session.turns))]
    for number, row in rows:
        _session_id(file, number, row)
    _session(file, rows)
    for number, row in rows:
        raw = json.dumps(row, separators=(",", ":")).encode("ascii") + b"\n"
        if len(raw) > MAX_LINE_BYTES:
            raise TraceError(
                f"the line would be longer than {MAX_LINE_BYTES} bytes",
                "merge its shared segments",
                file=file,
                line=number,
            )
        stream.write(raw)
    return len(rows)


def _row(session: Session, index: int) -> dict[str, Any]:
    turn = session.turns[index]
    row: dict[str, Any] = {"v": VERSION, "session": session.id, "turn": index}
    if index == 0:
        row |= {"workload": session.workload, "origin": session.origin}
        row |= _given(parent=session.parent, spawn_turn=session.spawn_turn)
        row |= _given(arrival_s=session.arrival_s)
        row |= {"setup_s": session.setup_s} if session.setup_s else {}
        row |= _given(deadline_s=session.deadline_s)
    row |= _given(kept_turn=turn.kept_turn)
    row |= {"kept_tokens": turn.kept_tokens} if turn.kept_tokens else {}
    row |= {"shared": [list(segment) for segment in turn.shared]} if turn.shared else {}
    row |= {"new_tokens": turn.new_tokens} | _given(new_bytes=turn.new_bytes)
    row["output_tokens"] = turn.output_tokens
    row |= {"visible": True} if turn.visible else {}
    if turn.tools:
        row["tools"] = [
            {"name": call.name, "seconds": call.seconds}
            | _given(hint_s=call.hint_s)
            | ({"parallel": True} if call.parallel else {})
            for call in turn.tools
        ]
    row |= {"wait_s": turn.wait_s} if turn.wait_s else {}
    row |= {"compaction": True} if turn.compaction else {}
    return row


def _given(**fields: Any) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}
