"""How each metric is computed from the tables of a cell; `results.metrics` says what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from results.frames import Array, Frames, known, numbers


class Sample(NamedTuple):
    """A value (None: cannot be known from this cell) and how many observations it rests on."""

    value: float | None
    n: int


STATS: Mapping[str, tuple[str, Callable[[Array], Any]]] = {
    "mean": ("mean", np.mean),
    "p50": ("p50", lambda values: np.percentile(values, 50)),
    "p90": ("p90", lambda values: np.percentile(values, 90)),
    "p95": ("p95", lambda values: np.percentile(values, 95)),
    "p99": ("p99", lambda values: np.percentile(values, 99)),
    "max": ("max", np.max),
}


def statistic(name: str, quantity: str, frames: Frames) -> Sample:
    values: Array = getattr(frames, quantity)
    if values.size == 0:
        return Sample(None, 0)
    return Sample(float(STATS[name][1](values)), int(values.size))


def ratio(top: float, bottom: float, n: int, scale: float = 1.0) -> Sample:
    return Sample(scale * top / bottom if bottom > 0 else None, n)


def itl_mean(frames: Frames) -> Sample:
    turns = frames.ok[frames.ok["first_token"].notna() & (frames.ok["output_tokens"] >= 2)]
    gaps = float(numbers(turns["output_tokens"]).sum()) - len(turns)
    spent = float((numbers(turns["finished"]) - numbers(turns["first_token"])).sum())
    return ratio(spent / 1e6, gaps, int(gaps))


def decode_tps(frames: Frames) -> Sample:
    return ratio(float(frames.ok["output_tokens"].sum()), frames.makespan_s, len(frames.ok))


def decode_tps_steady(frames: Frames) -> Sample:
    if frames.steady_window is None:
        return Sample(None, 0)
    start, end = frames.steady_window
    return ratio(frames.tokens_between(start, end), end - start, len(frames.ok))


def steady_trimmed(frames: Frames) -> Sample:
    if frames.steady_window is None or frames.makespan_s <= 0:
        return Sample(None, 0)
    start, end = frames.steady_window
    return Sample(100 * (1 - (end - start) / frames.makespan_s), len(frames.roots))


def tps(frames: Frames) -> Sample:
    tokens = float(frames.ok["prompt_tokens"].sum() + frames.ok["output_tokens"].sum())
    return ratio(tokens, frames.makespan_s, len(frames.ok))


def prefill_tps(frames: Frames) -> Sample:
    turns = frames.with_known_cache
    if len(turns) < len(frames.ok) or turns.empty:
        return Sample(None, len(turns))
    computed = float(numbers(turns["prompt_tokens"]).sum() - numbers(turns["cached_tokens"]).sum())
    return ratio(computed, frames.makespan_s, len(turns))


def engine_prefill_tps(frames: Frames) -> Sample:
    totals = frames.last_samples["prefill_tokens"]
    if totals.empty:
        return Sample(None, 0)
    return ratio(float(totals.sum()), frames.makespan_s, len(totals))


def cache_hit(frames: Frames) -> Sample:
    turns = frames.with_known_cache
    cached = float(numbers(turns["cached_tokens"]).sum())
    return ratio(cached, float(turns["prompt_tokens"].sum()), len(turns), 100)


def cache_known(frames: Frames) -> Sample:
    return ratio(len(frames.with_known_cache), len(frames.ok), len(frames.ok), 100)


def pause_held(frames: Frames) -> Sample:
    turns = frames.ok[frames.ok["held"].astype(bool)]
    waits = known((numbers(turns["dispatched"]) - numbers(turns["arrived"])) / 1e9)
    return Sample(float(waits.mean()) if waits.size else None, int(waits.size))


def held_share(frames: Frames) -> Sample:
    return ratio(float(frames.ok["held"].sum()), len(frames.ok), len(frames.ok), 100)


def slo_attainment(frames: Frames) -> Sample:
    met = frames.meets_turn_slo
    return Sample(None, 0) if met is None else ratio(float(met.sum()), met.size, met.size, 100)


def slo_violations(frames: Frames) -> Sample:
    value, n = slo_attainment(frames)
    return Sample(None if value is None else 100 - value, n)


def goodput(frames: Frames) -> Sample:
    met = frames.meets_turn_slo
    return Sample(None, 0) if met is None else ratio(met.sum(), frames.makespan_s, met.size)


def ttfet_attainment(frames: Frames) -> Sample:
    bound = (frames.facts.get("slo") or {}).get("ttfet_s")
    sessions = len(frames.sessions)
    if bound is None or sessions == 0:
        return Sample(None, 0)
    return ratio(float(np.sum(frames.ttfet_s <= bound)), sessions, sessions, 100)


def tokens_per_joule(frames: Frames) -> Sample:
    energy = frames.facts.get("energy_j")
    if not energy:
        return Sample(None, 0)
    return ratio(float(frames.ok["output_tokens"].sum()), float(energy), len(frames.ok))


def working_set(frames: Frames) -> Sample:
    capacity = frames.facts.get("kv_capacity_tokens") or {}
    room = sum(capacity.values()) * frames.makespan_s
    return ratio(frames.context_token_seconds, room, len(frames.ok), 100)


def moves(frames: Frames) -> Sample:
    sessions = frames.ok["session"].nunique()
    return ratio(float(frames.ok["moved"].sum()), sessions, sessions)


def concurrency_mean(frames: Frames) -> Sample:
    times, active = frames.concurrency
    area = float(np.sum(active[:-1] * np.diff(times)))
    return ratio(area, frames.makespan_s, len(frames.roots))


def concurrency_max(frames: Frames) -> Sample:
    active = frames.concurrency[1]
    return Sample(float(active.max()) if active.size else None, len(frames.roots))


def concurrency_share(frames: Frames) -> Sample:
    peak = concurrency_max(frames).value
    if frames.workers <= 0 or peak is None:
        return Sample(None, 0)
    return ratio(peak, frames.workers, len(frames.roots), 100)


def tasks_per_hour(frames: Frames) -> Sample:
    done = frames.latency_s.size
    return ratio(3600 * done, frames.makespan_s, done)


def sampled(column: str, statistic: str, scale: float, frames: Frames) -> Sample:
    values = known(numbers(frames.replicas[column]))
    if values.size == 0:
        return Sample(None, 0)
    return Sample(scale * float(STATS[statistic][1](values)), int(values.size))


def preemptions(frames: Frames) -> Sample:
    totals = frames.last_samples["preemptions"]
    return Sample(None if totals.empty else float(totals.sum()), len(totals))


def in_two_legs(frames: Frames) -> Sample:
    count = float(frames.ok["prefill_replica"].notna().sum())
    return Sample(count if len(frames.ok) else None, len(frames.ok))


def kv_transfers(frames: Frames) -> Sample:
    count, _ = _transfers(frames)
    return Sample(None if count == 0 and "kv_transfers" not in frames.facts else count, count)


def kv_transfer_mean(frames: Frames) -> Sample:
    count, seconds = _transfers(frames)
    return ratio(seconds, count, count, 1e3)


def _transfers(frames: Frames) -> tuple[int, float]:
    """How many, and how long they took in all."""
    told = frames.facts.get("kv_transfers")
    if told is not None:
        return int(told["count"]), float(told["seconds"])
    times = frames.kv_transfer_s
    return times.size, float(times.sum())


def imbalance(frames: Frames) -> Sample:
    """Over sampling times at which any replica is busy: mean of busiest over average."""
    if frames.replicas.empty:
        return Sample(None, 0)
    load = frames.replicas["running"] + frames.replicas["waiting"]
    by_time = load.groupby(frames.replicas["time"]).agg(["max", "mean"])
    busy = by_time[by_time["mean"] > 0]
    return Sample(float((busy["max"] / busy["mean"]).mean()) if len(busy) else None, len(busy))


def count(frame: str, status: str, frames: Frames) -> Sample:
    rows = getattr(frames, frame)
    return Sample(float((rows["status"] == status).sum()), len(rows))
