"""Why schedulers lose where they lose: each published regression played small, with the mechanism
in numbers.

    python -m scripts.regressions                    # all of them, as Markdown
    python -m scripts.regressions terminal-bench     # one

Nothing is written; docs/regressions.md has what it printed and what follows from it.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from statistics import mean, stdev
from typing import Any

import numpy as np

from harness.advice.levels import Levels, Records, play
from harness.capacity import resolve_cluster
from harness.plan import plan
from harness.spec import load_spec
from harness.topology import find_topology
from workloads.catalog import load_workload
from workloads.model import Segment, Session, ToolCall, TurnSpec


def terminal_bench(seeds: int) -> None:
    """TAO, DeepSeek-V4 Flash, Terminal-Bench: decode -8.8 % at 16 workers, -6.2 % at 64."""
    preset = plan(load_spec("tao/deepseek-v4-flash-terminal-bench-2"))
    rows, spread, alone = [], [], []
    for seed in range(seeds):
        sessions = load_workload("tb2-claude-code", sessions=48, seed=seed)
        for name in ("cache-aware", "thunderagent", "tao"):
            found, records = play(
                sessions, preset.cluster, name, workers=16, seed=seed, sim=preset.sim
            )
            if name == "tao":
                spread.append(found.decode_tps)
                alone.append(_half_empty(records, 16))
            if seed == 0:
                rows.append(_row(name, found))
    show("Terminal-Bench 2 under Claude Code, 16 workers, seed 0", rows)
    if len(spread) > 1:
        gaps = [100 * abs(a - b) / max(a, b) for i, a in enumerate(spread) for b in spread[i + 1 :]]
        show(
            f"The same scheduler (TAO) on {seeds} draws of the same tasks' distributions",
            [
                {
                    "decode (tok/s)": ", ".join(f"{value:.0f}" for value in spread),
                    "of the makespan with less than half of the workers busy": ", ".join(
                        f"{share:.0%}" for share in alone
                    ),
                    "standard deviation": f"{100 * stdev(spread) / mean(spread):.1f} %",
                    "median gap of two runs": f"{np.median(gaps):.1f} %",
                    "two runs further apart than 6.2 %": f"{np.mean(np.array(gaps) > 6.2):.0%}",
                    "than 8.8 %": f"{np.mean(np.array(gaps) > 8.8):.0%}",
                }
            ],
        )


def automationbench(seeds: int) -> None:
    """TAO, AutomationBench at 128 workers: latency -7 %, TTFT -504 %, decode -11.2 %."""
    preset = plan(load_spec("tao/deepseek-v4-flash-terminal-bench-2"))
    rows = []
    for believed in (None, 1_000_000):
        sim = replace(preset.sim, reported_kv_tokens=believed)
        for name in ("cache-aware", "thunderagent", "tao", "headroom"):
            if believed is None and name in ("thunderagent", "headroom"):
                continue
            cells = [
                play(
                    load_workload("automationbench", sessions=192, seed=seed),
                    preset.cluster,
                    name,
                    workers=128,
                    seed=seed,
                    sim=sim,
                )
                for seed in range(seeds)
            ]
            text = "as it is" if believed is None else f"{believed:,} believed"
            rows.append(
                {
                    "KV of a replica": text,
                    **_row(name, _mean([found for found, _ in cells])),
                    "held (%)": f"{100 * mean(f.held_share for f, _ in cells):.1f}",
                    "KV truly in use (%)": f"{100 * mean(_kv_used(r) for _, r in cells):.1f}",
                    "turns waiting in engines": f"{mean(_queued(r) for _, r in cells):.2f}",
                }
            )
    show(f"AutomationBench, 128 workers, DeepSeek-V4 Flash on 2 x 4xH100, {seeds} seeds", rows)


def large_prompts(seeds: int) -> None:
    """ThunderAgent: large prompts starve in a burst."""
    cluster = resolve_cluster("qwen3-8b", "1x1xh100", gpu_memory_utilization=0.4)
    rows = []
    for name in ("sticky", "thunderagent-as-shipped", "thunderagent", "tao", "headroom"):
        _, records = play(burst(), cluster, name, workers=64, seed=0)
        first = [t for t in records.turns if t.turn == 0 and t.first_token is not None]
        size = np.array([t.prompt_tokens for t in first], float)
        wait = np.array([((t.first_token or 0) - t.arrived) / 1e9 for t in first])
        small, large = size <= np.quantile(size, 0.1), size >= np.quantile(size, 0.9)
        after = [t.arrived for t in records.turns if t.turn == 1]
        rows.append(
            {
                "scheduler": name,
                "correlation of prompt and first token": f"{_correlation(size, wait):+.2f}",
                "first token of the smallest tenth (s)": f"{wait[small].mean():.1f}",
                "of the largest tenth (s)": f"{wait[large].mean():.1f}",
                "longest wait of any turn (s)": f"{_longest(records):.1f}",
                "second turns": str(len(after)),
            }
        )
    show("64 sessions at once on one replica, first prompts of 1,400 to 8,000 tokens", rows)


def burst(count: int = 64) -> list[Session]:
    """Sessions of four turns, all at once, first prompts spread evenly in shuffled order."""
    return [
        session(f"b{i}", 1400 + round(6600 * ((i * 37) % count) / (count - 1)), 200, 1000, 4, 10.0)
        for i in range(count)
    ]


def idle_ties(seeds: int) -> None:
    """SMetric: the score is 0 on every idle worker, so first turns ignore the cache."""
    cluster = resolve_cluster("qwen3-8b", find_topology("4x1xh100"))
    sessions = [
        session(f"k{i}", 200, 200, 60, 3, 4.0, shared=(f"kind{i % 4}", 12_000)) for i in range(96)
    ]
    rows = []
    for name in ("smetric", "smetric-slo", "lmetric", "cache-aware", "headroom"):
        found, records = play(sessions, cluster, name, workers=4, seed=0)
        first = [t for t in records.turns if t.turn == 0 and t.first_token is not None]
        hit = sum(t.cached_tokens or 0 for t in first) / sum(t.prompt_tokens for t in first)
        wait = mean(((t.first_token or 0) - t.arrived) / 1e9 for t in first)
        rows.append(
            {
                "scheduler": name,
                "cache hit of first turns (%)": f"{100 * hit:.1f}",
                "their TTFT (s)": f"{wait:.3f}",
                "task latency (s)": f"{found.latency_mean:.2f}",
                "prefill computed (tokens)": f"{_prefilled(records):,}",
            }
        )
    show("Four kinds of agents with a system prompt of 12,000 tokens each, 4 workers", rows)


def pinned(seeds: int) -> None:
    """ConServe: a conversation is pinned to its decoder for good."""
    cluster = resolve_cluster("qwen3-0.6b", find_topology("1p3d-a40"))
    rows = []
    for name in ("conserve", "ampd", "headroom"):
        found, records = play(skewed(), cluster, name, workers=48, seed=0)
        decoders: dict[str, list[float]] = {}
        for turn in records.turns:
            if turn.replica is not None and turn.first_token is not None:
                gap = (turn.finished - turn.first_token) / 1e6 / max(1, turn.output_tokens - 1)
                decoders.setdefault(turn.replica, []).append(gap)
        rows.append(
            {
                **_row(name, found),
                "moved": str(found.moved),
                "turns by decoder": " / ".join(str(len(v)) for _, v in sorted(decoders.items())),
                "TPOT by decoder (ms)": " / ".join(
                    f"{mean(v):.1f}" for _, v in sorted(decoders.items())
                ),
            }
        )
    show("48 conversations, every third five times as long, 1 prefiller and 3 decoders", rows)


def skewed(count: int = 96) -> list[Session]:
    """Equal first prompts; every third conversation has five times as many turns."""
    return [session(f"c{i}", 1500, 150, 150, 40 if i % 3 == 0 else 8, 1.0) for i in range(count)]


def session(
    name: str,
    first: int,
    new: int,
    output: int,
    turns: int,
    tool_s: float,
    shared: tuple[str, int] | None = None,
) -> Session:
    """One that only appends. `shared` is a system prompt before the first prompt: name, tokens."""
    head = () if shared is None else (Segment(shared[0], shared[1], 4 * shared[1]),)
    made: list[TurnSpec] = []
    for number in range(turns):
        before = made[-1] if made else None
        made.append(
            TurnSpec(
                new_tokens=first if before is None else new,
                output_tokens=output,
                kept_turn=None if before is None else number - 1,
                kept_tokens=0 if before is None else before.prompt_tokens + before.output_tokens,
                shared=head if before is None else (),
                tools=() if number + 1 == turns else (ToolCall("bash", tool_s),),
            )
        )
    return Session(id=name, turns=tuple(made), workload="regressions", origin="generated")


# ---- what is shown ---------------------------------------------------------------------------


def _row(name: str, found: Levels) -> dict[str, str]:
    return {
        "scheduler": name,
        "task latency (s)": f"{found.latency_mean:.1f}",
        "TTFT (s)": f"{found.ttft_mean:.3f}",
        "p95 TTFT (s)": f"{found.ttft_p95:.2f}",
        "decode (tok/s)": f"{found.decode_tps:.0f}",
        "cache hit (%)": f"{100 * found.cache_hit:.1f}",
        "pause (s)": f"{found.pause_mean:.3f}",
    }


def _mean(many: Sequence[Levels]) -> Levels:
    values: dict[str, Any] = {
        name: mean(getattr(one, name) for one in many) for name in Levels.__dataclass_fields__
    }
    return Levels(**values)


def _kv_used(records: Records) -> float:
    return mean(r.kv_used for r in records.replicas) if records.replicas else 0.0


def _queued(records: Records) -> float:
    return mean(r.waiting for r in records.replicas) if records.replicas else 0.0


def _prefilled(records: Records) -> int:
    return sum(t.prompt_tokens - (t.cached_tokens or 0) for t in records.turns)


def _half_empty(records: Records, workers: int) -> float:
    """Share of the makespan in which fewer than half of the workers have a session."""
    starts = sorted(s.started for s in records.sessions)
    ends = sorted(s.finished for s in records.sessions)
    events = sorted([(t, 1) for t in starts] + [(t, -1) for t in ends])
    busy, before, idle = 0, 0, 0
    for at, change in events:
        if busy < workers / 2:
            idle += at - before
        busy, before = busy + change, at
    return idle / ends[-1]


def _longest(records: Records) -> float:
    return max(((t.dispatched or t.arrived) - t.arrived) / 1e9 for t in records.turns)


def _correlation(one: np.ndarray[Any, Any], other: np.ndarray[Any, Any]) -> float:
    return float(np.corrcoef(one, other)[0, 1])


def show(caption: str, rows: Sequence[Mapping[str, str]]) -> None:
    print(f"\n{caption}\n")
    heads = list(rows[0])
    print("| " + " | ".join(heads) + " |")
    print("|" + "---|" * len(heads))
    for row in rows:
        print("| " + " | ".join(row[head] for head in heads) + " |", flush=True)


STUDIES: dict[str, Callable[[int], None]] = {
    "terminal-bench": terminal_bench,
    "automationbench": automationbench,
    "large-prompts": large_prompts,
    "idle-ties": idle_ties,
    "pinned": pinned,
}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("study", nargs="*", metavar="STUDY", help=", ".join(STUDIES))
    parser.add_argument("--seeds", type=int, default=5)
    given = parser.parse_args()
    if unknown := set(given.study) - set(STUDIES):
        parser.error(f"no study {sorted(unknown)[0]!r}; there are: {', '.join(STUDIES)}")
    for name in given.study or STUDIES:
        STUDIES[name](given.seeds)


if __name__ == "__main__":
    main()
