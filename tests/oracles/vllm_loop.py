"""vLLM's own scheduler and KV cache manager, driven without a model.

Steps take the time that a step-time model says, sampled tokens are those of the given text. Only
importable parts of the `vllm` package are used; they are imported when a `VllmLoop` is made.
"""

from __future__ import annotations

import json
import tempfile
import warnings
from collections import deque
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from harness.sim.engine_types import EngineParams, StepRecord, StepTime

QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "vocab_size": 256,
    "max_position_embeddings": 4096,
}


@dataclass(frozen=True)
class Arrival:
    """A request of text ((segment, tokens), ...), output included, at `at` ns."""

    at: int
    id: int
    text: tuple[tuple[str, int], ...]
    prompt: int
    output: int
    priority: int


@dataclass(frozen=True)
class Abort:
    at: int
    id: int


@dataclass
class Composed:
    """A step: the scheduler's output, its rows, which of them sample a token, and how long."""

    output: Any
    batch: tuple[tuple[int, int, int], ...]
    sampled: list[bool]
    took: int


@dataclass
class Seen:
    """What vLLM did.

    `queues`: the free queue as block hashes (None: blank) in each step, if steps are not composed
    ahead, and at the end.
    """

    steps: list[StepRecord]
    queues: list[list[bytes | None]]
    cached: dict[int, int]
    preemptions: dict[int, int]
    finished: dict[int, int]
    """Request -> end of the step (ps) that gave its last token."""


