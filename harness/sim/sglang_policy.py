"""Settings of the SGLang loop, its order of waiting requests and its guess of output lengths."""

from __future__ import annotations

from dataclasses import dataclass, fields

from harness.sim.engine_types import EngineParams
from harness.sim.radix_cache import RadixCache, common_pages
from harness.sim.sequence import Sequence
from harness.sim.sglang_settings import SglangSettings


@dataclass(frozen=True, slots=True)
class SglangParams(SglangSettings):
    """All settings of one engine instance."""

    max_model_len: int | None = None
    prefix_caching: bool = True
    api_request_ps: int = 0
    api_prompt_token_ps: int = 0
    output_delay_ps: int = 0
    fast_forward: bool = True

    @classmethod
    def of(cls, params: EngineParams) -> SglangParams:
        """From the settings of a run: those of SGLang, and what all engines have."""
        settings = params.sglang or SglangSettings()
        own = {field.name: getattr(settings, field.name) for field in fields(settings)}
        return cls(
            **own,
            max_model_len=params.max_model_len,
            prefix_caching=params.prefix_caching,
            api_request_ps=params.api_request_ps,
            api_prompt_token_ps=params.api_prompt_token_ps,
            output_delay_ps=params.output_delay_ps,
            fast_forward=params.fast_forward,
        )

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
