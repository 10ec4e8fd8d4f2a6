"""Grouping and counting beyond what fits in memory: temporary databases on disk."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, Self

import orjson

from agentsched import UsageError

CACHE_KIB = 32 * 1024
"""Memory of one database, in KiB; the rest lies on disk."""
IN_MEMORY = 200_000
"""Names that counts keep in memory before they move to disk."""
_REMEDY = "free some disk space, or set SQLITE_TMPDIR to a folder with more"


class Groups:
    """Rows of a file by group; groups come back in order of appearance, rows in file order.

    The database has no name and goes away when it is closed. A row is any list of plain JSON
    values.

    Raises:
        UsageError: the disk is full (from any method).
    """

    def __init__(self) -> None:
        self._db = _temporary()
        self._db.execute("CREATE TABLE groups (name TEXT PRIMARY KEY, id INTEGER) WITHOUT ROWID")
        self._db.execute("CREATE TABLE rows (id INTEGER, body BLOB)")
        self._count = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._db.close()

    def add(self, names: Sequence[str], row: list[Any], under: Sequence[str] = ()) -> None:
        """Add a row to the group that has one of `names`, else to that of the first of `under`
        that there is, else to a new one. All of `names` are the group's from then on."""
        known = [self._find(name) for name in names]
        found = next((group for group in known if group is not None), None)
        if found is None:
            above = (self._find(name) for name in under)
            found = next((group for group in above if group is not None), None)
        if found is None:
            found, self._count = self._count, self._count + 1
        for name, group in zip(names, known, strict=True):
            if group is None:
                _run(self._db, "INSERT OR IGNORE INTO groups VALUES (?, ?)", (name, found))
        _run(self._db, "INSERT INTO rows VALUES (?, ?)", (found, orjson.dumps(row)))

    def __iter__(self) -> Iterator[list[list[Any]]]:
        """The rows of each group."""
        rows = _run(self._db, "SELECT id, body FROM rows ORDER BY id, rowid", ())
        for _, group in groupby(rows, key=itemgetter(0)):
            yield [orjson.loads(body) for _, body in group]

    def _find(self, name: str) -> int | None:
        row = _run(self._db, "SELECT id FROM groups WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])


class Counts:
    """A count for each name, as a dict of which only the first part is kept in memory."""

    def __init__(self, in_memory: int | None = None) -> None:
        self._limit = IN_MEMORY if in_memory is None else in_memory
        self._recent: dict[str, int] = {}
        self._db: sqlite3.Connection | None = None
        self._moved = 0

    def __len__(self) -> int:
        return self._moved + len(self._recent)

    def __contains__(self, name: str) -> bool:
        return self.get(name) is not None

    def get(self, name: str) -> int | None:
        """The count of a name; None if it has none."""
        if name in self._recent:
            return self._recent[name]
        if self._db is None:
            return None
        row = _run(self._db, "SELECT count FROM counts WHERE name = ?", (name,)).fetchone()
        return None if row is None else int(row[0])

    def add(self, name: str, count: int) -> None:
        """Give a new name its count."""
        self._recent[name] = count
        if len(self._recent) < self._limit:
            return
        if self._db is None:
            self._db = _temporary()
            self._db.execute("CREATE TABLE counts (name TEXT PRIMARY KEY, count) WITHOUT ROWID")
        try:
            self._db.executemany("INSERT INTO counts VALUES (?, ?)", sorted(self._recent.items()))
        except sqlite3.OperationalError as error:
            raise _full(error) from error
        self._moved += len(self._recent)
        self._recent = {}


def _temporary() -> sqlite3.Connection:
    db = sqlite3.connect("", isolation_level=None)
    for setting in ("journal_mode=OFF", "synchronous=OFF", "temp_store=FILE"):
        db.execute(f"PRAGMA {setting}")
    db.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
    return db


def _run(db: sqlite3.Connection, command: str, values: tuple[Any, ...]) -> sqlite3.Cursor:
    try:
        return db.execute(command, values)
    except sqlite3.OperationalError as error:
        raise _full(error) from error


def _full(error: sqlite3.OperationalError) -> UsageError:
    return UsageError(f"rows cannot be sorted on disk: {error}", _REMEDY)