class VllmLoop:
    """One scheduler.

    Args:
        params: must not ask for an API server or an output delay.
        kv_blocks: as in `Engine`.
    """

    def __init__(self, params: EngineParams, step_time: StepTime, kv_blocks: int) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self._build(params, kv_blocks)
        self.params = params
        self.step_time = step_time
        self.tokens: dict[tuple[str, int], int] = {}
        self.texts: dict[int, list[int]] = {}

    def _build(self, params: EngineParams, kv_blocks: int) -> None:
        config = import_module("vllm.config")
        interface = import_module("vllm.v1.kv_cache_interface")
        utils = import_module("vllm.v1.core.kv_cache_utils")
        hashing = import_module("vllm.utils.hashing")
        structured = import_module("vllm.v1.structured_output")
        self.sampling = import_module("vllm.sampling_params").SamplingParams
        self.request_class = import_module("vllm.v1.request").Request
        self.status = import_module("vllm.v1.request").RequestStatus
        self.output_class = import_module("vllm.v1.outputs").ModelRunnerOutput
        with tempfile.TemporaryDirectory() as folder:
            Path(folder, "config.json").write_text(json.dumps(QWEN3))
            model = config.ModelConfig(
                model=folder, skip_tokenizer_init=True, dtype="float32", max_model_len=4096
            )
        scheduler = config.SchedulerConfig(
            max_num_seqs=params.max_num_seqs,
            max_num_batched_tokens=params.max_num_batched_tokens,
            max_model_len=4096,
            is_encoder_decoder=False,
            enable_chunked_prefill=True,
            long_prefill_token_threshold=params.long_prefill_token_threshold,
            scheduler_reserve_full_isl=params.reserve_full_input,
            watermark=params.watermark,
            policy=params.policy,
            async_scheduling=False,
        )
        scheduler.enable_chunked_prefill = params.chunked_prefill
        cache = config.CacheConfig(
            block_size=params.block_size, enable_prefix_caching=params.prefix_caching
        )
        cache.num_gpu_blocks = kv_blocks
        whole = config.VllmConfig(
            model_config=model,
            scheduler_config=scheduler,
            cache_config=cache,
            device_config=config.DeviceConfig("cpu"),
        )
        cache.block_size = params.block_size
        float32 = import_module("torch").float32
        spec = interface.FullAttentionSpec(
            block_size=params.block_size, num_kv_heads=1, head_size=1, dtype=float32
        )
        kv = interface.KVCacheConfig(
            num_blocks=kv_blocks,
            kv_cache_tensors=[],
            kv_cache_groups=[interface.KVCacheGroupSpec(["layer"], spec)],
        )
        module, name = "vllm.v1.core.sched.scheduler", "Scheduler"
        if params.async_scheduling:
            module, name = "vllm.v1.core.sched.async_scheduler", "AsyncScheduler"
        self.scheduler: Any = getattr(import_module(module), name)(
            vllm_config=whole,
            kv_cache_config=kv,
            structured_output_manager=structured.StructuredOutputManager(whole),
            block_size=params.block_size,
            log_stats=False,
        )
        utils.init_none_hash(hashing.sha256)
        self.hasher = utils.get_request_block_hasher(params.block_size, hashing.sha256)

    def hashes(self, text: tuple[tuple[str, int], ...]) -> list[bytes]:
        """Block hashes of a text of (segment, tokens)."""
        return list(self._request(0, self._ids(text), 1, 0, 0).block_hashes)

    def _ids(self, text: tuple[tuple[str, int], ...]) -> list[int]:
        known = self.tokens
        return [
            known.setdefault((name, offset), len(known))
            for name, count in text
            for offset in range(count)
        ]

    def _request(self, ident: int, prompt: list[int], output: int, at: int, priority: int) -> Any:
        return self.request_class(
            request_id=_name(ident),
            prompt_token_ids=prompt,
            sampling_params=self.sampling(max_tokens=output, ignore_eos=True),
            pooling_params=None,
            arrival_time=float(at * 1_000_000 + ident),  # never equal, as in life
            priority=priority,
            block_hasher=self.hasher,
        )

    def run(self, actions: list[Arrival | Abort]) -> Seen:
        """Play the actions, given in order of time."""
        seen = Seen([], [], {}, {}, {})
        left = deque(actions)
        clock = 0
        current: Composed | None = None
        while left or current or self.scheduler.has_unfinished_requests():
            if current is None:
                if not self.scheduler.has_unfinished_requests():
                    clock = max(clock, left[0].at * 1000)
                self._act(left, clock)
                current = self._compose(seen)
                if current is None:
                    continue
            ahead: Composed | None = None
            if self.params.async_scheduling:
                self._act(left, clock)
                ahead = self._compose(seen)
            end = clock + current.took
            self._act(left, end - 1)
            self._update(current, clock, end, seen)
            clock, current = end, ahead
        seen.queues.append(self._queue())
        return seen

    def _act(self, left: deque[Arrival | Abort], until_ps: int) -> None:
        while left and left[0].at * 1000 <= until_ps:
            action = left.popleft()
            if isinstance(action, Abort):
                self.scheduler.finish_requests(_name(action.id), self.status.FINISHED_ABORTED)
                continue
            tokens = self.texts[action.id] = self._ids(action.text)
            prompt = tokens[: action.prompt]
            self.scheduler.add_request(
                self._request(action.id, prompt, action.output, action.at, action.priority)
            )

    def _compose(self, seen: Seen) -> Composed | None:
        """Have the scheduler compose a step; None if it is empty."""
        scheduler = self.scheduler
        if not scheduler.has_unfinished_requests():
            return None
        decoding = {r.request_id for r in scheduler.running if not r.is_prefill_chunk}
        output = scheduler.schedule()
        batch: list[tuple[int, int, int]] = []
        chunks: list[tuple[int, int]] = []
        sampled: list[bool] = []
        context = decodes = 0
        for name, new in output.num_scheduled_tokens.items():
            request = scheduler.requests[name]
            before = request.num_computed_tokens - new
            batch.append((int(name), new, before))
            sampled.append(not request.is_prefill_chunk)
            if request.num_preemptions == 0 and request.prefill_stats is not None:
                seen.cached[int(name)] = request.prefill_stats.num_cached_tokens
            if name in decoding:
                decodes += 1
                context += before + 1
            else:
                chunks.append((new, before))
        if not batch:
            scheduler.update_from_output(output, self.output_class([], {}))
            return None
        if chunks:
            took = self.step_time.mixed_ps(chunks, decodes, context)
        else:
            piece = self.step_time.decode_piece(decodes, context)
            took = piece.fixed_ps + piece.per_token_ps * context
        if not self.params.async_scheduling:
            seen.queues.append(self._queue())
        return Composed(output, tuple(batch), sampled, took)

    def _queue(self) -> list[bytes | None]:
        pool = self.scheduler.kv_cache_manager.block_pool
        return [
            None if block.block_hash is None else bytes(block.block_hash)[:-4]
            for block in pool.free_block_queue.get_all_free_blocks()
        ]

    def _update(self, step: Composed, start: int, end: int, seen: Seen) -> None:
        """Hand the step's tokens to the scheduler."""
        scheduler = self.scheduler
        seen.steps.append(StepRecord(start, end, step.batch, (), 0))
        names = list(step.output.num_scheduled_tokens)
        tokens: list[list[int]] = []
        for name, wanted in zip(names, step.sampled, strict=True):
            live = scheduler.requests.get(name)
            known = wanted and live is not None
            tokens.append([self.texts[int(name)][live.num_tokens]] if known else [])
            if live is not None:
                seen.preemptions[int(name)] = live.num_preemptions
        before = set(scheduler.requests)
        index = {name: i for i, name in enumerate(names)}
        scheduler.update_from_output(step.output, self.output_class(names, index, tokens))
        for name in names:
            if name in before and name not in scheduler.requests:
                seen.finished[int(name)] = end


def _name(ident: int) -> str:
    return f"{ident:06d}"
