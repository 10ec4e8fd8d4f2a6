"""Step times of an engine on this machine, fitted on equal prompts at once, and nothing else.

    t = fixed + chunk [if there is one] + sequence x n + token x new + context x (decoding contexts)
        + pair x (sum over chunks of new x (computed before + (new + 1) / 2))

The last two are what attention reads and computes. Coefficients are least squares on relative
errors, none below 0. Time outside the engine's loop comes from requests that were alone.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from agentsched import InputError
from harness.sim.engine_types import PS_PER_NS, DecodePiece
from harness.validation.engine_notes import EngineNotes, NotedStep

TERMS = ("fixed", "chunk", "sequence", "token", "context", "pair")
_NO_END = 1 << 62
_OUTLIER = 4.0
"""Steps further than so many median deviations from a first fit are left out of the second: the
machine did something else then. Our choice."""

Features = tuple[float, float, float, float, float, float]
Array = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Call:
    """One request of the sweep as its client saw it; nanoseconds of the monotonic clock."""

    replica: str
    prompt: int
    batch: int
    sent: int
    received: int


@dataclass(frozen=True, slots=True)
class FittedSteps:
    """Step times from the coefficients, in nanoseconds. A `harness.sim.engine_types.StepTime`."""

    coefficients: Mapping[str, float]
    source: str = "fitted"

    def times(self, factor: float) -> FittedSteps:
        """Steps that take `factor` times as long."""
        longer = {name: factor * value for name, value in self.coefficients.items()}
        return FittedSteps(longer, self.source)

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        """The same line for all contexts."""
        use = self.coefficients
        fixed = use["fixed"] + decodes * (use["sequence"] + use["token"])
        return DecodePiece(max(round(fixed * PS_PER_NS), 1), _ps(use["context"]), _NO_END)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        """Picoseconds of a step with chunks of (new tokens, tokens computed before)."""
        if not chunks:
            piece = self.decode_piece(decodes, context_sum)
            return piece.fixed_ps + piece.per_token_ps * context_sum
        shape = features(chunks, decodes, context_sum)
        took = sum(self.coefficients[name] * x for name, x in zip(TERMS, shape, strict=True))
        return max(round(took * PS_PER_NS), 1)


def _ps(ns: float) -> int:
    return max(round(ns * PS_PER_NS), 0)


@dataclass(frozen=True, slots=True)
class Fit:
    """What the sweep said."""

    steps: FittedSteps
    request_ns: float
    """From sending a request to the engine's queue, without its tokens' share."""
    prompt_token_ns: float
    output_ns: float
    """From the end of the last step to the answer."""
    fitted_on: int
    """Steps."""
    left_out: int
    mean_error: float
    """Mean of the absolute relative errors on the steps it was fitted on."""


def features(chunks: Sequence[tuple[int, int]], decodes: int, context: int) -> Features:
    """What the coefficients multiply, in the order of `TERMS`."""
    new = sum(tokens for tokens, _ in chunks)
    pairs = sum(tokens * (before + (tokens + 1) / 2) for tokens, before in chunks)
    sequences = decodes + len(chunks)
    return (1.0, float(bool(chunks)), sequences, new + decodes, context, pairs)


def step_features(notes: EngineNotes, step: NotedStep) -> Features:
    """Of a step that an engine ran."""
    chunks: list[tuple[int, int]] = []
    decodes = context = 0
    for request, new, before in step.batch:
        if before >= notes.requests[request].prompt:
            decodes += 1
            context += before + 1
        else:
            chunks.append((new, before))
    return features(chunks, decodes, context)


def fit_steps(sweeps: Sequence[EngineNotes], calls: Sequence[Call]) -> Fit:
    """Fit to the notes of one or more replicas.

    Raises:
        InputError: the sweep is too small.
    """
    rows, times = [], []
    for notes in sweeps:
        for step in notes.steps:
            rows.append(step_features(notes, step))
            times.append(step.end - step.start)
    shapes, took = np.array(rows), np.array(times, dtype=float)
    if len({tuple(row) for row in rows}) < 2 * len(TERMS):
        raise InputError("the sweep has too few shapes to fit step times to", "record it again")
    first = _least_squares(shapes, took)
    errors = np.abs(shapes @ first / took - 1)
    kept = errors <= _OUTLIER * max(float(np.median(errors)), 0.01)
    found = _least_squares(shapes[kept], took[kept])
    request, token, output = _outside(sweeps, calls)
    return Fit(
        FittedSteps(dict(zip(TERMS, map(float, found), strict=True))),
        request,
        token,
        output,
        int(kept.sum()),
        int((~kept).sum()),
        float(np.mean(np.abs(shapes[kept] @ found / took[kept] - 1))),
    )


def _least_squares(shapes: Array, took: Array) -> Array:
    """On relative errors; coefficients that would be negative are 0."""
    weighted = shapes / took[:, None]
    ones = np.ones(len(took))
    live = list(range(shapes.shape[1]))
    while True:
        scale = np.linalg.norm(weighted[:, live], axis=0)
        scale[scale == 0] = 1.0
        found = np.linalg.lstsq(weighted[:, live] / scale, ones, rcond=None)[0] / scale
        if (found >= 0).all():
            break
        live.pop(int(np.argmin(found * scale)))
    full = np.zeros(shapes.shape[1])
    full[live] = found
    return full


def _outside(sweeps: Sequence[EngineNotes], calls: Sequence[Call]) -> tuple[float, float, float]:
    """Time before and after the engine's loop, of requests that were alone."""
    prompts, before, after = [], [], []
    by_replica = {notes.replica: notes for notes in sweeps}
    for call in calls:
        notes = by_replica[call.replica]
        within = [r for r in notes.requests if call.sent <= r.at <= call.received]
        if call.batch != 1 or len(within) != 1:
            continue
        alone = within[0]
        done = max(s.done for s in notes.steps if s.batch[0][0] == alone.id)
        prompts.append(alone.prompt)
        before.append(alone.seen - call.sent)
        after.append(call.received - done)
    if len(set(prompts)) < 2:
        raise InputError("the sweep has no requests that were alone", "record it again")
    lengths = np.array(prompts, dtype=float)
    token, request_ns = np.polyfit(lengths, np.array(before, dtype=float), 1)
    if token < 0 or request_ns < 0:
        token, request_ns = 0.0, float(np.median(before))
    return float(request_ns), float(token), float(np.median(after))


def write_calls(path: Path, calls: Sequence[Call]) -> None:
    rows = [[c.replica, c.prompt, c.batch, c.sent, c.received] for c in calls]
    path.write_text(json.dumps(rows), "ascii")


def read_calls(path: Path) -> list[Call]:
    """What `write_calls` wrote.

    Raises:
        InputError: it is not there.
    """
    try:
        return [Call(*row) for row in json.loads(path.read_text("ascii"))]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {error}", "record it again", file=path) from None
