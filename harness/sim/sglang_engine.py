"""A simulated SGLang instance: the engine of `harness.sim.engine` with SGLang's loop and cache."""

from __future__ import annotations

from collections.abc import Callable

from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import EngineRequest, StepRecord, StepTime
from harness.sim.radix_cache import RadixCache
from harness.sim.sglang_batcher import SglangBatcher, refuse_transfers
from harness.sim.sglang_policy import SglangParams
from harness.sim.step_loop import KvPool, StepLoop


class SglangEngine(Engine):
    """See `Engine`; `kv_pages` pages of `params.page_size` tokens, the index cut likewise."""

    def __init__(
        self,
        params: SglangParams,
        step_time: StepTime,
        kv_pages: int,
        contents: ContentIndex,
        on_step: Callable[[StepRecord], None] | None = None,
    ) -> None:
        self.sglang = params
        super().__init__(params.common(kv_pages), step_time, kv_pages, contents, on_step)

    def _parts(self, kv_blocks: int) -> tuple[KvPool, StepLoop]:
        cache = RadixCache(kv_blocks, self.sglang.prefix_caching)
        return cache, SglangBatcher(self.sglang, cache)

    def submit(self, request: EngineRequest, now: int) -> None:
        refuse_transfers(request.keep_blocks, request.remote_tokens)
        super().submit(request, now)
