"""Settings that only SGLang has."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Literal

from agentsched import UsageError

SglangPolicy = Literal["fcfs", "lpm"]

INSTEAD = {
    "max_num_seqs": "set engine_settings.sglang.max_running_requests",
    "max_num_batched_tokens": "set engine_settings.sglang.chunked_prefill or max_prefill_tokens",
    "async_scheduling": "leave it out: of SGLang's two event loops the plain one is simulated",
    "null_blocks": "leave it out",
}
"""Settings of vLLM's whose defaults depend on the GPU, and what takes their place."""


def refuse_settings_of_vllm(given: Collection[str]) -> None:
    """Of settings that a user gave for SGLang, refuse those that it would not look at.

    Raises:
        UsageError: there is one.
    """
    for name, instead in INSTEAD.items():
        if name in given:
            raise UsageError(f"SGLang has no engine setting `{name}`", instead)


@dataclass(frozen=True, slots=True)
class SglangSettings:
    """Settings of one SGLang instance. Defaults: SGLang 0.5.23 on a GPU of 60 to 160 GB."""

    page_size: int = 1
    chunked_prefill: int | None = 8192
    """Tokens of one prefill step (`chunked_prefill_size`); None: prompts are not cut."""
    max_prefill_tokens: int = 16384
    """Without chunks: tokens of one prefill step, a single longer prompt excepted."""
    max_running_requests: int = 2048
    """SGLang derives 2,048 to 4,096 from the size of the KV cache; the least is taken here."""
    policy: SglangPolicy = "fcfs"
    lpm_queue_limit: int = 128
    """With more waiting requests `lpm` leaves the order as it is. A refresh covers so many."""
    refresh_passes: int = 32
    """`fcfs`: prefill passes between two refreshes of what waiting requests will hit; 0: none."""
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

    def __post_init__(self) -> None:
        least = {
            "page_size": 1,
            "max_prefill_tokens": 1,
            "max_running_requests": 1,
            "lpm_queue_limit": 0,
            "refresh_passes": 0,
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
