"""SGLang's own scheduler, radix tree and allocators, driven without a model or a GPU.

`Scheduler.get_next_batch_to_run` composes the steps, with the policy, the prefill admission, the
ratio of new tokens and the retraction that it brings; `UnifiedRadixCache` is the tree. Steps take
the time that a step-time model says, sampled tokens are those of the given text. What is left out
of a scheduler process: its sockets, the model worker, metrics and speculative decoding.

The `sglang` package (0.5.23) is imported when a `SglangLoop` is made; `torchvision` and
`sgl_kernel`, which it imports and which this does not need, may be missing.
"""

from __future__ import annotations

import logging
import sys
import warnings
from array import array
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType, SimpleNamespace
from typing import Any

from harness.sim.engine_types import StepRecord, StepTime
from harness.sim.sglang_policy import SglangParams
from tests.oracles.vllm_loop import Arrival

UNNEEDED = ("torchvision", "sgl_kernel")
LONGEST = 4096
END = 0
"""The last token of every output: it ends the request, and is never computed."""


UNUSED: dict[str, Any] = (
    dict.fromkeys(
        (
            "decode_offload_manager",
            "dllm_config",
            "dynamic_chunk_sizer",
            "hisparse_coordinator",
            "max_new_tokens_limit",
            "min_free_slots_delayer",
            "priority_scheduling_preemption_threshold",
            "scheduler_stage_metrics",
            "max_queued_requests",
            "sliding_window_size",
            "truncation_align_size",
            "_pending_chunked_abort_req",
        )
    )
    | dict.fromkeys(
        (
            "enable_hicache_storage",
            "enable_hierarchical_cache",
            "enable_hisparse",
            "enable_lmcache",
            "enable_lora",
            "enable_overlap",
            "enable_priority_scheduling",
            "enable_skip_finishing_decode",
            "enable_unified_cache_external_linker",
            "is_hybrid_swa",
            "is_mixed_chunk",
            "require_mlp_sync",
            "schedule_low_priority_values_first",
            "abort_on_priority_when_disabled",
        ),
        False,
    )
    | dict.fromkeys(
        (
            "_prefill_decode_interval_remaining",
            "forward_ct",
            "prefill_decode_interval",
            "processed_tokens_counter",
        ),
        0,
    )
)
"""What the scheduler looks at and finds turned off."""


class Anything:
    """Stands for whatever a missing module would offer at import time."""

    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()

    def __call__(self, *_: object, **__: object) -> Anything:
        return Anything()

    def __mro_entries__(self, _: object) -> tuple[type, ...]:
        return (object,)


class Empty(ModuleType):
    def __getattr__(self, name: str) -> Anything:
        if name.startswith("__"):
            raise AttributeError(name)
        return Anything()


