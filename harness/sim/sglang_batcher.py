"""Composition of engine steps: the scheduling loop of SGLang 0.5.

Prefills go first and alone: as long as waiting requests are admitted, the decoding ones pause
(`srt/managers/scheduler.py`, `get_next_batch_to_run`; mixed chunks are off by default there, and
are not modelled). Admission reserves room for a share of the output that running requests may
still ask for (`schedule_policy.py`, `PrefillAdder`); when decoding runs out of KV all the same,
requests are retracted (`schedule_batch.py`, `retract_decode`). Of its two event loops this is the
plain one: the work of the processor is not overlapped with the step before.
"""

from __future__ import annotations

from dataclasses import dataclass

from agentsched import SimulationError, UsageError
from harness.sim.block_cache import Holding
from harness.sim.content import Line
from harness.sim.radix_cache import Node, RadixCache
from harness.sim.sequence import DecodeGroup, Sequence
from harness.sim.sglang_policy import SglangParams, TokenRatio, by_longest_prefix
from harness.sim.step_loop import Batch


class Row(Holding):
    """Pages of a request: `blocks` in all, the first `owned` of them those of the tree."""

    __slots__ = ("node", "owned")

    def __init__(self, line: Line, node: Node) -> None:
        super().__init__(line)
        self.node = node
        self.owned = node.hi


class Queue(list[Sequence]):
    """Waiting sequences in their present order."""

    def add(self, sequence: Sequence) -> None:
        self.append(sequence)


