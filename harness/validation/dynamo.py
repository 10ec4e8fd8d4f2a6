"""Our engines against NVIDIA's Dynamo replay: same trace, same step times, same block size."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean

from harness.validation.dynamo_replay import (
    HOW_TO,
    PYTHON_VARIABLE,
    DynamoReplay,
    LinearTiming,
    Replayed,
    find_python,
)
from harness.validation.findings import Bound, Finding, Table, percent, signed
from harness.validation.multi_turn import Shape, generate, write_mooncake
from harness.validation.ours import play

LIMIT = 2.0
"""Percent, of makespan and hit rate."""


@dataclass(frozen=True, slots=True)
class Scenario:
    """A trace and the engines it runs on."""

    name: str
    shape: Shape
    replicas: int
    kv_blocks: int
    seeds: int
    bounded: bool = True


_SMALL, _LARGE = Shape(64, 10, 30.0), Shape(120, 10, 60.0)
SCENARIOS = (
    Scenario("1 replica, ample cache", _SMALL, 1, 200_000, 2),
    Scenario("1 replica, scarce cache", _SMALL, 1, 8_000, 2),
    Scenario("4 replicas, ample cache", _LARGE, 4, 200_000, 3),
    Scenario("4 replicas, scarce cache", _LARGE, 4, 4_000, 3),
    Scenario("4 replicas, edge of thrashing", _LARGE, 4, 16_000, 3, bounded=False),
)

_METRICS: tuple[tuple[str, Callable[[Replayed], float]], ...] = (
    ("makespan", lambda run: run.makespan_s),
    ("hit rate", lambda run: run.hit_rate),
    ("TTFT mean", lambda run: run.ttft_s),
    ("TPOT mean", lambda run: run.tpot_s),
    ("end to end mean", lambda run: run.e2e_s),
    ("end to end p99", lambda run: run.e2e_p99_s),
)

ABOUT = (
    "`ai-dynamo` 1.3.1, offline replay with round-robin routing, against our engines under "
    "`round-robin`: the same multi-turn trace (agents that wait between turns, one shared "
    "beginning, generated tokens reused), blocks of 16 tokens, budget 8,192 tokens, 256 sequences. "
    "Both take 50 us for each prompt token and 10 ms for a step that hands out tokens. "
    "Label: external (theirs), simulated (ours). Means over seeds."
)
NOTES = (
    "The replay counts prefill as sequences times the whole part of their mean length; ours is "
    "told to do the same here, or the two drift apart by the rounding.",
    "On one replica with an ample cache the two agree step for step. With evictions they free "
    "cached blocks in different orders, and preempt at different moments.",
    "Over several replicas, turns go round robin in order of arrival, so two turns that change "
    "places in one of the two move all later ones to other replicas. The last column says how "
    "far our own makespan moves when every other session arrives 1 ms later: differences within "
    "that are chance, and the bounds on several replicas say that no more than chance is left. "
    "Near the edge of thrashing small differences grow: no bound there.",
)


def validate_dynamo(scenarios: tuple[Scenario, ...] = SCENARIOS) -> Finding:
    """Run every scenario on both; skipped, with a reason, where the package is not there.

    Raises:
        AgentschedError: the replay failed.
    """
    python = find_python()
    if python is None:
        return Finding(
            "dynamo",
            "Against NVIDIA's Dynamo replay",
            ABOUT,
            skipped=f"ai-dynamo is not installed. Install it with `{HOW_TO}`, or name a Python "
            f"that has it in {PYTHON_VARIABLE}.",
        )
    rows, bounds = [], []
    with tempfile.TemporaryDirectory() as folder:
        timing = LinearTiming()
        theirs = DynamoReplay(python, Path(folder), timing)
        for scenario in scenarios:
            pairs = [_compare(theirs, timing, scenario, seed) for seed in range(scenario.seeds)]
            errors = [
                percent(fmean(get(a) for a, _ in pairs), fmean(get(b) for _, b in pairs))
                for _, get in _METRICS
            ]
            turns = sum(ours.requests for ours, _ in pairs)
            moved = _own_spread(scenario, timing, pairs[0][0])
            rows.append((scenario.name, f"{turns:,}", *map(signed, errors), signed(moved)))
            if scenario.bounded:
                bounds += [
                    Bound(f"{scenario.name}: {metric}", error, LIMIT)
                    for (metric, _), error in zip(_METRICS[:2], errors, strict=False)
                ]
    table = Table(
        "Ours against theirs",
        ("scenario", "turns", *(name for name, _ in _METRICS), "our makespan, 1 ms later"),
        tuple(rows),
    )
    return Finding(
        "dynamo", "Against NVIDIA's Dynamo replay", ABOUT, (table,), tuple(bounds), NOTES
    )


def _compare(
    theirs: DynamoReplay, timing: LinearTiming, scenario: Scenario, seed: int
) -> tuple[Replayed, Replayed]:
    sessions = generate(scenario.shape, seed)
    trace = theirs.folder / "trace.jsonl"
    write_mooncake(sessions, trace)
    ours, _ = play(sessions, timing, replicas=scenario.replicas, kv_blocks=scenario.kv_blocks)
    return ours, theirs.replay(trace, replicas=scenario.replicas, kv_blocks=scenario.kv_blocks)


def _own_spread(scenario: Scenario, timing: LinearTiming, before: Replayed) -> float:
    """How much our makespan of the first seed changes when every other session is 1 ms late."""
    sessions = [
        replace(s, arrival_s=(s.arrival_s or 0.0) + 0.001 * (i % 2))
        for i, s in enumerate(generate(scenario.shape, 0))
    ]
    after, _ = play(sessions, timing, replicas=scenario.replicas, kv_blocks=scenario.kv_blocks)
    return percent(after.makespan_s, before.makespan_s)
