"""What an engine has done since its start, and since it last came up."""

from __future__ import annotations

from collections.abc import Iterator

from harness.sim.engine_types import StepRecord
from harness.sim.step_loop import Batch, StepLoop
from harness.sim.stretch import Stretch


class Counts:
    """Totals of whole steps. A lost replica counts on, its gauges start again at 0."""

    __slots__ = ("_before", "busy_ps", "decode", "generated", "prefill", "prompt", "steps")

    def __init__(self) -> None:
        self.prefill = self.decode = 0
        """Tokens computed, by prefills and by decodes."""
        self.prompt = self.generated = 0
        """Prompt tokens of requests that got their first token; output tokens handed out."""
        self.busy_ps = self.steps = 0
        self._before = (0, 0, 0, 0, 0)

    def book(self, batch: Batch, steps: int, took_ps: int) -> None:
        """`steps` steps of the batch were executed."""
        self.busy_ps += took_ps
        self.steps += steps
        self.decode += batch.decodes * steps
        self.generated += batch.decodes * steps
        for _, new, _ in batch.chunks:
            self.prefill += new

    def since_up(self, loop: StepLoop) -> tuple[int, int, int, int, int]:
        """Prefix queries and hits, preemptions, prompt and output tokens since it came up."""
        queried, hit, preempted, prompt, generated = self._all(loop)
        before = self._before
        return (
            queried - before[0],
            hit - before[1],
            preempted - before[2],
            prompt - before[3],
            generated - before[4],
        )

    def came_up(self, loop: StepLoop) -> None:
        self._before = self._all(loop)

    def _all(self, loop: StepLoop) -> tuple[int, int, int, int, int]:
        return loop.queried, loop.hit, loop.preemptions, self.prompt, self.generated


def records(
    batch: Batch, loop: StepLoop, stretch: Stretch, steps: int, free: int
) -> Iterator[StepRecord]:
    """One record for each of the next `steps` steps of the stretch, before they are booked."""
    if batch.walked is not None:
        rows = [(s.id, new, s.computed) for s, new in batch.walked]
    else:
        chunks = [(s.place, s.id, new, done) for s, new, done in batch.chunks]
        group = [
            (s.place, s.id, 1, loop.group.step + s.base - 1)
            for s in loop.running.values()
            if s.grouped and batch.decodes
        ]
        rows = [row[1:] for row in sorted(chunks + group)]
    preempted = tuple(s.id for s in batch.preempted)
    start = stretch.start_ps
    for step in range(steps):
        end = stretch.start_ps + stretch.cost(step + 1)
        grown = tuple((i, new, computed + step) for i, new, computed in rows)
        yield StepRecord(start, end, grown, preempted, free)
        start = end
