"""Fit the scalars beside the step-time tables to a recorded run, through the simulator itself.

Each recorded turn is submitted to the replica it was sent to, at the time it was sent. Its text is
that of its session so far; what of it is cached follows from the simulated engine, and is reported
beside the record. The fit takes the smallest mean squared error of the time from dispatch to end
(Gauss-Newton, damped); errors of the other times are reported, not fitted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentsched import InputError, UsageError
from harness.capacity import Cluster
from harness.sim.clock import Clock, Priority
from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineEvent, EngineParams, EngineRequest
from harness.sim.fleet import Fleet
from harness.sim.perf_catalogue import find_profile
from harness.sim.replicas import replica_engine
from harness.sim.step_time import step_time_for

Times = NDArray[np.float64]

SCALARS = ("host_fixed_us", "host_per_seq_us", "bandwidth_scale")
FITTED = ("host_fixed_us", "bandwidth_scale")
"""By default. With all three, a run of much the same batch sizes cannot tell the host terms apart.
"""
RANGES: Mapping[str, tuple[float, float]] = {
    "host_fixed_us": (0.0, 50_000.0),
    "host_per_seq_us": (0.0, 500.0),
    "bandwidth_scale": (0.3, 2.0),
}
"""Searched. Our choice."""
_NUDGE: Mapping[str, float] = {
    "host_fixed_us": 300.0,
    "host_per_seq_us": 5.0,
    "bandwidth_scale": 0.03,
}
"""Steps of the numerical derivatives, times a width."""
MAX_ROUNDS = 12
_SHARED = "shared beginning"


@dataclass(frozen=True, slots=True)
class RecordedTurn:
    """One served turn; nanoseconds from the start of the run."""

    session: str
    turn: int
    replica: str
    dispatched: int
    first_token: int
    finished: int
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Residual:
    """One statistic of one metric: seconds, and the simulator's signed error in percent."""

    metric: str
    statistic: str
    measured: float
    simulated: float
    error: float


@dataclass(frozen=True, slots=True)
class Calibration:
    """Fitted scalars, and how far the simulator is from the run with them."""

    scalars: Mapping[str, float]
    residuals: tuple[Residual, ...]
    turns: int
    plays: int
    """Simulations it took."""
    measured_hit: float
    simulated_hit: float
    """Cached over prompt tokens."""


def read_turns(frame: Any, path: Path) -> list[RecordedTurn]:
    """The served turns of a `turns.parquet`, in order of dispatch.

    Raises:
        InputError: it holds none.
    """
    served = frame[(frame["status"] == "ok") & frame["first_token"].notna()]
    if served.empty:
        raise InputError("holds no served turn", "calibrate with a run that served some", file=path)
    rows = [
        RecordedTurn(
            session=str(row.session),
            turn=int(row.turn),
            replica=str(row.replica),
            dispatched=int(row.dispatched),
            first_token=int(row.first_token),
            finished=int(row.finished),
            prompt_tokens=int(row.prompt_tokens),
            cached_tokens=0 if row.cached_tokens != row.cached_tokens else int(row.cached_tokens),
            output_tokens=int(row.output_tokens),
        )
        for row in served.itertuples()
    ]
    return sorted(rows, key=lambda turn: (turn.dispatched, turn.session, turn.turn))


