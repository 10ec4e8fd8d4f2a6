"""Metrics and intervals computed one record at a time, in plain Python."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise

from results.records import ReplicaRecord, SessionRecord, TurnRecord


def mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None


def quantile(values: Sequence[float], percent: float) -> float | None:
    """Linear between order statistics."""
    if not values:
        return None
    ordered = sorted(values)
    place = percent / 100 * (len(ordered) - 1)
    below = math.floor(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (place - below) * (ordered[above] - ordered[below])


def metrics(
    turns: Sequence[TurnRecord],
    sessions: Sequence[SessionRecord],
    replicas: Sequence[ReplicaRecord],
    makespan_s: float,
    workers: int,
    capacity: float,
) -> dict[str, float | None]:
    """The metrics whose fast versions sort, group or vectorise anything."""
    ok = [t for t in turns if t.status == "ok"]
    ttft = [(t.first_token - t.arrived) / 1e9 for t in ok if t.first_token is not None]
    decoding = [t for t in ok if t.first_token is not None and t.output_tokens >= 2]
    spans = {t: (t.finished - (t.first_token or 0)) / 1e6 for t in decoding}
    tpot = [spans[t] / (t.output_tokens - 1) for t in decoding]
    gaps = sum(t.output_tokens - 1 for t in decoding)
    known = [t for t in ok if t.cached_tokens is not None]
    prompt = sum(t.prompt_tokens for t in known)
    cached = sum(t.cached_tokens or 0 for t in known)
    roots = [s for s in sessions if s.parent is None]
    ttfet, net = _ttfet(turns)
    stalls = _by_session(ok, lambda t: t.longest_gap)
    steady = _steady(roots, workers)
    found: dict[str, float | None] = {
        "ttft_mean": mean(ttft),
        "ttft_p90": quantile(ttft, 90),
        "ttft_p99": quantile(ttft, 99),
        "tpot_mean": mean(tpot),
        "itl_mean": math.fsum(spans.values()) / gaps if gaps else None,
        "stall_max": max(stalls) / 1e9 if stalls else None,
        "decode_tps": sum(t.output_tokens for t in ok) / makespan_s,
        "cache_hit": 100 * cached / prompt if prompt else None,
        "prefill_tps": (prompt - cached) / makespan_s if known and len(known) == len(ok) else None,
        "ttfet_mean": mean(ttfet),
        "ttfet_net_mean": mean(net),
        "working_set_kv": 100 * _context(ok, sessions) / (capacity * makespan_s),
        "concurrency_mean": sum(s.finished - s.started for s in roots) / 1e9 / makespan_s,
        "concurrency_max": float(_most_at_once(roots)) if roots else None,
        "decode_tps_steady": None,
        "steady_trimmed": None,
        "engine_waiting_mean": mean([float(r.waiting) for r in replicas]),
    }
    if steady is not None:
        start, end = steady
        tokens = math.fsum(_inside(t, start, end) for t in ok)
        found["decode_tps_steady"] = tokens / ((end - start) / 1e9)
        found["steady_trimmed"] = 100 * (1 - (end - start) / 1e9 / makespan_s)
    return found


def _by_session(
    turns: Sequence[TurnRecord], value: Callable[[TurnRecord], int | None]
) -> list[int]:
    worst: dict[str, int] = {}
    for turn in turns:
        found = value(turn)
        if found is not None:
            worst[turn.session] = max(found, worst.get(turn.session, 0))
    return list(worst.values())


def _ttfet(turns: Sequence[TurnRecord]) -> tuple[list[float], list[float]]:
    gross, net = [], []
    for name in {t.session for t in turns}:
        own = sorted((t for t in turns if t.session == name), key=lambda t: t.turn)
        tools = 0.0
        for turn in own:
            if turn.status == "ok" and (turn.visible or turn.last):
                if turn.first_token is not None:
                    gross.append((turn.first_token - own[0].arrived) / 1e9)
                    net.append(gross[-1] - tools)
                break
            tools += turn.tool_s
    return gross, net


def _context(ok: Sequence[TurnRecord], sessions: Sequence[SessionRecord]) -> float:
    ends = {s.session: s.finished for s in sessions}
    total = 0.0
    for name in {t.session for t in ok}:
        own = sorted((t for t in ok if t.session == name), key=lambda t: t.turn)
        for turn, after in zip(own, [*own[1:], None], strict=True):
            until = ends.get(name, turn.finished) if after is None else after.arrived
            total += (turn.prompt_tokens + turn.output_tokens) * (until - turn.arrived) / 1e9
    return total


def _active(roots: Sequence[SessionRecord], time: int) -> int:
    return sum(s.started <= time < s.finished for s in roots)


def _times(roots: Sequence[SessionRecord]) -> list[int]:
    return sorted({time for s in roots for time in (s.started, s.finished)})


def _most_at_once(roots: Sequence[SessionRecord]) -> int:
    return max(_active(roots, time) for time in _times(roots))


def _steady(roots: Sequence[SessionRecord], workers: int) -> tuple[int, int] | None:
    times = _times(roots)
    full = [
        (start, end) for start, end in pairwise(times) if 10 * _active(roots, start) >= 9 * workers
    ]
    return (full[0][0], full[-1][1]) if full and workers > 0 else None


def _inside(turn: TurnRecord, start: int, end: int) -> float:
    if turn.first_token is None:
        return 0.0
    if turn.finished == turn.first_token:
        return float(turn.output_tokens if start <= turn.first_token < end else 0)
    overlap = min(turn.finished, end) - max(turn.first_token, start)
    return max(overlap, 0) / (turn.finished - turn.first_token) * turn.output_tokens


STUDENT = {
    1: 12.706204736174698,
    2: 4.302652729749462,
    3: 3.182446305283708,
    4: 2.776445105197793,
    5: 2.570581835636314,
}
"""97.5 % points of Student's distribution by degrees of freedom, from a table."""


def difference_interval(
    values: Mapping[str, Mapping[int, float]],
    scheduler: str,
    baselines: Sequence[str],
    higher_is_better: bool,
    draws: Sequence[Sequence[int]],
) -> tuple[float, float]:
    """95 % interval of the gain over the best baseline; `draws` are the resamples, as places."""
    seeds = sorted(set.intersection(*(set(values[n]) for n in [scheduler, *baselines])))
    gains = []
    for draw in draws:
        picked = [seeds[place] for place in draw]
        own = math.fsum(values[scheduler][seed] for seed in picked) / len(picked)
        means = [math.fsum(values[b][seed] for seed in picked) / len(picked) for b in baselines]
        if higher_is_better:
            gains.append(100 * (own - max(means)) / max(means))
        else:
            gains.append(100 * (min(means) - own) / min(means))
    n = len(seeds)
    tail = 50 * math.erfc(math.sqrt(n / (n - 1)) * STUDENT[n - 1] / math.sqrt(2))
    low, high = quantile(gains, tail), quantile(gains, 100 - tail)
    assert low is not None
    assert high is not None
    return low, high
