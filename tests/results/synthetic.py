"""Runs written through the real store, with made-up but consistent records."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from results.cells import CellId
from results.records import ReplicaRecord, SessionRecord, TurnRecord
from results.store import RunStore

MS = 1_000_000
S = 1_000 * MS

SPEED = {"round-robin": 1.5, "cache-aware": 1.2, "smetric": 1.1, "thunderagent": 1.0, "tao": 0.9}
"""How slow each scheduler is made; the differences are what tests look for."""

FACTS: Mapping[str, Any] = {
    "model": "qwen3-32b",
    "topology": "4x2xh100",
    "kv_capacity_tokens": {"r0": 40_000, "r1": 40_000},
    "cache_source": "simulated blocks",
    "step_time.r0": "interpolated tables, TP2 on H100",
    "slo": {"ttft_s": 2.0, "tpot_ms": 40.0, "ttfet_s": 60.0},
}


def turn(session: str = "a", index: int = 0, **changes: Any) -> TurnRecord:
    """A served turn that arrived at 0 and took 2 s, with `changes`."""
    values: dict[str, Any] = {
        "session": session,
        "turn": index,
        "workload": "w",
        "status": "ok",
        "arrived": 0,
        "dispatched": 0,
        "first_token": 1 * S,
        "finished": 2 * S,
        "replica": "r0",
        "prefill_replica": None,
        "attempts": 1,
        "prompt_tokens": 1000,
        "cached_tokens": 0,
        "output_tokens": 11,
        "visible": False,
        "last": False,
        "held": False,
        "moved": False,
        "tool_end": None,
        "tool_s": 0.0,
        "wait_s": 0.0,
        "longest_gap": None,
    }
    return TurnRecord(**(values | changes))


def write_cell(
    store: RunStore,
    cell: CellId,
    *,
    sessions: int = 12,
    turns: int = 6,
    facts: Mapping[str, Any] = FACTS,
    name: str = "task",
) -> dict[str, Any]:
    """A closed loop of `cell.workers` workers: each takes one session after another."""
    rng = np.random.Generator(np.random.PCG64(cell.seed))
    slow = SPEED.get(cell.scheduler, 1.0)
    free = [0] * cell.workers
    writer = store.start(cell)
    end = 0
    for number in range(sessions):
        worker = int(np.argmin(free))
        now = started = free[worker]
        session, context = f"{name}-{number}", 1500
        for index in range(turns):
            pause = int(slow * rng.exponential(0.2) * S) if cell.scheduler == "tao" else 0
            prefill = int(slow * rng.exponential(0.5) * S) + 50 * MS
            output = int(rng.integers(20, 200))
            first = now + pause + prefill
            done = first + int((output - 1) * 20 * slow * MS)
            legs: dict[str, Any] = {}
            if index == 1:  # as if it had been computed elsewhere; no metric depends on it
                half = now + pause + prefill // 2
                legs = {"prefill_replica": "p0", "prefilled": half, "kv_sent": half}
                legs |= {"kv_received": half + prefill // 4}
            tool = float(np.round(rng.exponential(1.0), 3)) if index < turns - 1 else 0.0
            writer.turn(
                turn(
                    session,
                    index,
                    workload=cell.workload,
                    arrived=now,
                    dispatched=now + pause,
                    first_token=first,
                    finished=done,
                    replica=f"r{(number + index * (slow > 1)) % 2}",
                    prompt_tokens=context,
                    cached_tokens=int(context * (0.9 if index else 0.2) / slow),
                    output_tokens=output,
                    visible=index == turns - 1,
                    last=index == turns - 1,
                    held=pause > 0,
                    moved=bool(index and slow > 1),
                    tool_end=now if index else None,
                    tool_s=tool,
                    longest_gap=int(30 * slow * MS),
                    **legs,
                )
            )
            context += output + 400
            now = done + int(tool * S)
        writer.session(
            SessionRecord(
                session, cell.workload, "generated", None, "finished", started, now, turns, turns
            )
        )
        free[worker] = now
        end = max(end, now)
    for step in range(0, end, S):
        for replica in ("r0", "r1"):
            running = int(rng.integers(0, cell.workers + 1))
            used = min(1.0, running * 0.2)
            done_share = step / max(end, 1)
            writer.replica(
                ReplicaRecord(
                    step,
                    replica,
                    running,
                    max(0, running - 3),
                    used,
                    min(1.0, used + 0.3),
                    int(3 * done_share),
                    int(90_000 * done_share),
                    int(8_000 * done_share),
                )
            )
    return writer.finish(end, {"engine.preemptions": 6}, facts, {"planner_cpu_s": 0.01})


def write_run(
    path: Path,
    *,
    schedulers: Sequence[str] = tuple(SPEED),
    seeds: int = 5,
    workers: int = 4,
    workload: str = "swe-bench-verified",
    label: str = "simulated",
    planned_seeds: int | None = None,
    **cell: Any,
) -> Path:
    """A run directory with a cell for each scheduler and seed."""
    cells = [
        CellId(workload, scheduler, workers, seed)
        for seed in range(planned_seeds or seeds)
        for scheduler in schedulers
    ]
    setting = {"origins": ["generated"], "published_as": None, "sessions": 12}
    manifest = {
        "label": label,
        "spec": {"schedulers": list(schedulers), "seeds": planned_seeds or seeds},
        "cells": [c.as_dict() for c in cells],
        "workloads": {workload: setting},
    }
    with RunStore.open(path, "schedulers: given\n", manifest) as store:
        for c in cells:
            if c.seed < seeds:
                write_cell(store, c, **cell)
    return path
