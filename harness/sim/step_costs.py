"""What the parts of an engine step cost, from tables: the same questions to every kind of table.

All times are milliseconds. A step has linear layers over its tokens, work per sequence (output
head, sampling), and one attention call over all of its prefill chunks and decodes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from harness.models import Model
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


def _batch_curve(
    table: Array, batches: Sequence[int], contexts: Sequence[int], decodes: int
) -> Curve:
    """The row of a (batch, context) table at `decodes`, with a point at context 0: on the line
    through the first two, but not below 0."""
    i, weight = bracket(batches, decodes)
    low, high = table[i], table[min(i + 1, len(batches) - 1)]
    times: list[float] = (low + weight * (high - low)).tolist()
    slope = (times[1] - times[0]) / (contexts[1] - contexts[0])
    start = max(0.0, times[0] - slope * contexts[0])
    return Curve([0, *contexts], [start, *times])


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
        self._batches, self._contexts = table.batches, table.contexts
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
        low, high = self._prefill_rows[i], self._prefill_rows[i + 1]
        a, b = low[j] + v * (low[j + 1] - low[j]), high[j] + v * (high[j + 1] - high[j])
        return a + u * (b - a)

    def beyond(self, tokens: int, decodes: int, context: float, chunks: Sequence[Chunk]) -> bool:
        if not chunks:
            return decodes > self._batches[-1] or context > self._contexts[-1]
        return (
            tokens > self._new[-1]
            or (decodes > 0 and (decodes > self._batches[-1] or context > self._contexts[-1]))
            or any(new > self._new[-1] or cached > self._cached[-1] for new, cached in chunks)
        )


def ring_ms(size: float, *, ranks: int, phases: int, link_gbs: float, latency_us: float) -> float:
    """Milliseconds of a ring collective over `size` bytes: phases 2 for an all-reduce, 1 for an
    all-gather; each of its (ranks - 1) x phases steps sends size / ranks over one link."""
    steps = phases * (ranks - 1)
    return steps * (latency_us / 1e3 + size / ranks / (link_gbs * 1e6))


class LayerCosts:
    """From kernel times of one layer, repeated over the layers of the model.

    A step with both chunks and decodes is looked up in the measured mixed batches. Where it has
    several chunks, the one that costs most is looked up together with the decodes; the others add
    what they cost by themselves above the smallest chunk (one kernel call takes them all).

    Args:
        link_gbs, link_latency_us: between the GPUs of the replica, for a ring of `ranks`: two
            all-reduces a layer, one after the embedding, and an all-gather of the logits.
    """

    def __init__(
        self,
        table: LayerTable,
        model: Model,
        *,
        ranks: int,
        link_gbs: float,
        link_latency_us: float,
    ) -> None:
        self._layers, self._ranks = model.layers, ranks
        self._link_gbs, self._link_latency_us = link_gbs, link_latency_us
        self._hidden, self._vocabulary = model.hidden, model.vocabulary
        tokens = next(iter(table.layers.values()))[0]
        once, layer = _linear_us(table, model)
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
        self._decode = decode * model.layers / 1e3
        self._batches, self._contexts = table.batches, table.contexts
        self._chunks, self._cached = table.chunks, table.cached
        self._mixed_decodes = table.mixed_decodes
        # Axes (decodes, context, chunk, cached): a step fixes the first two.
        self._mixed: list[list[list[list[float]]]] = (
            np.transpose(mixed, (2, 3, 0, 1)) * model.layers / 1e3
        ).tolist()
        self._floor = self._mixed[0][0][0][0]
        self._curves: dict[int, Curve] = {}

    def tokens_ms(self, tokens: int, *, mixed: bool) -> float:
        reduce = self._collective_ms(tokens * self._hidden * 2, phases=2)
        return self._linear(tokens) + (2 * self._layers + 1) * reduce

    def sequences_ms(self, sequences: int) -> float:
        logits = sequences * self._vocabulary * 2
        return self._head(sequences) + self._collective_ms(logits, phases=1)

    def _collective_ms(self, size: int, *, phases: int) -> float:
        return ring_ms(
            size,
            ranks=self._ranks,
            phases=phases,
            link_gbs=self._link_gbs,
            latency_us=self._link_latency_us,
        )

    def decode_curve(self, decodes: int) -> Curve:
        curve = self._curves.get(decodes)
        if curve is None:
            curve = _batch_curve(self._decode, self._batches, self._contexts, decodes)
            self._curves[decodes] = curve
        return curve

    def attention_ms(self, chunks: Sequence[Chunk], decodes: int, context: float) -> float:
        i, u = bracket(self._mixed_decodes, decodes)
        j, v = bracket(self._contexts, context if decodes else 0.0)
        corners = [
            (weight, self._mixed[i + a][j + b])
            for a, x in ((0, 1 - u), (1, u))
            for b, y in ((0, 1 - v), (1, v))
            if (weight := x * y)
        ]
        alone = self._mixed[0][0]
        primary = total = most = 0.0
        for new, cached in chunks:
            c, s = bracket(self._chunks, new)
            d, t = bracket(self._cached, cached)
            p, q, r, w = (1 - s) * (1 - t), (1 - s) * t, s * (1 - t), s * t
            here = 0.0
            for weight, grid in corners:
                low, high = grid[c], grid[c + 1]
                here += weight * (p * low[d] + q * low[d + 1] + r * high[d] + w * high[d + 1])
            low, high = alone[c], alone[c + 1]
            extra = p * low[d] + q * low[d + 1] + r * high[d] + w * high[d + 1] - self._floor
            primary, most, total = max(primary, here), max(most, extra), total + extra
        spent = primary + total - most
        return max(spent, self.decode_curve(decodes)(context)) if decodes else spent

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


def _linear_us(table: LayerTable, model: Model) -> tuple[Array, Array]:
    """Over the tokens of a step: the work around the layers, and of one layer but attention."""
    tokens, _ = next(iter(table.layers.values()))

    def times(layer: str) -> Array:
        return np.array(table.layers[layer][1]) if layer in table.layers else np.zeros(len(tokens))

    once = times("embedding") + times("final_layernorm")
    layer = 2 * times("layernorm") + sum((times(name) for name in _PER_LAYER), np.zeros(1))
    if table.moe is not None and model.experts is not None:
        layer = layer + [
            _moe_us(table, model.experts.count, model.experts.active, n) for n in tokens
        ]
    return once, layer


def _moe_us(table: LayerTable, experts: int, active: int, tokens: int) -> float:
    """The expert block, if each token picks its experts evenly and independently (our choice)."""
    assert table.moe is not None
    reached = experts * (1 - (1 - active / experts) ** tokens)
    i, u = bracket(table.moe_tokens, tokens)
    j, v = bracket(table.moe_experts, reached)
    low, high = table.moe[i], table.moe[i + 1]
    a = low[j] + v * (low[j + 1] - low[j])
    b = high[j] + v * (high[j + 1] - high[j])
    return float(a + u * (b - a))
