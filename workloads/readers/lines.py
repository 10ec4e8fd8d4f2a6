"""Lines of text files, plain or gzipped, one at a time."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from agentsched import TraceError
from workloads.trace import MAX_LINE_BYTES, open_binary


def text_lines(path: Path) -> Iterator[tuple[int, str]]:
    """(number, text without surrounding blanks) of every line that is not blank.

    Raises:
        TraceError: unreadable, binary or empty; names file and line.
    """
    number = 0
    with open_binary(path) as stream:
        while True:
            number += 1
            try:
                raw = stream.readline(MAX_LINE_BYTES)
                text = raw.decode("utf-8-sig").strip()
            except (OSError, EOFError, UnicodeDecodeError) as error:
                raise TraceError(
                    f"cannot be read further: {error}",
                    "the file is damaged or not text; copy it again",
                    file=path,
                    line=number,
                ) from error
            if not raw:
                break
            if text:
                yield number, text
    if number == 1:
        raise TraceError("the file is empty", "name the right file", file=path)
