"""Step times from the rates of the GPU, where no table of the model on it exists.

Linear layers take the longest of arithmetic, reading the weights, and launching the kernels of
each layer, at the shares of the GPU's peak rates that measured tables of other GPUs show.
Attention reads the KV cache (decode) or computes (prefill). It is an estimate: expect tens of
percent of error, and say so wherever its times are shown.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from harness.gpus import GpuKind
from harness.models import DTYPE_BYTES, Model
from harness.sim.curves import Curve
from harness.sim.step_costs import Chunk, Link, all_reduce_ms


@dataclass(frozen=True, slots=True)
class RooflineSettings:
    """Shares of peak rates, and fixed times."""

    gemm_efficiency: float = 0.74
    """Large matrix products: phi-2's linear layers at 2,048 and 4,096 tokens reach 0.66 to 0.79 of
    the peak on A40 and H100 (vidur's profile)."""
    bandwidth_efficiency: float = 0.75
    """Reading weights: the same profile at 1 to 32 tokens has 0.68 (H100) and 0.73 (A40); larger
    matrices in the H100 tables here, 0.82."""
    kv_efficiency: float = 0.83
    """Reading KV at 64 sequences of 8,192: 0.83 in the L40S table here, 0.90 in the H100 one."""
    attention_efficiency: float = 0.5
    """Arithmetic of prefill attention at 8,192 tokens: 0.49 in the L40S table, 0.60 in H100's."""
    layer_us: float = 26.0
    """Least time of a layer's kernels: Qwen3-0.6B at one token in the H100 table."""
    attention_call_us: float = 8.0
    """Least time of prefill attention in a layer: the RTX PRO 6000 tables here."""


class RooflineCosts:
    """The parts of a step from rates. Milliseconds."""

    largest_smoothing = 0.0

    def __init__(
        self, model: Model, gpu: GpuKind, ranks: int, settings: RooflineSettings | None = None
    ) -> None:
        use = settings or RooflineSettings()
        self._model, self._ranks = model, ranks
        self._link = Link(gpu.peer_gbs, gpu.link_latency_us, nvlink=gpu.nvlink_gbs > 0)
        eight_bit = DTYPE_BYTES[model.dtype] <= 1 and gpu.fp8_tflops > 0
        peak = gpu.fp8_tflops if eight_bit else gpu.bf16_tflops
        self._flops_ms = peak * 1e12 * use.gemm_efficiency / 1e3
        self._attention_flops_ms = gpu.bf16_tflops * 1e12 * use.attention_efficiency / 1e3
        self._read_ms = gpu.memory_bandwidth_gbs * 1e9 * use.bandwidth_efficiency / 1e3
        self._layers_ms = model.layers * use.layer_us / 1e3
        self._attention_ms = model.layers * use.attention_call_us / 1e3
        kv = model.kv.bytes_per_token_on_gpu(ranks)
        self._kv_ms = kv / (gpu.memory_bandwidth_gbs * 1e9 * use.kv_efficiency / 1e3)

    def tokens_ms(self, tokens: int, *, mixed: bool) -> float:
        model = self._model
        arithmetic = 2 * model.active_params_b * 1e9 * tokens / self._ranks / self._flops_ms
        read = self._weights_read(tokens) / self._ranks / self._read_ms
        reduce = all_reduce_ms(tokens * model.hidden * 2, self._ranks, self._link)
        return max(arithmetic, read, self._layers_ms) + (2 * model.layers + 1) * reduce

    def _weights_read(self, tokens: int) -> float:
        """Bytes: all weights, less the experts that so few tokens do not reach (even routing)."""
        model = self._model
        total = model.weights_gib * 2**30
        if model.experts is None:
            return total
        share = 1 - (1 - model.experts.active / model.experts.count) ** tokens
        routed = _expert_share(model)
        return total * (1 - routed + routed * share)

    def sequences_ms(self, sequences: int) -> float:
        return 0.0

    def decode_curve(self, decodes: int) -> Curve:
        # Straight in the context: the KV of every sequence is read once.
        start = self._attention_ms
        return Curve([0, 1024], [start, start + 1024 * decodes * self._kv_ms])

    def attention_ms(self, chunks: Sequence[Chunk], decodes: int, context: float) -> float:
        model = self._model
        width = 4 * model.heads * model.head_dim * model.layers / self._ranks
        spent = self._attention_ms + decodes * context * self._kv_ms
        for new, cached in chunks:
            arithmetic = width * new * (cached + new / 2) / self._attention_flops_ms
            spent += max(arithmetic, (cached + new) * self._kv_ms)
        return spent

    def beyond(self, tokens: int, decodes: int, context: float, chunks: Sequence[Chunk]) -> bool:
        return False


def _expert_share(model: Model) -> float:
    """Share of the parameters that sits in experts: from total = dense + E x e and
    active = dense + A x e."""
    assert model.experts is not None
    count, active = model.experts.count, model.experts.active
    per_expert = (model.params_b - model.active_params_b) / (count - active)
    return per_expert * count / model.params_b
