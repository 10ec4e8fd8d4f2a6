"""Which reader reads a file: by name, or by what the file holds."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from agentsched import TraceError, UsageError
from workloads.model import Session
from workloads.readers import azure, lmcache, mooncake, weka
from workloads.trace import json_lines, open_binary, read_trace


@dataclass(frozen=True, slots=True)
class Format:
    """A trace format that can be read."""

    name: str
    description: str
    read: Callable[[Path], Iterator[Session]]
    keys: frozenset[str]
    """Fields of the first line that only this format has together."""


FORMATS: tuple[Format, ...] = (
    Format("native", "this project's own trace", read_trace, frozenset({"v", "session", "turn"})),
    Format(
        "lmcache",
        "LMCache agent traces, one turn a line",
        lmcache.read_lmcache,
        frozenset({"workload", "logged_input_tokens", "shared_prefix_tokens"}),
    ),
    Format(
        "weka",
        "Weka Claude Code traces, one request a line (sessions.jsonl beside it)",
        weka.read_weka,
        frozenset({"agent", "gap_before_s", "shared_prefix_tokens"}),
    ),
    Format(
        "mooncake",
        "Mooncake block-hash requests (512-token blocks)",
        mooncake.read_mooncake,
        frozenset({"timestamp", "input_length", "output_length", "hash_ids"}),
    ),
    Format(
        "azure",
        "Azure LLM inference 2023, CSV of single requests",
        azure.read_azure,
        frozenset({"TIMESTAMP", "ContextTokens", "GeneratedTokens"}),
    ),
)


def format_names() -> tuple[str, ...]:
    """Names that `convert` accepts."""
    return tuple(entry.name for entry in FORMATS)


def convert(path: str | Path, format: str | None = None) -> list[Session]:
    """All sessions of a recorded file or folder.

    Args:
        path: the file, or the folder that holds `turns.jsonl` or `turns.jsonl.gz`.
        format: one of format_names(); None finds out from the first line.

    Raises:
        TraceError: the file cannot be read as that format.
        UsageError: unknown format.
    """
    return list(read_any(path, format))


def read_any(path: str | Path, format: str | None = None) -> Iterator[Session]:
    """As `convert`, one session at a time."""
    file = data_file(Path(path))
    name = format or detect(file)
    for entry in FORMATS:
        if entry.name == name:
            return entry.read(file)
    raise UsageError(f"unknown trace format {name!r}", f"use one of: {', '.join(format_names())}")


def detect(path: str | Path) -> str:
    """The name of a file's format, from its first line.

    Raises:
        TraceError: no format has this file's fields.
    """
    file = data_file(Path(path))
    keys = _first_keys(file)
    for entry in FORMATS:
        if entry.keys <= keys:
            return entry.name
    raise TraceError(
        "no known trace format has these fields",
        f"name the format; known: {', '.join(format_names())}",
        file=file,
        line=1,
    )


def data_file(path: Path) -> Path:
    """The file itself, or the `turns.jsonl[.gz]` of a folder."""
    if not path.is_dir():
        return path
    for name in ("turns.jsonl.gz", "turns.jsonl"):
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


def _first_keys(file: Path) -> frozenset[str]:
    with open_binary(file) as stream:
        head = stream.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
    if head.startswith(b"{") or not head:
        for _, row in islice(json_lines(file), 1):
            return frozenset(row)
    first = head.split(b"\n", 1)[0].decode("utf-8", errors="replace")
    return frozenset(part.strip() for part in first.split(","))