@dataclass(slots=True)
class Budget:
    """What one prefill pass may still admit, in tokens. `total` moves with the cache's `free`."""

    cache: RadixCache
    page: int
    reserved: float
    current: int
    inputs: int
    chunk: int | None

    @property
    def total(self) -> float:
        return self.cache.free * self.page - self.reserved

    def spend(self, new: int, max_new: int) -> None:
        pages = -(-new // self.page) * self.page
        self.reserved += pages + self.page + max_new
        self.current += pages + self.page
        self.inputs -= pages
        if self.chunk is not None:
            self.chunk -= pages

    @property
    def out_of_memory(self) -> bool:
        return self.total <= 0 or self.cache.free * self.page - self.current <= 0

    @property
    def spent(self) -> bool:
        return self.inputs <= 0 or (self.chunk is not None and self.chunk <= 0)


class SglangBatcher:
    """Running and waiting sequences of one engine, and its KV pages."""

    def __init__(self, params: SglangParams, cache: RadixCache) -> None:
        self.params = params
        self.cache = cache
        self.group = DecodeGroup(params.page_size)
        self.running: dict[int, Sequence] = {}
        self.waiting = Queue()
        self.loading: tuple[int, ...] = ()
        self.kept: tuple[int, ...] = ()
        self.preemptions = 0
        self.queried = 0
        self.hit = 0
        self.in_flight_ps = -1
        self._page = params.page_size
        self._chunked: Sequence | None = None
        self._ratio = TokenRatio(params)
        self._full = False
        """No request is admitted until one has left. SGLang keeps that with the batch that decodes:
        as long as there is none it does not last."""
        self._fresh: list[Sequence] = []
        """Sequences that decode from the next decode step on."""
        self._paused = False
        """The last step was a prefill, so the next token of those who decode is late."""
        self._next_place = 0
        self._passes = 0
        """Prefill passes that left the order of what waits as it was."""

    def clear(self) -> None:
        """Lose everything, as when the replica dies."""
        self.cache.clear()
        self.group.clear()
        self.running.clear()
        self.waiting.clear()
        self._fresh.clear()
        self._chunked, self._full = None, False
        self._passes = 0
        self._ratio = TokenRatio(self.params)

    @property
    def queued(self) -> int:
        return len(self.waiting)

    @property
    def busy(self) -> bool:
        return bool(self.running or self.waiting)

    # ---- one step ----------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Compose the next step and allocate its pages."""
        batch = Batch()
        if self._chunked is not None:
            self._checkpoint(self._chunked)
            self._full = False
        if self.group.count == 0:
            self._full = False
        if self._chunked is not None or (self.waiting and not self._full):
            self._prefill(batch)
        if not batch.chunks and self.group.count:
            self._decode(batch)
        return batch

    def _prefill(self, batch: Batch) -> None:
        params, cache, page = self.params, self.cache, self._page
        if self.group.count >= params.max_running_requests and self._chunked is None:
            self._full = True
            return
        self._order()
        promised = sum(self._may_ask(s) * self._ratio.current for s in self._decoding())
        budget = Budget(cache, page, promised, 0, params.max_prefill_tokens, params.chunked_prefill)
        admitted: list[Sequence] = []
        if self._chunked is not None:
            self._next_chunk(self._chunked, batch, budget)
        for sequence in self.waiting:
            if budget.spent and not budget.out_of_memory:
                break
            if len(batch.chunks) >= params.max_running_requests - self.group.count:
                self._full = self.group.count > 0
                break
            found = self._try(sequence, batch, budget)
            if found:
                admitted.append(sequence)
            if found is None or budget.out_of_memory:
                self._full = self.group.count > 0
                break
            if not found:
                break
        if admitted:
            started = set(admitted)
            self.waiting[:] = [s for s in self.waiting if s not in started]
        if batch.chunks:
            self._allocate(batch)

    def _order(self) -> None:
        """Sort what waits; where nothing is looked up for that, use what it will hit now and then.

        (`schedule_policy.py`, `_touch_waiting_prefixes`.)
        """
        params, cache = self.params, self.cache
        if not cache.caching or not self.waiting:
            return
        if params.policy == "lpm" and len(self.waiting) <= params.lpm_queue_limit:
            by_longest_prefix(self.waiting, cache, params)
        elif params.refresh_passes:
            if self._passes % params.refresh_passes == 0:
                for sequence in reversed(self.waiting[: params.lpm_queue_limit]):
                    cache.match(sequence.line, sequence.tokens // self._page)
            self._passes += 1

    def _next_chunk(self, sequence: Sequence, batch: Batch, budget: Budget) -> None:
        left = sequence.tokens - sequence.computed
        limit = budget.chunk if budget.chunk is not None else left
        room = min(limit, int(budget.total))
        new = min(left, room if room > 0 else limit)
        budget.spend(new, self._asked(sequence) if new == left else 0)
        if new == left:
            self._chunked = None
        batch.chunks.append((sequence, new, sequence.computed))

    def _try(self, sequence: Sequence, batch: Batch, budget: Budget) -> bool | None:
        """Admit a waiting sequence; False if this pass is at its end, None if memory is."""
        cache, page = self.cache, self._page
        tokens = sequence.tokens
        node = cache.match(sequence.line, (tokens - 1) // page)
        computed = node.hi * page
        new = tokens - computed
        cache.lock(node)
        if new + self._may_ask(sequence) + page >= budget.total:
            cache.unlock(node)
            return None
        max_new = self._asked(sequence)
        pages = -(-new // page) * page
        if budget.chunk is None:
            if batch.chunks and pages >= budget.inputs:
                cache.unlock(node)
                return False
        elif pages > budget.chunk:
            new = (computed + budget.chunk // page * page) // page * page - computed
            max_new = 0
            if new <= 0:
                cache.unlock(node)
                return False
            self._chunked = sequence
        budget.spend(new, max_new)
        self._start(sequence, node)
        batch.chunks.append((sequence, new, computed))
        return True

    def _start(self, sequence: Sequence, node: Node) -> None:
        sequence.place = self._next_place
        self._next_place += 1
        sequence.running = True
        sequence.computed = node.hi * self._page
        row = Row(sequence.line, node)
        row.blocks = node.hi
        sequence.holding = row
        self.running[sequence.id] = sequence
        if sequence.cached < 0:
            sequence.cached = sequence.computed
            if self.cache.caching:
                self.queried += sequence.tokens
                self.hit += sequence.computed

    def _allocate(self, batch: Batch) -> None:
        page = self._page
        needed = 0
        for sequence, new, computed in batch.chunks:
            row = _row(sequence)
            upto = -(-(computed + new) // page)
            needed += upto - row.blocks
            row.blocks = upto
        if page > 1:
            # The paged allocator makes room for a page more for each request.
            total = sum(new for _, new, _ in batch.chunks) + len(batch.chunks) * page
            self.cache.reclaim(-(-total // page))
        self.cache.take(needed)

    def _decode(self, batch: Batch) -> None:
        group, cache = self.group, self.cache
        if not cache.reclaim(group.new_blocks(0, 1)):
            self._retract(batch)
        if self._page > 1:
            # The paged allocator makes room for a page of each request.
            cache.reclaim(group.count)
        cache.take(group.new_blocks(0, 1))
        batch.decodes, batch.context = group.count, group.context
        batch.stuck = self._full
        # The first step after a prefill ends a longer gap, so it is executed by itself.
        batch.observed = bool(self._paused or batch.preempted or (self.waiting and not self._full))

    def _retract(self, batch: Batch) -> None:
        """Send sequences back until the others can take a step, the least advanced first."""
        group, cache, params = self.group, self.cache, self.params
        order = self._decoding()
        order.sort(key=lambda s: (self._output(s), -s.prompt), reverse=True)
        while len(order) > 1:
            sequence = order.pop()
            self._release(sequence)
            cache.reclaim(-(-len(order) * params.retract_steps // self._page))
            sequence.computed = 0
            sequence.decoding = False
            sequence.preemptions += 1
            self.preemptions += 1
            self.waiting.append(sequence)
            batch.preempted.append(sequence)
            if cache.reclaim(group.new_blocks(0, 1)):
                break
        self._line_up(order)
        done = sum(self._output(s) for s in order)
        asked = sum(self._max_new(s) for s in order)
        self._ratio.set((done + params.retract_steps * len(order)) / (asked + 1))
        self._full = False

    def _line_up(self, order: list[Sequence]) -> None:
        """What decodes goes on in this order: ties of the next retraction depend on it."""
        for sequence in order:
            self.group.remove(sequence)
            del self.running[sequence.id]
        for sequence in order:
            sequence.place = self._next_place
            self._next_place += 1
            self.running[sequence.id] = sequence
            self.group.add(sequence)

    # ---- between steps -----------------------------------------------------------------------

    def take_next_step(self, steps: int) -> None:
        """Allocate what the group needs in the `steps` steps after its next one."""
        group, cache = self.group, self.cache
        if self._page > 1:
            cache.reclaim(group.new_blocks(1, steps) + group.count)
        cache.take(group.new_blocks(1, steps + 1))

    def executed(self, batch: Batch, steps: int, longest_ps: int, end_ps: int) -> None:
        """The batch ran for `steps` steps (more than one only for decoding)."""
        for sequence, new, _ in batch.chunks:
            sequence.computed += new
        self._paused = batch.decodes == 0
        if self._paused:
            return
        group = self.group
        if not batch.preempted:
            self._ratio.decay(steps)
        if steps == 1:
            longest_ps = end_ps - (group.end_ps if group.step else 0)
        group.advance(steps, longest_ps, end_ps)
        for sequence in self._fresh:
            if sequence.grouped:
                sequence.gap_ps = max(sequence.gap_ps, end_ps - sequence.last_token_ps)
                sequence.last_token_ps = end_ps
                sequence.joined = group.step
        self._fresh.clear()

    def due(self, batch: Batch) -> list[Sequence]:
        """After a step: sequences whose prompt is computed, or that are done, in order."""
        if batch.decodes:
            due = self.group.pop_done()
            for sequence in due:
                self.group.remove(sequence)
            return due
        return [s for s, _, _ in batch.chunks if s.running and s.computed == s.tokens]

    def token(self, sequence: Sequence) -> None:
        """The sequence got a token from its prefill."""
        sequence.tokens += 1
        sequence.decoding = True

    def settle(self, sequence: Sequence) -> None:
        """It goes on decoding; what it has computed can be hit from now on."""
        self._checkpoint(sequence)
        self.group.add(sequence)
        self._fresh.append(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Steps are not composed ahead in this loop."""

    def walked_until(self, end_ps: int) -> None:
        """No step of this loop is composed one by one."""

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is: it is done or aborted."""
        if sequence.running:
            if sequence is self._chunked:
                self._chunked = None
            if sequence.grouped:
                self.group.remove(sequence)
            self._checkpoint(sequence)
            self._release(sequence)
            self._full = False
        else:
            self.waiting.remove(sequence)
        sequence.gone = True

    def loaded(self, request_id: int) -> bool:
        """KV from elsewhere is not modelled for this engine."""
        return False

    def release(self, request_id: int) -> bool:
        """Blocks are not kept for others by this engine."""
        return False

    def observe(self, in_step: bool) -> None:
        """The tree is always up to date."""

    def _checkpoint(self, sequence: Sequence) -> None:
        """Give the tree what the sequence has computed, and use the tree's pages from then on."""
        row, cache = _row(sequence), self.cache
        pages = sequence.computed // self._page
        if not cache.caching or pages == 0:
            return
        node, known = cache.insert(sequence.line, pages)
        cache.give_back(max(known - row.owned, 0))
        cache.lock(node)
        cache.unlock(row.node)
        row.node, row.owned = node, pages
        prompt = sequence.prompt // self._page
        if 0 < prompt < pages:
            # Cut at the end of the prompt, so that the output can go without it.
            cache.insert(sequence.line, prompt)

    def _release(self, sequence: Sequence) -> None:
        if sequence.grouped:
            self.group.remove(sequence)
        row = _row(sequence)
        self.cache.give_back(row.blocks - row.owned)
        self.cache.unlock(row.node)
        sequence.holding = None
        sequence.running = False
        del self.running[sequence.id]

    def _decoding(self) -> list[Sequence]:
        return [sequence for sequence in self.running.values() if sequence.grouped]

    def _output(self, sequence: Sequence) -> int:
        tokens = self.group.step + sequence.base if sequence.grouped else sequence.tokens
        return tokens - sequence.prompt

    def _max_new(self, sequence: Sequence) -> int:
        """What the request asks for at most; no more than could ever fit."""
        asked = self.params.max_new_tokens or sequence.final - sequence.prompt
        pages = self.cache.total - 1 - -(-sequence.prompt // self._page)
        return max(min(asked, pages * self._page - 1), 0)

    def _asked(self, sequence: Sequence) -> int:
        """What an admitted request is booked for: what it has by now is not subtracted."""
        return min(self._max_new(sequence), self.params.clip_max_new_tokens)

    def _may_ask(self, sequence: Sequence) -> int:
        """Tokens it may still ask for, as far as admission looks."""
        left = self._max_new(sequence) - self._output(sequence)
        return min(max(left, 0), self.params.clip_max_new_tokens)


def _row(sequence: Sequence) -> Row:
    if not isinstance(sequence.holding, Row):
        raise SimulationError(
            f"request {sequence.id} holds no pages",
            "this is a bug in the engine simulator; please report it",
        )
    return sequence.holding


def refuse_transfers(keep_blocks: bool, remote_tokens: int) -> None:
    """KV transfers between replicas are modelled for the vLLM loop only.

    Raises:
        UsageError: the request asks for one.
    """
    if keep_blocks or remote_tokens:
        raise UsageError(
            "the simulated SGLang engine does not exchange KV with other replicas",
            "use the vLLM engine, or a topology without prefill/decode disaggregation",
        )