class Player:
    """Plays recorded turns with given scalars.

    Raises:
        UsageError: a turn ran on a replica that the cluster does not have.
    """

    def __init__(
        self, turns: Sequence[RecordedTurn], cluster: Cluster, engine: EngineParams
    ) -> None:
        names = [replica.id for replica in cluster.replicas]
        strange = sorted({turn.replica for turn in turns} - set(names))
        if strange:
            raise UsageError(
                f"the run used replica `{strange[0]}`, which the topology does not have",
                f"replicas: {', '.join(names)}",
            )
        self.turns = turns
        self.plays = 0
        self._cluster, self._engine = cluster, engine
        self._texts = _texts(turns)

    def play(self, scalars: Mapping[str, float]) -> Played:
        """Simulate the run.

        Raises:
            UsageError: a turn does not fit its replica.
        """
        self.plays += 1
        clock, contents = Clock(), ContentIndex(self._engine.text_block)
        played = Played(len(self.turns))

        def deliver(replica: str, event: EngineEvent) -> None:
            if event.kind == "first_token":
                played.first[event.id] = clock.now
            elif event.kind == "finished":
                played.last[event.id] = clock.now
                played.cached += event.cached_tokens
            else:
                turn = self.turns[event.id]
                raise UsageError(
                    f"turn {turn.turn} of {turn.session} does not fit: {event.reason}",
                    "give the model and topology of the run",
                )

        fleet = Fleet(clock, self._engines(scalars, contents), deliver)
        for number, (turn, text) in enumerate(zip(self.turns, self._texts, strict=True)):
            line = contents.intern(text)
            request = EngineRequest(number, line, turn.prompt_tokens, turn.output_tokens)
            submit = partial(fleet.submit, turn.replica, request)
            clock.at(turn.dispatched, Priority.AGENT, submit)
        while clock.step():
            pass
        return played

    def _engines(self, scalars: Mapping[str, float], contents: ContentIndex) -> dict[str, Engine]:
        return {
            replica.id: replica_engine(
                self._engine,
                step_time_for(
                    self._cluster.model,
                    replica,
                    host_fixed_us=scalars["host_fixed_us"],
                    host_per_seq_us=scalars["host_per_seq_us"],
                    bandwidth_scale=scalars["bandwidth_scale"],
                    backend=self._engine.engine,
                ),
                replica,
                contents,
            )
            for replica in self._cluster.replicas
        }


class Played:
    """What clients saw, in nanoseconds, by turn."""

    def __init__(self, turns: int) -> None:
        self.first = np.full(turns, np.nan)
        self.last = np.full(turns, np.nan)
        self.cached = 0


def _texts(turns: Sequence[RecordedTurn]) -> list[list[tuple[str, int]]]:
    """Each turn's prompt and output as (segment, tokens).

    A session's text grows; a prompt shorter than what came before it was cut, and starts anew. All
    sessions begin alike, with as many tokens as first prompts most often had cached.
    """
    begun: set[str] = set()
    found = Counter[int]()
    for turn in turns:
        if turn.session not in begun and turn.cached_tokens:
            found[turn.cached_tokens] += 1
        begun.add(turn.session)
    common = found.most_common(1)[0][0] if found else 0
    texts: list[list[tuple[str, int]]] = []
    state: dict[str, tuple[str, int]] = {}
    for turn in turns:
        total = turn.prompt_tokens + turn.output_tokens
        name, length = state.get(turn.session, ("", 0))
        if not name or turn.prompt_tokens < length:
            name = f"{turn.session}#{turn.turn}"
        state[turn.session] = (name, total)
        shared = min(common, turn.prompt_tokens)
        texts.append([(_SHARED, shared), (name, total - shared)])
    return texts


def calibrate(
    turns: Sequence[RecordedTurn],
    cluster: Cluster,
    engine: EngineParams,
    *,
    fit: Sequence[str] = FITTED,
    backend: str = "vllm",
) -> Calibration:
    """Fit the named scalars; the others stay as shipped for the GPU kind.

    Raises:
        UsageError: unknown scalar, or a turn that does not fit the cluster.
    """
    for name in fit:
        if name not in SCALARS:
            raise UsageError(f"no scalar `{name}`", f"scalars: {', '.join(SCALARS)}")
    profile = find_profile(cluster.replicas[0].gpu.name, backend)
    scalars = {name: float(getattr(profile, name)) for name in SCALARS}
    player = Player(turns, cluster, engine)
    scalars = _descend(player, scalars, list(fit))
    played = player.play(scalars)
    prompt = sum(turn.prompt_tokens for turn in turns)
    return Calibration(
        scalars=scalars,
        residuals=tuple(_residuals(turns, played)),
        turns=len(turns),
        plays=player.plays,
        measured_hit=sum(turn.cached_tokens for turn in turns) / prompt,
        simulated_hit=played.cached / prompt,
    )


