"""Native sessions as request traces that other load generators and simulators read."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

from agentsched import TraceError, UsageError
from workloads.model import PromptBuilder, Segment, Session

BLOCK = 512
"""Tokens of a block of a Mooncake trace."""


def aiperf_rows(sessions: Iterable[Session]) -> Iterator[dict[str, Any]]:
    """Rows for `aiperf --custom-dataset-type mooncake_trace` (AIPerf 0.13), a turn each.

    AIPerf keeps the conversation itself, with the replies it gets: a later row holds only the
    tokens that the turn adds. Turns that keep less than the whole turn before cannot be said, and
    are written as if they kept it; what sessions share is lost, and so are sub-agents' parents.

    Yields:
        session_id, input_length, output_length, and timestamp (ms, first turn, where the session
        has an arrival) or delay (ms from the end of the turn before: its tools and wait).
    """
    for session in sessions:
        before = 0
        for index, turn in enumerate(session.turns):
            row: dict[str, Any] = {"session_id": session.id}
            if index:
                row["delay"] = _delay_ms(session, index)
            elif session.arrival_s is not None:
                row["timestamp"] = round(session.arrival_s * 1000, 3)
            added = turn.prompt_tokens - before
            row["input_length"] = max(1, added if index else turn.prompt_tokens)
            before = turn.prompt_tokens + turn.output_tokens
            yield row | {"output_length": turn.output_tokens}


def mooncake_rows(
    sessions: Iterable[Session], block_tokens: int = BLOCK
) -> Iterator[dict[str, Any]]:
    """Rows of a Mooncake trace with sessions, as Dynamo's replay reads it, a turn each.

    A row holds its whole prompt, as ids of blocks that are equal where the texts up to their ends
    are: sharing is kept in whole blocks, replies that come back included. The last block may be
    begun only; its id is its own.

    Yields:
        session_id, timestamp (ms; 0 where the session has no arrival) or delay (ms), input_length,
        output_length, hash_ids.
    """
    ids = _BlockIds(block_tokens)
    for session in sessions:
        prompts = PromptBuilder(session).prompts()
        for index, (turn, prompt) in enumerate(zip(session.turns, prompts, strict=True)):
            row: dict[str, Any] = {"session_id": session.id}
            if index:
                row["delay"] = _delay_ms(session, index)
            else:
                row["timestamp"] = round((session.arrival_s or 0.0) * 1000, 3)
            yield row | {
                "input_length": turn.prompt_tokens,
                "output_length": turn.output_tokens,
                "hash_ids": ids.of(prompt.segments),
            }


EXPORTS: dict[str, Callable[[Iterable[Session]], Iterator[dict[str, Any]]]] = {
    "aiperf": aiperf_rows,
    "mooncake": mooncake_rows,
}
"""Formats that sessions can be written as, besides the native one."""


def write_rows(path: Path, sessions: Iterable[Session], format: str) -> int:
    """Write sessions as JSON Lines of a format in EXPORTS; returns how many turns.

    The file appears whole or not at all.

    Raises:
        TraceError: there are no sessions.
        UsageError: unknown format, or the file cannot be written.
    """
    if format not in EXPORTS:
        raise UsageError(f"cannot write {format!r}", f"use native or one of: {', '.join(EXPORTS)}")
    draft = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    count = 0
    try:
        with draft.open("w", encoding="ascii") as file:
            for row in EXPORTS[format](sessions):
                file.write(json.dumps(row, separators=(",", ":")) + "\n")
                count += 1
        if not count:
            raise TraceError("no sessions to write", "choose at least one session", file=path)
        draft.replace(path)
    except OSError as error:
        raise UsageError(
            f"cannot write {path}: {error.strerror or error}", "choose a writable place"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return count


def _delay_ms(session: Session, index: int) -> float:
    before = session.turns[index - 1]
    return round((before.tool_seconds + before.wait_s) * 1000, 3)


class _BlockIds:
    """Numbers for blocks: one for each place in the tree of texts that a block ends at."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._ids: dict[tuple[object, ...], int] = {}

    def of(self, line: tuple[Segment, ...]) -> list[int]:
        """The ids of a prompt's blocks."""
        blocks: list[int] = []
        path: tuple[object, ...] = ()
        filled = 0
        for segment in line:
            at = 0
            while at < segment.tokens:
                take = min(self._size - filled, segment.tokens - at)
                path = (*path, segment.id, at, take)
                at, filled = at + take, filled + take
                if filled == self._size:
                    blocks.append(self._id(path))
                    path, filled = (blocks[-1],), 0
        if filled:
            blocks.append(self._id((*path, "begun")))
        return blocks

    def _id(self, path: tuple[object, ...]) -> int:
        return self._ids.setdefault(path, len(self._ids))
