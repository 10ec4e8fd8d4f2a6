"""SGLang's loop step by step, with a tree that holds every page's hash: slow and plain.

Same interface as `harness.sim.sglang_engine.SglangEngine`, but texts are (segment, tokens) lists.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from harness.sim.engine_types import EngineEvent, StepRecord, StepTime
from harness.sim.sglang_policy import SglangParams
from tests.oracles.block_cache import Hasher, Segments


@dataclass(eq=False)
class Node:
    keys: list[int]
    parent: Node | None
    children: dict[int, Node] = field(default_factory=dict)
    locks: int = 0
    used: int = 0


class Tree:
    def __init__(self, pages: int, caching: bool) -> None:
        self.total = self.available = pages
        self.caching = caching
        self.root = Node([], None)
        self.clock = self.evicted = 0

    def nodes(self) -> list[Node]:
        found, stack = [], list(self.root.children.values())
        while stack:
            node = stack.pop()
            found.append(node)
            stack += node.children.values()
        return found

    def evictable(self) -> int:
        return sum(len(node.keys) for node in self.nodes() if node.locks == 0)

    def cached(self) -> int:
        return sum(len(node.keys) for node in self.nodes())

    def free(self) -> int:
        return self.available + self.evictable()

    def walk(self, keys: list[int]) -> tuple[Node, int]:
        """The node at which the known beginning of `keys` ends, and its length."""
        self.clock += 1
        node, done = self.root, 0
        while done < len(keys) and keys[done] in node.children:
            child = node.children[keys[done]]
            same = 0
            while same < len(child.keys) and keys[done : done + same + 1] == child.keys[: same + 1]:
                same += 1
            if same < len(child.keys):
                upper = Node(child.keys[:same], node, {}, child.locks, self.clock)
                node.children[keys[done]] = upper
                child.keys, child.parent = child.keys[same:], upper
                upper.children[child.keys[0]] = child
                child.used = self.clock
                return upper, done + same
            child.used = self.clock
            node, done = child, done + same
        return node, done

    def match(self, keys: list[int]) -> tuple[Node, int]:
        if not self.caching or not keys:
            return self.root, 0
        return self.walk(keys)

    def insert(self, keys: list[int]) -> tuple[Node, int]:
        node, known = self.walk(keys)
        if known < len(keys):
            self.clock += 1
            leaf = Node(keys[known:], node, {}, 0, self.clock)
            node.children[keys[known]] = leaf
            node = leaf
        return node, known

    def lock(self, node: Node, by: int) -> None:
        while node.parent is not None:
            node.locks += by
            node = node.parent

    def reclaim(self, pages: int) -> bool:
        while self.available < pages:
            leaves = [n for n in self.nodes() if n.locks == 0 and not n.children]
            if not leaves:
                return False
            victim = min(leaves, key=lambda node: node.used)
            assert victim.parent is not None
            del victim.parent.children[victim.keys[0]]
            self.available += len(victim.keys)
            self.evicted += len(victim.keys)
        return True

    def take(self, pages: int) -> None:
        assert self.reclaim(pages)
        self.available -= pages


@dataclass(eq=False)
class Request:
    id: int
    leaves: int
    prompt: int
    final: int
    hashes: list[int]
    tokens: int
    max_new: int
    prefill_only: bool
    computed: int = 0
    cached: int | None = None
    preemptions: int = 0
    times: list[int] = field(default_factory=list)
    node: Node | None = None
    owned: int = 0
    pages: int = 0


class SglangOracle:
    def __init__(
        self, params: SglangParams, step_time: StepTime, pages: int, hasher: Hasher
    ) -> None:
        self.p = params
        self.time = step_time
        self.tree = Tree(pages, params.prefix_caching)
        self.hasher = hasher
        self.api: list[Request] = []
        self.api_free = 0
        self.waiting: list[Request] = []
        self.decoding: list[Request] = []
        self.prefilling: list[Request] = []
        self.chunked: Request | None = None
        self.full = False
        self.ratio = min(params.init_new_token_ratio * params.conservativeness, 1.0)
        self.floor = min(self.ratio * params.min_new_token_ratio_factor, 1.0)
        self.fall = (self.ratio - self.floor) / params.new_token_ratio_decay_steps
        self.decayed = self.passes = 0
        self.step: tuple[int, int, list[tuple[Request, int, int]], bool, list[int]] | None = None
        self.clock = self.seen = 0
        self.aborted: list[int] = []
        self.out: list[tuple[int, int, EngineEvent]] = []
        self.steps: list[StepRecord] = []
        self.preemptions = self.sent = 0

    def submit(
        self,
        ident: int,
        segments: Segments,
        prompt: int,
        output: int,
        now: int,
        prefill_only: bool = False,
    ) -> None:
        p = self.p
        self.api_free = max(now * 1000, self.api_free) + p.api_request_ps
        self.api_free += p.api_prompt_token_ps * prompt
        output = 1 if prefill_only else output
        room = self.tree.total * p.page_size - p.page_size - 1
        limit = room if p.max_model_len is None else min(room, p.max_model_len)
        if prompt + output > max(limit, 2) or -(-(prompt + output - 1) // p.page_size) > (
            self.tree.total
        ):
            self.send(self.api_free, EngineEvent(0, "rejected", ident))
            return
        ceiled = -(-prompt // p.page_size) * p.page_size
        max_new = max(min(p.max_new_tokens or output, room - ceiled), 0)
        hashes = self.hasher.hashes(segments)
        self.api.append(
            Request(
                ident, self.api_free, prompt, prompt + output, hashes, prompt, max_new, prefill_only
            )
        )

    def abort(self, ident: int) -> None:
        self.out = [item for item in self.out if item[2].id != ident]
        self.api = [r for r in self.api if r.id != ident]
        self.waiting = [r for r in self.waiting if r.id != ident]
        if self.step is not None:
            self.aborted.append(ident)
        else:
            self.drop(ident)

    def drop(self, ident: int) -> None:
        chunked = [self.chunked] if self.chunked is not None else []
        for request in set(self.decoding + self.prefilling + chunked):
            if request.id == ident:
                self.leave(request)

    def leave(self, request: Request) -> None:
        """Done or aborted: what is computed stays cached."""
        self.checkpoint(request)
        self.release(request)
        self.decoding = [r for r in self.decoding if r is not request]
        self.prefilling = [r for r in self.prefilling if r is not request]
        if self.chunked is request:
            self.chunked = None
        self.full = False

    def advance(self, until: int) -> list[EngineEvent]:
        limit = self.seen = until * 1000
        while True:
            if self.step is not None:
                if self.step[1] > limit:
                    break
                self.complete()
                continue
            if self.decoding or self.waiting or self.chunked:
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

    # ---- a step ------------------------------------------------------------------------------

    def begin(self, start: int) -> None:
        p, tree = self.p, self.tree
        self.clock = start
        while self.api and self.api[0].leaves <= start:
            self.waiting.append(self.api.pop(0))
        if self.chunked is not None:
            self.checkpoint(self.chunked)
            self.full = False
        if not self.decoding:
            self.full = False
        batch: list[tuple[Request, int, int]] = []
        retracted: list[Request] = []
        if self.chunked is not None or (self.waiting and not self.full):
            batch = self.prefill()
        if batch:
            chunks = [(new, computed) for _, new, computed in batch]
            took = self.time.mixed_ps(chunks, 0, 0)
        else:
            if not tree.reclaim(self.needed(self.decoding)):
                retracted = self.retract()
            else:
                self.decayed += 1
            if p.page_size > 1:
                tree.reclaim(len(self.decoding))
            need = self.needed(self.decoding)
            tree.take(need)
            batch = [(r, 1, r.tokens - 1) for r in self.decoding]
            for r in self.decoding:
                r.pages = -(-r.tokens // p.page_size)
            context = sum(r.tokens for r in self.decoding)
            piece = self.time.decode_piece(len(batch), context)
            took = piece.fixed_ps + piece.per_token_ps * context
        decode = batch[0][0] in self.decoding
        self.step = (start, start + took, batch, decode, [r.id for r in retracted])
        private = sum(r.pages - r.owned for r in self.holders())
        assert private + tree.available + tree.cached() == tree.total

    def holders(self) -> list[Request]:
        chunked = [self.chunked] if self.chunked is not None else []
        return list({id(r): r for r in self.decoding + self.prefilling + chunked}.values())

    def needed(self, requests: list[Request]) -> int:
        return sum((r.tokens - 1) % self.p.page_size == 0 for r in requests)

    def current_ratio(self) -> float:
        return (
            max(self.ratio - self.decayed * self.fall, self.floor) if self.decayed else self.ratio
        )

    def asked(self, request: Request) -> int:
        return min(request.max_new, self.p.clip_max_new_tokens)

    def may_ask(self, request: Request) -> int:
        left = request.max_new - (request.tokens - request.prompt)
        return min(max(left, 0), self.p.clip_max_new_tokens)

    def prefill(self) -> list[tuple[Request, int, int]]:
        p, tree, page = self.p, self.tree, self.p.page_size
        if len(self.decoding) >= p.max_running_requests and self.chunked is None:
            self.full = True
            return []
        if self.waiting and tree.caching:
            if p.policy == "lpm" and len(self.waiting) <= p.lpm_queue_limit:
                self.sort()
            else:
                self.passes += 1
                if p.refresh_passes and (self.passes - 1) % p.refresh_passes == 0:
                    for request in self.waiting[: p.lpm_queue_limit][::-1]:
                        tree.match(request.hashes[: request.tokens // page])
        reserved: float = sum(self.may_ask(r) * self.current_ratio() for r in self.decoding)
        immediate = 0
        inputs, chunk = p.max_prefill_tokens, p.chunked_prefill
        batch: list[tuple[Request, int, int]] = []

        def spend(new: int, max_new: int) -> None:
            nonlocal reserved, immediate, inputs, chunk
            ceiled = -(-new // page) * page
            reserved += ceiled + page + max_new
            immediate += ceiled + page
            inputs -= ceiled
            if chunk is not None:
                chunk -= ceiled

        if self.chunked is not None:
            request = self.chunked
            left = request.tokens - request.computed
            limit = left if chunk is None else chunk
            room = min(limit, int(tree.free() * page - reserved))
            new = min(left, room if room > 0 else limit)
            spend(new, self.asked(request) if new == left else 0)
            if new == left:
                self.chunked = None
            batch.append((request, new, request.computed))
        for request in list(self.waiting):
            total, now = tree.free() * page - reserved, tree.free() * page - immediate
            if total > 0 and now > 0 and (inputs <= 0 or (chunk is not None and chunk <= 0)):
                break
            if len(batch) >= p.max_running_requests - len(self.decoding):
                self.full = bool(self.decoding)
                break
            node, known = tree.match(request.hashes[: (request.tokens - 1) // page])
            computed = known * page
            new = request.tokens - computed
            max_new = self.asked(request)
            tree.lock(node, 1)
            if new + self.may_ask(request) + page >= tree.free() * page - reserved:
                tree.lock(node, -1)
                self.full = bool(self.decoding)
                break
            ceiled = -(-new // page) * page
            if chunk is None and batch and ceiled >= inputs:
                tree.lock(node, -1)
                break
            if chunk is not None and ceiled > chunk:
                new = (computed + chunk // page * page) // page * page - computed
                max_new = 0
                if new <= 0:
                    tree.lock(node, -1)
                    break
                self.chunked = request
            spend(new, max_new)
            self.waiting.remove(request)
            request.node, request.owned, request.pages = node, known, known
            request.computed = computed
            if request.cached is None:
                request.cached = computed
            batch.append((request, new, computed))
            if tree.free() * page - reserved <= 0 or tree.free() * page - immediate <= 0:
                self.full = bool(self.decoding)
                break
        if batch:
            if page > 1:
                tree.reclaim(-(-(sum(new for _, new, _ in batch) + len(batch) * page) // page))
            for request, new, computed in batch:
                upto = -(-(computed + new) // page)
                tree.take(upto - request.pages)
                request.pages = upto
            self.prefilling = [r for r, _, _ in batch]
        return batch

    def sort(self) -> None:
        page, threshold = self.p.page_size, self.p.lpm_in_batch_tokens
        keys: dict[int, float] = {}
        unlike: list[list[int]] = []
        for request in self.waiting:
            pages = request.hashes[: request.tokens // page]
            found = self.tree.match(pages)[1] * page
            keys[request.id] = -min(found, request.tokens - 1)
            if found <= threshold:
                shared = 0
                for other in unlike:
                    same = [a == b for a, b in zip(pages, other, strict=False)]
                    shared = max(shared, [*same, False].index(False))
                if shared * page >= threshold:
                    keys[request.id] = float("inf")
                else:
                    unlike.append(pages)
        self.waiting.sort(key=lambda r: keys[r.id])

    def retract(self) -> list[Request]:
        p = self.p
        order = sorted(self.decoding, key=lambda r: (r.tokens - r.prompt, -r.prompt), reverse=True)
        gone: list[Request] = []
        while len(order) > 1:
            request = order.pop()
            self.decoding.remove(request)
            self.release(request)
            self.tree.reclaim(-(-len(order) * p.retract_steps // p.page_size))
            request.computed = 0
            request.preemptions += 1
            self.preemptions += 1
            self.waiting.append(request)
            gone.append(request)
            if self.tree.reclaim(self.needed(order)):
                break
        self.decoding = order
        done = sum(r.tokens - r.prompt for r in order)
        asked = sum(r.max_new for r in order)
        self.ratio = min((done + p.retract_steps * len(order)) / (asked + 1), 1.0)
        self.decayed = 0
        self.full = False
        return gone

    def checkpoint(self, request: Request) -> None:
        pages = request.computed // self.p.page_size
        if not self.tree.caching or pages == 0:
            return
        node, known = self.tree.insert(request.hashes[:pages])
        self.tree.available += max(known - request.owned, 0)
        self.tree.lock(node, 1)
        assert request.node is not None
        self.tree.lock(request.node, -1)
        request.node, request.owned = node, pages
        prompt = request.prompt // self.p.page_size
        if 0 < prompt < pages:
            self.tree.insert(request.hashes[:prompt])

    def release(self, request: Request) -> None:
        self.tree.available += request.pages - request.owned
        assert request.node is not None
        self.tree.lock(request.node, -1)
        request.node, request.pages, request.owned = None, 0, 0

    # ---- its end -----------------------------------------------------------------------------

    def complete(self) -> None:
        assert self.step is not None
        start, end, batch, decode, retracted = self.step
        self.step = None
        self.clock = end
        rows = tuple((r.id, new, computed) for r, new, computed in batch)
        self.steps.append(StepRecord(start, end, rows, tuple(retracted), 0))
        for request, new, computed in batch:
            request.computed = computed + new
        for ident in self.aborted:
            self.drop(ident)
        self.aborted = []
        for request, _, _ in batch:
            if request.node is None or request.computed < request.tokens:
                continue
            request.tokens += 1
            request.times.append(end)
            if len(request.times) == 1 and not request.prefill_only:
                self.send(end, EngineEvent(0, "first_token", request.id, request.cached or 0))
            if request.tokens == request.final:
                self.leave(request)
                gaps = [b - a for a, b in zip(request.times, request.times[1:], strict=False)]
                gap = -(-max(gaps) // 1000) if gaps else None
                kind = EngineEvent(
                    0, "finished", request.id, request.cached or 0, gap, request.preemptions
                )
                self.send(end, kind)
            elif not decode:
                self.checkpoint(request)
                self.decoding.append(request)
        self.prefilling = []

    def send(self, time: int, event: EngineEvent) -> None:
        self.sent += 1
        self.out.append((time + self.p.output_delay_ps, self.sent, event))
