"""The run folder's side of cells that run elsewhere: their files land here."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from harness.ray.node import LOG_NAMES
from results.cells import canonical_json, disk, put_atomically
from results.writer import set_aside

LAST = ("error.json", "summary.json")
"""Written after all else: they say that the cell has failed, or is done."""


class Landing:
    """One attempt at a cell.

    What an earlier attempt left is renamed to `NAME.partial-N` first, as a local run does.

    Args:
        path: the cell's folder.
        head: content of `cell.json`, by which a folder is known before its cell is done.

    Raises:
        RunDirectoryError: a full disk, a read-only folder, ... (from every method).
    """

    def __init__(self, path: Path, head: Mapping[str, object]) -> None:
        self.path = path
        with disk(path, "start the cell"):
            path.parent.mkdir(parents=True, exist_ok=True)
            set_aside(path)
            path.mkdir()
        self._put("cell.json", canonical_json(dict(head)))

    def lines(self, name: str, offset: int, content: bytes) -> None:
        """Lines of a log; whatever does not follow on what is there waits for the whole file."""
        if name not in LOG_NAMES:
            return
        with disk(self.path, "write the event log"), (self.path / name).open("ab") as log:
            if log.tell() == offset:
                log.write(content)

    def finish(self, files: Mapping[str, bytes]) -> None:
        """The whole folder, in place of what came in pieces."""
        for name in sorted(files, key=lambda name: (name in LAST, name)):
            self._put(name, files[name])
        with disk(self.path, "write the results of the cell"):
            for name in LOG_NAMES:
                if name not in files:
                    (self.path / name).unlink(missing_ok=True)

    def _put(self, name: str, content: bytes) -> None:
        with disk(self.path, "write the results of the cell"):
            directory = os.open(self.path, os.O_RDONLY)
            try:
                put_atomically(name, content, directory)
            finally:
                os.close(directory)
