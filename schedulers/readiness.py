"""When will a session's tools end? TAO's readiness predictor, as a component without I/O.

A prediction of the whole duration comes from the first source that has one:

    progress   an estimate from outside (ToolHint)
    stated     the call's own word: a duration, a parsed sleep
    tool       history of this tool: mean plus a Maurer-Pontil margin
    global     history of all tools, likewise
    default    5 s

Sources, their order and the numbers 1 s, 30 s, 5 s and 0.2 are TAO's (from a summary of the
paper). The window, the caps of the margin, and the probe windows are our choices, all settings.
Times are integer nanoseconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

from schedulers.tool_commands import stated_time
from schedulers.types import NS, ToolSignal

Source = Literal["progress", "stated", "tool", "global", "default"]
SOURCES: tuple[Source, ...] = ("progress", "stated", "tool", "global", "default")
PREDICTORS = ("tao", "mean", "median")
_MAX_TOOLS = 4096
"""Tool names come from models, so there is no end of them; the longest unused are forgotten."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessConfig:
    """Settings of the predictor."""

    horizon_s: float = 1.0
    """Ready when the tools are predicted to end within this. Source: TAO."""
    fresh_s: float = 30.0
    """A prediction counts only if it was made or renewed within this. Source: TAO."""
    default_duration_s: float = 5.0
    """Predicted where there is no history. Source: TAO."""
    margin_delta: float = 0.2
    """Delta of the Maurer-Pontil margin on the historical mean. Source: TAO."""
    min_samples: int = 2
    """Calls of a tool before its own history counts. Our choice: the margin needs two."""
    history_window: int = 256
    """Samples kept per tool; mean, variance and range R are those of the window. Our choice: the
    paper does not say what R is, and with a fixed large R the margin alone passes the horizon."""
    margin_cap_s: float = 5.0
    """The margin never exceeds this. Our choice."""
    margin_cap_of_mean: float = 1.0
    """Nor this multiple of the mean. Our choice: two samples alone would multiply it by five."""
    probe_window_s: float = 1.0
    """An overdue tool counts as ready for this long, again and again. Length: our choice."""
    probe_gap_max_s: float = 30.0
    """Gaps between probe windows double from 1 s up to this. Our choice."""
    parallel_tools: str = "max"
    """Calls of one turn run side by side (`max`) or one after the other (`sum`). Our choice."""

    def __post_init__(self) -> None:
        if not 0 < self.margin_delta < 2:
            raise ValueError(f"margin_delta must be between 0 and 2, not {self.margin_delta}")
        if self.min_samples < 2 or self.history_window < 2:
            raise ValueError("min_samples and history_window must be at least 2")
        if self.parallel_tools not in ("max", "sum"):
            raise ValueError(f"parallel_tools is `max` or `sum`, not `{self.parallel_tools}`")
        if self.probe_window_s <= 0 or self.default_duration_s < 0 or self.horizon_s < 0:
            raise ValueError("probe_window_s must be positive, durations must not be negative")


class Prediction(NamedTuple):
    """The tools of a session will have run for `duration` ns; `made_at` is when that was last
    made or renewed."""

    source: Source
    duration: int
    made_at: int


_NOT_YET = Prediction("default", 0, 0)


class History:
    """The last durations of one tool. Sums are exact integers, so order does not matter."""

    def __init__(self, window: int) -> None:
        self.durations: deque[int] = deque(maxlen=window)
        self.version = 0
        self.newest_at = 0
        self.bound: tuple[int, int] = (0, 0)
        """(version it was made for, prediction); kept by the predictor."""
        self._ordered: list[int] = []
        self._sum = 0
        self._squares = 0

    def __len__(self) -> int:
        return len(self.durations)

    def add(self, duration: int, now: int) -> None:
        if len(self.durations) == self.durations.maxlen:
            oldest = self.durations[0]
            self._sum -= oldest
            self._squares -= oldest * oldest
            del self._ordered[bisect_left(self._ordered, oldest)]
        self.durations.append(duration)
        insort(self._ordered, duration)
        self._sum += duration
        self._squares += duration * duration
        self.version += 1
        self.newest_at = now

    @property
    def mean(self) -> float:
        return self._sum / len(self.durations)

    @property
    def variance(self) -> float:
        """Unbiased, in ns squared; needs two samples."""
        n = len(self.durations)
        return (n * self._squares - self._sum * self._sum) / (n * (n - 1))

    @property
    def range(self) -> int:
        return self._ordered[-1] - self._ordered[0]

    @property
    def median(self) -> float:
        middle, ordered = len(self._ordered) // 2, self._ordered
        if len(ordered) % 2:
            return ordered[middle]
        return (ordered[middle - 1] + ordered[middle]) / 2


