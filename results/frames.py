"""Tables of one cell, and the quantities that several metrics share.

All arrays are float64; what was not observed is NaN, never zero.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from operator import attrgetter
from typing import Any, Literal, get_args, get_origin, get_type_hints

import numpy as np
import pandas as pd
import pyarrow as pa
from numpy.typing import NDArray

Array = NDArray[np.float64]

NS = 1e9
STEADY_SHARE = 0.9
"""The steady window holds at least this share of the target concurrency (our choice; the same
share as agentic-bench uses to pick its turns)."""

ATTEMPTED = ("ok", "failed", "rejected", "too_long")
"""Statuses of turns that asked for service and did not withdraw."""


def table(kind: type, records: Iterable[Any]) -> pa.Table:
    """Records (dataclass instances) as an Arrow table with one column a field."""
    names = tuple(f.name for f in fields(kind))
    rows = list(map(attrgetter(*names), records))
    columns = zip(*rows, strict=True) if rows else [()] * len(names)
    schema = arrow_schema(kind)
    arrays = [
        pa.array(list(column), type=schema.field(name).type)
        for name, column in zip(names, columns, strict=True)
    ]
    return pa.Table.from_arrays(arrays, schema=schema)


def arrow_schema(kind: type) -> pa.Schema:
    hints = get_type_hints(kind)
    return pa.schema([(f.name, _arrow_type(hints[f.name])) for f in fields(kind)])


def _arrow_type(hint: Any) -> pa.DataType:
    if get_origin(hint) is Literal:
        return pa.string()
    options = [option for option in get_args(hint) if option is not type(None)]
    base = options[0] if options else hint
    return {str: pa.string(), int: pa.int64(), float: pa.float64(), bool: pa.bool_()}[base]


@dataclass
class Frames:
    """What a metric is computed from.

    Args:
        turns: one row a TurnRecord.
        sessions: one row a SessionRecord.
        replicas: one row a ReplicaRecord.
        makespan_s: start of the cell to the end of its last session.
        workers: target concurrency; 0 where arrivals are open-loop.
        facts: see `results.metrics.FACTS`.
    """

    turns: pd.DataFrame
    sessions: pd.DataFrame
    replicas: pd.DataFrame
    makespan_s: float
    workers: int
    facts: Mapping[str, Any] = field(default_factory=dict)

    @cached_property
    def ok(self) -> pd.DataFrame:
        """Turns that were served; every timing metric is over these alone."""
        return self.turns[self.turns["status"] == "ok"]

    @cached_property
    def roots(self) -> pd.DataFrame:
        """Sessions that are nobody's sub-agent: the tasks."""
        return self.sessions[self.sessions["parent"].isna()]

    @cached_property
    def latency_s(self) -> Array:
        """Of each finished task: taken up by a worker to finished, tool time included."""
        done = self.roots[self.roots["status"] == "finished"]
        return elapsed(done["finished"], done["started"])

    @cached_property
    def ttft_s(self) -> Array:
        return known(elapsed(self.ok["first_token"], self.ok["arrived"]))

    @cached_property
    def pause_s(self) -> Array:
        return known(elapsed(self.ok["dispatched"], self.ok["arrived"]))

    @cached_property
    def tpot_ms(self) -> Array:
        """Of each turn with two tokens or more."""
        turns = self.ok[self.ok["output_tokens"] >= 2]
        decode = elapsed(turns["finished"], turns["first_token"])
        return known(1e3 * decode / (numbers(turns["output_tokens"]) - 1))

    @cached_property
    def tool_end_to_first_token_s(self) -> Array:
        turns = self.ok[self.ok["turn"] > 0]
        return known(elapsed(turns["first_token"], turns["tool_end"]))

    @cached_property
    def kv_transfer_s(self) -> Array:
        """Of each turn whose KV came from elsewhere, where that was observed."""
        return known(elapsed(self.ok["kv_received"], self.ok["kv_sent"]))

    @cached_property
    def handover_s(self) -> Array:
        turns = self.ok[self.ok["prefill_replica"].notna()]
        return known(elapsed(turns["first_token"], turns["prefilled"]))

    @cached_property
    def worst_stall_s(self) -> Array:
        """Of each session: the longest time between two successive tokens of one turn."""
        worst = self.ok.groupby("session", sort=True)["longest_gap"].max()
        return known(seconds(worst))

    @cached_property
    def ttfet_s(self) -> Array:
        return known(self._ttfet["gross"].to_numpy(np.float64))

    @cached_property
    def ttfet_net_s(self) -> Array:
        return known(self._ttfet["net"].to_numpy(np.float64))

    @cached_property
    def _ttfet(self) -> pd.DataFrame:
        """Of each session with a served user-visible turn: wall time to its first token."""
        turns = self.turns.sort_values(["session", "turn"])
        first_arrival = turns.drop_duplicates("session").set_index("session")["arrived"]
        tools_before = turns.groupby("session")["tool_s"].cumsum() - turns["tool_s"]
        visible = turns.assign(before=tools_before)
        shown = visible["visible"].astype(bool) | visible["last"].astype(bool)
        visible = visible[shown & (visible["status"] == "ok")]
        visible = visible.drop_duplicates("session").set_index("session")
        gross = (visible["first_token"] - first_arrival.reindex(visible.index)) / NS
        return pd.DataFrame({"gross": gross, "net": gross - visible["before"]}).astype(np.float64)

    @cached_property
    def with_known_cache(self) -> pd.DataFrame:
        return self.ok[self.ok["cached_tokens"].notna()]

    @cached_property
    def concurrency(self) -> tuple[Array, Array]:
        """Times in seconds and the number of active tasks from each on, as a step function."""
        return step_function(seconds(self.roots["started"]), seconds(self.roots["finished"]))

    @cached_property
    def steady_window(self) -> tuple[float, float] | None:
        """First to last instant with at least 90 % of the workers active; None if there is none."""
        times, active = self.concurrency
        if self.workers <= 0 or times.size < 2:
            return None
        full = np.flatnonzero(active[:-1] >= math.ceil(STEADY_SHARE * self.workers - 1e-9))
        if full.size == 0:
            return None
        return float(times[full[0]]), float(times[full[-1] + 1])

    def tokens_between(self, start: float, end: float) -> float:
        """Output tokens in a window; a turn's tokens lie evenly from its first token to its end."""
        turns = self.ok[self.ok["first_token"].notna()]
        first, last = seconds(turns["first_token"]), seconds(turns["finished"])
        inside = np.minimum(last, end) - np.maximum(first, start)
        length = last - first
        with np.errstate(divide="ignore", invalid="ignore"):
            share = np.where(length > 0, inside / length, (first >= start) & (first < end))
        return float(np.sum(np.clip(share, 0, 1) * numbers(turns["output_tokens"])))

    @cached_property
    def context_token_seconds(self) -> float:
        """Over sessions: integral of context length over the time that the session lives.

        A context has the size that a turn leaves it with from that turn's arrival to the next's,
        the last until the session ends.
        """
        turns = self.ok.sort_values(["session", "turn"])
        ends = self.sessions.drop_duplicates("session").set_index("session")["finished"]
        following = turns.groupby("session")["arrived"].shift(-1)
        until = following.fillna(turns["session"].map(ends)).fillna(turns["finished"])
        tokens = numbers(turns["prompt_tokens"]) + numbers(turns["output_tokens"])
        return float(np.sum(tokens * elapsed(until, turns["arrived"])))

    @cached_property
    def last_samples(self) -> pd.DataFrame:
        """The last state of each replica, where its cumulative counters are totals."""
        ordered = self.replicas.sort_values("time", kind="stable")
        return ordered.drop_duplicates("replica", keep="last")

    @cached_property
    def meets_turn_slo(self) -> NDArray[np.bool_] | None:
        """Of each turn that asked for service: whether it met all of its objectives.

        None where the run states no objective for turns. A turn that was not served misses.
        """
        slo = self.facts.get("slo") or {}
        if "ttft_s" not in slo and "tpot_ms" not in slo:
            return None
        turns = self.turns[self.turns["status"].isin(ATTEMPTED)]
        met = (turns["status"] == "ok").to_numpy(np.bool_)
        if "ttft_s" in slo:
            met = met & (elapsed(turns["first_token"], turns["arrived"]) <= slo["ttft_s"])
        if "tpot_ms" in slo:
            # A turn of one token has no gaps, so it cannot miss.
            gaps = numbers(turns["output_tokens"]) - 1
            decode = elapsed(turns["finished"], turns["first_token"])
            met = met & ((gaps < 1) | (1e3 * decode <= slo["tpot_ms"] * gaps))
        return met


def seconds(column: pd.Series[Any]) -> Array:
    return numbers(column) / NS


def elapsed(end: pd.Series[Any], start: pd.Series[Any]) -> Array:
    """Seconds from `start` to `end`; subtracted as nanoseconds, which float64 holds exactly."""
    return (numbers(end) - numbers(start)) / NS


def numbers(column: pd.Series[Any]) -> Array:
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def known(values: Array) -> Array:
    return values[~np.isnan(values)]


def step_function(starts: Array, ends: Array) -> tuple[Array, Array]:
    """How many intervals hold at each time: sorted times, and the count from each on."""
    times = np.concatenate([starts, ends])
    change = np.concatenate([np.ones(starts.size), -np.ones(ends.size)])
    unique, where = np.unique(times, return_inverse=True)
    return unique, np.cumsum(np.bincount(where, weights=change, minlength=unique.size))
