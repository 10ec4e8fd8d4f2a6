"""Every metric once: tag, unit, which way is better, formula, source, and how it is computed.

Timing metrics are over served turns or finished tasks; failed ones are counted apart, never mixed
in. Percentiles interpolate linearly between order statistics (numpy's default).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

from results import formulas
from results.formulas import Sample
from results.frames import Frames

Better = Literal["lower", "higher", "neither"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One definition."""

    tag: str
    title: str
    """As a column heading."""
    unit: str
    better: Better
    formula: str
    source: str
    """Where the definition comes from."""
    compute: Callable[[Frames], Sample]


FACTS: Mapping[str, str] = {
    "kv_capacity_tokens": "KV cache of each replica in tokens: {replica: tokens}",
    "slo": "objectives, any of {ttft_s, tpot_ms, ttfet_s}",
    "energy_j": "energy that the replicas took over the makespan, in joules",
    "energy_source": "where that came from, e.g. a power model with assumed constants",
    "kv_transfers": "KV handed over between replicas, as engines count it: {count, seconds, bytes}",
    "cache_source": "where cached-token counts came from, e.g. engine usage or simulated blocks",
    "step_time_source": "where simulated step times came from",
    "model": "the model, as the user names it",
    "topology": "replicas and accelerators, as the user names them",
}
"""Facts of a cell that metrics and captions use; all optional."""

_USUAL = ("mean", "p50", "p90", "p95", "p99")


def _spread(
    tag: str,
    title: str,
    unit: str,
    quantity: str,
    formula: str,
    source: str,
    stats: tuple[str, ...] = _USUAL,
) -> list[Metric]:
    """One metric a statistic of a per-turn or per-session quantity; lower is better."""
    return [
        Metric(
            f"{tag}_{name}",
            title if name == "mean" else f"{title} {formulas.STATS[name][0]}",
            unit,
            "lower",
            f"{formulas.STATS[name][0]} of {formula}",
            source,
            partial(formulas.statistic, name, quantity),
        )
        for name in stats
    ]


def _counts(frame: str, noun: str, statuses: Mapping[str, str]) -> list[Metric]:
    return [
        Metric(
            f"{frame}_{status}",
            f"{noun} {status.replace('_', ' ')}",
            "count",
            "higher" if status in ("ok", "finished") else "lower",
            f"number of {noun} that {meaning}",
            "a count, kept apart from the slow",
            partial(formulas.count, frame, status),
        )
        for status, meaning in statuses.items()
    ]


