"""Where commands print: results to standard output, everything else to standard error."""

from __future__ import annotations

import io
import os
import shutil
import sys
import traceback
from typing import TYPE_CHECKING

from agentsched import AgentschedError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

DEFAULT_WIDTH = 120
"""Columns when the output is no terminal and COLUMNS is not set."""


def width() -> int:
    """Columns to print in: the terminal's, or COLUMNS."""
    return shutil.get_terminal_size((DEFAULT_WIDTH, 24)).columns


def output() -> Console:
    """Standard output; markup in what users named is never interpreted."""
    from rich.console import Console

    return Console(width=width(), markup=False, highlight=False, emoji=False, soft_wrap=False)


def notes() -> Console:
    """Standard error: plans, progress, warnings."""
    from rich.console import Console

    return Console(
        stderr=True, width=width(), markup=False, highlight=False, emoji=False, soft_wrap=True
    )


def never_fail_on_encoding() -> None:
    """What the terminal's encoding lacks is shown as `?`."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def print_error(error: AgentschedError) -> None:
    """Message and remedy, on standard error."""
    print(f"error: {error.message}\n  try: {error.remedy}", file=sys.stderr)


def print_traceback() -> None:
    traceback.print_exc(file=sys.stderr)


def drop_output() -> None:
    """Send what is still buffered nowhere: the reader of a pipe has gone."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def print_columns(head: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """A plain table on standard output; its last column wraps."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for index, title in enumerate(head):
        table.add_column(title, no_wrap=index == 0, overflow="fold")
    for row in rows:
        table.add_row(*row)
    console = output()
    if console.is_terminal:
        console.print(table)
        return
    with console.capture() as captured:
        console.print(table)
    for line in captured.get().splitlines():
        print(line.rstrip())