def _descend(player: Player, start: dict[str, float], fit: list[str]) -> dict[str, float]:
    """Damped Gauss-Newton on the times from dispatch to end, within `RANGES`.

    Derivatives are numerical: first over wide steps, so that a turn's joining another engine step
    evens out, then over narrower ones.
    """
    measured = np.array([turn.finished for turn in player.turns], dtype=float)

    def residual(scalars: Mapping[str, float]) -> Times:
        difference: Times = (player.play(scalars).last - measured) / 1e9
        return difference

    scalars = dict(start)
    now = residual(scalars)
    for width in (3.0, 1.0, 0.3, 0.1):
        for _ in range(MAX_ROUNDS):
            better = _improve(residual, scalars, now, {n: width * _NUDGE[n] for n in fit})
            if better is None:
                break
            gained = 1 - (better[1] @ better[1]) / (now @ now)
            scalars, now = better
            if gained < 0.01:
                break
    return scalars


def _improve(
    residual: Callable[[Mapping[str, float]], Times],
    scalars: dict[str, float],
    now: Times,
    nudges: Mapping[str, float],
) -> tuple[dict[str, float], Times] | None:
    """A better point, or None if none is found."""
    if not now.any():
        return None
    columns = []
    for name, nudge in nudges.items():
        up = scalars[name] + nudge <= RANGES[name][1]
        moved = residual({**scalars, name: scalars[name] + (nudge if up else -nudge)})
        # In units of the nudge, so that damping treats all scalars alike.
        columns.append(moved - now if up else now - moved)
    jacobian = np.stack(columns, axis=1)
    normal, slope = jacobian.T @ jacobian, jacobian.T @ now
    for damping in (0.0, 1e-3, 1e-2, 0.1, 1.0, 10.0, 100.0):
        scaled = normal + np.diag(damping * np.diag(normal) + 1e-12)
        change = np.linalg.solve(scaled, -slope)
        tried = dict(scalars)
        for (name, nudge), units in zip(nudges.items(), change, strict=True):
            tried[name] = float(np.clip(scalars[name] + units * nudge, *RANGES[name]))
        there = residual(tried)
        if there @ there < now @ now:
            return tried, there
    return None


def _residuals(turns: Sequence[RecordedTurn], played: Played) -> Iterator[Residual]:
    dispatched = np.array([turn.dispatched for turn in turns], dtype=float)
    outputs = np.array([turn.output_tokens for turn in turns])
    recorded_first = np.array([turn.first_token for turn in turns], dtype=float)
    recorded_last = np.array([turn.finished for turn in turns], dtype=float)
    several = outputs > 1
    for metric in ("ttft", "tpot", "e2e"):
        pair = []
        for first, last in ((recorded_first, recorded_last), (played.first, played.last)):
            values = {
                "ttft": first - dispatched,
                "tpot": (last - first)[several] / (outputs[several] - 1),
                "e2e": last - dispatched,
            }[metric]
            pair.append(values / 1e9)
        if not len(pair[0]):
            continue
        for statistic, of in _STATISTICS.items():
            measured, simulated = of(pair[0]), of(pair[1])
            error = 100 * (simulated / measured - 1) if measured else 0.0
            yield Residual(metric, statistic, measured, simulated, error)


_STATISTICS: dict[str, Callable[[Times], float]] = {
    "mean": lambda values: float(values.mean()),
    "p50": lambda values: float(np.percentile(values, 50)),
    "p99": lambda values: float(np.percentile(values, 99)),
}


def profile_text(found: Calibration, run: str) -> str:
    """The fit as YAML: a `sim` section for a specification, residuals as comments."""
    lines = [
        f"# Fitted on {run}: {found.turns:,} turns. Errors of the simulator with these scalars:",
        *(
            f"#   {r.metric.upper():4} {r.statistic:4}  measured {r.measured:9.4f} s"
            f"  simulated {r.simulated:9.4f} s  {r.error:+.2f} %"
            for r in found.residuals
        ),
        f"#   cached prompt tokens: measured {found.measured_hit:.2%}, "
        f"simulated {found.simulated_hit:.2%}",
        "sim:",
        *(f"  {name}: {found.scalars[name]:.6g}" for name in SCALARS),
    ]
    return "\n".join(lines) + "\n"
