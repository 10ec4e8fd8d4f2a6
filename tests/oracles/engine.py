"""The engine step by step and block by block: slow and plain.

One step at a time, one sequence at a time, with the block pool of `tests.oracles.block_cache`.
Same interface as `harness.sim.engine.Engine`, but texts are lists of (segment, tokens).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.sim.engine_types import EngineEvent, EngineParams, StepRecord, StepTime
from tests.oracles.block_cache import Hasher, OracleBlockCache, OracleHolding, Segments


@dataclass(eq=False)
class Request:
    id: int
    arrived: int
    leaves: int
    prompt: int
    final: int
    priority: int
    prefill_only: bool
    hashes: list[int]
    reason: str | None = None
    tokens: int = 0
    computed: int = 0
    decoding: bool = False
    cached: int | None = None
    preemptions: int = 0
    times: list[int] = field(default_factory=list)
    holding: OracleHolding | None = None


@dataclass(eq=False)
class Step:
    start: int
    end: int
    batch: list[tuple[Request, int, int, bool]]
    preempted: list[int]
    free: int


class OracleEngine:
    def __init__(
        self, params: EngineParams, step_time: StepTime, kv_blocks: int, hasher: Hasher
    ) -> None:
        self.p = params
        self.step_time = step_time
        self.cache = OracleBlockCache(kv_blocks - params.null_blocks, params.prefix_caching)
        self.hasher = hasher
        self.api: list[Request] = []
        self.api_free = 0
        self.waiting: list[Request] = []
        self.running: list[Request] = []
        self.step: Step | None = None
        self.clock = 0
        self.aborted: list[int] = []
        self.out: list[tuple[int, int, EngineEvent]] = []
        self.sent = 0
        self.steps: list[StepRecord] = []
        self.preemptions = self.prefill_tokens = self.decode_tokens = self.busy = 0
        self.queried = self.hit = self.prompts = self.generated = 0
        self.seen = 0

    # ---- interface ---------------------------------------------------------------------------

    def submit(
        self,
        ident: int,
        segments: Segments,
        prompt: int,
        output: int,
        now: int,
        priority: int = 0,
        prefill_only: bool = False,
    ) -> None:
        p = self.p
        start = max(now * 1000, self.api_free)
        self.api_free = start + p.api_request_ps + p.api_prompt_token_ps * prompt
        final = prompt + (1 if prefill_only else output)
        request = Request(
            ident,
            now * 1000,
            self.api_free,
            prompt,
            final,
            priority,
            prefill_only,
            self.hasher.hashes(segments),
            tokens=prompt,
        )
        too_long = p.max_model_len is not None and final > p.max_model_len
        too_big = -(-(final - 1) // p.block_size) + p.sequence_blocks > self.cache.total
        unchunked = not p.chunked_prefill and final - 1 > p.max_num_batched_tokens
        if too_long or too_big or unchunked:
            self.send(self.api_free, EngineEvent(0, "rejected", ident))
        else:
            self.api.append(request)

    def abort(self, ident: int, now: int) -> None:
        self.out = [item for item in self.out if item[2].id != ident]
        self.api = [r for r in self.api if r.id != ident]
        self.waiting = [r for r in self.waiting if r.id != ident]
        if self.step is not None:
            self.aborted.append(ident)
        else:
            self.drop(ident)

    def reset(self, now: int) -> set[int]:
        lost = {item[2].id for item in self.out if item[2].kind != "first_token"}
        lost |= {r.id for r in self.api + self.waiting + self.running if r.id not in self.aborted}
        self.api, self.waiting, self.running, self.out = [], [], [], []
        evicted = self.cache.evicted
        self.cache = OracleBlockCache(self.cache.total, self.p.prefix_caching)
        self.cache.evicted = evicted
        self.step, self.aborted = None, []
        self.api_free = 0
        self.clock = self.seen = now * 1000
        return lost

    def advance(self, until: int) -> list[EngineEvent]:
        limit = self.seen = until * 1000
        while True:
            if self.step is not None:
                if self.step.end > limit:
                    break
                self.complete()
                continue
            if self.running or self.waiting:
                start = self.clock
            elif self.api:
                start = max(self.clock, self.api[0].leaves)
            else:
                break
            if start >= limit:
                break
            self.begin(start)
        ready = sorted(item for item in self.out if item[0] <= limit)
        self.out = [item for item in self.out if item[0] > limit]
        return [event._replace(time=-(-time // 1000)) for time, _, event in ready]

    def output_tokens(self, ident: int) -> int:
        for request in self.api + self.waiting + self.running:
            if request.id == ident:
                return request.tokens - request.prompt
        return 0

    # ---- a step ------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        self.clock = start
        while self.api and self.api[0].leaves <= start:
            self.waiting.append(self.api.pop(0))
        scheduled: list[tuple[Request, int]] = []
        preempted: list[Request] = []
        self.schedule(scheduled, preempted)
        if not scheduled:
            assert preempted
            preempted = []
            self.schedule(scheduled, preempted)
        batch = [(r, new, r.computed, r.decoding) for r, new in scheduled]
        chunks = [(new, computed) for r, new, computed, decoding in batch if not decoding]
        decoding = [r for r, *_ in batch if r.decoding]
        context = sum(r.tokens for r in decoding)
        if chunks:
            took = self.step_time.mixed_ps(chunks, len(decoding), context)
        else:
            piece = self.step_time.decode_piece(len(decoding), context)
            took = piece.fixed_ps + piece.per_token_ps * context
        held: dict[int, int] = {}
        for request in self.running:
            assert request.holding is not None
            held |= {id(block): 1 for block in request.holding.blocks + request.holding.fixed}
        assert len(held) + self.cache.free == self.cache.total
        names = [r.id for r in preempted]
        self.step = Step(start, start + took, batch, names, self.cache.free)

    def schedule(self, scheduled: list[tuple[Request, int]], preempted: list[Request]) -> None:
        p, cache, size = self.p, self.cache, self.p.block_size
        budget = p.max_num_batched_tokens
        threshold = p.long_prefill_token_threshold
        if len(self.running) + len(self.waiting) <= 1:
            threshold = 0
        index = 0
        while index < len(self.running) and budget > 0:
            request = self.running[index]
            new = self.demand(request)
            if 0 < threshold < new:
                new = threshold
            new = min(new, budget)
            if new == 0:
                index += 1
                continue
            fits = True
            assert request.holding is not None
            while self.blocks(request, new) - len(request.holding.blocks) > cache.free:
                if p.policy == "priority":
                    victim = max(self.running, key=lambda r: (r.priority, r.arrived, r.id))
                    if self.running.index(victim) < index:
                        index -= 1
                    for item in [s for s in scheduled if s[0] is victim]:
                        budget += item[1]
                        scheduled.remove(item)
                    self.running.remove(victim)
                else:
                    victim = self.running.pop()
                self.free(victim)
                victim.computed, victim.decoding = 0, False
                victim.preemptions += 1
                self.preemptions += 1
                self.waiting.insert(0, victim)
                preempted.append(victim)
                if victim is request:
                    fits = False
                    break
            if not fits:
                break
            self.extend(request, new)
            scheduled.append((request, new))
            budget -= new
            index += 1
        if preempted:
            return
        while self.waiting and budget > 0 and len(self.running) < p.max_num_seqs:
            if p.policy == "priority":
                self.waiting.sort(key=lambda r: (r.priority, r.arrived, r.id))
            request = self.waiting[0]
            hits = cache.match(request.hashes, (request.tokens - 1) // size)
            reach = len(hits)
            if p.window_hits == "prompt_ends":
                while hits and not any(b.marked for b in cache.by_hash[hits[-1].hash or 0]):
                    hits.pop()
            computed = len(hits) * size
            if p.window_hits == "replay":
                if computed <= p.window_tokens:
                    hits, computed = [], 0
                else:
                    computed -= p.window_tokens
            new = request.tokens - computed
            if 0 < threshold < new:
                new = threshold
            if not p.chunked_prefill and new > budget:
                break
            new = min(new, budget)
            in_queue = sum(block.refs == 0 for block in hits)
            margin = int(p.watermark * (cache.total + p.null_blocks)) if self.running else 0
            margin += p.sequence_blocks
            whole = -(-request.tokens // size) - len(hits) + in_queue + margin
            if p.reserve_full_input and whole > cache.free:
                break
            first = max(-(-(computed + new) // size) - len(hits), 0)
            if first + in_queue + margin > cache.free:
                break
            self.waiting.pop(0)
            request.holding = cache.acquire(request.hashes, hits)
            cache.fix(request.holding, p.sequence_blocks)
            if p.window_hits == "prompt_ends":
                request.holding.marks = [(request.prompt - 1) // size, reach]
            request.computed = computed
            if request.cached is None:
                request.cached = computed
                if p.prefix_caching:
                    self.queried += request.tokens
                    self.hit += computed
            self.running.append(request)
            self.extend(request, new)
            scheduled.append((request, new))
            budget -= new

    def demand(self, request: Request) -> int:
        return request.tokens - request.computed

    def blocks(self, request: Request, new: int) -> int:
        return -(-(request.computed + new) // self.p.block_size)

    def extend(self, request: Request, new: int) -> None:
        assert request.holding is not None
        missing = self.blocks(request, new) - len(request.holding.blocks)
        self.cache.allocate(request.holding, max(missing, 0))
        self.cache.fill(request.holding, (request.computed + new) // self.p.block_size)

    def free(self, request: Request) -> None:
        assert request.holding is not None
        self.cache.release(request.holding)
        request.holding = None

    # ---- its end -----------------------------------------------------------------------------

    def complete(self) -> None:
        step = self.step
        assert step is not None
        self.step = None
        self.clock = step.end
        self.busy += step.end - step.start
        rows = tuple((r.id, new, computed) for r, new, computed, _ in step.batch)
        self.steps.append(StepRecord(step.start, step.end, rows, tuple(step.preempted), step.free))
        for request, new, _, decoding in step.batch:
            request.computed += new
            if decoding:
                self.decode_tokens += new
            else:
                self.prefill_tokens += new
        for ident in self.aborted:
            self.drop(ident)
        self.aborted = []
        for request, *_ in step.batch:
            if request not in self.running or request.computed < request.tokens:
                continue
            request.tokens += 1
            request.decoding = True
            request.times.append(step.end)
            self.generated += 1
            if len(request.times) == 1:
                self.prompts += request.prompt
                if not request.prefill_only:
                    self.send(
                        step.end, EngineEvent(0, "first_token", request.id, request.cached or 0)
                    )
            if request.tokens == request.final:
                self.running.remove(request)
                self.free(request)
                gaps = [b - a for a, b in zip(request.times, request.times[1:], strict=False)]
                self.send(
                    step.end,
                    EngineEvent(
                        0,
                        "finished",
                        request.id,
                        request.cached or 0,
                        -(-max(gaps) // 1000) if gaps else None,
                        request.preemptions,
                    ),
                )

    def drop(self, ident: int) -> None:
        for request in [r for r in self.running if r.id == ident]:
            self.running.remove(request)
            self.free(request)

    def send(self, time: int, event: EngineEvent) -> None:
        self.sent += 1
        self.out.append((time + self.p.output_delay_ps, self.sent, event))
