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
    keep: bool = False
    remote: int = 0


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
        self.loading: list[Request] = []
        self.ready: list[Request] = []
        self.kept: dict[int, OracleHolding] = {}
        self.blocked = False
        self.step: Step | None = None
        self.clock = 0
        self.composing = 0
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
        keep: bool = False,
        remote: int = 0,
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
            keep=keep,
            remote=min(remote, prompt),
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
        self.take_out(ident, now)
        if self.step is not None:
            self.aborted.append(ident)
        else:
            self.drop(ident)

    def take_out(self, ident: int, now: int) -> None:
        """It leaves at once unless it runs."""
        self.api = [r for r in self.api if r.id != ident]
        for request in [r for r in self.waiting + self.loading + self.ready if r.id == ident]:
            for queue in (self.waiting, self.loading, self.ready):
                if request in queue:
                    queue.remove(request)
            if request.holding is not None:
                self.free(request)
            self.unblock(now)

    def unblock(self, now: int) -> None:
        self.blocked = False
        if self.step is None:
            self.clock = max(self.clock, now * 1000)

    def loaded(self, ident: int, now: int) -> None:
        for request in [r for r in self.loading if r.id == ident]:
            self.loading.remove(request)
            self.ready.append(request)
            assert request.holding is not None
            self.cache.fill(request.holding, request.remote // self.p.block_size)
            request.computed = min(request.remote, request.tokens - 1)
            request.remote = 0
            self.unblock(now)

    def release(self, ident: int, now: int) -> None:
        if ident in self.kept:
            self.cache.release(self.kept.pop(ident))
            self.unblock(now)

    def reset(self, now: int) -> set[int]:
        lost = {item[2].id for item in self.out if item[2].kind in ("finished", "rejected")}
        lost |= {r.id for r in self.all() if r.id not in self.aborted}
        self.api, self.waiting, self.running, self.out = [], [], [], []
        self.loading, self.ready, self.kept, self.blocked = [], [], {}, False
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
            if self.startable():
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

    def startable(self) -> bool:
        return not self.blocked and bool(self.running or self.waiting or self.ready)

    def all(self) -> list[Request]:
        return self.api + self.waiting + self.loading + self.ready + self.running

    def output_tokens(self, ident: int) -> int:
        for request in self.all():
            if request.id == ident:
                return request.tokens - request.prompt
        return 0

    # ---- a step ------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        self.clock, self.blocked = start, False
        while self.api and self.api[0].leaves <= start:
            self.waiting.append(self.api.pop(0))
        scheduled: list[tuple[Request, int]] = []
        preempted: list[Request] = []
        self.composing = start
        self.schedule(scheduled, preempted)
        if not scheduled and preempted:
            preempted = []
            self.schedule(scheduled, preempted)
        if not scheduled:
            assert self.loading or self.kept
            self.blocked = True
            return
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
        holdings = [r.holding for r in self.running + self.loading + self.ready]
        for holding in [*holdings, *self.kept.values()]:
            assert holding is not None
            held |= {id(block): 1 for block in holding.blocks + holding.fixed}
        assert len(held) + self.cache.free == self.cache.total
        names = [r.id for r in preempted]
        self.step = Step(start, start + took, batch, names, self.cache.free)

    def schedule(self, scheduled: list[tuple[Request, int]], preempted: list[Request]) -> None:
        p, cache, size = self.p, self.cache, self.p.block_size
        budget = p.max_num_batched_tokens
        threshold = p.long_prefill_token_threshold
        if len(self.all()) - len(self.api) <= 1:
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
        while budget > 0 and len(self.running) < p.max_num_seqs:
            if self.ready:
                new = self.start_ready(budget, threshold)
                if not new:
                    break
                scheduled.append((self.running[-1], new))
                budget -= new
                continue
            if not self.waiting:
                break
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
            remote = request.remote if request.remote > computed else 0
            if remote:
                margin += sum(
                    -(-r.tokens // size) - len(r.holding.blocks)
                    for r in self.running + self.loading + self.ready
                    if r.holding is not None and not r.decoding
                )
            whole = -(-request.tokens // size) - len(hits) + in_queue + margin
            if p.reserve_full_input and whole > cache.free:
                break
            first = max(-(-max(computed + new, request.remote) // size) - len(hits), 0)
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
            if remote:
                self.load(request, remote - computed)
                continue
            request.remote = 0
            self.running.append(request)
            self.extend(request, new)
            scheduled.append((request, new))
            budget -= new

    def load(self, request: Request, tokens: int) -> None:
        """It gets the blocks of what is elsewhere, and waits for the KV to come."""
        assert request.holding is not None
        missing = -(-request.remote // self.p.block_size) - len(request.holding.blocks)
        self.cache.allocate(request.holding, missing)
        self.loading.append(request)
        self.sent += 1
        event = EngineEvent(0, "loading", request.id, request.cached or 0, load_tokens=tokens)
        self.out.append((self.composing, self.sent, event))

    def start_ready(self, budget: int, threshold: int) -> int:
        """The first one whose KV has come runs, for so many tokens; 0: it does not fit."""
        request, size = self.ready[0], self.p.block_size
        new = request.tokens - request.computed
        if 0 < threshold < new:
            new = threshold
        if new > budget and not self.p.chunked_prefill:
            return 0
        new = min(new, budget)
        needed = request.tokens if self.p.reserve_full_input else request.computed + new
        assert request.holding is not None
        if -(-needed // size) - len(request.holding.blocks) > self.cache.free:
            return 0
        self.running.append(self.ready.pop(0))
        self.extend(request, new)
        return new

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

    def end(self, request: Request) -> None:
        """It has all its tokens: its blocks are free, or kept for another replica to copy."""
        if request.keep:
            assert request.holding is not None
            self.kept[request.id], request.holding = request.holding, None
        else:
            self.free(request)

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
                self.end(request)
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
