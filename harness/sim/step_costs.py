"""What the parts of an engine step cost, from tables: the same questions to every kind of table.

All times are milliseconds. A step has linear layers over its tokens, work per sequence (output
head, sampling), and one attention call over all of its prefill chunks and decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from harness.models import Experts, Model
from harness.sim.curves import Array, Curve, bracket, largest_change, monotone
from harness.sim.layer_tables import LayerTable
from harness.sim.perf_tables import OperatorTable

Chunk = tuple[int, int]
"""New tokens, and tokens of that sequence already computed."""


class StepCosts(Protocol):
    """The parts of a step. Every one grows with each argument."""

    @property
    def largest_smoothing(self) -> float:
        """The largest relative change made to a value of the table to make it monotone."""
        ...

    def tokens_ms(self, tokens: int, *, mixed: bool) -> float:
        """Linear layers and communication; `mixed`: the step has a prefill chunk."""
        ...

    def sequences_ms(self, sequences: int) -> float:
        """Output head and sampling."""
        ...

    def decode_curve(self, decodes: int) -> Curve:
        """Attention of a decode-only step over the mean context, from context 0."""
        ...

    def attention_ms(self, chunks: Sequence[Chunk], decodes: int, context: float) -> float:
        """Attention of a step with chunks, and decodes of that mean context."""
        ...

    def beyond(self, tokens: int, decodes: int, context: float, chunks: Sequence[Chunk]) -> bool:
        """Whether the step lies outside what was measured."""
        ...


def _from_zero(table: Array, contexts: Sequence[int]) -> tuple[Array, list[int]]:
    """A monotone (batch, context) table with a column for context 0: on the line through the first
    two, but not below 0 nor below that of a smaller batch."""
    slope = (table[:, 1] - table[:, 0]) / (contexts[1] - contexts[0])
    start = np.maximum.accumulate(np.maximum(0.0, table[:, 0] - slope * contexts[0]))
    return np.column_stack([start, table]), [0, *contexts]


def _batch_curve(
    table: Array, batches: Sequence[int], contexts: Sequence[int], decodes: int
) -> Curve:
    """The row of a (batch, context) table at `decodes`."""
    i, weight = bracket(batches, decodes)
    low, high = table[i], table[min(i + 1, len(batches) - 1)]
    # Beyond the last batch, columns may cross: keep the time growing with the context.
    times = np.maximum.accumulate(low + weight * (high - low))
    return Curve(contexts, times.tolist())


class OperatorCosts:
    """From step tables split into attention, communication and the rest.

    The attention kernel takes all sequences of a step in one call, so its fixed part (the
    smallest prefill measured) is counted once, however many chunks there are.
    """

    def __init__(self, table: OperatorTable) -> None:
        decode_other = monotone(np.array(table.decode_other))
        prefill_other = monotone(np.array(table.prefill_other))
        comm = monotone(np.array(table.comm))
        self._prefill = monotone(table.prefill_attention)
        self._decode = monotone(table.decode_attention)
        self.largest_smoothing = max(
            largest_change(np.array(table.decode_other), decode_other),
            largest_change(np.array(table.prefill_other), prefill_other),
            largest_change(table.prefill_attention, self._prefill),
            largest_change(table.decode_attention, self._decode),
        )
        self._comm = Curve(table.tokens, comm.tolist())
        self._decode_other = Curve(table.decode_tokens, decode_other.tolist())
        self._prefill_other = Curve(table.prefill_tokens, prefill_other.tolist())
        self._new, self._cached = table.prefill_tokens, table.prefixes
        self._batches = table.batches
        self._decode, self._contexts = _from_zero(self._decode, table.contexts)
        self._floor = float(self._prefill[0, 0])
        self._prefill_rows: list[list[float]] = self._prefill.tolist()
        self._curves: dict[int, Curve] = {}

    def tokens_ms(self, tokens: int, *, mixed: bool) -> float:
        other = self._decode_other(tokens)
        if mixed:
            other = max(other, self._prefill_other(tokens))
        return other + self._comm(tokens)

    def sequences_ms(self, sequences: int) -> float:
        return 0.0  # The output head is in the tables; sampling is not, and is a host term.

    def decode_curve(self, decodes: int) -> Curve:
        curve = self._curves.get(decodes)
        if curve is None:
            curve = _batch_curve(self._decode, self._batches, self._contexts, decodes)
            self._curves[decodes] = curve
        return curve

    def attention_ms(self, chunks: Sequence[Chunk], decodes: int, context: float) -> float:
        spent = self._floor
        if decodes:
            spent = max(spent, self.decode_curve(decodes)(context))
        for new, cached in chunks:
            spent += self._chunk_ms(new, cached) - self._floor
        return spent

    def _chunk_ms(self, new: int, cached: int) -> float:
        i, u = bracket(self._new, new)
        j, v = bracket(self._cached, cached)
        return _bilinear(self._prefill_rows[i], self._prefill_rows[i + 1], j, u, v)

    def beyond(self, tokens: int, decodes: int, context: float, chunks: Sequence[Chunk]) -> bool:
        if not chunks:
            return decodes > self._batches[-1] or context > self._contexts[-1]
        return (
            tokens > self._new[-1]
            or (decodes > 0 and (decodes > self._batches[-1] or context > self._contexts[-1]))
            or any(new > self._new[-1] or cached > self._cached[-1] for new, cached in chunks)
        )


@dataclass(frozen=True, slots=True)
class Link:
    """Between the GPUs of a replica. GB/s (10^9 bytes) per direction."""

    gbs: float
    latency_us: float
    nvlink: bool = False


_KERNEL_LIMIT = 8 * 2**20
_ONE_STAGE_LIMIT = {4: 512 * 2**10, 6: 256 * 2**10, 8: 256 * 2**10}


def all_reduce_ms(size: float, ranks: int, link: Link) -> float:
    """Milliseconds to sum `size` bytes over all ranks, the way vLLM does it.

    Below 8 MiB, on two GPUs or over NVLink, vLLM's own kernels read the other GPUs' memory: in one
    stage on two GPUs or for small sizes, else in two (csrc/custom_all_reduce.cuh,
    device_communicators/custom_all_reduce.py). Otherwise NCCL's ring.
    """
    if ranks == 1:
        return 0.0
    latency, transfer = link.latency_us / 1e3, size / (link.gbs * 1e6)
    if size < _KERNEL_LIMIT and (ranks == 2 or (link.nvlink and ranks in _ONE_STAGE_LIMIT)):
        if ranks == 2 or size < _ONE_STAGE_LIMIT[ranks]:
            # Each link carries one copy: with NVLink all peers are read at once.
            return latency + transfer
        return 2 * latency + 2 * transfer * (ranks - 1) / ranks
    return 2 * (ranks - 1) * (latency + transfer / ranks)


def all_gather_ms(size: float, ranks: int, link: Link) -> float:
    """Milliseconds until every rank has all of `size` bytes that lie spread over them (a ring)."""
    return (ranks - 1) * (link.latency_us / 1e3 + size / ranks / (link.gbs * 1e6))


def _bilinear(low: list[float], high: list[float], i: int, u: float, v: float) -> float:
    """Between two rows (weight u of the second), in the cell at i (weight v of its end)."""
    a = low[i] + v * (low[i + 1] - low[i])
    b = high[i] + v * (high[i + 1] - high[i])
    return a + u * (b - a)


class LayerCosts:
    """From kernel times of one layer, repeated over the layers of the model.

    A step with both chunks and decodes is looked up in the measured mixed batches. Where it has
    several chunks, the one that costs most is looked up together with the decodes; the others add
    what they cost by themselves above the smallest chunk (one kernel call takes them all).

    Args:
        expert_ranks: data-parallel ranks that share the experts and step together. Each is taken to
            run as many tokens as this one (vLLM pads them to the same).
        link: between the `ranks` GPUs of the replica, which sum activations twice a layer and once
            after the embedding, and gather the logits.
    """

    def __init__(
        self,
        table: LayerTable,
        model: Model,
        *,
        ranks: int,
        link: Link,
        expert_ranks: int = 1,
    ) -> None:
        self._expert_ranks = expert_ranks if model.experts is not None else 1
        self._exchanged = 2 * (model.hidden + (model.experts.count if model.experts else 0))
        self._layers, self._ranks = model.layers, ranks
        self._link = link
        self._hidden, self._vocabulary = model.hidden, model.vocabulary
        tokens = next(iter(table.layers.values()))[0]
        once, layer = _linear_us(table, model, self._expert_ranks)
        linear = (once + model.layers * layer) / 1e3
        smooth = monotone(linear)
        heads = next(iter(table.per_sequence.values()))[0]
        head = np.sum([np.array(times) for _, times in table.per_sequence.values()], axis=0) / 1e3
        decode, mixed = monotone(table.decode_attention), monotone(table.mixed_attention)
        self.largest_smoothing = max(
            largest_change(linear, smooth),
            largest_change(table.decode_attention, decode),
            largest_change(table.mixed_attention, mixed),
        )
        self._linear = Curve(tokens, smooth.tolist())
        self._head = Curve(heads, monotone(head).tolist())
        self._decode, self._from_zero = _from_zero(decode * model.layers / 1e3, table.contexts)
        self._batches, self._contexts = table.batches, table.contexts
        self._chunks, self._cached = table.chunks, table.cached
        self._mixed_decodes = table.mixed_decodes
        # Axes (decodes, context, chunk, cached): a step fixes the first two.
        self._mixed: list[list[list[list[float]]]] = (
            np.transpose(mixed, (2, 3, 0, 1)) * model.layers / 1e3
        ).tolist()
        self._alone = self._mixed[0][0]
        self._smallest, _ = _from_zero(mixed[0, 0] * model.layers / 1e3, table.contexts)
        self._beside_curves: dict[int, Curve] = {}
        self._floor = self._alone[0][0]
        self._curves: dict[int, Curve] = {}

    def tokens_ms(self, tokens: int, *, mixed: bool) -> float:
        reduce = all_reduce_ms(tokens * self._hidden * 2, self._ranks, self._link)
        # Experts: all ranks' activations and router scores are gathered, and sums scattered back.
        exchange = 2 * all_gather_ms(
            tokens * self._expert_ranks * self._exchanged, self._expert_ranks, self._link
        )
        return self._linear(tokens) + (2 * self._layers + 1) * reduce + self._layers * exchange

    def sequences_ms(self, sequences: int) -> float:
        logits = sequences * self._vocabulary * 2
        return self._head(sequences) + all_gather_ms(logits, self._ranks, self._link)

    def decode_curve(self, decodes: int) -> Curve:
        curve = self._curves.get(decodes)
        if curve is None:
            curve = _batch_curve(self._decode, self._batches, self._from_zero, decodes)
            self._curves[decodes] = curve
        return curve

    def attention_ms(self, chunks: Sequence[Chunk], decodes: int, context: float) -> float:
        # Beyond the grid, the edge's value grows by what decodes or a chunk alone would grow by.
        i, u = bracket(self._mixed_decodes, decodes)
        j, v = bracket(self._contexts, context if decodes else 0.0)
        outside = u > 1 or v > 1
        u, v = min(u, 1.0), min(v, 1.0)
        corners = [
            (weight, self._mixed[i + a][j + b])
            for a, x in ((0, 1 - u), (1, u))
            for b, y in ((0, 1 - v), (1, v))
            if (weight := x * y)
        ]
        primary = total = most = 0.0
        for new, cached in chunks:
            c, s = bracket(self._chunks, new)
            d, t = bracket(self._cached, cached)
            alone = _bilinear(self._alone[c], self._alone[c + 1], d, s, t)
            growth = 0.0
            if s > 1 or t > 1:
                s, t = min(s, 1.0), min(t, 1.0)
                growth = alone - _bilinear(self._alone[c], self._alone[c + 1], d, s, t)
            p, q, r, w = (1 - s) * (1 - t), (1 - s) * t, s * (1 - t), s * t
            for weight, grid in corners:
                low, high = grid[c], grid[c + 1]
                inside = p * low[d] + q * low[d + 1] + r * high[d] + w * high[d + 1]
                growth += weight * inside
            primary, most, total = (
                max(primary, growth),
                max(most, alone - self._floor),
                total + alone - self._floor,
            )
        spent = primary + total - most
        if not decodes:
            return spent
        if outside:
            spent += self._beside(decodes, context) - self._beside(
                min(decodes, self._mixed_decodes[-1]), min(context, self._contexts[-1])
            )
        return max(spent, self.decode_curve(decodes)(context))

    def _beside(self, decodes: int, context: float) -> float:
        """Decodes beside the smallest chunk."""
        curve = self._beside_curves.get(decodes)
        if curve is None:
            curve = _batch_curve(self._smallest, self._mixed_decodes, self._from_zero, decodes)
            self._beside_curves[decodes] = curve
        return curve(context)

    def beyond(self, tokens: int, decodes: int, context: float, chunks: Sequence[Chunk]) -> bool:
        if decodes and context > self._contexts[-1]:
            return True
        if not chunks:
            return decodes > self._batches[-1]
        return (
            tokens > self._linear.end
            or decodes > self._mixed_decodes[-1]
            or any(new > self._chunks[-1] or cached > self._cached[-1] for new, cached in chunks)
        )


_PER_LAYER = ("qkv_proj", "qk_norm", "rotary_emb", "o_proj", "gate_up_proj", "act_fn", "down_proj")


def _linear_us(table: LayerTable, model: Model, expert_ranks: int) -> tuple[Array, Array]:
    """Over the tokens of a step: the work around the layers, and of one layer but attention."""
    tokens, _ = next(iter(table.layers.values()))

    def times(layer: str) -> Array:
        return np.array(table.layers[layer][1]) if layer in table.layers else np.zeros(len(tokens))

    once = times("embedding") + times("final_layernorm")
    layer = 2 * times("layernorm") + sum((times(name) for name in _PER_LAYER), np.zeros(1))
    if table.moe is not None and model.experts is not None:
        layer = layer + [_moe_us(table, model.experts, expert_ranks, n) for n in tokens]
    return once, layer


def _moe_us(table: LayerTable, experts: Experts, ranks: int, tokens: int) -> float:
    """The experts of one rank, if each token picks its experts evenly and independently (our
    choice). A rank sees the tokens of all ranks but has only its share of their experts: as many
    (token, expert) pairs as its own tokens have in all."""
    assert table.moe is not None
    share = (1 - experts.active / experts.count) ** (tokens * ranks)
    reached = experts.count / ranks * (1 - share)
    i, u = bracket(table.moe_tokens, tokens)
    j, v = bracket(table.moe_experts, reached)
    low, high = table.moe[i], table.moe[i + 1]
    a = low[j] + v * (low[j + 1] - low[j])
    b = high[j] + v * (high[j + 1] - high[j])
    return float(a + u * (b - a))
