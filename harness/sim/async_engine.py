"""The engine with asynchronous scheduling, as vLLM runs it where it can.

While a step runs the next one is composed (`v1/engine/core.py`, `step_with_batch_queue`;
`v1/core/sched/async_scheduler.py`): right after a step ends, the step that follows it is already
composed and starts, and the one after that is composed at the same time. So a request that arrives
during a step starts two steps later, and blocks of a request that ends come back a step later. The
processor's time to compose a step is hidden behind the step before, here as there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_counts import records
from harness.sim.engine_types import (
    PS_PER_NS,
    EngineEvent,
    EngineParams,
    StepRecord,
    StepTime,
)
from harness.sim.sequence import Sequence
from harness.sim.step_loop import Batch


def engine_for(
    params: EngineParams,
    step_time: StepTime,
    kv_blocks: int,
    contents: ContentIndex,
    on_step: Callable[[StepRecord], None] | None = None,
) -> Engine:
    """The vLLM engine that `params.async_scheduling` asks for. Arguments and errors as `Engine`."""
    kind = AsyncEngine if params.async_scheduling else Engine
    return kind(params, step_time, kv_blocks, contents, on_step)


class News(NamedTuple):
    """What a sequence gets when the running step ends."""

    sequence: Sequence
    first: bool
    prefilled: bool
    done: bool


class AsyncEngine(Engine):
    """See `Engine`. A running batch is booked when the next is composed, its tokens come later."""

    composes_ahead = True

    def __init__(
        self,
        params: EngineParams,
        step_time: StepTime,
        kv_blocks: int,
        contents: ContentIndex,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        super().__init__(params, step_time, kv_blocks, contents, on_step)
        self._ahead: Batch | None = None
        self._composed = False
        """The batch is booked and the one after it has been composed, or found empty."""
        self._news: list[News] = []
        self._late: list[StepRecord] = []
        self._changed = False
        """What ended at the start of the running stretch, after its batch was composed, may change
        the batch that follows."""
        self._disturbed = False
        """What waits may fit since the batch ahead was composed."""
        self._wasted = 0
        """Decodes of the running batch whose request is gone."""

    def output_tokens(self, request_id: int, now: int) -> int:
        tokens = super().output_tokens(request_id, now)
        sequence = self._requests.get(request_id)
        if sequence is None or not self._composed:
            return tokens
        end = self._stretch.end_ps
        if sequence.grouped:
            booked = self._batcher.group.step + sequence.base - sequence.prompt
            return booked - (end > now * PS_PER_NS)
        return tokens - (sequence.last_token_ps == end > now * PS_PER_NS)

    def abort(self, request_id: int, now: int) -> None:
        sequence = self._requests.get(request_id)
        if sequence is None or not sequence.running or self._batch is None:
            super().abort(request_id, now)
            return
        self._outbox.forget(request_id)
        del self._requests[request_id]
        self._may_load.discard(request_id)
        self._catch_up()
        if self._composed:
            self._aborting.append(sequence)
            return
        # The step starts at this very time: the request is in it, and gone when it ends.
        self._stretch.resize(1)
        if self._batch.decodes and sequence.decoding:
            self._wasted += 1
            self._note_lost(sequence, self._batch)
        self._batcher.drop(sequence)

    def _note_lost(self, sequence: Sequence, batch: Batch) -> None:
        """It is in the batch as one of the group, which it is about to leave."""
        if sequence.grouped and batch.walked is None:
            computed = self._batcher.group.step + sequence.base - 1
            batch.lost.append((sequence.place, sequence.id, 1, computed))

    def reset(self, now: int) -> list[int]:
        lost = super().reset(now)
        self._ahead, self._composed = None, False
        self._news.clear()
        self._late.clear()
        self._changed, self._disturbed, self._wasted = False, False, 0
        return lost

    def _wake_in_stretch(self) -> int:
        if self._composed or not self._may_load:
            return super()._wake_in_stretch()
        # The step after the stretch is composed when the last one of it starts.
        stretch = self._stretch
        last = stretch.start_ps + stretch.cost(stretch.steps - 1)
        return max(last, self._seen_ps) // PS_PER_NS + 1

    def _expect(self, time_ps: int) -> None:
        if self._batch is not None and not self._batch.stuck:
            self._look_again(time_ps)

    def _disturb(self, now: int) -> None:
        super()._disturb(now)
        self._disturbed = self._composed
        self._look_again(now * PS_PER_NS)

    def _look_again(self, time_ps: int) -> None:
        if self._batch is not None and not self._composed:
            steps = self._steps_composed_before(time_ps)
            self._stretch.resize(min(steps, self._stretch.steps))

    def _steps_composed_before(self, time_ps: int) -> int:
        """Steps of the stretch that are composed before `time_ps`, or were when it started."""
        stretch = self._stretch
        return 1 if time_ps <= stretch.start_ps else stretch.started_before(time_ps) + 1

    # ---- steps -------------------------------------------------------------------------------

    def _run(self, limit: int) -> None:
        while True:
            if self._batch is None:
                start = self._next_start()
                if start is None or start >= limit:
                    break
                self._begin(start)
                continue
            stretch = self._stretch
            if not self._composed:
                last = stretch.start_ps + stretch.cost(stretch.steps - 1)
                if last >= limit:
                    break
                self._compose_ahead(last)
            if stretch.end_ps > limit:
                break
            self._complete()

    def _compose_ahead(self, now_ps: int) -> None:
        """The last step of the stretch starts: compose the one after it."""
        batch, stretch = self._batch, self._stretch
        assert batch is not None
        batcher = self._batcher
        if stretch.steps > 1:
            self._pass(batch, stretch.steps - 1)
        self._book(batch, 1, stretch.end_ps)
        self._note_news(batch, stretch.end_ps)
        batcher.in_flight_ps = stretch.end_ps
        ahead = self._compose(now_ps)
        batcher.in_flight_ps = -1
        self._ahead = ahead if ahead.chunks or ahead.decodes else None
        self._composed = True

    def _pass(self, batch: Batch, steps: int) -> None:
        """The first `steps` steps of the stretch have ended, and the next one runs."""
        stretch = self._stretch
        end = stretch.start_ps + stretch.cost(steps)
        self._batcher.take_next_step(steps)
        self._book(batch, steps, end)
        self._count(batch, steps, end)
        stretch.begin_at(steps)
        batch.context += batch.decodes * steps
        self._batcher.group.ahead = 1

    def _book(self, batch: Batch, steps: int, end: int) -> None:
        if self._on_step is not None:
            self._late += records(batch, self._batcher, self._stretch, steps, self._cache.free)
        self._batcher.executed(batch, steps, self._stretch.longest(steps), end)

    def _count(self, batch: Batch, steps: int, end: int) -> None:
        self._counts.book(batch, steps, end - self._clock_ps)
        self._clock_ps = end
        if self._on_step is not None:
            for record in self._late:
                self._on_step(record)
            self._late.clear()

    def _note_news(self, batch: Batch, end: int) -> None:
        """Settle what the running step will bring, except what its end gives back."""
        batcher = self._batcher
        for sequence in batcher.due(batch):
            if sequence.decoding and batch.walked is None:
                self._news.append(News(sequence, False, False, True))
                batcher.retire(sequence)
                continue
            first, prefilled = sequence.last_token_ps < 0, not sequence.decoding
            batcher.token(sequence)
            if not first:
                sequence.gap_ps = max(sequence.gap_ps, end - sequence.last_token_ps)
            sequence.last_token_ps = end
            done = sequence.tokens == sequence.final
            self._news.append(News(sequence, first, prefilled, done))
            if done:
                batcher.retire(sequence)
            else:
                batcher.settle(sequence)
        if batch.walked is not None:
            batcher.walked_until(end)

    def _complete(self) -> None:
        batch, stretch = self._batch, self._stretch
        assert batch is not None
        end = stretch.end_ps
        self._count(batch, stretch.steps, end)
        self._counts.generated -= self._wasted
        self._wasted = 0
        self._batch = None
        ahead, self._ahead, self._composed = self._ahead, None, False
        self._changed, self._disturbed = bool(self._aborting) or self._disturbed, False
        for sequence in self._aborting:
            self._leave(sequence, batch, ahead)
        self._aborting.clear()
        for sequence, first, prefilled, done in self._news:
            if sequence.gone:
                continue
            self._counts.generated += prefilled
            if first:
                self._may_load.discard(sequence.id)
                self._counts.prompt += sequence.prompt
                if not sequence.prefill_only:
                    event = EngineEvent(0, "first_token", sequence.id, sequence.cached)
                    self._send(end, event, 1)
            if done:
                # Its blocks may let something in; where nothing waits, all goes on as composed.
                self._changed = self._changed or self._batcher.queued > 0
                self._finish(sequence, end)
        self._news.clear()
        if ahead is not None:
            self._launch(ahead, end)

    def _leave(self, sequence: Sequence, batch: Batch, ahead: Batch | None) -> None:
        """An aborted sequence: the tokens of the steps it is in reach nobody."""
        if sequence.decoding and not any(s is sequence for s, _, _ in batch.chunks):
            self._counts.generated -= 1
        if ahead is not None and ahead.decodes and sequence.decoding and not sequence.retiring:
            self._wasted += 1
            self._note_lost(sequence, ahead)
        if sequence.retiring:
            # Its last token never gets known, nor does the block hash that would depend on it.
            sequence.tokens -= 1
            sequence.computed -= 1
        self._batcher.drop(sequence)

    def _lengthen(self, batch: Batch, context_end: int) -> None:
        if self._changed:
            return
        group = self._batcher.group
        steps = min(group.steps_left(), (context_end - 1 - batch.context) // group.count + 1)
        if steps <= 1:
            return
        steps = group.steps_within(self._cache.free, steps)
        self._stretch.resize(steps)
        leaving = self._api.next_leaving()
        if leaving is not None and not batch.stuck:
            self._stretch.resize(min(steps, self._steps_composed_before(leaving)))

    def _begin(self, start: int) -> None:
        self._changed = False
        super()._begin(start)

    def _catch_up(self) -> None:
        batch, stretch = self._batch, self._stretch
        if batch is None or self._composed:
            return
        done = stretch.done_by(self._seen_ps)
        if done:
            self._pass(batch, done)
        if stretch.start_ps < self._seen_ps:
            stretch.resize(1)
            self._compose_ahead(stretch.start_ps)