def margin(history: History, delta: float) -> float:
    """Maurer and Pontil 2009, theorem 4, for values of range R instead of 1, in ns.

    sqrt(2 s^2 ln(2/delta) / n) + 7 R ln(2/delta) / (3 (n - 1)). Tool times are not independent
    draws, and a bound on a mean is none on a single call: TAO calls it a heuristic.
    """
    n, log_term = len(history), math.log(2 / delta)
    spread = math.sqrt(2 * history.variance * log_term / n)
    return spread + 7 * history.range * log_term / (3 * (n - 1))


@dataclass(slots=True)
class _Running:
    key: str
    names: tuple[str, ...]
    started_at: int
    stated: int | None
    """The whole duration in ns, by the calls' own word."""
    at_least: int
    at_most: int | None
    prediction: Prediction = _NOT_YET
    first: Prediction = _NOT_YET
    stamp: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Completed:
    """One finished prediction. Durations in ns; `mean` and `median` are what plain predictors
    with the same history (tool, else all tools, else the default) would have said."""

    session: str
    tool: str
    source: Source
    first: int
    final: int
    actual: int
    mean: int
    median: int
    probe_windows: int


class Accuracy(NamedTuple):
    """Errors of one predictor over the calls whose TAO prediction came from `source`."""

    predictor: str
    source: str
    calls: int
    mean_abs_error_s: float
    within_half_second: float


class PredictorLog:
    """Running totals of prediction errors by predictor and source; bounded in memory."""

    def __init__(self) -> None:
        self._totals: dict[tuple[str, str], list[int]] = {}
        self.probe_windows = 0

    def add(self, call: Completed) -> None:
        self.probe_windows += call.probe_windows
        for predictor, said in zip(PREDICTORS, (call.final, call.mean, call.median), strict=True):
            error = abs(said - call.actual)
            for source in (call.source, "all"):
                total = self._totals.setdefault((predictor, source), [0, 0, 0])
                total[0] += 1
                total[1] += error
                total[2] += error <= NS // 2

    def rows(self) -> Iterator[Accuracy]:
        """By predictor, then source, `all` last; only what occurred."""
        for predictor in PREDICTORS:
            for source in (*SOURCES, "all"):
                if (predictor, source) in self._totals:
                    calls, error, within = self._totals[predictor, source]
                    yield Accuracy(predictor, source, calls, error / calls / NS, within / calls)


