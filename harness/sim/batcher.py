"""Composition of engine steps: the scheduling loop of vLLM v1.

Every step hands a token budget first to the running sequences in order, then, unless one had to
be preempted, to the waiting ones (`v1/core/sched/scheduler.py`, `Scheduler.schedule`). There are
two ways through a step. The usual one takes the decoding sequences as a group: possible when all
of them get their token. The other one, `_walk`, goes through the list one by one.
"""

from __future__ import annotations

from collections import deque

from harness.sim.block_cache import NO_MATCH, BlockCache, Holding, Match
from harness.sim.engine_types import EngineParams
from harness.sim.overlap import Overlap
from harness.sim.sequence import DecodeGroup, Sequence
from harness.sim.step_loop import Batch
from harness.sim.waiting import Waiting, waiting_queue


class Batcher:
    """Running and waiting sequences of one engine, and its KV blocks."""

    def __init__(self, params: EngineParams, cache: BlockCache) -> None:
        self.params = params
        self.cache = cache
        self.group = DecodeGroup(params.block_size)
        self.running: dict[int, Sequence] = {}
        self.waiting: Waiting = waiting_queue(params.policy)
        self.loading: dict[int, Sequence] = {}
        """They hold blocks and wait for KV from elsewhere."""
        self.ready: deque[Sequence] = deque()
        """Their KV has come. They hold blocks already, so they go before all that wait."""
        self.kept: dict[int, Holding] = {}
        """Blocks of ended requests that another replica still copies."""
        self.preemptions = 0
        self.queried = 0
        """Prompt tokens looked up in the prefix cache, requests admitted again not counted."""
        self.hit = 0
        self.in_flight_ps = -1
        self._size = params.block_size
        self._fcfs = params.policy == "fcfs"
        self._sudden = params.window_hits != "dense" and not params.reserve_full_input
        """A hit may be lost all at once, by the loss of a window state; then the first chunk of a
        request may fit that did not before."""
        self._replay = params.window_tokens if params.window_hits == "replay" else 0
        self._watermark = int(params.watermark * (cache.total + params.null_blocks))
        self._overlap = Overlap(params.block_size)
        self._prefills: list[Sequence] = []
        self._next_place = 0
        self._retiring = 0
        self._loose = False
        """Decoding sequences are outside the group, since the last step was walked."""
        self._alone = False
        """No step was under way when the last one was composed: it feeds tokens that are known."""
        self._lag = 0
        """Tokens that the running step was given unknown, while the next one is composed."""
        self._starved = False
        """A decoding sequence got no token in the last step."""

    def clear(self) -> None:
        """Lose everything, as when the replica dies."""
        self.cache.clear()
        self.group.clear()
        self.running.clear()
        self.waiting.clear()
        self.loading.clear()
        self.ready.clear()
        self.kept.clear()
        self._overlap.clear()
        self._prefills.clear()
        self._retiring = 0
        self._loose = self._starved = self._alone = False

    @property
    def queued(self) -> int:
        """Sequences that could be admitted, blocks permitting."""
        return len(self.waiting) + len(self.ready)

    @property
    def busy(self) -> bool:
        """Whether there may be a step to run."""
        return bool(self.running or self.waiting or self.ready)

    # ---- one step ----------------------------------------------------------------------------

    def schedule(self) -> Batch:
        """Compose the next step and allocate its blocks."""
        params, group, running = self.params, self.group, self.running
        self._lag = int(not self._alone)
        self._alone = self.in_flight_ps < 0
        budget = params.max_num_batched_tokens
        threshold = params.long_prefill_token_threshold
        if threshold and len(running) + self.queued + len(self.loading) <= 1:
            threshold = 0
        prefills = self._prefills
        decodes = len(running) - len(prefills) - self._retiring
        if self._overlap.pairs or self._starved or decodes > budget:
            return self._walk(threshold)
        if self._loose:
            self._loose = False
            for sequence in running.values():
                if sequence.decoding and not sequence.retiring:
                    group.add(sequence)
        batch = Batch()
        budget -= decodes
        blocks = group.new_blocks(0, 1)
        shares: list[int] = []
        if prefills:
            shares = self._prefill_shares(budget, threshold)
            budget -= sum(shares)
            if budget < 0:
                return self._walk(threshold)
            size = self._size
            for sequence, new in zip(prefills, shares, strict=True):
                assert sequence.holding is not None
                missing = -(-(sequence.computed + new) // size) - sequence.holding.blocks
                blocks += max(missing, 0)
        if blocks > self.cache.free:
            return self._walk(threshold)
        batch.decodes, batch.context = decodes, group.context
        self.cache.take(group.new_blocks(0, 1))
        group.ahead = 1
        for sequence, new in zip(prefills, shares, strict=True):
            if new:
                self._extend(sequence, new)
                batch.chunks.append((sequence, new, sequence.computed))
        if self.waiting or self.ready:
            self._admit(batch, budget, threshold)
        return batch

    def _prefill_shares(self, budget: int, threshold: int) -> list[int]:
        """Tokens for each running prefill; they sum to more than the budget if order matters."""
        prefills = self._prefills
        shares = [sequence.tokens - sequence.computed for sequence in prefills]
        if threshold:
            shares = [min(share, threshold) for share in shares]
        if len(prefills) == 1 and next(reversed(self.running.values())) is prefills[0]:
            shares[0] = min(shares[0], budget)
        return shares

    def _walk(self, threshold: int) -> Batch:
        """Compose a step sequence by sequence, preempting where blocks run out."""
        cache, size = self.cache, self._size
        self._ungroup()
        batch = Batch()
        budget = self.params.max_num_batched_tokens
        order = list(self.running.values())
        shares: dict[Sequence, int] = {}
        index = 0
        while index < len(order) and budget > 0:
            sequence = order[index]
            if sequence.retiring:
                index += 1
                continue
            new = sequence.tokens - sequence.computed
            if 0 < threshold < new:
                new = threshold
            new = min(new, budget)
            holding = sequence.holding
            assert holding is not None
            blocks = -(-(sequence.computed + new) // size) - holding.blocks
            while blocks > cache.free and sequence.running:
                victim = order[-1] if self._fcfs else max(order, key=_last_to_run)
                at = order.index(victim)
                del order[at]
                if at < index:
                    index -= 1
                budget += shares.pop(victim, 0)
                self._preempt(victim)
                batch.preempted.append(victim)
            if not sequence.running:
                break
            self._extend(sequence, new)
            shares[sequence] = new
            budget -= new
            index += 1
        batch.walked = list(shares.items())
        for sequence, new in batch.walked:
            if sequence.decoding:
                batch.decodes += 1
                batch.context += sequence.tokens
            else:
                batch.chunks.append((sequence, new, sequence.computed))
        if not batch.preempted and (self.waiting or self.ready):
            before = len(batch.chunks)
            self._admit(batch, budget, threshold)
            batch.walked += [(sequence, new) for sequence, new, _ in batch.chunks[before:]]
        return batch

    def _admit(self, batch: Batch, budget: int, threshold: int) -> None:
        """Start waiting sequences, in order, until one does not fit."""
        params, cache, size, waiting = self.params, self.cache, self._size, self.waiting
        while (waiting or self.ready) and budget > 0 and len(self.running) < params.max_num_seqs:
            if self.ready:
                if not self._admit_ready(batch, budget, threshold):
                    break
                budget -= batch.chunks[-1][1]
                continue
            sequence = waiting.first()
            tokens, line = sequence.tokens, sequence.line
            match = NO_MATCH
            if cache.caching:
                self._fill_writers(sequence)
                match = cache.match(line, (tokens - 1) // size)
            computed = match.blocks * size
            if self._replay and computed:
                if computed <= self._replay:
                    match, computed = NO_MATCH, 0
                else:
                    computed -= self._replay
            new = tokens - computed
            if 0 < threshold < new:
                new = threshold
            if new > budget:
                if not params.chunked_prefill:
                    break
                new = budget
            # Free blocks that are hit leave the free queue, so they count as needed.
            spare = cache.free - match.free + match.blocks
            if self.running:
                spare -= self._watermark
            spare -= params.sequence_blocks
            needed = tokens if params.reserve_full_input else max(computed + new, sequence.remote)
            if sequence.remote > computed:
                # A load can be neither run nor preempted, so what is under way must still fit.
                spare -= self._reserved()
            if max(-(-needed // size), match.blocks) > spare:
                break
            if sequence.remote > computed:
                waiting.pop_first()
                sequence.holding = self._hold(sequence, match)
                self._load(sequence, computed, batch)
                continue
            waiting.pop_first()
            self._start(sequence, computed)
            sequence.holding = self._hold(sequence, match)
            self._overlap.enter(sequence)
            self._extend(sequence, new)
            batch.chunks.append((sequence, new, computed))
            budget -= new
        if waiting or self.ready:
            batch.stuck = self._fcfs
        if waiting:
            batch.observed = self._sudden or bool(self._overlap.writers(waiting.first().line))

    def _hold(self, sequence: Sequence, match: Match) -> Holding:
        """Hold the blocks that were hit, and those that every request has."""
        holding = self.cache.acquire(sequence.line, match)
        if self.params.sequence_blocks:
            self.cache.fix(holding, self.params.sequence_blocks)
        if self.cache.windows:
            holding.marks = ((sequence.prompt - 1) // self._size, match.reach)
        return holding

    def _load(self, sequence: Sequence, computed: int, batch: Batch) -> None:
        """Give a sequence the blocks for its remote tokens; it waits for them outside the queue."""
        holding = sequence.holding
        assert holding is not None
        blocks = -(-sequence.remote // self._size) - holding.blocks
        self.cache.take(blocks)
        holding.blocks += blocks
        if sequence.cached < 0:
            sequence.cached = computed
            self.queried += sequence.tokens
            self.hit += computed
        self.loading[sequence.id] = sequence
        batch.loads.append((sequence, sequence.remote - computed))

    def loaded(self, request_id: int) -> bool:
        """The KV has come: the sequence can run. False if it is gone."""
        sequence = self.loading.pop(request_id, None)
        if sequence is None:
            return False
        assert sequence.holding is not None
        self.cache.fill(sequence.holding, sequence.remote // self._size)
        sequence.computed = min(sequence.remote, sequence.tokens - 1)
        sequence.remote = 0
        self.ready.append(sequence)
        return True

    def _reserved(self) -> int:
        """Blocks that prefills under way, loading ones included, still need."""
        under_way = [*self._prefills, *self.loading.values(), *self.ready]
        return sum(-(-s.tokens // self._size) - s.holding.blocks for s in under_way if s.holding)

    def release(self, request_id: int) -> bool:
        """Free the blocks that were kept for another replica. False if there are none."""
        holding = self.kept.pop(request_id, None)
        if holding is None:
            return False
        self.cache.release(holding)
        return True

    def _admit_ready(self, batch: Batch, budget: int, threshold: int) -> bool:
        """Start the first sequence whose remote KV has come, if what it lacks fits."""
        sequence = self.ready[0]
        holding = sequence.holding
        assert holding is not None
        new = sequence.tokens - sequence.computed
        if 0 < threshold < new:
            new = threshold
        if new > budget and not self.params.chunked_prefill:
            return False
        new = min(new, budget)
        needed = sequence.tokens if self.params.reserve_full_input else sequence.computed + new
        if -(-needed // self._size) - holding.blocks > self.cache.free:
            return False
        self.ready.popleft()
        self._fill_writers(sequence)
        self._start(sequence, sequence.computed)
        self._overlap.enter(sequence)
        self._extend(sequence, new)
        batch.chunks.append((sequence, new, sequence.computed))
        return True

    def _start(self, sequence: Sequence, computed: int) -> None:
        sequence.place = self._next_place
        self._next_place += 1
        sequence.running = True
        sequence.remote = 0
        sequence.computed = computed
        self.running[sequence.id] = sequence
        self._prefills.append(sequence)
        if sequence.cached < 0:
            sequence.cached = computed
            if self.cache.caching:
                self.queried += sequence.tokens
                self.hit += computed

    def _extend(self, sequence: Sequence, new: int) -> None:
        """Give the sequence slots for its next `new` tokens, and hash what gets full."""
        holding, size = sequence.holding, self._size
        assert holding is not None
        upto = sequence.computed + new
        blocks = -(-upto // size) - holding.blocks
        if blocks > 0:
            self.cache.take(blocks)
            holding.blocks += blocks
        if sequence.decoding:
            # A token still being computed is not known, so its block cannot be hashed.
            upto -= self._in_flight(sequence)
        self.cache.fill(holding, upto // size)

    def _ungroup(self) -> None:
        if self.group.count:
            for sequence in self.running.values():
                if sequence.grouped:
                    self.group.remove(sequence)
                    assert sequence.holding is not None
                    self._fill_computed(sequence, self._in_flight(sequence) * self._lag)
        self._loose = True

    def _in_flight(self, sequence: Sequence) -> int:
        """1 if the sequence's last token is being computed while the next step is composed."""
        return int(0 <= self.in_flight_ps == sequence.last_token_ps)

    def _fill_computed(self, sequence: Sequence, but: int) -> None:
        assert sequence.holding is not None
        self.cache.fill(sequence.holding, (sequence.computed - but) // self._size)

    def _preempt(self, sequence: Sequence) -> None:
        if sequence.decoding:
            self._fill_computed(sequence, self._in_flight(sequence) * self._lag)
        self._stop(sequence, done=False)
        sequence.computed = 0
        sequence.decoding = False
        sequence.preemptions += 1
        self.preemptions += 1
        self.waiting.put_back(sequence)

    # ---- between steps -----------------------------------------------------------------------

    def executed(self, batch: Batch, steps: int, longest_ps: int, end_ps: int) -> None:
        """The batch ran for `steps` steps (more than one only for the group alone)."""
        self.group.advance(steps, longest_ps, end_ps)
        for sequence, new, _ in batch.chunks:
            sequence.computed += new
        if batch.walked is not None:
            for sequence, _ in batch.walked:
                if sequence.decoding:
                    sequence.computed += 1

    def take_next_step(self, steps: int) -> None:
        """Allocate what the group needs in the `steps` steps after its next one."""
        self._alone = False
        self.cache.take(self.group.new_blocks(1, steps + 1))

    def due(self, batch: Batch) -> list[Sequence]:
        """After a step: sequences that got a token outside the group or ended, in order.

        Those of the group that are done have been removed from it.
        """
        if batch.walked is not None:
            return [s for s, _ in batch.walked if s.running and s.computed == s.tokens]
        due = self.group.pop_done() if self.group.count else []
        for sequence in due:
            self.group.remove(sequence)
        if batch.chunks:
            prefilled = [s for s, _, _ in batch.chunks if s.running and s.computed == s.tokens]
            if due and prefilled:
                due = sorted(due + prefilled, key=_place)
            elif prefilled:
                due = prefilled
        return due

    def token(self, sequence: Sequence) -> None:
        """The sequence got a token from a prefill or in a walked step."""
        sequence.tokens += 1
        if not sequence.decoding:
            sequence.decoding = True
            self._prefills.remove(sequence)

    def settle(self, sequence: Sequence) -> None:
        """It goes on decoding."""
        if not self._loose:
            self.group.add(sequence)

    def retire(self, sequence: Sequence) -> None:
        """Its last token is being computed: it keeps its blocks and gets no further step."""
        sequence.retiring = True
        self._retiring += 1
        self._fill_computed(sequence, int(not self._alone))

    def walked_until(self, end_ps: int) -> None:
        """Called after a walked step's tokens are out: notes who got none."""
        self._starved = any(s.decoding and s.last_token_ps != end_ps for s in self.running.values())

    def drop(self, sequence: Sequence) -> None:
        """Take a sequence out, wherever it is: it is done or aborted."""
        if sequence.running:
            self._stop(sequence, done=True)
        elif sequence in self.ready:
            self.ready.remove(sequence)
        elif self.loading.pop(sequence.id, None) is None:
            self.waiting.remove(sequence)
        if sequence.holding is not None:
            self.cache.release(sequence.holding)
            sequence.holding = None
        sequence.gone = True

    def _stop(self, sequence: Sequence, done: bool) -> None:
        if sequence.grouped:
            self.group.remove(sequence)
        holding = sequence.holding
        assert holding is not None
        if not sequence.decoding:
            self._prefills.remove(sequence)
        elif done:
            self._fill_computed(sequence, 0)
        if sequence.retiring:
            sequence.retiring = False
            self._retiring -= 1
        if done and sequence.keep_blocks and sequence.tokens == sequence.final:
            self.kept[sequence.id] = holding
        else:
            self.cache.release(holding)
        sequence.holding = None
        sequence.running = False
        del self.running[sequence.id]
        self._overlap.leave(sequence)

    # ---- observation -------------------------------------------------------------------------

    def observe(self, in_step: bool) -> None:
        """Bring the cache up to date with what the group has written.

        With `in_step` the group's next step has begun, its blocks are hashed at allocation.
        """
        late = self.params.async_scheduling or not in_step
        for sequence in self.running.values():
            if sequence.grouped:
                self._fill_written(sequence, 1 if late else 0)

    def _fill_writers(self, reader: Sequence) -> None:
        """While a step is composed: hash what the group has written of the text of `reader`."""
        for writer in self._overlap.writers(reader.line):
            self._fill_written(writer, 0 if self.in_flight_ps < 0 else 1)

    def _fill_written(self, sequence: Sequence, unfed: int) -> None:
        if sequence.grouped:
            assert sequence.holding is not None
            tokens = self.group.step + sequence.base - unfed
            self.cache.fill(sequence.holding, tokens // self._size)


def _place(sequence: Sequence) -> int:
    return sequence.place


def _last_to_run(sequence: Sequence) -> tuple[int, int, int]:
    # vLLM looks at priority and arrival only, and real arrivals are never equal. Without the id
    # two requests that arrive together could preempt themselves in turn for ever.
    return sequence.priority, sequence.arrived_ps, sequence.id
