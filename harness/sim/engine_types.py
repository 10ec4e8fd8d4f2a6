"""Values that cross the engine simulator's boundary.

Inside the engine time is integer picoseconds, so that step times add up exactly; at the boundary
it is integer nanoseconds, a picosecond time being rounded up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple, Protocol

from agentsched import UsageError
from harness.sim.content import Line
from harness.sim.sglang_settings import SglangSettings

PS_PER_NS = 1000


class DecodePiece(NamedTuple):
    """Cost of a decode-only step where it is linear in the sum of contexts.

    A step of the `decodes` sequences it was asked for, whose contexts sum to S < `context_end`,
    takes exactly `fixed_ps + per_token_ps * S` picoseconds.
    """

    fixed_ps: int
    per_token_ps: int
    context_end: int


class StepTime(Protocol):
    """How long one engine step takes.

    The context of a decoding sequence is all of its tokens, the one being fed included: what
    attention reads in the step. `context_sum` is the sum over the step's decoding sequences.
    """

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        """The linear piece that holds at `context_sum`; `decodes` >= 1."""
        ...

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        """Picoseconds of a step with prefill `chunks` of (new tokens, tokens already computed).

        With no chunks it equals the decode piece's value.
        """
        ...


EngineName = Literal["vllm", "sglang"]
Policy = Literal["fcfs", "priority"]

WindowHits = Literal["dense", "prompt_ends", "replay"]
"""How prefix hits get along with layers that attend to a sliding window only.

`dense`: a hit may end at any block, as without such layers. `prompt_ends`: a window's state is kept
where a prompt ended and where two texts were seen to part, and hits end there (vLLM 0.32,
`prefix_cache_retention_interval` 0, `v1/core/kv_cache_coordinator.py`). `replay`: a hit may end at
any block, its last window is computed again (`Scheduler._mark_prefix_replay`, DeepSeek-V4.1)."""


@dataclass(frozen=True, slots=True)
class EngineParams:
    """Settings of one engine instance. Defaults: vLLM 0.32, API server on a GPU of >= 70 GiB.

    With `engine: sglang`, those of SGLang are in `sglang`, and of the others `prefix_caching`,
    `max_model_len`, `fast_forward` and the API server's apply.
    """

    engine: EngineName = "vllm"
    """Whose scheduling loop and cache are simulated."""
    sglang: SglangSettings | None = None
    block_size: int = 16
    max_num_batched_tokens: int = 8192
    max_num_seqs: int = 1024
    max_model_len: int | None = None
    """Longest prompt + output in tokens; None: as much as the KV cache holds."""
    chunked_prefill: bool = True
    long_prefill_token_threshold: int = 0
    """Longest prefill chunk while other requests exist; 0: no limit."""
    prefix_caching: bool = True
    reserve_full_input: bool = True
    """Admit a request only if its whole input fits in free blocks."""
    watermark: float = 0.0
    """Share of all blocks kept free when a request is admitted beside running ones."""
    policy: Policy = "fcfs"
    null_blocks: int = 1
    """Blocks of the KV cache that never hold tokens (vLLM reserves one as padding)."""
    sequence_blocks: int = 0
    """Blocks that each running request holds beside those of its tokens, for windows and states of
    layers that do not grow with the text."""
    window_hits: WindowHits = "dense"
    window_tokens: int = 0
    """Length of the window that `window_hits: replay` computes again."""
    api_request_ps: int = 0
    """API server and tokenizer time per request; one at a time, in order of arrival."""
    api_prompt_token_ps: int = 0
    output_delay_ps: int = 0
    """From the end of a step to the moment its tokens reach the client."""
    async_scheduling: bool = True
    """Compose each step while the one before it runs, as vLLM does by default where it can
    (`config/vllm.py`). What arrives or ends during a step then counts one step later."""
    fast_forward: bool = True
    """Jump over runs of equal decode steps; never changes a result."""

    def __post_init__(self) -> None:
        for name in ("block_size", "max_num_batched_tokens", "max_num_seqs"):
            _require(getattr(self, name) >= 1, name, "at least 1")
        for name in (
            "long_prefill_token_threshold",
            "null_blocks",
            "sequence_blocks",
            "window_tokens",
            "api_request_ps",
            "api_prompt_token_ps",
            "output_delay_ps",
        ):
            _require(getattr(self, name) >= 0, name, "0 or more")
        _require(self.max_model_len is None or self.max_model_len >= 2, "max_model_len", ">= 2")
        _require(0.0 <= self.watermark < 1.0, "watermark", "in [0, 1)")
        _require(self.engine in ("vllm", "sglang"), "engine", "`vllm` or `sglang`")
        if self.engine == "sglang":
            self._check_sglang()
        elif self.sglang is not None:
            raise UsageError(
                "there are settings of SGLang for a vLLM engine",
                "set engine_settings.engine: sglang",
            )
        _require(self.policy in ("fcfs", "priority"), "policy", "`fcfs` or `priority`")
        _require(
            self.window_hits in ("dense", "prompt_ends", "replay"),
            "window_hits",
            "`dense`, `prompt_ends` or `replay`",
        )

    def _check_sglang(self) -> None:
        if self.sequence_blocks or self.window_hits != "dense":
            raise UsageError(
                "SGLang's cache of models with sliding windows is not simulated",
                "simulate vLLM, or another model",
            )
        vllm_only = {
            "chunked_prefill": True,
            "long_prefill_token_threshold": 0,
            "reserve_full_input": True,
            "watermark": 0.0,
            "policy": "fcfs",
        }
        for name, default in vllm_only.items():
            if getattr(self, name) != default:
                raise UsageError(
                    f"SGLang has no engine setting `{name}`",
                    "its own are under engine_settings.sglang",
                )
        if self.sglang is None:
            object.__setattr__(self, "sglang", SglangSettings())

    @property
    def text_block(self) -> int:
        """Tokens of the blocks into which the engine's cache cuts texts."""
        return self.block_size if self.sglang is None else self.sglang.page_size

    @property
    def step_tokens(self) -> int:
        """Most prompt tokens of one step."""
        if self.sglang is None:
            return self.max_num_batched_tokens
        return self.sglang.chunked_prefill or self.sglang.max_prefill_tokens


