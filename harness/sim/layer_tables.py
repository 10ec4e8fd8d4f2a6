"""Read layer tables: kernel times of one transformer layer, as LLMServingSim's profiler measures
them inside vLLM."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources.abc import Traversable

from harness.sim.curves import Array
from harness.sim.perf_tables import Cells, TableFile, perf_folder

Points = tuple[tuple[int, ...], tuple[float, ...]]
"""Positions and times (microseconds) of a curve."""


@dataclass(frozen=True, slots=True)
class LayerTable:
    """Kernel times in microseconds of a model's layers on one tensor-parallel rank.

    `mixed_attention` is over (chunk, cached tokens, decodes, context); at 0 decodes the context
    does not matter.
    """

    name: str
    layers: dict[str, Points]
    """By layer, over the tokens of a step."""
    per_sequence: dict[str, Points]
    """By layer, over the sequences of a step."""
    batches: tuple[int, ...]
    contexts: tuple[int, ...]
    decode_attention: Array
    chunks: tuple[int, ...]
    cached: tuple[int, ...]
    mixed_decodes: tuple[int, ...]
    mixed_attention: Array
    between: tuple[tuple[int, int, int, int, float], ...]
    """Measured (chunk, cached, decodes, context, time) off the grid, to check interpolation."""
    moe_tokens: tuple[int, ...] = ()
    moe_experts: tuple[int, ...] = ()
    moe: Array | None = None


def read_layer_table(stem: str, *, moe: bool, folder: Traversable | None = None) -> LayerTable:
    """The table in `<stem>_attention.csv`, `_dense.csv`, `_per_sequence.csv` and `_moe.csv`.

    Raises:
        PerformanceDataError: a hole, a duplicate, or a value that is no time; names file and line.
    """
    folder = folder or perf_folder()
    table, points = _attention_points(folder / f"{stem}_attention.csv")
    doubled = _doubling(p[0] for p in points)
    kv = _doubling(p[3] for p in points)
    batches = tuple(sorted({p[2] for p in points if p[0] == 0}))
    with_chunk = {p[2] for p in points if p[0] in doubled and p[2] > 0}
    mixed_decodes = (0, *sorted(with_chunk))
    # Steps without decodes have no context: their value stands at every context of the grid.
    alone: Cells = {
        (p[0], p[1], 0, k): v for p, v in points.items() if p[2] == 0 < p[0] for k in kv
    }
    decode: Cells = {(p[2], p[3]): v for p, v in points.items() if p[0] == 0}
    experts = _moe_points(folder / f"{stem}_moe.csv") if moe else ((), (), None)
    return LayerTable(
        name=stem,
        layers=_curves(folder / f"{stem}_dense.csv", "tokens"),
        per_sequence=_curves(folder / f"{stem}_per_sequence.csv", "sequences"),
        batches=batches,
        contexts=kv,
        decode_attention=table.grid(decode, [("n_decode", batches), ("kv_decode", kv)]),
        chunks=doubled,
        cached=(0, *kv),
        mixed_decodes=mixed_decodes,
        mixed_attention=table.grid(
            {**points, **alone},
            [
                ("prefill_chunk", doubled),
                ("kv_prefill", (0, *kv)),
                ("n_decode", mixed_decodes),
                ("kv_decode", kv),
            ],
        ),
        between=tuple(
            (p[0], p[1], p[2], p[3], v[0]) for p, v in points.items() if p[0] not in (0, *doubled)
        ),
        moe_tokens=experts[0],
        moe_experts=experts[1],
        moe=experts[2],
    )


def _doubling(values: Iterable[int]) -> tuple[int, ...]:
    """The values that are 16 times a power of two: the grid proper. The profile has a second,
    finer sweep at other points, which does not cover all of it."""
    return tuple(sorted({v for v in values if v >= 16 and v & (v - 1) == 0}))


def _attention_points(path: Traversable) -> tuple[TableFile, Cells]:
    columns = ("prefill_chunk", "kv_prefill", "n_decode", "kv_decode")
    table = TableFile(path, (*columns, "time_us"))
    points: Cells = {}
    for line, row in table.rows():
        point = tuple(table.count(row, column, line) for column in columns)
        if point in points:
            table.fail(line, f"repeats the point of line {points[point][1]}")
        points[point] = (table.time(row, "time_us", line), line)
    if not any(p[0] for p in points) or not any(p[0] == 0 for p in points):
        table.fail(None, "needs rows with and without a prefill chunk")
    return table, points


def _curves(path: Traversable, over: str) -> dict[str, Points]:
    table = TableFile(path, ("layer", over, "time_us"))
    found: dict[str, dict[int, float]] = {}
    for line, row in table.rows():
        curve = found.setdefault(row["layer"], {})
        at = table.count(row, over, line)
        if at in curve:
            table.fail(line, f"repeats `{row['layer']}` at {over} {at}")
        curve[at] = table.time(row, "time_us", line)
    axes = {layer: tuple(sorted(curve)) for layer, curve in found.items()}
    _same_axis(table, axes, over)
    return {layer: (axis, tuple(found[layer][x] for x in axis)) for layer, axis in axes.items()}


def _same_axis(table: TableFile, axes: dict[str, tuple[int, ...]], over: str) -> None:
    union = sorted({x for axis in axes.values() for x in axis})
    for layer, axis in axes.items():
        missing = sorted(set(union) - set(axis))
        if missing:
            table.fail(None, f"the table has a hole: `{layer}` has no row for {over} {missing[0]}")
    if not union:
        table.fail(None, "has no rows")


def _moe_points(path: Traversable) -> tuple[tuple[int, ...], tuple[int, ...], Array]:
    table = TableFile(path, ("tokens", "activated_experts", "time_us"))
    cells: Cells = {}
    for line, row in table.rows():
        point = (table.count(row, "tokens", line), table.count(row, "activated_experts", line))
        cells[point] = (table.time(row, "time_us", line), line)
    tokens = tuple(sorted({p[0] for p in cells}))
    experts = tuple(sorted({p[1] for p in cells}))
    # A few tokens cannot reach many experts: such rows stand at the most they can.
    _fill_unreachable(cells, tokens, experts)
    grid = table.grid(cells, [("tokens", tokens), ("activated_experts", experts)])
    return tokens, experts, grid


def _fill_unreachable(cells: Cells, tokens: Sequence[int], experts: Sequence[int]) -> None:
    least = experts[0] if experts else 0
    for count in tokens:
        reachable = [e for e in experts if (count, e) in cells]
        for e in experts:
            if (count, e) not in cells and reachable and e > count * least:
                cells[count, e] = cells[count, max(reachable)]
