"""The simulator's cells beside the measured ones, and whether it ranks the schedulers alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from statistics import fmean
from typing import Any, NamedTuple

from agentsched import InputError
from harness.cells import CellJob, sessions_of
from harness.live.words import BYTES_PER_TOKEN
from harness.sim.engine_types import PS_PER_NS
from harness.sim.run import simulate
from harness.validation.engine_fit import Fit
from results.records import DecisionRecord, ReplicaRecord, SessionRecord, TurnRecord
from results.run import Run
from schedulers.registry import create
from workloads.model import Session, TurnSpec


class Figures(NamedTuple):
    """Of one cell. Seconds; shares in percent."""

    latency: float
    """Mean time of a session."""
    ttft: float
    tpot: float
    makespan: float
    hit: float
    """Cached over prompt tokens."""


METRICS: Mapping[str, str] = {
    "latency": "task latency",
    "ttft": "TTFT",
    "tpot": "TPOT",
    "makespan": "makespan",
    "hit": "hit rate",
}


NUDGES = (0.98, 0.99, 1.0, 1.01, 1.02)
"""Factors on step times, one cell each: which turn reaches an engine first is chance, and with it
what a full cache holds; steps a hundredth longer throw the dice anew. Our choice."""


@dataclass(frozen=True, slots=True)
class Ranked:
    """A pair of schedulers in one metric."""

    metric: str
    pair: tuple[str, str]
    measured: float
    """Mean of the first less that of the second."""
    simulated: float
    clear: bool
    """The measured gap is beyond its noise: the two schedulers' repeats do not overlap."""

    @property
    def same(self) -> bool:
        return self.measured * self.simulated > 0


class _Kept:
    """A recorder that keeps turns and sessions."""

    def __init__(self) -> None:
        self.turns: list[TurnRecord] = []
        self.sessions: list[SessionRecord] = []

    def turn(self, record: TurnRecord) -> None:
        self.turns.append(record)

    def session(self, record: SessionRecord) -> None:
        self.sessions.append(record)

    def replica(self, record: ReplicaRecord) -> None:
        pass

    def decision(self, record: DecisionRecord) -> None:
        pass


def as_counted(
    sessions: Sequence[Session], prompts: Mapping[tuple[str, int], int]
) -> list[Session]:
    """Sessions with prompts as long as an engine counted them, the chat template's tokens too.

    Their text stays as it is: a gateway reads no template.

    Args:
        sessions: turns keep the whole prompt of an earlier one, or nothing.
        prompts: tokens by session and turn.

    Raises:
        InputError: a turn was not counted.
    """
    found = []
    for session in sessions:
        turns: list[TurnSpec] = []
        for index, turn in enumerate(session.turns):
            tokens = prompts.get((session.id, index))
            if tokens is None:
                raise InputError(f"turn {index} of {session.id} did not end", "record it again")
            kept = 0 if turn.kept_turn is None else turns[turn.kept_turn].prompt_tokens
            new = tokens - kept - sum(segment.tokens for segment in turn.shared)
            size = BYTES_PER_TOKEN * turn.new_tokens
            turns.append(replace(turn, kept_tokens=kept, new_tokens=new, new_bytes=size))
        found.append(replace(session, turns=tuple(turns)))
    return found


def simulated(run: Run, job: CellJob, fit: Fit) -> Figures:
    """The cell in simulation: same sessions, scheduler and settings, the fitted step times.

    Of the run it knows how long the prompts are, as a trace that a gateway recorded would say.
    Means over `NUDGES`.
    """
    turns = run.table(job.cell, "turns")
    columns = ("session", "turn", "prompt_tokens")
    counted = {
        (session, turn): tokens
        for session, turn, tokens in zip(*(turns[c].tolist() for c in columns), strict=True)
    }
    sessions = as_counted(sessions_of(job), counted)
    cells = [_play(job, sessions, fit, nudge) for nudge in NUDGES]
    return Figures(*map(fmean, zip(*cells, strict=True)))


def _play(job: CellJob, sessions: Sequence[Session], fit: Fit, nudge: float) -> Figures:
    kept = _Kept()
    outcome = simulate(
        sessions,
        workers=job.workers,
        scheduler=create(job.target, job.settings, job.cell.seed),
        cluster=job.cluster,
        settings=job.sim,
        engine=replace(
            job.engine,
            api_request_ps=round(fit.request_ns * PS_PER_NS),
            api_prompt_token_ps=round(fit.prompt_token_ns * PS_PER_NS),
            output_delay_ps=round(fit.output_ns * PS_PER_NS),
        ),
        recorder=kept,
        capacity_share=job.gateway_share,
        step_times=dict.fromkeys((r.id for r in job.cluster.replicas), fit.steps.times(nudge)),
    )
    ended = [turn for turn in kept.turns if turn.status == "ok"]
    rows = [(t.arrived, t.first_token, t.finished, t.output_tokens) for t in ended]
    return _figures(
        rows,
        [session.finished - session.started for session in kept.sessions],
        outcome.makespan_ns,
        sum(turn.cached_tokens or 0 for turn in ended) / sum(turn.prompt_tokens for turn in ended),
    )


def measured(run: Run, job: CellJob) -> Figures:
    """The cell as it ran."""
    turns = run.table(job.cell, "turns")
    turns = turns[turns["status"] == "ok"]
    sessions = run.table(job.cell, "sessions")
    columns = ("arrived", "first_token", "finished", "output_tokens")
    rows = zip(*(turns[name].astype("int64").tolist() for name in columns), strict=True)
    return _figures(
        list(rows),
        (sessions["finished"] - sessions["started"]).tolist(),
        float(run.summaries[job.cell]["makespan_s"]) * 1e9,
        float(turns["cached_tokens"].sum()) / float(turns["prompt_tokens"].sum()),
    )


def _figures(
    turns: Sequence[Any], sessions: Sequence[int], makespan_ns: float, hit: float
) -> Figures:
    """From (arrived, first token, finished, output tokens) of each turn."""
    return Figures(
        latency=fmean(sessions) / 1e9,
        ttft=fmean(first - arrived for arrived, first, _, _ in turns) / 1e9,
        tpot=fmean((end - first) / (out - 1) for _, first, end, out in turns if out > 1) / 1e9,
        makespan=makespan_ns / 1e9,
        hit=100 * hit,
    )


def hits_by_counter(run: Run, job: CellJob) -> tuple[float, float]:
    """Prompt tokens found cached, as the gateway accounts for them and as the engines count."""
    turns = run.table(job.cell, "turns")
    counters = run.summaries[job.cell]["counters"]
    engines = sum(
        value for name, value in counters.items() if name.startswith("engine.prefix_hits.")
    )
    return float(turns["cached_tokens"].sum()), float(engines)


def ranking(
    real: Mapping[str, Sequence[Figures]], ours: Mapping[str, Sequence[Figures]]
) -> list[Ranked]:
    """All pairs of schedulers in all metrics, from the figures of each seed."""
    found = []
    for metric in METRICS:
        for pair in combinations(real, 2):
            left, right = ([getattr(f, metric) for f in real[name]] for name in pair)
            mine = [fmean(getattr(f, metric) for f in ours[name]) for name in pair]
            clear = max(left) < min(right) or max(right) < min(left)
            gap = fmean(left) - fmean(right)
            found.append(Ranked(metric, pair, gap, mine[0] - mine[1], clear))
    return found
