"""What an engine has done since its start, and since it last came up."""

from __future__ import annotations

from collections.abc import Iterator

from harness.sim.engine_types import EngineState, StepRecord
from harness.sim.step_loop import Batch, KvPool, StepLoop
from harness.sim.stretch import Stretch
from schedulers.types import ReplicaSample


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

    def sample(self, loop: StepLoop, pool: KvPool, passed: int) -> ReplicaSample:
        """The gauges; `passed` requests have left the API server and are not queued yet."""
        now, before = self._all(loop), self._before
        queries, hits, preemptions, prompt, generated = (
            value - old for value, old in zip(now, before, strict=True)
        )
        return ReplicaSample(
            running=len(loop.running),
            waiting=loop.queued + passed,
            kv_usage=1.0 - pool.free / pool.total,
            prefix_queries=queries,
            prefix_hits=hits,
            preemptions=preemptions,
            prompt_tokens=prompt,
            generation_tokens=generated,
        )

    def state(self, loop: StepLoop, pool: KvPool, passed: int, in_api_server: int) -> EngineState:
        """The truth."""
        return EngineState(
            running=len(loop.running),
            waiting=loop.queued + passed,
            in_api_server=in_api_server,
            total_blocks=pool.total,
            held_blocks=pool.total - pool.free,
            cached_blocks=pool.cached,
            evicted_blocks=pool.evicted,
            preemptions=loop.preemptions,
            prefill_tokens=self.prefill,
            decode_tokens=self.decode,
            busy_ps=self.busy_ps,
            steps=self.steps,
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
        rows = [row[1:] for row in sorted(chunks + group + batch.lost)]
    preempted = tuple(s.id for s in batch.preempted)
    start = stretch.start_ps
    for step in range(steps):
        end = stretch.start_ps + stretch.cost(step + 1)
        grown = tuple((i, new, computed + step) for i, new, computed in rows)
        yield StepRecord(start, end, grown, preempted, free)
        start = end