METRICS: tuple[Metric, ...] = (
    *_spread(
        "latency",
        "task latency",
        "s",
        "latency_s",
        "(finished - taken up by a worker) over finished tasks, tool time included",
        "TAO, end-to-end task latency",
    ),
    *_spread(
        "ttft",
        "TTFT",
        "s",
        "ttft_s",
        "(first token of any kind - arrival at the gateway) over served turns; the pause is in it",
        "vLLM and AIPerf definition, measured at the gateway",
    ),
    *_spread(
        "tpot",
        "TPOT",
        "ms",
        "tpot_ms",
        "(finished - first token) / (output tokens - 1) over served turns of 2 tokens or more",
        "vLLM, SGLang and inference-perf definition",
    ),
    Metric(
        "itl_mean",
        "ITL",
        "ms",
        "lower",
        "sum of (finished - first token) / sum of (output tokens - 1): the mean over all gaps",
        "vLLM definition: every gap counts once, not every turn",
        formulas.itl_mean,
    ),
    *_spread(
        "stall",
        "worst stall",
        "s",
        "worst_stall_s",
        "the longest gap between two tokens of a turn, over sessions",
        "what a per-turn mean of gaps hides",
        ("mean", "p95", "max"),
    ),
    Metric(
        "decode_tps",
        "decode",
        "tok/s",
        "higher",
        "output tokens of served turns / makespan",
        "TAO, decode throughput; the makespan as its duration is our reading",
        formulas.decode_tps,
    ),
    Metric(
        "decode_tps_steady",
        "decode, steady",
        "tok/s",
        "higher",
        "output tokens inside the steady window / its length; the window goes from the first to "
        "the last instant with 90 % of the workers active",
        "our choice, after agentic-bench's rule",
        formulas.decode_tps_steady,
    ),
    Metric(
        "steady_trimmed",
        "trimmed",
        "percent",
        "neither",
        "100 x (1 - length of the steady window / makespan)",
        "printed wherever a steady-window figure is",
        formulas.steady_trimmed,
    ),
    Metric(
        "tps",
        "tokens",
        "tok/s",
        "higher",
        "(prompt + output tokens of served turns) / makespan",
        "SMetric, cluster tokens per second; counting cached prompt tokens is our reading",
        formulas.tps,
    ),
    Metric(
        "prefill_tps",
        "prefill",
        "tok/s",
        "neither",
        "(prompt - cached tokens of served turns) / makespan; unknown if one cached count is",
        "computed, not cached, prompt tokens as usage reports them",
        formulas.prefill_tps,
    ),
    Metric(
        "engine_prefill_tps",
        "engine prefill",
        "tok/s",
        "neither",
        "prompt tokens that the engines computed / makespan; recomputation is in it",
        "engine counters at the last sample of each replica",
        formulas.engine_prefill_tps,
    ),
    Metric(
        "cache_hit",
        "cache hit",
        "percent",
        "higher",
        "100 x cached tokens / prompt tokens, over served turns with a known cached count",
        "inference-perf definition; what is unknown is left out, never zero",
        formulas.cache_hit,
    ),
    Metric(
        "cache_known",
        "cache count known",
        "percent",
        "neither",
        "100 x served turns with a known cached count / served turns",
        "says what the cache hit rests on",
        formulas.cache_known,
    ),
    *_spread(
        "pause_wait",
        "pause wait",
        "s",
        "pause_s",
        "(last dispatch - arrival at the gateway) over served turns, waiting or not",
        "TAO, mean pause wait; over all turns is our reading",
        ("mean", "p95", "max"),
    ),
    Metric(
        "pause_wait_held_mean",
        "pause wait, held",
        "s",
        "lower",
        "mean of (last dispatch - arrival at the gateway) over served turns that were held",
        "the other reading of mean pause wait",
        formulas.pause_held,
    ),
    Metric(
        "held_share",
        "turns held",
        "percent",
        "lower",
        "100 x served turns that waited at the gateway / served turns",
        "how much of the run the mean pause wait speaks of",
        formulas.held_share,
    ),
    *_spread(
        "tool_end_to_first_token",
        "tool end to first token",
        "s",
        "tool_end_to_first_token_s",
        "(first token - end of the tools before the turn) over served turns after the first",
        "TAO, tool-end to first token",
        ("mean", "p95"),
    ),
    *_spread(
        "ttfet",
        "TTFET",
        "s",
        "ttfet_s",
        "(first token of the first user-visible turn - arrival of the first turn) over sessions",
        "ConServe, time to first effective token",
    ),
    *_spread(
        "ttfet_net",
        "TTFET net",
        "s",
        "ttfet_net_s",
        "TTFET less the tool time inside it, over sessions",
        "tool time is not the scheduler's",
        ("mean", "p95"),
    ),
    Metric(
        "slo_attainment",
        "SLO attainment",
        "percent",
        "higher",
        "100 x turns that met every stated objective / turns that asked for service; a turn that "
        "failed, was rejected or was too long misses",
        "vLLM and AIPerf goodput rule: all objectives at once",
        formulas.slo_attainment,
    ),
    Metric(
        "slo_violations",
        "SLO violations",
        "percent",
        "lower",
        "100 - SLO attainment",
        "ConServe, SLO violations",
        formulas.slo_violations,
    ),
    Metric(
        "goodput",
        "goodput",
        "turns/s",
        "higher",
        "turns that met every stated objective / makespan",
        "vLLM and AIPerf goodput",
        formulas.goodput,
    ),
    Metric(
        "ttfet_attainment",
        "TTFET attainment",
        "percent",
        "higher",
        "100 x sessions with TTFET within the objective / all sessions",
        "ConServe, objective on TTFET",
        formulas.ttfet_attainment,
    ),
    Metric(
        "tokens_per_joule",
        "tokens per joule",
        "tok/J",
        "higher",
        "output tokens of served turns / energy of the replicas over the makespan",
        "ConServe, energy efficiency",
        formulas.tokens_per_joule,
    ),
    Metric(
        "working_set_kv",
        "working set / KV",
        "percent",
        "neither",
        "100 x time mean of the contexts of live sessions / KV capacity of all replicas; a context "
        "counts from a turn's arrival at the size it has when the turn ends",
        "the axis on which caching collapses; our formula",
        formulas.working_set,
    ),
    Metric(
        "two_leg_turns",
        "turns in two legs",
        "count",
        "neither",
        "number of served turns whose prompt another replica computed",
        "prefill and decode replicas; our count",
        formulas.in_two_legs,
    ),
    Metric(
        "kv_transfers",
        "KV transfers",
        "count",
        "neither",
        "number of times that KV went to the replica of a turn; in simulation over served turns, "
        "the last time of each",
        "engine counters where there are some, else the turns' own times",
        formulas.kv_transfers,
    ),
    Metric(
        "kv_transfer_mean",
        "KV transfer",
        "ms",
        "lower",
        "mean time from the KV's departure to its arrival, over those transfers",
        "as the number of transfers",
        formulas.kv_transfer_mean,
    ),
    *_spread(
        "handover",
        "handover",
        "s",
        "handover_s",
        "(first token - end of the prefill leg) over served turns in two legs: transfer, the "
        "decoder's queue and its first step",
        "what the gateway sees of a transfer",
        ("mean", "p95"),
    ),
    Metric(
        "moves_per_session",
        "moves per session",
        "count",
        "lower",
        "served turns on another replica than the session's turn before / sessions served",
        "each move computes the context again",
        formulas.moves,
    ),
    Metric(
        "concurrency_mean",
        "concurrency",
        "count",
        "neither",
        "time mean over the makespan of the active tasks",
        "start and end of the run included",
        formulas.concurrency_mean,
    ),
    Metric(
        "concurrency_max",
        "peak concurrency",
        "count",
        "neither",
        "most tasks active at once",
        "to be held against the workers asked for",
        formulas.concurrency_max,
    ),
    Metric(
        "concurrency_share",
        "concurrency reached",
        "percent",
        "neither",
        "100 x most tasks active at once / workers",
        "under 100 the run did not test what it says",
        formulas.concurrency_share,
    ),
    Metric(
        "tasks_per_hour",
        "tasks per hour",
        "1/h",
        "higher",
        "3600 x finished tasks / makespan",
        "throughput as a user of agents counts it",
        formulas.tasks_per_hour,
    ),
    Metric(
        "engine_waiting_mean",
        "engine waiting",
        "count",
        "lower",
        "mean over replica samples of the requests waiting inside the engine",
        "engine gauge",
        partial(formulas.sampled, "waiting", "mean", 1.0),
    ),
    Metric(
        "engine_running_mean",
        "engine running",
        "count",
        "neither",
        "mean over replica samples of the requests running",
        "engine gauge",
        partial(formulas.sampled, "running", "mean", 1.0),
    ),
    Metric(
        "kv_used_mean",
        "KV used",
        "percent",
        "neither",
        "100 x mean over replica samples of the share of KV blocks held by running requests",
        "engine gauge",
        partial(formulas.sampled, "kv_used", "mean", 100.0),
    ),
    Metric(
        "kv_used_max",
        "KV used max",
        "percent",
        "neither",
        "100 x maximum over replica samples of the share of KV blocks held by running requests",
        "engine gauge",
        partial(formulas.sampled, "kv_used", "max", 100.0),
    ),
    Metric(
        "preemptions",
        "preemptions",
        "count",
        "lower",
        "requests that an engine stopped for want of KV blocks, all replicas together",
        "engine counter at the last sample of each replica",
        formulas.preemptions,
    ),
    Metric(
        "load_imbalance",
        "load imbalance",
        "ratio",
        "lower",
        "mean over sampling times of (most requests on a replica / mean over replicas), running "
        "and waiting, where any is busy; 1 is even",
        "SMetric, balance; our formula",
        formulas.imbalance,
    ),
    *_counts(
        "turns",
        "turns",
        {
            "ok": "were served",
            "failed": "failed",
            "rejected": "the gateway refused",
            "client_gone": "the client gave up",
            "context_exceeded": "were not sent because they pass the model's context limit",
            "too_long": "an engine refused as longer than its KV cache",
        },
    ),
    *_counts(
        "sessions",
        "sessions",
        {
            "finished": "ran to their end",
            "failed": "ended in an error",
            "rejected": "the gateway refused",
            "client_gone": "the client gave up",
            "context_exceeded": "would have passed the model's context limit",
            "too_long": "outgrew the KV cache of a replica",
            "deadline": "the end of the run cut off",
        },
    ),
)

BY_TAG: Mapping[str, Metric] = {metric.tag: metric for metric in METRICS}

MAIN = ("latency_mean", "ttft_mean", "decode_tps", "cache_hit", "pause_wait_mean")
"""The columns of the main table."""


def summarise(frames: Frames) -> dict[str, dict[str, Any]]:
    """Every metric of a cell: {tag: {value (None: unknown), unit, n (observations)}}."""
    return {
        metric.tag: {"value": value, "unit": metric.unit, "n": n}
        for metric in METRICS
        for value, n in (metric.compute(frames),)
    }
