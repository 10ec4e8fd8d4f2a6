"""Asynchronous scheduling with vLLM's own bookkeeping: computed tokens run ahead of known ones."""

from __future__ import annotations

from harness.sim.engine_types import EngineEvent, EngineParams, StepRecord, StepTime
from tests.oracles.block_cache import Hasher
from tests.oracles.engine import OracleEngine, Request, Step


class OracleAsyncEngine(OracleEngine):
    """`computed` counts scheduled steps, `tokens` known tokens, `pending[r]` those in between."""

    def __init__(
        self, params: EngineParams, step_time: StepTime, kv_blocks: int, hasher: Hasher
    ) -> None:
        super().__init__(params, step_time, kv_blocks, hasher)
        self.pending: dict[Request, int] = {}
        self.ahead: Step | None = None
        self.composed = False
        self.preempting = False

    def reset(self, now: int) -> set[int]:
        self.pending, self.ahead, self.composed = {}, None, False
        return super().reset(now)

    def abort(self, ident: int, now: int) -> None:
        self.out = [item for item in self.out if item[2].id != ident]
        self.take_out(ident, now)
        if self.step is not None and self.composed:
            self.aborted.append(ident)
        else:
            self.drop(ident)

    def advance(self, until: int) -> list[EngineEvent]:
        limit = self.seen = until * 1000
        while True:
            if self.step is None:
                if self.startable():
                    start = self.clock
                elif self.api:
                    start = max(self.clock, self.api[0].leaves)
                else:
                    break
                if start >= limit:
                    break
                self.clock, self.blocked = start, False
                batch = self.compose(start)
                if batch is None and self.preempting:
                    batch = self.compose(start)
                if batch is None:
                    assert self.loading or self.kept
                    self.blocked = True
                else:
                    self.launch(batch, start)
                continue
            if not self.composed:
                if self.clock >= limit:
                    break
                self.ahead = self.compose(self.clock)
                self.composed = True
            if self.step.end > limit:
                break
            self.complete()
        ready = sorted(item for item in self.out if item[0] <= limit)
        self.out = [item for item in self.out if item[0] > limit]
        return [event._replace(time=-(-time // 1000)) for time, _, event in ready]

    def launch(self, step: Step, start: int) -> None:
        step.end += start - step.start
        step.start = start
        self.clock, self.step, self.composed = start, step, False

    def compose(self, now: int) -> Step | None:
        while self.api and self.api[0].leaves <= now:
            self.waiting.append(self.api.pop(0))
        scheduled: list[tuple[Request, int]] = []
        preempted: list[Request] = []
        self.composing = now
        self.schedule(scheduled, preempted)
        self.preempting = bool(preempted)
        if not scheduled:
            return None
        batch = [(r, new, r.computed, r.decoding) for r, new in scheduled]
        chunks = [(new, computed) for _, new, computed, decoding in batch if not decoding]
        rows = [(r, computed) for r, _, computed, decoding in batch if decoding]
        context = sum(computed + 1 for _, computed in rows)
        if chunks:
            took = self.step_time.mixed_ps(chunks, len(rows), context)
        else:
            piece = self.step_time.decode_piece(len(rows), context)
            took = piece.fixed_ps + piece.per_token_ps * context
        for request, new in scheduled:
            request.computed += new
            if request.computed >= request.tokens + self.pending.get(request, 0):
                request.decoding = True
                self.pending[request] = self.pending.get(request, 0) + 1
        return Step(now, now + took, batch, [r.id for r in preempted], self.cache.free)

    def demand(self, request: Request) -> int:
        waiting = self.pending.get(request, 0)
        if waiting and request.computed + 2 - waiting >= request.final:
            return 0
        return request.tokens + waiting - request.computed

    def extend(self, request: Request, new: int) -> None:
        assert request.holding is not None
        missing = self.blocks(request, new) - len(request.holding.blocks)
        self.cache.allocate(request.holding, max(missing, 0))
        known = min(request.computed + new, request.tokens)
        self.cache.fill(request.holding, known // self.p.block_size)

    def free(self, request: Request) -> None:
        self.pending.pop(request, None)
        super().free(request)

    def complete(self) -> None:
        step = self.step
        assert step is not None
        self.step = None
        self.clock = step.end
        self.busy += step.end - step.start
        rows = tuple((r.id, new, computed) for r, new, computed, _ in step.batch)
        self.steps.append(StepRecord(step.start, step.end, rows, tuple(step.preempted), step.free))
        for _, new, _, decoding in step.batch:
            if decoding:
                self.decode_tokens += new
            else:
                self.prefill_tokens += new
        gone = set(self.aborted)
        for ident in self.aborted:
            self.drop(ident)
        self.aborted = []
        for request, new, computed, _ in step.batch:
            if request.id in gone or request not in self.running + self.waiting:
                continue
            if computed + new < request.tokens:
                continue
            self.token(request, step.end)
        ahead, self.ahead, self.composed = self.ahead, None, False
        if ahead is not None:
            self.launch(ahead, step.end)

    def token(self, request: Request, end: int) -> None:
        request.tokens += 1
        request.times.append(end)
        running = request in self.running
        if running:
            self.pending[request] -= 1
            assert request.holding is not None
            known = request.computed - self.pending[request]
            self.cache.fill(request.holding, known // self.p.block_size)
        if len(request.times) == 1 and not request.prefill_only:
            self.send(end, EngineEvent(0, "first_token", request.id, request.cached or 0))
        if request.tokens < request.final:
            return
        if running:
            self.running.remove(request)
            self.pending.pop(request, None)
            self.end(request)
        else:
            self.waiting.remove(request)
        gaps = [b - a for a, b in zip(request.times, request.times[1:], strict=False)]
        gap = -(-max(gaps) // 1000) if gaps else None
        event = EngineEvent(
            0, "finished", request.id, request.cached or 0, gap, request.preemptions
        )
        self.send(end, event)
