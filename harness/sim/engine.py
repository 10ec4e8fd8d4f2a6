"""One simulated engine instance: requests in, events out, in virtual time.

The engine works one step after the other as long as it has anything to do; a step is not
interrupted, and starts with what has passed the API server by then. Runs of decode steps that
nothing can disturb are executed in one go: with a step time linear in the sum of contexts S, k
steps of n sequences take k * (fixed + slope * S) + slope * n * k * (k - 1) / 2, exactly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from agentsched import PerformanceDataError, SimulationError
from harness.sim.api_server import ApiServer
from harness.sim.batcher import Batcher
from harness.sim.block_cache import BlockCache, CacheWatcher
from harness.sim.content import ContentIndex
from harness.sim.engine_counts import Counts, records
from harness.sim.engine_types import (
    PS_PER_NS,
    EngineEvent,
    EngineParams,
    EngineRequest,
    EngineState,
    StepRecord,
    StepTime,
)
from harness.sim.outbox import Outbox, to_ns
from harness.sim.request_checks import check_request, never_runs, stalled
from harness.sim.sequence import Sequence
from harness.sim.slowdown import VaryingSteps
from harness.sim.step_loop import Batch, KvPool, StepLoop
from harness.sim.stretch import Stretch
from schedulers.types import ReplicaSample


class Engine:
    """A vLLM-like engine behind one URL.

    The driver calls `advance(t)` before `submit`, `abort` or `reset` at time t, and times never
    go back. Between two calls the engine starts no step at the very time it was advanced to, so
    everything submitted at one time can enter the same step.

    Args:
        params: engine settings.
        step_time: how long a step takes.
        kv_blocks: size of the KV cache in blocks, as the engine reports it.
        contents: the index that the requests' lines come from; its block size must be the same.
        on_step: called after every executed step, for tests and traces.

    Raises:
        TopologyError: no KV block is left for tokens.
        PerformanceDataError: a step time is not positive.
    """

    composes_ahead: ClassVar[bool] = False

    def __init__(
        self,
        params: EngineParams,
        step_time: StepTime,
        kv_blocks: int,
        contents: ContentIndex,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        if params.async_scheduling != self.composes_ahead:
            raise SimulationError(
                "this engine does not schedule as `async_scheduling` asks",
                "make engines with `harness.sim.async_engine.engine_for`",
            )
        if contents.block_size != params.block_size:
            raise SimulationError(
                f"texts are cut into blocks of {contents.block_size} tokens, "
                f"the engine uses {params.block_size}",
                "give both the same block size",
            )
        self.params = params
        self._step_time = step_time
        self._cache, self._batcher = self._parts(kv_blocks)
        self._api = ApiServer(params.api_request_ps, params.api_prompt_token_ps)
        self._on_step = on_step
        self._requests: dict[int, Sequence] = {}
        self._aborting: list[Sequence] = []
        self._outbox = Outbox()
        self._counts = Counts()
        self._seen_ps = 0
        """Time that the engine was last advanced to."""
        self._clock_ps = 0
        """End of the last executed step, or start of the one that runs."""
        self._batch: Batch | None = None
        self._blocked = False
        """Nothing can start until KV arrives or kept blocks are freed."""
        self._may_load: set[int] = set()
        """Requests that may ask for remote KV and have not yet."""
        self._stretch = Stretch(0, 0, 0, 0, 0)
        """How long the batch runs; meaningless without one."""

    def _parts(self, kv_blocks: int) -> tuple[KvPool, StepLoop]:
        """The KV pool, and what composes the steps."""
        params = self.params
        windows = params.window_hits == "prompt_ends"
        cache = BlockCache(kv_blocks - params.null_blocks, params.prefix_caching, windows)
        return cache, Batcher(params, cache)

    # ---- what the driver calls ---------------------------------------------------------------

    def submit(self, request: EngineRequest, now: int) -> None:
        """Hand a request to the API server at `now` (ns). Its outcome comes from `advance`."""
        check_request(request, request.id in self._requests)
        now_ps = now * PS_PER_NS
        sequence = Sequence(request, now_ps)
        leaves = self._api.serve(now_ps, request.prompt_tokens)
        reason = never_runs(self.params, self._cache.total, sequence.prompt, sequence.final)
        if reason is not None:
            self._send(leaves, EngineEvent(0, "rejected", request.id, reason=reason))
            return
        self._requests[request.id] = sequence
        if sequence.remote:
            self._may_load.add(sequence.id)
        self._api.put(leaves, sequence)
        self._expect(leaves)

    def _expect(self, time_ps: int) -> None:
        """A request leaves the API server at `time_ps`: the step after may differ."""
        if self._batch is not None and self._stretch.steps > 1 and not self._batch.stuck:
            self._cut(self._stretch.started_before(time_ps))

    def abort(self, request_id: int, now: int) -> None:
        """Stop a request; one that is being computed leaves when the running step ends.

        Unknown and finished requests are ignored, as by an engine; events of the request that
        are still on their way to the client are dropped.
        """
        self._outbox.forget(request_id)
        sequence = self._requests.pop(request_id, None)
        if sequence is None:
            return
        self._may_load.discard(request_id)
        if sequence.running:
            if self._batch is not None and self._stretch.steps > 1:
                done = self._stretch.done_by(now * PS_PER_NS)
                between = done and self._clock_ps + self._stretch.cost(done) == now * PS_PER_NS
                self._cut(done if between else done + 1)
            if self._batch is None:
                self._batcher.drop(sequence)
            else:
                self._aborting.append(sequence)
        elif sequence.in_api:
            self._api.remove(sequence)
        else:
            self._catch_up()
            self._batcher.drop(sequence)
            self._disturb(now)

    def loaded(self, request_id: int, now: int) -> None:
        """The KV that a `loading` event asked for has come. Requests that are gone are ignored."""
        self._catch_up()
        if request_id in self._batcher.loading:
            # Copies of its blocks that others have written by now were hashed first.
            self._batcher.observe(in_step=self._batch is not None)
        if self._batcher.loaded(request_id):
            self._disturb(now)

    def release(self, request_id: int, now: int) -> None:
        """Free the blocks of an ended request with `keep_blocks`."""
        self._catch_up()
        if self._batcher.release(request_id):
            self._disturb(now)

    def step_times_changed(self, now: int) -> None:
        """Steps that start from now on take other times than the step-time model said before."""
        self._catch_up()
        if self._batch is not None and self._stretch.steps > 1:
            self._cut(self._stretch.started_before(now * PS_PER_NS))

    def slow_down(self, factor: float, now: int) -> None:
        """Steps that start after `now` take `factor` times as long as the step-time model says."""
        self._catch_up()
        if not isinstance(self._step_time, VaryingSteps):
            self._step_time = VaryingSteps(self._step_time)
        self._step_time.factor = factor
        if self._batch is not None and self._stretch.steps > 1:
            self._cut(self._stretch.started_before(now * PS_PER_NS))

    def _disturb(self, now: int) -> None:
        """What waits may fit now: look again at the next step boundary."""
        self._blocked = False
        if self._batch is None:
            # Idle or blocked: what comes now does not start when the last step ended.
            self._clock_ps = max(self._clock_ps, now * PS_PER_NS)
        if self._batch is not None and self._stretch.steps > 1:
            self._cut(self._stretch.started_before(now * PS_PER_NS))

    def next_event_time(self) -> int | None:
        """When to call `advance` next (ns), if nothing is submitted until then; None if idle.

        Never later than the next event. Often that event's time, sometimes an earlier point that
        the engine has to pass first; to advance to it always makes progress.
        """
        times: list[int] = []
        arriving = self._outbox.next_time()
        if arriving is not None:
            times.append(to_ns(arriving))
        if self._batch is not None:
            times.append(self._wake_in_stretch())
        else:
            start = self._next_start()
            if start is not None:
                times.append(max(start, self._seen_ps) // PS_PER_NS + 1)
        return min(times) if times else None

    def _wake_in_stretch(self) -> int:
        # A load is announced when its step is composed, which nothing else reports in time.
        delay = 0 if self._may_load else self.params.output_delay_ps
        return to_ns(self._stretch.end_ps + delay)

    def advance(self, until: int) -> list[EngineEvent]:
        """Run to `until` (ns) and return the events up to then, in order of time."""
        limit = until * PS_PER_NS
        self._seen_ps = limit
        self._run(limit)
        return self._outbox.pop_until(limit)

    def output_tokens(self, request_id: int, now: int) -> int:
        """Output tokens that a request in flight has got by `now`; 0 for an unknown one.

        May be asked without `advance`, which still returns the events up to then.
        """
        if self._batch is not None and self._stretch.end_ps <= now * PS_PER_NS:
            self._seen_ps = now * PS_PER_NS
            self._run(self._seen_ps)
        sequence = self._requests.get(request_id)
        if sequence is None:
            return self._outbox.tokens_of(request_id)
        if not sequence.grouped:
            return sequence.tokens - sequence.prompt
        decoding = self._batch is not None and self._batch.decodes > 0
        done = self._stretch.done_by(now * PS_PER_NS) if decoding else 0
        return self._batcher.group.step + done + sequence.base - sequence.prompt

    def sample(self) -> ReplicaSample:
        """The gauges as the engine reports them at the time it was advanced to."""
        self._catch_up()
        passed = self._api.left_by(self._seen_ps)
        return self._counts.sample(self._batcher, self._cache, passed)

    def state(self) -> EngineState:
        """The truth at the time the engine was advanced to."""
        self._catch_up()
        self._batcher.observe(in_step=self._batch is not None)
        passed = self._api.left_by(self._seen_ps)
        still = len(self._api) - passed
        return self._counts.state(self._batcher, self._cache, passed, still)

    def watch_cache(self, watcher: CacheWatcher) -> bool:
        """Tell of blocks that are stored and removed; False if its cache does not keep blocks."""
        if not isinstance(self._cache, BlockCache):
            return False
        self._cache.watcher = watcher
        return True

    def clear_cache(self) -> bool:
        """Forget all content that is cached; False, and nothing happens, while blocks are held."""
        self._catch_up()
        if self._cache.free < self._cache.total:
            return False
        self._cache.clear()
        return True

    def reset(self, now: int) -> list[int]:
        """The replica dies and comes back empty; returns the requests that were in flight.

        The counters of `sample` start again at 0, those of `state` go on.
        """
        self._catch_up()
        lost = self._outbox.endings() + list(self._requests)
        self._requests.clear()
        self._aborting.clear()
        self._outbox.clear()
        self._blocked = False
        self._may_load.clear()
        self._batch = None
        self._api.clear()
        self._batcher.clear()
        self._clock_ps = self._seen_ps = now * PS_PER_NS
        self._counts.came_up(self._batcher)
        return lost

    # ---- steps -------------------------------------------------------------------------------

    def _run(self, limit: int) -> None:
        """Execute steps until `limit` (ps)."""
        while True:
            if self._batch is not None:
                if self._stretch.end_ps > limit:
                    break
                self._complete()
            else:
                start = self._next_start()
                if start is None or start >= limit:
                    break
                self._begin(start)

    def _next_start(self) -> int | None:
        """When the next step starts, between two steps."""
        leaving = self._api.next_leaving()
        if not self._blocked and self._batcher.busy:
            return self._clock_ps
        return None if leaving is None else max(leaving, self._clock_ps)

    def _begin(self, start: int) -> None:
        """Compose the step that starts now, and see how many can follow it undisturbed."""
        self._clock_ps = start
        self._blocked = False
        batcher = self._batcher
        batch = self._compose(start)
        if not batch.chunks and not batch.decodes and batch.preempted:
            # vLLM runs an empty step when the only running request had to preempt itself.
            batch = batcher.schedule()
            self._announce(batch, start)
        if not batch.chunks and not batch.decodes:
            if not batcher.loading and not batcher.kept:
                raise stalled(batcher.queued)
            self._blocked = True
            return
        self._launch(batch, start)

    def _compose(self, now_ps: int) -> Batch:
        """Let in what has left the API server, and compose a step."""
        while (arrived := self._api.pop_until(now_ps)) is not None:
            arrived.in_api = False
            self._batcher.waiting.add(arrived)
        batch = self._batcher.schedule()
        self._announce(batch, now_ps)
        return batch

    def _launch(self, batch: Batch, start: int) -> None:
        """Execute the batch from `start` on, as often as nothing can change it."""
        self._batch = batch
        if batch.chunks:
            chunks = [(new, computed) for _, new, computed in batch.chunks]
            fixed = self._step_time.mixed_ps(chunks, batch.decodes, batch.context)
            self._stretch = Stretch(start, fixed, 0, batch.decodes, batch.context)
        else:
            piece = self._step_time.decode_piece(batch.decodes, batch.context)
            self._stretch = Stretch(
                start, piece.fixed_ps, piece.per_token_ps, batch.decodes, batch.context
            )
            if batch.walked is None and self.params.fast_forward and not batch.observed:
                self._lengthen(batch, piece.context_end)
        if self._stretch.end_ps <= start:
            raise PerformanceDataError(
                f"a step of {batch.decodes} decodes over {batch.context} tokens and "
                f"{len(batch.chunks)} prefills takes {self._stretch.end_ps - start} ps",
                "check the step-time table",
            )

    def _announce(self, batch: Batch, start: int) -> None:
        """Tell of the sequences that wait for remote KV from this step's start on."""
        for sequence, tokens in batch.loads:
            self._may_load.discard(sequence.id)
            event = EngineEvent(0, "loading", sequence.id, sequence.cached, load_tokens=tokens)
            self._outbox.send(start, event)

    def _lengthen(self, batch: Batch, context_end: int) -> None:
        """Add decode steps until one ends, blocks run out, the cost changes, a request arrives."""
        group = self._batcher.group
        steps = min(group.steps_left(), (context_end - 1 - batch.context) // group.count + 1)
        if steps <= 1:
            return
        steps = group.steps_within(self._cache.free, steps)
        self._stretch.resize(steps)
        leaving = self._api.next_leaving()
        if leaving is not None and not batch.stuck:
            self._stretch.resize(self._stretch.started_before(leaving))

    def _cut(self, steps: int) -> None:
        """Let the running stretch end after `steps` steps."""
        if steps < self._stretch.steps:
            self._stretch.resize(steps)
            if self._stretch.end_ps <= self._seen_ps:
                self._complete()

    def _catch_up(self) -> None:
        """Execute the steps of the running stretch that have ended."""
        batch, stretch = self._batch, self._stretch
        if batch is None or stretch.steps == 1:
            return
        done = stretch.done_by(self._seen_ps)
        if done == 0:
            return
        end = self._clock_ps + stretch.cost(done)
        if end == self._seen_ps:
            self._cut(done)
            return
        self._batcher.take_next_step(done)
        self._execute(batch, done, end)
        stretch.begin_at(done)

    def _execute(self, batch: Batch, steps: int, end: int) -> None:
        """Book `steps` steps of the batch, the last of which ends at `end`."""
        if self._on_step is not None:
            for record in records(batch, self._batcher, self._stretch, steps, self._cache.free):
                self._on_step(record)
        self._counts.book(batch, steps, end - self._clock_ps)
        self._clock_ps = end
        self._batcher.executed(batch, steps, self._stretch.longest(steps), end)

    def _complete(self) -> None:
        """The running stretch ends: hand out its tokens, let go of what is done."""
        batch, steps, end = self._batch, self._stretch.steps, self._stretch.end_ps
        assert batch is not None
        batcher = self._batcher
        if steps > 1:
            batcher.take_next_step(steps - 1)
        self._execute(batch, steps, end)
        self._batch = None
        if self._aborting:
            self._drop_aborted(batch)
        for sequence in batcher.due(batch):
            if sequence.decoding and batch.walked is None:
                self._finish(sequence, end)
            else:
                self._token(sequence, end)
        if batch.walked is not None:
            batcher.walked_until(end)

    def _drop_aborted(self, batch: Batch) -> None:
        for sequence in self._aborting:
            if sequence.decoding and batch.decodes:
                self._counts.generated -= 1
            self._batcher.drop(sequence)
        self._aborting.clear()

    def _token(self, sequence: Sequence, end: int) -> None:
        """A token from a prefill, or from a step that was composed one by one."""
        first = sequence.last_token_ps < 0
        prefilled = not sequence.decoding
        self._batcher.token(sequence)
        if prefilled:
            self._counts.generated += 1
        if first:
            self._may_load.discard(sequence.id)
            self._counts.prompt += sequence.prompt
            if not sequence.prefill_only:
                event = EngineEvent(0, "first_token", sequence.id, sequence.cached)
                self._send(end, event, 1)
        elif end - sequence.last_token_ps > sequence.gap_ps:
            sequence.gap_ps = end - sequence.last_token_ps
        sequence.last_token_ps = end
        if sequence.tokens == sequence.final:
            self._finish(sequence, end)
        else:
            self._batcher.settle(sequence)

    def _finish(self, sequence: Sequence, end: int) -> None:
        self._batcher.drop(sequence)
        del self._requests[sequence.id]
        gap = None if sequence.gap_ps < 0 else to_ns(sequence.gap_ps)
        event = EngineEvent(0, "finished", sequence.id, sequence.cached, gap, sequence.preemptions)
        self._send(end, event, sequence.final - sequence.prompt)

    def _send(self, time_ps: int, event: EngineEvent, tokens: int = 0) -> None:
        self._outbox.send(time_ps + self.params.output_delay_ps, event, tokens)
