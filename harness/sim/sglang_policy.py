"""Settings of the SGLang loop, its order of waiting requests and its guess of output lengths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from agentsched import UsageError
from harness.sim.engine_types import EngineParams
from harness.sim.radix_cache import RadixCache, common_pages
from harness.sim.sequence import Sequence

SglangPolicy = Literal["fcfs", "lpm"]


@dataclass(frozen=True, slots=True)
class SglangParams:
    """Settings of one engine instance. Defaults: SGLang 0.5.23 on a GPU of 60 to 160 GB."""

    page_size: int = 1
    chunked_prefill: int | None = 8192
    """Tokens of one prefill step (`chunked_prefill_size`); None: prompts are not cut."""
    max_prefill_tokens: int = 16384
    """Without chunks: tokens of one prefill step, a single longer prompt excepted."""
    max_running_requests: int = 2048
    """SGLang derives 2,048 to 4,096 from the size of the KV cache; the least is taken here."""
    max_model_len: int | None = None
    policy: SglangPolicy = "fcfs"
    lpm_queue_limit: int = 128
    """With more waiting requests `lpm` leaves the order as it is."""
    lpm_in_batch_tokens: int = 32
    """`lpm`: of waiting requests that share so much, which is not cached, only one goes early."""
    conservativeness: float = 1.0
    init_new_token_ratio: float = 0.7
    min_new_token_ratio_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    retract_steps: int = 20
    """Decode steps for which a retraction makes room."""
    max_new_tokens: int | None = None
    """What requests ask for at most; None: as much as they get (our choice)."""
    clip_max_new_tokens: int = 4096
    """No more than this is reserved for a request's output."""
    prefix_caching: bool = True
    api_request_ps: int = 0
    api_prompt_token_ps: int = 0
    output_delay_ps: int = 0
    fast_forward: bool = True

    def __post_init__(self) -> None:
        least = {
            "page_size": 1,
            "max_prefill_tokens": 1,
            "max_running_requests": 1,
            "lpm_queue_limit": 0,
            "new_token_ratio_decay_steps": 1,
            "retract_steps": 0,
            "clip_max_new_tokens": 1,
            "conservativeness": 0,
        }
        for name, bound in least.items():
            if getattr(self, name) < bound:
                raise UsageError(
                    f"engine setting `{name}` must be at least {bound}", f"raise `{name}`"
                )
        if self.chunked_prefill is not None and self.chunked_prefill < self.page_size:
            raise UsageError(
                "engine setting `chunked_prefill` is less than a page",
                "make it at least `page_size`, or turn it off",
            )
        if self.policy not in ("fcfs", "lpm"):
            raise UsageError("engine setting `policy` must be `fcfs` or `lpm`", "change `policy`")

    def common(self, kv_pages: int) -> EngineParams:
        """What both engines share. Longer requests than fit with a page to spare are refused."""
        longest = kv_pages * self.page_size - self.page_size - 1
        if self.max_model_len is not None:
            longest = min(longest, self.max_model_len)
        return EngineParams(
            block_size=self.page_size,
            max_model_len=max(longest, 2),
            prefix_caching=self.prefix_caching,
            null_blocks=0,
            api_request_ps=self.api_request_ps,
            api_prompt_token_ps=self.api_prompt_token_ps,
            output_delay_ps=self.output_delay_ps,
            async_scheduling=False,
            fast_forward=self.fast_forward,
        )


class TokenRatio:
    """Share of the output still allowed that running requests are expected to use.

    Falls with every decode step, and is set anew by a retraction
    (`scheduler_components/new_token_ratio_tracker.py`).
    """

    __slots__ = ("_base", "_fall", "_floor", "_steps")

    def __init__(self, params: SglangParams) -> None:
        self._base = min(params.init_new_token_ratio * params.conservativeness, 1.0)
        self._floor = min(self._base * params.min_new_token_ratio_factor, 1.0)
        self._fall = (self._base - self._floor) / params.new_token_ratio_decay_steps
        self._steps = 0

    @property
    def current(self) -> float:
        if self._steps == 0:
            return self._base
        return max(self._base - self._steps * self._fall, self._floor)

    def decay(self, steps: int) -> None:
        self._steps += steps

    def set(self, ratio: float) -> None:
        self._base, self._steps = min(ratio, 1.0), 0


def by_longest_prefix(waiting: list[Sequence], cache: RadixCache, params: SglangParams) -> None:
    """Sort by cached prefix, longest first; the lookups count as uses of what they find.

    Of several requests that share text which is not cached yet, all but the first go last: they
    will find it cached when their turn comes.
    """
    page, threshold = params.page_size, params.lpm_in_batch_tokens
    keys: dict[int, float] = {}
    unlike: list[Sequence] = []
    for sequence in waiting:
        found = cache.match(sequence.line, sequence.tokens // page).hi * page
        keys[sequence.id] = -min(found, sequence.tokens - 1)
        if found > threshold:
            continue
        pages = sequence.tokens // page
        shared = max(
            (common_pages(sequence.line, s.line, min(pages, s.tokens // page)) for s in unlike),
            default=0,
        )
        if shared * page >= threshold:
            keys[sequence.id] = float("inf")
        else:
            unlike.append(sequence)
    waiting.sort(key=lambda sequence: keys[sequence.id])
