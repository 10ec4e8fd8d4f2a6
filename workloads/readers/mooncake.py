"""Mooncake request traces (github.com/kvcache-ai/Mooncake, Qin et al., FAST 2025).

Input: JSON Lines: timestamp (ms), input_length, output_length, hash_ids (one a 512-token block of
the prompt; equal ids mean equal text up to and including that block). Traces with sessions are
read by workloads.readers.mooncake_sessions.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from workloads.model import Segment, Session, TurnSpec
from workloads.trace import json_lines
from workloads.trace_fields import MAX_TOKENS, Fields

BLOCK = 512
"""Tokens of a block."""


def read_mooncake(path: Path, bytes_per_token: float = 4.0) -> Iterator[Session]:
    """One session of one turn for each request, arriving when it was recorded.

    The trace has no session ids. Every block becomes a shared segment, so that whatever two
    prompts shared they still share, and nothing more.

    Raises:
        TraceError: a line lacks a field, or its blocks do not cover its prompt.
    """
    workload = f"mooncake-{_scope(path)}"
    for number, (line, row) in enumerate(json_lines(path)):
        fields = Fields(row, path, line)
        prompt = fields.count("input_length", low=1)
        output = max(1, fields.count("output_length", low=0))
        blocks = fields.items("hash_ids")
        if len(blocks) != -(-prompt // BLOCK):
            fields.refuse(
                "hash_ids",
                f"{len(blocks)} blocks for {prompt} tokens",
                f"give one hash for each {BLOCK} tokens begun",
            )
        shared: list[Segment] = []
        for index, block in enumerate(blocks):
            if isinstance(block, bool) or not isinstance(block, int):
                fields.refuse("hash_ids", "a hash is not a whole number", "correct the line")
            tokens = min(BLOCK, prompt - BLOCK * index)
            size = round(tokens * bytes_per_token)
            shared.append(Segment(f"{workload}/{block}", tokens, size))
        arrival_ms = fields.whole("timestamp", default=None, high=1000 * MAX_TOKENS)
        if arrival_ms is None:
            fields.refuse("timestamp", "missing", "give milliseconds since the start")
        turn = TurnSpec(0, output, shared=tuple(shared), visible=True)
        yield Session(
            id=f"{workload}-{number}",
            turns=(turn,),
            workload=workload,
            origin="recorded",
            arrival_s=arrival_ms / 1000,
        )


def _scope(path: Path) -> str:
    """Hashes are unique within a file, so the file's name is part of every segment's."""
    stem = path.name.split(".")[0]
    return stem.removesuffix("_trace") or "trace"
