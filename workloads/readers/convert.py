"""Which reader reads a file or folder: by name, or by what it holds."""

from __future__ import annotations

import codecs
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields as fields_of
from itertools import islice
from pathlib import Path

from agentsched import TraceError, UsageError
from workloads.model import Session
from workloads.readers.documents import MAX_FILE_BYTES, read_document
from workloads.readers.formats import FORMATS, Format, format_names, format_with
from workloads.trace import open_binary

LINES_LOOKED_AT = 50
"""A file's format is found from its first line with a format's fields, among so many."""
_TABLES = ("turns.jsonl.gz", "turns.jsonl", "step_profiles.csv")
_ZSTD = b"\x28\xb5\x2f\xfd"


def convert(
    path: str | Path, format: str | None = None, settings: Mapping[str, object] | None = None
) -> list[Session]:
    """All sessions of a recorded file or folder.

    Args:
        path: the file; or a folder of the format's files, or with `turns.jsonl`.
        format: one of format_names(); None finds out from what is there.
        settings: of the reader, by field name of its settings.

    Raises:
        TraceError: it cannot be read as that format.
        UsageError: unknown format or setting.
    """
    return list(read_any(path, format, settings))


def read_any(
    path: str | Path, format: str | None = None, settings: Mapping[str, object] | None = None
) -> Iterator[Session]:
    """As `convert`, one session at a time."""
    place = Path(path)
    entry = _named(format) if format is not None else _found(place)
    if entry.folder is None:
        place = data_file(place)
    if place.is_file():
        _first_bytes(place)
    if entry.settings is None:
        if settings:
            raise UsageError(f"format {entry.name} has no settings", "leave them out")
        return entry.read(place)
    return entry.read(place, _settings(entry, settings or {}))


def detect(path: str | Path) -> str:
    """The name of the format of a file or folder.

    Raises:
        TraceError: no format has its fields.
    """
    return _found(Path(path)).name


def data_file(path: Path) -> Path:
    """The file itself, or the `turns.jsonl[.gz]` or `step_profiles.csv` of a folder."""
    if not path.is_dir():
        return path
    for name in _TABLES:
        if (path / name).is_file():
            return path / name
    raise TraceError("the folder has no turns.jsonl or turns.jsonl.gz", "name the file", file=path)


def quantile_sample(sessions: Sequence[Session], count: int) -> list[Session]:
    """`count` top-level sessions spread evenly over the ranks of session length.

    Sessions are ranked by (turns, id); of n, those of ranks floor((i + 1/2) n / count) are taken
    and given in trace order, each followed by its sub-agents. No seed: the same sessions come
    whatever the machine.

    Raises:
        UsageError: count below 1 or more than there are.
    """
    roots = [session for session in sessions if session.parent is None]
    if not 1 <= count <= len(roots):
        raise UsageError(
            f"cannot take {count} of {len(roots)} sessions", f"choose 1 to {len(roots)}"
        )
    ranked = sorted(roots, key=lambda session: (len(session.turns), session.id))
    taken = {ranked[(2 * i + 1) * len(ranked) // (2 * count)].id for i in range(count)}
    keep: list[Session] = []
    for session in sessions:
        if session.parent in taken:
            taken.add(session.id)
        if session.id in taken:
            keep.append(session)
    return keep


def _named(name: str) -> Format:
    for entry in FORMATS:
        if entry.name == name:
            return entry
    raise UsageError(f"unknown trace format {name!r}", f"use one of: {', '.join(format_names())}")


def _found(path: Path) -> Format:
    """The format of a file by its first lines, of a folder by its first files."""
    if path.is_dir():
        return _format_of_folder(path)
    entry = _format_of_file(path)
    if entry is None:
        raise TraceError(
            "no known trace format has these fields",
            f"name the format; known: {', '.join(format_names())}",
            file=path,
            line=1,
        )
    return entry


def _format_of_folder(path: Path) -> Format:
    for name in _TABLES:
        if (path / name).is_file():
            return _found(path / name)
    for entry in FORMATS:
        if entry.folder is not None:
            for file in islice(path.rglob(entry.folder), 20):
                if file.is_file() and _format_of_file(file) is entry:
                    return entry
    raise TraceError(
        "the folder has no turns.jsonl, and no recorded session is found in it",
        f"name the file, or the format; known: {', '.join(format_names())}",
        file=path,
    )


def _format_of_file(path: Path) -> Format | None:
    head = _first_bytes(path).lstrip(b"\xef\xbb\xbf \t\r\n")
    if not head:
        raise TraceError("the file is empty", "name the right file", file=path)
    if head.startswith(b"["):
        raise TraceError(
            "not a JSON object", "every line must be one JSON object", file=path, line=1
        )
    if not head.startswith(b"{"):
        first = head.split(b"\n", 1)[0].decode("utf-8", errors="replace")
        return format_with(frozenset(part.strip() for part in first.split(",")))
    with open_binary(path) as stream:
        for number in range(1, LINES_LOOKED_AT + 1):
            line = _read(stream.readline, MAX_FILE_BYTES, path, number)
            keys = _keys(line)
            if keys is None:
                break
            if (entry := format_with(keys)) is not None or not line:
                return entry
        else:
            return None
    return format_with(frozenset(read_document(path).names()))


def _keys(line: bytes) -> frozenset[str] | None:
    """The fields of a line that is an object; None of one that is not."""
    if not line.strip():
        return frozenset()
    try:
        value = json.loads(line.decode("utf-8-sig"))
    except (ValueError, RecursionError):
        return None
    return frozenset(value) if isinstance(value, dict) else None


def _first_bytes(path: Path) -> bytes:
    with open_binary(path) as stream:
        head = _read(stream.read, 4096, path, 1)
    if head.startswith(_ZSTD):
        raise TraceError("packed with zstd", "unpack it first: zstd -d FILE", file=path)
    try:
        # A character may be cut off at the end.
        codecs.getincrementaldecoder("utf-8")().decode(head)
        binary = b"\0" in head
    except UnicodeDecodeError:
        binary = True
    if binary:
        raise TraceError("not a text file", "name a recording", file=path, line=1)
    return head


def _read(read: Callable[[int], bytes], size: int, path: Path, line: int) -> bytes:
    try:
        return read(size)
    except (OSError, EOFError, zlib.error) as error:
        raise TraceError(
            f"cannot be read further: {error}",
            "the file is cut off or damaged; copy or record it again",
            file=path,
            line=line,
        ) from error


def _settings(entry: Format, given: Mapping[str, object]) -> object:
    assert entry.settings is not None
    default = entry.settings()
    known = {field.name: getattr(default, field.name) for field in fields_of(default)}
    for name, value in given.items():
        if name not in known:
            raise UsageError(
                f"format {entry.name} has no setting {name!r}", f"it has: {', '.join(known)}"
            )
        wanted = type(known[name])
        if wanted is float and type(value) is int:
            value = float(value)
        if type(value) is not wanted or (isinstance(value, int | float) and not 0 <= value < 1e12):
            raise UsageError(
                f"setting {name!r} of {entry.name} cannot be {value!r}",
                f"give {'a number, 0 or more' if wanted in (int, float) else wanted.__name__}",
            )
        if value == 0 and (name.endswith("_per_s") or name == "bytes_per_token"):
            raise UsageError(f"setting {name!r} of {entry.name} is 0", "give a number above 0")
        known[name] = value
    return entry.settings(**known)
