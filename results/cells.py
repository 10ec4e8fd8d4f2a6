"""Names of cells, and writing to disk so that a crash or a full disk leaves nothing half done."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

from agentsched import RunDirectoryError

LAYOUT = 1
"""Version of the run-directory layout; a reader refuses any other."""

_LONGEST_PART = 80

_REMEDIES = {
    errno.ENOSPC: "free some disk space and give the same command again: finished cells are kept",
    errno.EDQUOT: "free some of the quota and give the same command again: finished cells are kept",
    errno.EROFS: "the file system is read-only: choose another folder with `-o`",
    errno.EACCES: "make the folder writable for this user, or choose another with `-o`",
    errno.EPERM: "make the folder writable for this user, or choose another with `-o`",
    errno.ENOLCK: "the file system has no locks: choose a folder on a local disk with `-o`",
    errno.EEXIST: "a file stands where a folder is needed: choose another folder with `-o`",
    errno.ENOTDIR: "a file stands where a folder is needed: choose another folder with `-o`",
    errno.ENAMETOOLONG: "choose a shorter folder name with `-o`",
}


@dataclass(frozen=True, slots=True, order=True)
class CellId:
    """One workload x scheduler x workers x seed."""

    workload: str
    scheduler: str
    workers: int
    seed: int

    @property
    def name(self) -> str:
        """Folder name, e.g. `swe-bench-verified+tao+96w+s0`. Different cells never share one."""
        workload, scheduler = _safe(self.workload), _safe(self.scheduler)
        return f"{workload}+{scheduler}+{self.workers}w+s{self.seed}"

    @property
    def title(self) -> str:
        """In words, e.g. `swe-bench-verified, tao, 96 workers, seed 0`."""
        return f"{self.workload}, {self.scheduler}, {load_words(self.workers)}, seed {self.seed}"

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_dict(cls, value: Mapping[str, Any]) -> CellId:
        return cls(
            str(value["workload"]),
            str(value["scheduler"]),
            int(value["workers"]),
            int(value["seed"]),
        )


def load_words(workers: int) -> str:
    """`96 workers`; 0 stands for sessions that come by themselves."""
    if workers == 0:
        return "open loop"
    return "1 worker" if workers == 1 else f"{workers} workers"


def _safe(text: str) -> str:
    """`text` as a part of a file name; one that had to be changed gets a digest, to stay unique."""
    safe = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip(".-")[:_LONGEST_PART]
    if safe == text:
        return text
    return f"{safe or 'unnamed'}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


@contextmanager
def disk(path: Path, doing: str) -> Iterator[None]:
    """Turns an OSError met while `doing` something in `path` into a RunDirectoryError."""
    try:
        yield
    except OSError as error:
        raise disk_error(path, doing, error) from error


def disk_error(path: Path, doing: str, error: OSError) -> RunDirectoryError:
    remedy = _REMEDIES.get(error.errno or 0, "check the disk, or choose another with `-o`")
    return RunDirectoryError(f"{path}: cannot {doing}: {error.strerror or error}", remedy)


def create(name: str, directory: int) -> BinaryIO:
    """A new file in an open directory, which stays the same one even when it is renamed."""

    def opener(path: str, flags: int) -> int:
        return os.open(path, flags, 0o644, dir_fd=directory)

    return open(name, "wb", buffering=1 << 18, opener=opener)


def put_atomically(name: str, data: bytes, directory: int) -> None:
    """The file appears whole and on disk, or not at all."""
    temporary = f"{name}.tmp"
    with create(temporary, directory) as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, name, src_dir_fd=directory, dst_dir_fd=directory)
    os.fsync(directory)


def canonical_json(value: object) -> bytes:
    """JSON that depends on the value alone.

    Keys are sorted; floats keep 10 significant digits, so that the order in which a machine adds
    numbers up does not show; NaN and infinities become null.
    """
    return (json.dumps(_canonical(value), indent=1, sort_keys=True) + "\n").encode()


def _canonical(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _canonical(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_canonical(item) for item in value]
    if isinstance(value, (bool, int, str)) or value is None:
        return value
    if hasattr(value, "item"):  # a numpy scalar that is none of the above
        return _canonical(value.item())
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        return None
    return float(f"{number:.10g}")