def _require(ok: bool, name: str, what: str) -> None:
    if not ok:
        raise UsageError(f"engine setting `{name}` must be {what}", f"change `{name}`")


@dataclass(frozen=True, slots=True)
class EngineRequest:
    """One request to an engine. `line` names the text of prompt and output together."""

    id: int
    line: Line
    prompt_tokens: int
    output_tokens: int
    priority: int = 0
    """Lower runs first; only the priority policy looks at it."""
    prefill_only: bool = False
    """Ends when the prompt is computed (it samples one token, which nobody sees)."""
    keep_blocks: bool = False
    """Its blocks stay held after its end, until `Engine.release`: another replica copies them."""
    remote_tokens: int = 0
    """KV of the prompt's first so many tokens can be had from elsewhere. What of it the engine's
    own cache lacks is announced with a `loading` event when the request is admitted, and counts
    as computed once `Engine.loaded` is called."""


EventKind = Literal["first_token", "finished", "rejected", "loading"]


class EngineEvent(NamedTuple):
    """Something a client of the engine sees. `time` in nanoseconds."""

    time: int
    kind: EventKind
    id: int
    cached_tokens: int = 0
    """Prompt tokens found in the prefix cache when the request was first admitted."""
    longest_gap: int | None = None
    """On `finished`: longest time between two successive tokens, ns; None below two tokens."""
    preemptions: int = 0
    reason: str | None = None
    load_tokens: int = 0
    """On `loading`: tokens whose KV is to be brought here."""


class StepRecord(NamedTuple):
    """One executed step, for tests and traces; times in picoseconds.

    `batch`: (request id, new tokens, tokens computed before), in the order scheduled.
    `free_blocks` while the step runs, or at the end of the stretch of steps it was executed with.
    """

    start_ps: int
    end_ps: int
    batch: tuple[tuple[int, int, int], ...]
    preempted: tuple[int, ...]
    free_blocks: int


@dataclass(frozen=True, slots=True)
class EngineState:
    """The truth about an engine at the time it was last advanced to. Counters start at 0."""

    running: int
    waiting: int
    """Requests past the API server that are not running."""
    in_api_server: int
    total_blocks: int
    held_blocks: int
    """Blocks held by requests: running, loading, or kept for another replica to copy."""
    cached_blocks: int
    """Blocks with hashed content, those of running requests included."""
    evicted_blocks: int
    preemptions: int
    prefill_tokens: int
    """Prompt tokens computed (not cached), recomputation included, up to the last whole step."""
    decode_tokens: int
    busy_ps: int
    """Time spent in whole steps."""
    steps: int
