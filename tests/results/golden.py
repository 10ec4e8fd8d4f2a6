"""One small cell whose every metric is worked out by hand in test_metrics.py. Times in seconds.

Two workers, makespan 20 s.
  a   0..10  task        a0 [arrives 0, first token 1, ends 3], 2 s of tools, a1 [5, 8, 10]
  b   0..16  task        b0 [1, 2, 4], 4 s of tools, b1 [8, 13, 16]
  c  10..15  task        c0 fails
  d   3..5   sub-agent   d0 [3, 4, 5]
  e  16..16  task        e0 would pass the context limit
"""

from __future__ import annotations

from typing import Any

from results.frames import Frames, table
from results.records import ReplicaRecord, SessionRecord, SessionStatus, TurnRecord
from tests.results.synthetic import MS, S, turn

MAKESPAN_S = 20.0
WORKERS = 2
FACTS: dict[str, Any] = {
    "kv_capacity_tokens": {"r0": 1000, "r1": 1000},
    "slo": {"ttft_s": 2.5, "tpot_ms": 60.0, "ttfet_s": 10.0},
    "energy_j": 370.0,
}


def _turn(
    session: str, index: int, at: tuple[int, int, int | None, int], **more: Any
) -> TurnRecord:
    arrived, dispatched, first, finished = at
    return turn(
        session,
        index,
        arrived=arrived * S,
        dispatched=dispatched * S,
        first_token=None if first is None else first * S,
        finished=finished * S,
        held=dispatched > arrived,
        **more,
    )


TURNS = [
    _turn(
        "a", 0, (0, 0, 1, 3), prompt_tokens=1000, cached_tokens=0, output_tokens=101,
        tool_s=2.0, longest_gap=50 * MS,
    ),
    _turn(
        "b", 0, (1, 1, 2, 4), prompt_tokens=800, cached_tokens=None, output_tokens=1, tool_s=4.0,
    ),
    _turn(
        "d", 0, (3, 3, 4, 5), prompt_tokens=400, cached_tokens=100, output_tokens=11, last=True,
        longest_gap=100 * MS,
    ),
    _turn(
        "a", 1, (5, 6, 8, 10), prompt_tokens=1200, cached_tokens=1000, output_tokens=41,
        replica="r1", moved=True, visible=True, last=True, tool_end=5 * S, longest_gap=200 * MS,
    ),
    _turn(
        "c", 0, (10, 10, None, 15), status="failed", prompt_tokens=500, cached_tokens=None,
        output_tokens=0, error="connection reset",
    ),
    _turn(
        "b", 1, (8, 12, 13, 16), prompt_tokens=1000, cached_tokens=600, output_tokens=31,
        visible=True, last=True, tool_end=8 * S, longest_gap=100 * MS,
    ),
    turn(
        "e", 0, status="context_exceeded", arrived=16 * S, dispatched=None, first_token=None,
        finished=16 * S, replica=None, attempts=0, prompt_tokens=50_000, cached_tokens=None,
        output_tokens=0, last=True,
    ),
]  # fmt: skip


def _session(
    name: str, status: SessionStatus, start: int, end: int, turns: int, parent: str | None = None
) -> SessionRecord:
    return SessionRecord(name, "w", "recorded", parent, status, start * S, end * S, turns, turns)


SESSIONS = [
    _session("d", "finished", 3, 5, 1, parent="a"),
    _session("a", "finished", 0, 10, 2),
    _session("c", "failed", 10, 15, 0),
    _session("b", "finished", 0, 16, 2),
    _session("e", "context_exceeded", 16, 16, 0),
]

REPLICAS = [
    ReplicaRecord(0, "r0", 2, 0, 0.2, None, 0, 0, 0),
    ReplicaRecord(0, "r1", 0, 0, 0.0, None, 0, 0, 0),
    ReplicaRecord(10 * S, "r0", 3, 1, 0.6, None, 2, 2000, 120),
    ReplicaRecord(10 * S, "r1", 1, 1, 0.4, None, 1, 1000, 60),
]


def frames(**changes: Any) -> Frames:
    values: dict[str, Any] = {
        "turns": table(TurnRecord, TURNS).to_pandas(),
        "sessions": table(SessionRecord, SESSIONS).to_pandas(),
        "replicas": table(ReplicaRecord, REPLICAS).to_pandas(),
        "makespan_s": MAKESPAN_S,
        "workers": WORKERS,
        "facts": FACTS,
    }
    return Frames(**(values | changes))
