"""Our engine loop against the notes of a real engine: same arrivals, same step times.

Given those, every step must hold the same requests with the same tokens, found cached, preempted
and evicted alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from agentsched import InputError
from harness.sim.content import ContentIndex, Line
from harness.sim.engine import Engine
from harness.sim.engine_types import (
    PS_PER_NS,
    DecodePiece,
    EngineParams,
    EngineRequest,
    StepRecord,
)
from harness.validation.engine_notes import Batch, EngineNotes, NotedRequest


@dataclass(frozen=True, slots=True)
class Difference:
    """The first step that is not the same."""

    step: int
    what: str
    engine: str
    ours: str


@dataclass(frozen=True, slots=True)
class Compared:
    """How many steps were the same in all of: batch, preempted requests, free blocks, evictions."""

    replica: str
    steps: int
    """Of the engine."""
    equal: int
    requests: int
    prompt_tokens: int
    cached: int
    """Prompt tokens that the engine found cached, when a request was first admitted."""
    cached_ours: int
    preempted: int
    preempted_ours: int
    evicted: int
    evicted_ours: int
    first: Difference | None = None


class _GivenTimes:
    """Step times as they were noted, step by step."""

    def __init__(self, took_ns: Sequence[int]) -> None:
        self._took = took_ns
        self.asked = 0

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(self._next(), 0, 1 << 62)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        return self._next()

    def _next(self) -> int:
        # A loop that goes on beyond the notes differs anyhow; any time will do for it.
        took = self._took[min(self.asked, len(self._took) - 1)]
        self.asked += 1
        return took * PS_PER_NS


@dataclass(slots=True)
class _Evictions:
    """Counts evicted blocks; see `harness.sim.block_cache.CacheWatcher`."""

    count: int = 0

    def stored(self, line: Line, lo: int, hi: int) -> None:
        pass

    def removed(self, branch: int, lo: int, hi: int) -> None:
        self.count += hi - lo

    def cleared(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class _Step:
    batch: Batch
    preempted: tuple[int, ...]
    free: int
    evicted: int


@dataclass(slots=True)
class _Ours:
    """Our engine on the same requests."""

    notes: EngineNotes
    steps: list[_Step] = field(default_factory=list)

    def run(self) -> None:
        settings = self.notes.settings
        params = params_of(self.notes)
        index = ContentIndex(params.block_size)
        times = _GivenTimes([step.end - step.start for step in self.notes.steps])
        evictions = _Evictions()

        def note(record: StepRecord) -> None:
            preempted = tuple(sorted(record.preempted))
            self.steps.append(_Step(record.batch, preempted, record.free_blocks, evictions.count))

        engine = Engine(params, times, int(settings["blocks"]), index, note)
        engine.watch_cache(evictions)
        for at, request, drop in sorted(_actions(self.notes), key=lambda action: action[0]):
            engine.advance(at)
            if drop:
                engine.abort(request.id, at)
                continue
            line = index.intern(request.text)
            engine.submit(
                EngineRequest(request.id, line, request.prompt, request.output, request.priority),
                at,
            )
        while (due := engine.next_event_time()) is not None:
            engine.advance(due)


def _actions(notes: EngineNotes) -> list[tuple[int, NotedRequest, bool]]:
    """(time, request, whether it is dropped then)."""
    arrivals = [(request.seen, request, False) for request in notes.requests]
    return arrivals + [(r.dropped, r, True) for r in notes.requests if r.dropped is not None]


def params_of(notes: EngineNotes) -> EngineParams:
    """The settings of the noted engine."""
    settings = notes.settings
    return EngineParams(
        block_size=int(settings["block_size"]),
        max_num_batched_tokens=int(settings["max_num_batched_tokens"]),
        max_num_seqs=int(settings["max_num_seqs"]),
        max_model_len=int(settings["max_model_len"]),
        policy=settings["policy"],
        watermark=float(settings["watermark"]),
        reserve_full_input=bool(settings["reserve_full_input"]),
        async_scheduling=False,
        fast_forward=False,
    )


def compare_steps(notes: EngineNotes) -> Compared:
    """Play the noted requests in our engine, and compare step by step.

    Raises:
        InputError: the notes hold no step, or are of an engine that composes steps ahead.
    """
    if not notes.steps:
        raise InputError(f"replica {notes.replica} ran no step", "record it again")
    if notes.settings["async_scheduling"]:
        raise InputError("the engine composed steps ahead", "start it with --no-async-scheduling")
    ours = _Ours(notes)
    ours.run()
    theirs = [_Step(s.batch, s.preempted, s.free, s.evicted) for s in notes.steps]
    equal = 0
    first: Difference | None = None
    for number, (left, right) in enumerate(zip(theirs, ours.steps, strict=False)):
        if left == right:
            equal += 1
        elif first is None:
            first = _difference(number, left, right)
    if first is None and len(theirs) != len(ours.steps):
        first = Difference(equal, "steps", str(len(theirs)), str(len(ours.steps)))
    return Compared(
        replica=notes.replica,
        steps=len(theirs),
        equal=equal,
        requests=len(notes.requests),
        prompt_tokens=sum(request.prompt for request in notes.requests),
        cached=sum(_cached(theirs).values()),
        cached_ours=sum(_cached(ours.steps).values()),
        preempted=sum(len(step.preempted) for step in theirs),
        preempted_ours=sum(len(step.preempted) for step in ours.steps),
        evicted=theirs[-1].evicted,
        evicted_ours=ours.steps[-1].evicted if ours.steps else 0,
        first=first,
    )


def _cached(steps: Sequence[_Step]) -> dict[int, int]:
    """Tokens found cached by request: those computed before its first chunk."""
    found: dict[int, int] = {}
    for step in steps:
        for request, _, before in step.batch:
            found.setdefault(request, before)
    return found


def _difference(number: int, engine: _Step, ours: _Step) -> Difference:
    for what in ("batch", "preempted", "free", "evicted"):
        left, right = getattr(engine, what), getattr(ours, what)
        if left != right:
            return Difference(number, what, str(left), str(right))
    raise AssertionError("the steps are equal")
