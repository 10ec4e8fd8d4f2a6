"""What a set of sessions is made of: counts, quantiles, and what an infinite cache would reuse."""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from workloads.model import PromptBuilder, Segment, Session


@dataclass(frozen=True, slots=True)
class StatRow:
    """The distribution of one quantity; quantiles interpolate linearly between order statistics."""

    quantity: str
    unit: str
    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    maximum: float


@dataclass(frozen=True, slots=True)
class TraceStats:
    """Totals of a set of sessions, and one StatRow a quantity."""

    sessions: int
    """Sub-agents included."""
    sub_agents: int
    turns: int
    tool_calls: int
    prompt_tokens: int
    output_tokens: int
    compactions: int
    reuse_share: float
    """Share of prompt tokens that an infinite cache serves, sessions taken in the order given."""
    kept_share: float
    """Share of prompt tokens kept from an earlier turn of the same session."""
    workloads: tuple[tuple[str, str, int], ...]
    """(workload, origin, sessions), most sessions first."""
    rows: tuple[StatRow, ...]


class InfiniteCache:
    """Every prompt and output so far, as a tree of segments; nothing is evicted.

    Equal segment names in equal order mean equal text, so the longest known prefix of a prompt is
    found segment by segment.
    """

    def __init__(self) -> None:
        self._longest: dict[tuple[int, str], int] = {}
        self._nodes: dict[tuple[int, str, int], int] = {}

    def known(self, line: Iterable[Segment]) -> int:
        """Tokens of the longest prefix of `line` that is in the cache."""
        node, hit = 0, 0
        for segment in line:
            have = self._longest.get((node, segment.id), 0)
            hit += min(have, segment.tokens)
            if have < segment.tokens:
                break
            step = self._nodes.get((node, segment.id, segment.tokens))
            if step is None:
                break
            node = step
        return hit

    def add(self, line: Iterable[Segment]) -> None:
        """Keep a text line."""
        node = 0
        for segment in line:
            key = (node, segment.id)
            self._longest[key] = max(self._longest.get(key, 0), segment.tokens)
            node = self._nodes.setdefault((*key, segment.tokens), len(self._nodes) + 1)


_QUANTITIES = (
    ("turns a session", "turns"),
    ("first prompt", "tokens"),
    ("prompt", "tokens"),
    ("new tokens a later turn", "tokens"),
    ("output a turn", "tokens"),
    ("peak context", "tokens"),
    ("kept of a session's prompts", "share"),
    ("tool call", "s"),
    ("tool time a turn", "s"),
    ("wait after a turn", "s"),
)


def trace_stats(sessions: Iterable[Session]) -> TraceStats:
    """Describe sessions; reads them once and keeps numbers only.

    Args:
        sessions: in the order in which an infinite cache would see them.
    """
    values: dict[str, array[float]] = {name: array("d") for name, _ in _QUANTITIES}
    names: Counter[tuple[str, str]] = Counter()
    cache = InfiniteCache()
    sub_agents = compactions = reused = kept = 0
    for session in sessions:
        names[session.workload, session.origin] += 1
        sub_agents += session.parent is not None
        compactions += sum(turn.compaction for turn in session.turns)
        kept += sum(turn.kept_tokens for turn in session.turns)
        _collect(values, session)
        reused += _reused(cache, session)
    prompt_tokens = int(sum(values["prompt"]))
    return TraceStats(
        sessions=names.total(),
        sub_agents=sub_agents,
        turns=len(values["prompt"]),
        tool_calls=len(values["tool call"]),
        prompt_tokens=prompt_tokens,
        output_tokens=int(sum(values["output a turn"])),
        compactions=compactions,
        reuse_share=reused / prompt_tokens if prompt_tokens else 0.0,
        kept_share=kept / prompt_tokens if prompt_tokens else 0.0,
        workloads=tuple((name, origin, n) for (name, origin), n in names.most_common()),
        rows=tuple(_row(name, unit, values[name]) for name, unit in _QUANTITIES if values[name]),
    )


def first_turn_over(session: Session, limit: int) -> int | None:
    """The first turn whose prompt and output together pass `limit` tokens; None if all fit."""
    for index, turn in enumerate(session.turns):
        if turn.prompt_tokens + turn.output_tokens > limit:
            return index
    return None


