"""Child processes that do not outlive the process that started them, however it ended."""

from __future__ import annotations

import multiprocessing
import os
import threading
from multiprocessing.connection import wait


def die_with_parent() -> None:
    """End this process as soon as its parent is gone. Call it in a `multiprocessing` child."""
    threading.Thread(target=_watch, daemon=True).start()


def _watch() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        wait([parent.sentinel])
        os._exit(1)
