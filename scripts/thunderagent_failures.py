"""Three known failures of ThunderAgent as it ships, and what its repaired form makes of them.

    python -m scripts.thunderagent_failures

1. Without release calls, with acting sessions counted in full (the default), finished sessions fill
   the capacity for ever and every held turn waits out the 1,800 s limit: eight times slower in a
   third party's measurements (one replica, 80 sessions of 3 turns, 2.2 times what the KV holds:
   457 s as a plain proxy, 3,680 to 3,730 s; 315 to 346 s with decay).
2. Once no acting session is left to pause, one round marks every reasoning session of the replica.
3. Smallest first decides admission, so in a burst large prompts wait longest (correlation of prompt
   size and time to the first response +0.75 to +0.87 in a third party's runs).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from results.run import Run
from results.statistics import Estimate
from scripts._figures import bars
from scripts._reproduce import Scale, Study, level_text, main, mean_of, seed_values
from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.trace import write_trace

ARMS = ("sticky", "thunderagent-as-shipped", "thunderagent-decay", "thunderagent")
SESSIONS, TURNS = 80, 3
SHAPES = {
    "steady": "contexts that hardly grow after the first prompt",
    "growing": "contexts that double",
}
"""Of the sessions without release: whether those that run outgrow the capacity decides whether a
check ever pauses the ones that have ended."""
Panel = tuple[str, Mapping[str, Estimate | None], Mapping[str, float]]
BURST = 64


def study(scale: Scale) -> None:
    report = Study("thunderagent_failures", "ThunderAgent: three known failures", scale)
    folder = scale.runs / "traces"
    folder.mkdir(parents=True, exist_ok=True)
    release = _slow_without_release(report, folder)
    _marking(report)
    _starved(report, folder)
    report.finish(("thunderagent_failures", bars(release)))


def _slow_without_release(report: Study, folder: Path) -> list[Panel]:
    """80 sessions of 3 turns on one replica, 2.2 times its KV, with and without release."""
    rows: list[dict[str, Any]] = []
    panels: list[Panel] = []
    for shape, about in SHAPES.items():
        trace = _trace(folder / f"{shape}.jsonl", _oversubscribed(shape))
        makespans: dict[str, Estimate | None] = {}
        for release in (True, False):
            name = f"thunder-{shape}-{'release' if release else 'no-release'}"
            run_ = _play(report, name, trace, SESSIONS, release, 0.84)
            for arm in ARMS:
                spans = seed_values(run_, arm, lambda summary: float(summary["makespan_s"]))
                rows.append(_release_row(run_, arm, shape, release, spans))
                if not release:
                    makespans[arm] = mean_of(spans)
        report.notes.append(_slower(makespans, about))
        panels.append((f"{shape}: makespan, no release (s)", makespans, {}))
    report.table("1. Sessions of 2.2 times the KV on one replica, Qwen3-8B on one H100", rows)
    return panels


def _release_row(
    run_: Run, arm: str, shape: str, release: bool, spans: Mapping[int, float]
) -> dict[str, Any]:
    waits = seed_values(run_, arm, _metric("pause_wait_max"))
    forced = seed_values(run_, arm, partial(_counter, "forced"))
    return {
        "contexts": shape,
        "release calls": "yes" if release else "no",
        "scheduler": arm,
        "makespan (s)": level_text(mean_of(spans)),
        "longest pause (s)": level_text(mean_of(waits)),
        "let in by the 1,800 s limit": level_text(mean_of(forced)),
        "n": len(spans),
    }


def _slower(makespans: Mapping[str, Estimate | None], about: str) -> str:
    """How many times as long as a plain proxy, without release calls."""
    plain = makespans["sticky"]
    assert plain is not None
    times = [
        f"{arm} {found.mean / plain.mean:.2f}"
        for arm in ARMS[1:]
        if (found := makespans[arm]) is not None
    ]
    return (
        f"Without release calls, {about}: makespan over that of a plain proxy: {', '.join(times)} "
        "(third party, as shipped: 8; with decay: 0.7)."
    )


def _marking(report: Study) -> None:
    run_ = report.play(
        "thunder-marking",
        "tao/qwen3-32b-swe-bench-lite",
        sessions=192,
        workers=[160],
        schedulers=["thunderagent-as-shipped", "thunderagent"],
        workload="swe-bench-mini",
        seeds=3,
    )
    rows = []
    for arm in ("thunderagent-as-shipped", "thunderagent"):
        row: dict[str, Any] = {"scheduler": arm}
        for counter in ("marked", "paused"):
            row[counter] = level_text(mean_of(seed_values(run_, arm, partial(_counter, counter))))
        row["held turns (%)"] = level_text(mean_of(seed_values(run_, arm, _metric("held_share"))))
        row["task latency (s)"] = level_text(
            mean_of(seed_values(run_, arm, _metric("latency_mean")))
        )
        rows.append({**row, "n": len(run_.summaries) // 2})
    report.table("2. Sessions marked and paused, Qwen3-32B, 160 workers, swe-bench-mini", rows)


def _starved(report: Study, folder: Path) -> None:
    """64 sessions at once on one replica, prompts of 1,400 to 8,000 tokens, four turns each."""
    trace = _trace(folder / "burst.jsonl", _burst())
    run_ = _play(report, "thunder-burst", trace, BURST, True, 0.4)
    turns = run_.turns
    rows = []
    for arm in ARMS:
        correlations, large = {}, {}
        for seed in sorted(set(turns["seed"])):
            own = turns[
                (turns["scheduler"] == arm) & (turns["seed"] == seed) & (turns["turn"] == 0)
            ]
            wait = (own["first_token"] - own["arrived"]).to_numpy(np.float64) / 1e9
            size = own["prompt_tokens"].to_numpy(np.float64)
            correlations[int(seed)] = float(np.corrcoef(size, wait)[0, 1])
            large[int(seed)] = float(wait[size >= np.quantile(size, 0.9)].mean())
        rows.append(
            {
                "scheduler": arm,
                "correlation of prompt and first token": level_text(mean_of(correlations)),
                "TTFT of the largest tenth (s)": level_text(mean_of(large)),
                "n": len(large),
            }
        )
    report.table("3. A burst of 64 sessions on one replica", rows)


def _metric(tag: str) -> Any:
    return lambda summary: float(summary["metrics"][tag]["value"] or 0.0)


def _counter(name: str, summary: Mapping[str, Any]) -> float:
    return float(summary["counters"].get(name, 0.0))


def _play(report: Study, name: str, trace: Path, workers: int, release: bool, memory: float) -> Run:
    """On one replica of Qwen3-8B with a KV cache as small as the case needs: 0.84 of an H100 leaves
    350,000 tokens, 0.4 leaves 97,000."""
    spec = {
        "name": name,
        "model": "qwen3-8b",
        "topology": "1x1xh100",
        "workloads": [{"name": str(trace.resolve()), "workers": workers}],
        "schedulers": list(ARMS),
        "sim": {"release": release, "starvation_limit_s": 100000},
        "memory": {"gpu_memory_utilization": memory},
        "max_failed_share": 1.0,
    }
    path = trace.with_name(f"{name}.yaml")
    path.write_text(json.dumps(spec), "utf-8")
    return report.play(name, str(path), seeds=3, valid=False)


def _trace(path: Path, sessions: list[Session]) -> Path:
    write_trace(path, sessions)
    return path


def _oversubscribed(shape: str) -> list[Session]:
    first, new, output = (7000, 300, 300) if shape == "steady" else (3000, 600, 1500)
    return [
        _session(f"s{i}", first + 50 * (i % 40), new, output, TURNS, 20.0) for i in range(SESSIONS)
    ]


def _burst() -> list[Session]:
    return [
        _session(f"b{i}", 1400 + round(6600 * ((i * 37) % BURST) / (BURST - 1)), 200, 1000, 4, 10.0)
        for i in range(BURST)
    ]


def _session(name: str, first: int, new: int, output: int, turns: int, tool_s: float) -> Session:
    shared = (Segment("thunder/system", 500, 2000),)
    made: list[TurnSpec] = []
    for number in range(turns):
        before = made[-1] if made else None
        made.append(
            TurnSpec(
                new_tokens=first - 500 if before is None else new,
                output_tokens=output,
                kept_turn=None if before is None else number - 1,
                kept_tokens=0 if before is None else before.prompt_tokens + before.output_tokens,
                shared=shared if before is None else (),
                visible=number + 1 == turns,
                tools=() if number + 1 == turns else (ToolCall("bash", tool_s),),
            )
        )
    return Session(id=name, turns=tuple(made), workload="thunder", origin="generated")


if __name__ == "__main__":
    main(study, __doc__)
