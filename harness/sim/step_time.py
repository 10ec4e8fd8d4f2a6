"""How long one engine step takes.

    t = linear(tokens, padded) + sequences(n) + attention(chunks, decodes, mean context)
        + communication(tokens) + host_fixed + host_per_seq x n (+ host_prefill with a chunk)

Times are integer picoseconds. A decode-only step is linear in the sum of contexts within a cell
of the table, so that a run of such steps sums exactly.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from agentsched import PerformanceDataError
from harness.capacity import ReplicaPlan
from harness.models import Model
from harness.sim.energy import slowdowns
from harness.sim.engine_types import DecodePiece
from harness.sim.perf_catalogue import find_profile, find_table, table_costs
from harness.sim.roofline import RooflineCosts
from harness.sim.step_costs import StepCosts

PS_PER_MS = 10**9
_NO_END = 1 << 62

Source = Literal["table", "roofline"]


def capture_sizes(max_num_seqs: int = 1024) -> list[int]:
    """Token counts that vLLM captures CUDA graphs for: 1, 2, 4, every 8 to 256, every 16 beyond,
    to twice max_num_seqs but not above 512 (vllm/config/vllm.py)."""
    most = min(2 * max_num_seqs, 512)
    sizes = [1, 2, 4, *range(8, 257, 8), *range(272, 513, 16)]
    return [size for size in sizes if size <= most]


@dataclass(frozen=True, slots=True)
class StepSettings:
    """What is added to, or changed about, the times of a table. All of it is per engine step."""

    host_fixed_us: float = 0.0
    """Host work that the GPU waits for."""
    host_prefill_us: float = 0.0
    """The same in steps with a prefill chunk: they run outside the full CUDA graph, and take new
    requests in."""
    host_per_seq_us: float = 0.0
    """The same for each sequence of the step."""
    bandwidth_scale: float = 1.0
    """Memory bandwidth of this GPU over that of the table: divides decode attention, and the part
    of the linear layers that one token already costs (reading the weights)."""
    compute_slowdown: float = 1.0
    """Factor on steps with a prefill chunk, as from a power cap."""
    memory_slowdown: float = 1.0
    """Factor on decode-only steps, as from a power cap below what decoding draws."""
    captured: tuple[int, ...] = tuple(capture_sizes())
    """CUDA-graph sizes, ascending: steps of up to the last are padded to the next. Empty: none."""

    def __post_init__(self) -> None:
        for name in ("host_fixed_us", "host_prefill_us", "host_per_seq_us"):
            if not 0 <= getattr(self, name) < 1e9:
                raise PerformanceDataError(f"{name} must be 0 or more", f"change {name}")
        if not self.bandwidth_scale > 0:
            raise PerformanceDataError("bandwidth_scale must be above 0", "change bandwidth_scale")
        if not self.compute_slowdown >= self.memory_slowdown >= 1:
            raise PerformanceDataError(
                "slowdowns must be 1 or more, and compute's not below memory's", "change them"
            )


class TableStepTime:
    """Step times from the costs of a step's parts. Grows with every argument, never 0.

    `source` and `description` say where the times come from; every output shows them.
    `extrapolations` counts look-ups outside what was measured.
    """

    def __init__(
        self,
        costs: StepCosts,
        settings: StepSettings | None = None,
        *,
        source: Source = "table",
        description: str = "",
    ) -> None:
        self.source: Source = source
        self.description = description
        self.settings = settings or StepSettings()
        self.extrapolations = 0
        self._costs = costs
        self._scale = self.settings.bandwidth_scale
        self._weights_ms = costs.tokens_ms(1, mixed=False)
        self._captured = list(self.settings.captured)
        self._fixed: dict[tuple[int, int, bool], int] = {}
        self._pieces: dict[int, tuple[list[int], list[DecodePiece], int]] = {}

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        """The linear piece that holds at `context_sum`; `decodes` >= 1."""
        found = self._pieces.get(decodes)
        if found is None:
            found = self._pieces[decodes] = self._cut(decodes)
        ends, pieces, measured = found
        if context_sum > measured:
            self.extrapolations += 1
        return pieces[bisect_right(ends, context_sum)]

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        """Picoseconds of a step with prefill `chunks` of (new tokens, tokens already computed)."""
        if not chunks:
            piece = self.decode_piece(decodes, context_sum)
            return piece.fixed_ps + piece.per_token_ps * context_sum
        tokens = decodes
        for new, _ in chunks:
            tokens += new
        key = (tokens, decodes + len(chunks), True)
        fixed = self._fixed.get(key)
        if fixed is None:
            fixed = self._fixed[key] = self._fixed_ps(*key)
        context = context_sum / decodes if decodes else 0.0
        if self._costs.beyond(tokens, decodes, context, chunks):
            self.extrapolations += 1
        attention = self._costs.attention_ms(chunks, decodes, context)
        if self._scale != 1.0 and decodes:
            # Only the decodes' share is bound by memory.
            attention += (1 / self._scale - 1) * self._costs.decode_curve(decodes)(context)
        return fixed + round(attention * self.settings.compute_slowdown * PS_PER_MS)

    def padded(self, tokens: int) -> int:
        """The tokens a step is run with: the next CUDA-graph size, or as they are above all."""
        i = bisect_right(self._captured, tokens - 1)
        return self._captured[i] if i < len(self._captured) else tokens

    def _fixed_ps(self, tokens: int, sequences: int, mixed: bool) -> int:
        """All of a step but attention."""
        use = self.settings
        linear = self._costs.tokens_ms(self.padded(tokens), mixed=mixed)
        linear += (1 / self._scale - 1) * self._weights_ms
        gpu = linear + self._costs.sequences_ms(sequences)
        slowdown = use.compute_slowdown if mixed else use.memory_slowdown
        host = (use.host_fixed_us + use.host_per_seq_us * sequences) / 1e3
        host += use.host_prefill_us / 1e3 if mixed else 0.0
        return max(1, round((gpu * slowdown + host) * PS_PER_MS))

    def _cut(self, decodes: int) -> tuple[list[int], list[DecodePiece], int]:
        """Piece ends, pieces and the last measured sum of contexts, for one batch size."""
        curve = self._costs.decode_curve(decodes)
        scale = self.settings.memory_slowdown / self._scale
        base = self._fixed_ps(decodes, decodes, False)
        sums = [decodes * round(x) for x in curve.xs]
        times = [base + round(y * scale * PS_PER_MS) for y in curve.ys]
        pieces = []
        for i in range(len(sums) - 1):
            # Rounded down, so that a piece never ends above where the next begins.
            slope = (times[i + 1] - times[i]) // (sums[i + 1] - sums[i])
            end = sums[i + 1] if i < len(sums) - 2 else _NO_END
            pieces.append(DecodePiece(times[i] - slope * sums[i], slope, end))
        beyond = decodes > 0 and self._costs.beyond(decodes, decodes, 1.0, ())
        return [piece.context_end for piece in pieces], pieces, -1 if beyond else sums[-1]


def step_time_for(
    model: Model,
    replica: ReplicaPlan,
    *,
    host_fixed_us: float | None = None,
    host_prefill_us: float | None = None,
    host_per_seq_us: float | None = None,
    bandwidth_scale: float | None = None,
    backend: str = "vllm",
    max_num_seqs: int = 1024,
    expert_ranks: int = 1,
) -> TableStepTime:
    """Step times of `model` on a replica: from the table of the model on that GPU kind and split,
    or from a roofline where there is none.

    Args:
        host_fixed_us, host_prefill_us, host_per_seq_us, bandwidth_scale: None: of the profile that
            ships for the back end on the GPU kind.
        backend: `vllm` or `sglang`.
        max_num_seqs: decides which CUDA graphs the engine captures.
        expert_ranks: data-parallel ranks, of which this replica is one, that share the experts.

    Raises:
        PerformanceDataError: no such back end, a setting out of range, or a damaged table.
    """
    profile = find_profile(replica.gpu.name, backend)
    compute, memory = slowdowns(replica.gpu, replica.power_cap_w)
    settings = StepSettings(
        host_fixed_us=_or(host_fixed_us, profile.host_fixed_us),
        host_prefill_us=_or(host_prefill_us, profile.host_prefill_us),
        host_per_seq_us=_or(host_per_seq_us, profile.host_per_seq_us),
        bandwidth_scale=_or(bandwidth_scale, profile.bandwidth_scale),
        compute_slowdown=compute,
        memory_slowdown=memory,
        captured=tuple(capture_sizes(max_num_seqs)),
    )
    given = (host_fixed_us, host_prefill_us, host_per_seq_us)
    notes = ["host terms given"] if any(x is not None for x in given) else [profile.origin]
    if compute > 1:
        notes.append(f"cap {replica.power_cap_w:g} W slows prefill {compute:.2f}x (assumed curve)")
    what = f"{model.name} on {replica.tensor_parallel}x{replica.gpu.name}"
    if expert_ranks > 1:
        notes.append(f"experts shared by {expert_ranks} ranks")
    entry = find_table(model.name, replica.gpu.name, replica.tensor_parallel, backend)
    if entry is None:
        costs: StepCosts = RooflineCosts(model, replica.gpu, replica.tensor_parallel)
        text = f"roofline estimate, no table for {what}"
        return TableStepTime(
            costs, settings, source="roofline", description="; ".join([text, *notes])
        )
    if entry.backend != backend:
        notes.insert(0, f"table of {entry.backend}, none for {backend}")
    if entry.caveat:
        notes.insert(0, entry.caveat)
    text = f"table: {entry.source}, {what}"
    return TableStepTime(
        table_costs(entry, model, replica.gpu, expert_ranks),
        settings,
        description="; ".join([text, *notes]),
    )


def _or(given: float | None, default: float) -> float:
    return default if given is None else given
