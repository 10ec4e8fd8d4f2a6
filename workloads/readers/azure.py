"""Azure LLM inference trace 2023 (github.com/Azure/AzurePublicDataset; Patel et al., ISCA 2024).

Input: CSV with TIMESTAMP, ContextTokens, GeneratedTokens: single requests without sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

from agentsched import TraceError
from workloads.model import Session, TurnSpec
from workloads.readers.lines import text_lines
from workloads.trace_fields import Fields

HEADER = ["TIMESTAMP", "ContextTokens", "GeneratedTokens"]


def read_azure(path: Path) -> Iterator[Session]:
    """One session of one turn for each request, arriving when it was recorded.

    Raises:
        TraceError: not this CSV, or a line holds an impossible value.
    """
    workload = f"azure-{path.name.split('.')[0]}"
    start: datetime | None = None
    for line, text in text_lines(path):
        cells = [cell.strip() for cell in text.split(",")]
        if line == 1:
            if cells != HEADER:
                raise TraceError(
                    f"the header is not {','.join(HEADER)}",
                    "name the right file",
                    file=path,
                    line=1,
                )
            continue
        fields = Fields(_record(cells), path, line)
        at = _time(fields)
        start = start or at
        turn = TurnSpec(
            fields.count("ContextTokens", low=1),
            max(1, fields.count("GeneratedTokens", low=0)),
            visible=True,
        )
        arrival = (at - start).total_seconds()
        if arrival < 0:
            fields.refuse("TIMESTAMP", "earlier than the first request", "sort the file by time")
        yield Session(
            id=f"{workload}-{line - 2}",
            turns=(turn,),
            workload=workload,
            origin="recorded",
            arrival_s=arrival,
        )


def _record(cells: list[str]) -> dict[str, object]:
    record: dict[str, object] = dict(zip(HEADER, cells, strict=False))
    for name in HEADER[1:]:
        text = str(record.get(name, ""))
        if text.isascii() and text.isdigit() and len(text) < 16:
            record[name] = int(text)
    return record


def _time(fields: Fields) -> datetime:
    text = fields.text("TIMESTAMP") or ""
    try:
        return datetime.fromisoformat(text).replace(tzinfo=None)
    except ValueError:
        fields.refuse("TIMESTAMP", f"{text[:40]!r} is not a time", "use YYYY-MM-DD HH:MM:SS.f")