def share_over(sessions: Iterable[Session], limit: int) -> float:
    """Share of sessions that pass a context limit, in tokens."""
    over = [first_turn_over(session, limit) is not None for session in sessions]
    return sum(over) / len(over) if over else 0.0


def peak_context(session: Session) -> int:
    """The most tokens that one turn of a session holds, prompt and output."""
    return max(turn.prompt_tokens + turn.output_tokens for turn in session.turns)


@dataclass(frozen=True, slots=True)
class Distance:
    """How far one quantity's distribution is from another's."""

    quantity: str
    unit: str
    ks: float
    """Kolmogorov-Smirnov distance: the largest gap between the two distribution functions, 0 to
    1."""
    first: tuple[float, float]
    """p50 and p90 of the first set of sessions."""
    second: tuple[float, float]
    """p50 and p90 of the second."""


def distances(first: Iterable[Session], second: Iterable[Session]) -> list[Distance]:
    """Compare two sets of sessions, quantity by quantity; those that one lacks are left out."""
    ours, theirs = _values(first), _values(second)
    result: list[Distance] = []
    for name, unit in _QUANTITIES:
        one, other = _sorted(ours[name]), _sorted(theirs[name])
        if one.size and other.size:
            p50, p90 = (float(q) for q in np.quantile(one, [0.5, 0.9]))
            q50, q90 = (float(q) for q in np.quantile(other, [0.5, 0.9]))
            result.append(Distance(name, unit, ks_distance(one, other), (p50, p90), (q50, q90)))
    return result


def ks_distance(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    """Kolmogorov-Smirnov distance of two sorted samples, neither empty."""
    points = np.concatenate([one, other])
    below = np.searchsorted(one, points, side="right") / one.size
    below_other = np.searchsorted(other, points, side="right") / other.size
    return float(np.abs(below - below_other).max())


def _values(sessions: Iterable[Session]) -> dict[str, array[float]]:
    values: dict[str, array[float]] = {name: array("d") for name, _ in _QUANTITIES}
    for session in sessions:
        _collect(values, session)
    return values


def _sorted(numbers: array[float]) -> NDArray[np.float64]:
    return np.sort(np.array(numbers, dtype=np.float64))


def _collect(values: dict[str, array[float]], session: Session) -> None:
    values["turns a session"].append(len(session.turns))
    values["first prompt"].append(session.turns[0].prompt_tokens)
    values["peak context"].append(peak_context(session))
    prompts = sum(turn.prompt_tokens for turn in session.turns)
    kept = sum(turn.kept_tokens for turn in session.turns)
    values["kept of a session's prompts"].append(kept / prompts)
    for index, turn in enumerate(session.turns):
        values["prompt"].append(turn.prompt_tokens)
        values["output a turn"].append(turn.output_tokens)
        if index:
            values["new tokens a later turn"].append(turn.new_tokens)
        values["tool call"].extend(call.seconds for call in turn.tools)
        if turn.tools:
            values["tool time a turn"].append(turn.tool_seconds)
        if turn.wait_s > 0:
            values["wait after a turn"].append(turn.wait_s)


def _reused(cache: InfiniteCache, session: Session) -> int:
    total = 0
    for prompt, turn in zip(PromptBuilder(session).prompts(), session.turns, strict=True):
        total += cache.known(prompt.segments)
        cache.add(prompt.segments)
        cache.add(_with_output(prompt.segments, prompt.output_segment, turn.output_tokens))
    return total


def _with_output(line: tuple[Segment, ...], name: str, tokens: int) -> tuple[Segment, ...]:
    if line and line[-1].id == name:
        return (*line[:-1], Segment(name, line[-1].tokens + tokens, 0))
    return (*line, Segment(name, tokens, 0))


def _row(name: str, unit: str, numbers: array[float]) -> StatRow:
    data = np.frombuffer(numbers, dtype=np.float64)
    p50, p90, p99 = (float(q) for q in np.quantile(data, [0.5, 0.9, 0.99]))
    return StatRow(name, unit, data.size, float(data.mean()), p50, p90, p99, float(data.max()))