class StandIns(MetaPathFinder, Loader):
    """Empty modules for packages that are not installed."""

    def __init__(self, missing: Sequence[str]) -> None:
        self.missing = missing

    def find_spec(self, fullname: str, *_: object) -> ModuleSpec | None:
        if fullname.split(".")[0] in self.missing:
            return ModuleSpec(fullname, self, is_package=True)
        return None

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return Empty(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """There is nothing in it."""


def prepare() -> None:
    """Make `sglang` importable where it finds no GPU; once a process."""
    if any(isinstance(finder, StandIns) for finder in sys.meta_path):
        return
    import_module("transformers")  # looks for torchvision by itself, and may find it missing
    import_module("transformers.utils.import_utils").is_torchvision_available()
    missing = [name for name in UNNEEDED if find_spec(name) is None]
    sys.meta_path.append(StandIns(missing))
    logging.getLogger("sglang").setLevel(logging.CRITICAL)


@dataclass
class SglangSeen:
    """What SGLang did.

    `trees`: the nodes of the tree as (pages before them, tokens from the root to their end), when
    a step is composed. `available`: pages that are then free, `ratios`: of new tokens.
    """

    steps: list[StepRecord]
    trees: list[list[tuple[int, tuple[int, ...]]]]
    available: list[int]
    ratios: list[float]
    prefills: list[bool]
    cached: dict[int, int]
    preemptions: dict[int, int]
    finished: dict[int, int]
    """Request -> end of the step (ps) that gave its last token."""


class SglangLoop:
    """One scheduler.

    Args:
        params: must not ask for an API server or an output delay.
        pages: as in `SglangEngine`.
    """

    def __init__(self, params: SglangParams, step_time: StepTime, pages: int) -> None:
        self.params = params
        self.step_time = step_time
        self.tokens: dict[tuple[str, int], int] = {}
        self.texts: dict[int, list[int]] = {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            prepare()
            self._build(pages)

    def _build(self, pages: int) -> None:
        params, page = self.params, self.params.page_size
        scheduler = import_module("sglang.srt.managers.scheduler")
        policy = import_module("sglang.srt.managers.schedule_policy")
        batches = import_module("sglang.srt.managers.schedule_batch")
        self.request_class = batches.Req
        self.result_class = import_module("sglang.srt.managers.utils").GenerationBatchResult
        results = import_module("sglang.srt.managers.scheduler_components.batch_result_processor")
        self.sampling = import_module("sglang.srt.sampling.sampling_params").SamplingParams
        speculative = import_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm
        disaggregation = import_module("sglang.srt.disaggregation.utils")
        context = import_module("sglang.srt.runtime_context").get_context()
        if not context.is_config_namespace_published("schedule"):
            context.override_server_args(
                device="cpu", attention_backend="torch_native", schedule_policy=params.policy
            ).install()
        context.parallel.override_permanently(pp_max_micro_batch_size=params.max_running_requests)
        vars(policy).update(
            CLIP_MAX_NEW_TOKENS=params.clip_max_new_tokens,
            WAITING_PREFIX_REFRESH_INTERVAL=params.refresh_passes,
            WAITING_QUEUE_PREFIX_MATCH_MAX=params.lpm_queue_limit,
            IN_BATCH_PREFIX_CACHING_CHECK_THRESHOLD=params.lpm_in_batch_tokens,
            IN_BATCH_PREFIX_CACHING_DEPRIORITIZE_THRESHOLD=params.lpm_in_batch_tokens,
        )
        self.cache, pool = self._cache(pages, page)
        one = object.__new__(scheduler.Scheduler)
        self.scheduler: Any = one
        one.__dict__ |= UNUSED | {
            "tree_cache": self.cache,
            "req_to_token_pool": pool,
            "token_to_kv_pool_allocator": self.cache.token_to_kv_pool_allocator,
            "page_size": page,
            "schedule_policy": params.policy,
            "waiting_queue": [],
            "running_batch": batches.ScheduleBatch(reqs=[], batch_is_full=False),
            "last_batch": None,
            "chunked_req": None,
            "chunked_prefill_size": params.chunked_prefill,
            "max_prefill_tokens": params.max_prefill_tokens,
            "max_running_requests": params.max_running_requests,
            "max_total_num_tokens": pages * page,
            "max_req_len": min(LONGEST, pages * page) - 1,
            "spec_algorithm": speculative.NONE,
            "disaggregation_mode": disaggregation.DisaggregationMode.NULL,
            "model_config": SimpleNamespace(vocab_size=1 << 40, is_encoder_decoder=False),
            "tp_worker": SimpleNamespace(
                model_runner=SimpleNamespace(attn_backend=None, prefill_aware_swa=False)
            ),
            "dp_attn_adapter": SimpleNamespace(
                maybe_prepare_mlp_sync_batch=lambda batch, need_sync: batch,
                maybe_convert_decode_to_extend=lambda batch: batch,
            ),
            "ngram_embedding_manager": SimpleNamespace(
                prepare_for_forward=lambda batch, chunked_req: batch
            ),
            "grammar_manager": SimpleNamespace(has_waiting_grammars=lambda: False),
            "beam_coordinator": SimpleNamespace(pending_member_rows=lambda batch: 0),
            "load_inquirer": SimpleNamespace(_get_num_pending_tokens=lambda chunk_deduct: 0),
            "metrics_reporter": SimpleNamespace(enable_metrics=False, num_retracted_reqs=0),
        }
        none = SimpleNamespace(
            num_generated_tokens=0,
            forward_ct_decode=0,
            report_prefill_stats=_nothing,
            report_decode_stats=_nothing,
        )
        self.results = results.SchedulerBatchResultProcessor(
            is_generation=True,
            disaggregation_mode=one.disaggregation_mode,
            enable_overlap=False,
            enable_overlap_mlx=False,
            model_config=SimpleNamespace(self_opened_think_start_ids=None, think_end_ids=None),
            token_to_kv_pool_allocator=one.token_to_kv_pool_allocator,
            tree_cache=self.cache,
            hisparse_coordinator=None,
            req_to_token_pool=pool,
            decode_offload_manager=None,
            metrics_collector=None,
            metrics_reporter=none,
            draft_worker=None,
            model_worker=None,
            logprob_result_processor=None,
            output_streamer=SimpleNamespace(stream_output=_nothing),
            beam_coordinator=one.beam_coordinator,
            abort_request=_nothing,
        )
        one.init_schedule_policy()
        tracker = one.new_token_ratio_tracker
        first = min(params.init_new_token_ratio * params.conservativeness, 1.0)
        tracker.init = tracker.current = first
        tracker.min = min(first * params.min_new_token_ratio_factor, 1.0)
        tracker.decay = (first - tracker.min) / params.new_token_ratio_decay_steps

    def _cache(self, pages: int, page: int) -> tuple[Any, Any]:
        torch = import_module("torch")
        memory = import_module("sglang.srt.mem_cache.memory_pool")
        kinds = import_module("sglang.srt.mem_cache.unified_cache.components.base")
        tree = import_module("sglang.srt.mem_cache.unified_radix_cache")
        initial = import_module("sglang.srt.mem_cache.cache_init_params")
        shared = {"dtype": torch.float16, "device": "cpu", "kvcache": None, "need_sort": False}
        pool = memory.ReqToTokenPool(
            size=self.params.max_running_requests,
            max_context_len=LONGEST,
            device="cpu",
            enable_memory_saver=False,
        )
        if page == 1:
            module = import_module("sglang.srt.mem_cache.allocator.token")
            allocator = module.TokenToKVPoolAllocator(size=pages, **shared)
        else:
            module = import_module("sglang.srt.mem_cache.allocator.paged")
            allocator = module.PagedTokenToKVPoolAllocator(
                size=pages * page, page_size=page, **shared
            )
        cache = tree.UnifiedRadixCache(
            params=initial.CacheInitParams(
                req_to_token_pool=pool,
                token_to_kv_pool_allocator=allocator,
                page_size=page,
                disable=not self.params.prefix_caching,
                tree_components=(kinds.ComponentType.FULL,),
                tree_core_backend="python",
            )
        )
        return cache, pool

    def run(self, arrivals: Sequence[Arrival]) -> SglangSeen:
        """Play the arrivals, given in order of time."""
        seen = SglangSeen([], [], [], [], [], {}, {}, {})
        left = deque(arrivals)
        one = self.scheduler
        clock = 0
        idle = False
        while True:
            if idle:
                if not left:
                    break
                clock = max(clock, left[0].at * 1000)
            while left and left[0].at * 1000 <= (clock if idle else clock - 1):
                self._add(left.popleft())
            before = {r.rid: r.retraction_count for r in one.running_batch.reqs}
            plan = one.get_next_batch_to_run(
                running_batch=one.running_batch, last_batch=one.last_batch
            )
            one.running_batch = plan.running_batch
            batch = plan.batch_to_run
            idle = batch is None
            if batch is not None:
                gone = tuple(
                    int(r.rid)
                    for r in one.waiting_queue
                    if r.rid in before and before[r.rid] < r.retraction_count
                )
                clock = self._execute(batch, clock, gone, seen)
            elif one.waiting_queue or not one.running_batch.is_empty():
                raise AssertionError("the scheduler is stuck")
            one.last_batch = batch
        self._look(seen)
        return seen

    def _add(self, arrival: Arrival) -> None:
        tokens = [
            self.tokens.setdefault((name, offset), len(self.tokens) + 1)
            for name, count in arrival.text
            for offset in range(count)
        ]
        self.texts[arrival.id] = tokens
        asked = self.params.max_new_tokens or arrival.output
        request = self.request_class(
            str(arrival.id),
            "",
            array("q", tokens[: arrival.prompt]),
            self.sampling(max_new_tokens=asked),
            vocab_size=1 << 40,
            eos_token_ids={END},
        )
        request.sampling_params.normalize(None)
        self.scheduler.init_req_max_new_tokens(request)
        self.scheduler._add_request_to_queue(request)

    def _execute(self, batch: Any, start: int, gone: tuple[int, ...], seen: SglangSeen) -> int:
        """Run the batch, give its tokens to the scheduler; returns when it ends."""
        torch = import_module("torch")
        rows: list[tuple[int, int, int]] = []
        sampled = []
        prefill = batch.forward_mode.is_extend()
        for request in batch.reqs:
            ident = int(request.rid)
            if prefill:
                computed, new = request.prefix_len, request.extend_len
                seen.cached.setdefault(ident, computed)
            else:
                computed, new = request.seqlen - 1, 1
            rows.append((ident, new, computed))
            text = self.texts[ident]
            known = request.seqlen
            sampled.append(END if known == len(text) - 1 else text[min(known, len(text) - 1)])
            seen.preemptions[ident] = request.retraction_count
        if prefill:
            took = self.step_time.mixed_ps([(new, done) for _, new, done in rows], 0, 0)
        else:
            context = sum(computed + 1 for _, _, computed in rows)
            piece = self.step_time.decode_piece(len(rows), context)
            took = piece.fixed_ps + piece.per_token_ps * context
        end = start + took
        seen.steps.append(StepRecord(start, end, tuple(rows), gone, 0))
        self._look(seen)
        seen.prefills.append(prefill)
        result = self.result_class(next_token_ids=torch.tensor(sampled))
        batch.input_ids = result.next_token_ids
        before = [r.finished() for r in batch.reqs]
        if prefill:
            self.results.process_batch_result_prefill(batch, result)
        else:
            self.results.process_batch_result_decode(batch, result)
        for request, was in zip(batch.reqs, before, strict=True):
            if request.finished() and not was:
                seen.finished[int(request.rid)] = end
        return end

    def _look(self, seen: SglangSeen) -> None:
        page = self.params.page_size
        seen.available.append(self.cache.token_to_kv_pool_allocator.available_size() // page)
        seen.ratios.append(self.scheduler.new_token_ratio_tracker.current)
        found: list[tuple[int, tuple[int, ...]]] = []
        stack: list[tuple[Any, tuple[int, ...]]] = [(self.cache.tree_core.root_node, ())]
        while stack:
            node, before = stack.pop()
            for child in node.children.values():
                path = (*before, *child.key.raw_token_ids())
                found.append((len(before) // page, path))
                stack.append((child, path))
        seen.trees.append(sorted(found))


def _nothing(*_: object, **__: object) -> None:
    """What a scheduler process would report is not wanted."""