class ReadinessPredictor:
    """Follows the tools of every session and says which session is about to return."""

    def __init__(self, config: ReadinessConfig | None = None) -> None:
        self.config = config or ReadinessConfig()
        self.log = PredictorLog()
        self._tools: dict[str, History] = {}
        self._all = History(self.config.history_window)
        self._running: dict[str, _Running] = {}

    def started(self, session: str, tools: Sequence[ToolSignal], now: int) -> Prediction:
        """The session's tools began; replaces whatever was followed for it."""
        names = tuple(sorted(tool.name for tool in tools))
        stated, at_least, at_most = self._stated(tools)
        running = _Running(
            key="+".join(names),
            names=names,
            started_at=now,
            stated=stated,
            at_least=at_least,
            at_most=at_most,
        )
        self._predict(running, now)
        running.first = running.prediction
        self._running[session] = running
        return running.prediction

    def hint(self, session: str, eta_s: float, now: int) -> None:
        """Progress: the tools will end in about `eta_s` seconds. Unknown sessions are ignored."""
        running = self._running.get(session)
        if running is not None:
            left = max(0, round(eta_s * NS))
            duration = now - running.started_at + left
            running.prediction = Prediction("progress", duration, now)

    def completed(self, session: str, now: int) -> Completed | None:
        """The session returned: its tools have ended. None if none were followed."""
        running = self._running.get(session)
        if running is None:
            return None
        self._refresh(running)
        del self._running[session]
        actual = now - running.started_at
        plain = self._plain(running)
        call = Completed(
            session=session,
            tool=running.key,
            source=running.prediction.source,
            first=running.first.duration,
            final=running.prediction.duration,
            actual=actual,
            mean=round(plain.mean) if plain else round(self.config.default_duration_s * NS),
            median=round(plain.median if plain else self.config.default_duration_s * NS),
            probe_windows=self._probes(actual - running.prediction.duration)[1],
        )
        self.log.add(call)
        self._learn(running.key, actual, now)
        return call

    def _learn(self, key: str, duration: int, now: int) -> None:
        history = self._tools.pop(key, None) or History(self.config.history_window)
        self._tools[key] = history  # last: the first one is the longest unused
        if len(self._tools) > _MAX_TOOLS:
            del self._tools[next(iter(self._tools))]
        history.add(duration, now)
        self._all.add(duration, now)

    def forget(self, session: str) -> None:
        """The session is gone; its running tools teach nothing."""
        self._running.pop(session, None)

    def prediction(self, session: str) -> Prediction | None:
        """The prediction as it stands, renewed if its history has grown; None: no tools run."""
        running = self._running.get(session)
        if running is None:
            return None
        self._refresh(running)
        return running.prediction

    def ready(self, session: str, now: int) -> bool:
        """Whether the session's running tools are about to end (or should have ended: probing)."""
        prediction = self.prediction(session)
        if prediction is None:
            return False
        left = self._running[session].started_at + prediction.duration - now
        if left <= 0:
            return self._probes(-left)[0]
        fresh = now - prediction.made_at <= self.config.fresh_s * NS
        return fresh and left <= self.config.horizon_s * NS

    def _stated(self, tools: Sequence[ToolSignal]) -> tuple[int | None, int, int | None]:
        """(whole duration if all calls state it, certain part, limit if all calls have one)."""
        combine = max if self.config.parallel_tools == "max" else sum
        times = [stated_time(tool) for tool in tools]
        certain = [t.duration_s for t in times if t.duration_s is not None]
        ends = [t.duration_s if t.limit_s is None else t.limit_s for t in times]
        known = [end for end in ends if end is not None]
        at_least = round(combine(certain) * NS) if certain else 0
        if not times or len(known) < len(times):
            return None, at_least, None
        latest = round(combine(known) * NS)
        if all(t.limit_s is None for t in times):
            return latest, at_least, None
        return None, at_least, latest

    def _predict(self, running: _Running, now: int) -> None:
        if running.stated is not None:
            running.prediction = Prediction("stated", running.stated, now)
            return
        source, duration = self._from_history(running)
        duration = max(duration, running.at_least)
        if running.at_most is not None:
            duration = min(duration, running.at_most)
        running.prediction = Prediction(source, duration, now)
        running.stamp = self._stamp(running)

    def _from_history(self, running: _Running) -> tuple[Source, int]:
        if (own := self._history(running.key)) is not None:
            return "tool", self._bound(own)
        parts = [self._history(name) for name in running.names]
        known = [self._bound(part) for part in parts if part is not None]
        if known and len(known) == len(parts):
            return "tool", max(known) if self.config.parallel_tools == "max" else sum(known)
        if len(self._all) >= self.config.min_samples:
            return "global", self._bound(self._all)
        return "default", round(self.config.default_duration_s * NS)

    def _history(self, key: str) -> History | None:
        history = self._tools.get(key)
        return history if history and len(history) >= self.config.min_samples else None

    def _bound(self, history: History) -> int:
        if history.bound[0] != history.version:
            mean, config = history.mean, self.config
            cap = min(config.margin_cap_s * NS, config.margin_cap_of_mean * mean)
            bound = round(mean + min(margin(history, config.margin_delta), cap))
            history.bound = (history.version, bound)
        return history.bound[1]

    def _plain(self, running: _Running) -> History | None:
        return self._history(running.key) or (self._all if len(self._all) else None)

    def _stamp(self, running: _Running) -> tuple[int, ...]:
        """Changes when the history behind the prediction has grown."""
        own = [history.version if history else 0 for history in self._own(running)]
        return (*own, 0 if running.prediction.source == "tool" else self._all.version)

    def _own(self, running: _Running) -> list[History | None]:
        return [self._tools.get(key) for key in (running.key, *running.names)]

    def _refresh(self, running: _Running) -> None:
        if running.prediction.source in ("progress", "stated"):
            return
        if self._stamp(running) == running.stamp:
            return
        # Renewed when its last sample came in, which may be a while before anybody asks.
        self._predict(running, self._all.newest_at)
        if running.prediction.source == "tool":
            newest = max(history.newest_at for history in self._own(running) if history)
            running.prediction = running.prediction._replace(made_at=newest)

    def _probes(self, overdue: int) -> tuple[bool, int]:
        """(inside a probe window, windows opened so far) at `overdue` ns past the prediction.

        Windows of `probe_window_s`, with gaps of 1, 2, 4, ... seconds between them.
        """
        if overdue < 0:
            return False, 0
        window = round(self.config.probe_window_s * NS)
        longest = round(self.config.probe_gap_max_s * NS)
        opened, start = 0, 0
        while start <= overdue:
            opened += 1
            if overdue < start + window:
                return True, opened
            gap = min(NS << min(opened - 1, 40), longest)
            start += window + gap
        return False, opened
