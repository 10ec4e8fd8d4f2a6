"""Temporary folders that do not outlive whoever made them for long, even if it was killed.

Each holds a locked file while its maker lives. Whoever makes the next one removes those of ours
whose lock is free: the kernel lets it go with the process, however that ended.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from pathlib import Path
from types import TracebackType

PREFIX = "agentsched-"
OWNER = ".owner"
"""The locked file: who made the folder."""


class Scratch:
    """A new folder of our own, for this user alone. Removed by `close`, or as a context.

    Args:
        kind: goes into its name; empty where paths below it must stay short.
    """

    def __init__(self, kind: str = "") -> None:
        sweep()
        self.path = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{kind}-" if kind else PREFIX))
        # Locked before it has its name: nobody may find it free meanwhile.
        draft = self.path / f"{OWNER}.new"
        self._lock = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        os.write(self._lock, f"{os.getpid()}\n".encode())
        draft.rename(self.path / OWNER)

    def close(self) -> None:
        """Remove the folder; may be called twice."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1

    def __enter__(self) -> Path:
        return self.path

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def sweep() -> list[Path]:
    """Remove folders whose makers are gone; which."""
    swept: list[Path] = []
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with contextlib.suppress(OSError):  # another's, or another sweeps it just now
            if _abandoned(folder):
                swept.append(folder)
    return swept


def _abandoned(folder: Path) -> bool:
    """Remove a folder if nobody holds its lock; whether it was so."""
    state = folder.lstat()
    if folder.is_symlink() or state.st_uid != os.getuid():
        return False
    lock = os.open(folder / OWNER, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        shutil.rmtree(folder, ignore_errors=True)
        return True
    finally:
        os.close(lock)
