"""Step times: against a slow oracle, monotone, exact in integers, and honest about their source."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import PerformanceDataError
from harness.capacity import resolve_cluster
from harness.gpus import find_gpu
from harness.models import find_model, models
from harness.sim.curves import Curve, monotone
from harness.sim.layer_tables import read_layer_table
from harness.sim.perf_catalogue import api_server_costs, find_profile, find_table, table_entries
from harness.sim.perf_tables import read_operator_table
from harness.sim.roofline import RooflineCosts
from harness.sim.step_costs import Link, all_gather_ms, all_reduce_ms
from harness.sim.step_time import StepSettings, TableStepTime, capture_sizes, step_time_for
from harness.topology import find_topology
from tests.oracles.step_time import PERF, LayerOracle, OperatorOracle

PS = 10**9
LINK = Link(17.18, 20.0)

chunks_of = st.lists(
    st.tuples(st.integers(1, 4000), st.integers(0, 120_000)), min_size=0, max_size=4
)


@cache
def steps(model: str, topology: str) -> TableStepTime:
    cluster = resolve_cluster(model, topology)
    return step_time_for(
        cluster.model,
        cluster.replicas[0],
        host_fixed_us=0,
        host_prefill_us=0,
        host_per_seq_us=0,
    )


@cache
def operator_oracle() -> OperatorOracle:
    return OperatorOracle("aic_qwen3-32b_h100_tp2_vllm")


@cache
def layer_oracle() -> LayerOracle:
    return LayerOracle(
        "llmservingsim_rtx-pro-6000_qwen3-32b_tp2",
        layers=64,
        hidden=5120,
        vocabulary=151936,
        all_reduce=lambda size: all_reduce_ms(size, 2, LINK),
        all_gather=lambda size: all_gather_ms(size, 2, LINK),
    )


def agrees(got_ps: int, wanted_ms: float, context_sum: int) -> None:
    # A piece's slope is rounded down to whole picoseconds: at most 1 ps a token of context.
    assert got_ps / PS == pytest.approx(wanted_ms, rel=1e-9, abs=(context_sum + 10) / PS)


@settings(max_examples=80, deadline=None)
@given(chunks=chunks_of, decodes=st.integers(0, 400), context=st.integers(1, 200_000))
def test_operator_table_equals_its_oracle(
    chunks: list[tuple[int, int]], decodes: int, context: int
) -> None:
    if not chunks and not decodes:
        return
    total = decodes * context + decodes // 2
    got = steps("qwen3-32b", "4x2xh100").mixed_ps(chunks, decodes, total)
    agrees(got, operator_oracle().step_ms(chunks, decodes, total), total)


@settings(max_examples=15, deadline=None)
@given(
    chunks=st.lists(st.tuples(st.integers(1, 3000), st.integers(0, 20_000)), max_size=2),
    decodes=st.integers(0, 300),
    context=st.integers(1, 20_000),
)
def test_layer_table_equals_its_oracle(
    chunks: list[tuple[int, int]], decodes: int, context: int
) -> None:
    if not chunks and not decodes:
        return
    total = decodes * context
    got = steps("qwen3-32b", "1x2xrtx-pro-6000").mixed_ps(chunks, decodes, total)
    agrees(got, layer_oracle().step_ms(chunks, decodes, total), total)


SHIPPED = [
    ("qwen3-32b", "4x2xh100"),
    ("qwen3-32b", "1x2xrtx-pro-6000"),
    ("llama-3.1-8b", "1x1xrtx-pro-6000"),
    ("qwen3-30b-a3b", "1x1xrtx-pro-6000"),
    ("deepseek-v4-flash", "2x4xh100"),
    ("glm-4.7", "1x8xh100"),
    ("qwen3-0.6b", "4xa40"),
    ("qwen3-0.6b", "cpu-tiny"),
]


@pytest.mark.parametrize(("model", "topology"), SHIPPED)
@settings(max_examples=60, deadline=None)
@given(
    chunks=chunks_of,
    added=st.tuples(st.integers(1, 4000), st.integers(0, 120_000)),
    decodes=st.integers(1, 500),
    mean=st.integers(1, 140_000),
    longer=st.integers(1, 10_000),
    more=st.integers(1, 40),
)
def test_steps_are_positive_and_grow_with_every_argument(
    model: str,
    topology: str,
    chunks: list[tuple[int, int]],
    added: tuple[int, int],
    decodes: int,
    mean: int,
    longer: int,
    more: int,
) -> None:
    step = steps(model, topology)
    before = step.extrapolations
    now = step.mixed_ps(chunks, decodes, decodes * mean)
    grown = [
        step.mixed_ps(chunks, decodes, decodes * mean + longer),
        step.mixed_ps(chunks, decodes + more, (decodes + more) * mean),
        step.mixed_ps([*chunks, added], decodes, decodes * mean),
    ]
    if chunks:
        (new, cached), *rest = chunks
        grown.append(step.mixed_ps([(new + 7, cached), *rest], decodes, decodes * mean))
        grown.append(step.mixed_ps([(new, cached + 999), *rest], decodes, decodes * mean))
    assert now > 0
    # Slopes are rounded down to whole ps a token; beyond the table lines may cross by a little.
    allowed = (decodes + more) * mean + longer + 2
    if step.extrapolations > before:
        allowed += now // 20
    assert min(grown) >= now - allowed


@settings(max_examples=200, deadline=None)
@given(decodes=st.integers(1, 600), context=st.integers(0, 10**8))
def test_a_piece_is_linear_to_its_end_and_meets_the_next(decodes: int, context: int) -> None:
    step = steps("qwen3-32b", "4x2xh100")
    piece = step.decode_piece(decodes, context)
    assert context < piece.context_end
    value = piece.fixed_ps + piece.per_token_ps * context
    assert value == step.mixed_ps([], decodes, context)
    last = piece.context_end - 1
    if last < 10**12:
        assert step.decode_piece(decodes, last) == piece
        following = step.decode_piece(decodes, piece.context_end)
        assert following != piece
        at_end = piece.fixed_ps + piece.per_token_ps * last
        assert at_end <= following.fixed_ps + following.per_token_ps * piece.context_end


def test_table_points_come_back_as_they_are() -> None:
    step = steps("qwen3-32b", "4x2xh100")
    # Rows of aic_qwen3-32b_h100_tp2_vllm.csv where smoothing changes nothing.
    assert step.mixed_ps([(8192, 0)], 0, 0) / PS == pytest.approx(475.9746, abs=1e-3)
    assert step.mixed_ps([(2048, 32768)], 0, 0) / PS == pytest.approx(214.0823, abs=1e-3)
    assert step.mixed_ps([], 128, 128 * 8192) / PS == pytest.approx(60.5665, rel=0.01)


def test_decode_batches_are_padded_to_cuda_graph_sizes() -> None:
    step = steps("qwen3-32b", "1x2xrtx-pro-6000")
    assert [step.padded(n) for n in (1, 3, 5, 9, 256, 257, 512, 513)] == [
        1, 4, 8, 16, 256, 272, 512, 513,
    ]  # fmt: skip
    assert capture_sizes(128)[-1] == 256
    assert capture_sizes(1024)[-1] == 512
    # 33 decodes run as 40: all but attention and sampling is what 40 tokens cost.
    bare = TableStepTime(step._costs, StepSettings(captured=()))
    assert step._fixed_ps(33, 33, False) > bare._fixed_ps(33, 33, False)


def test_host_terms_add_up() -> None:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    base = steps("qwen3-32b", "4x2xh100")
    hosted = step_time_for(
        cluster.model,
        cluster.replicas[0],
        host_fixed_us=100,
        host_prefill_us=1000,
        host_per_seq_us=4,
    )
    # 100 + 4 x 10 us, in ps; with a chunk 1,000 us and one sequence more.
    assert hosted.mixed_ps([], 10, 9999) - base.mixed_ps([], 10, 9999) == 140 * 10**6
    chunk = [(512, 0)]
    assert hosted.mixed_ps(chunk, 10, 9999) - base.mixed_ps(chunk, 10, 9999) == 1144 * 10**6


def test_half_the_bandwidth_doubles_what_memory_bounds() -> None:
    base = steps("qwen3-32b", "4x2xh100")
    half = TableStepTime(base._costs, StepSettings(bandwidth_scale=0.5))
    weights = round(base._costs.tokens_ms(1, mixed=False) * PS)
    attention = base._costs.decode_curve(64)(4096) * PS
    slower = half.mixed_ps([], 64, 64 * 4096) - base.mixed_ps([], 64, 64 * 4096)
    assert slower == pytest.approx(weights + attention, rel=1e-4)


def test_a_power_cap_slows_prefill_and_not_decode() -> None:
    cluster = resolve_cluster("qwen3-0.6b", "a40-300w-200w")
    free, capped = (step_time_for(cluster.model, cluster.replicas[i]) for i in (0, 2))
    host = find_profile("a40", "vllm")
    host_ps = round((host.host_prefill_us + host.host_per_seq_us) * 10**6)
    # ((200 - 40) / (290 - 40)) ^ 0.4 = 0.8365: prefill takes 1 / 0.8365 = 1.195 times as long.
    assert "slows prefill 1.20x" in capped.description
    ratio = (capped.mixed_ps([(8000, 0)], 0, 0) - host_ps) / (
        free.mixed_ps([(8000, 0)], 0, 0) - host_ps
    )
    assert ratio == pytest.approx(1.1955, abs=2e-3)
    assert capped.mixed_ps([], 32, 99_999) == free.mixed_ps([], 32, 99_999)


def test_beyond_the_table_is_counted() -> None:
    step = TableStepTime(steps("qwen3-32b", "4x2xh100")._costs)
    step.decode_piece(64, 64 * 131_072)
    step.mixed_ps([(8192, 0)], 64, 64 * 8192)
    assert step.extrapolations == 0
    step.decode_piece(64, 64 * 131_072 + 1)
    step.decode_piece(300, 300)
    step.mixed_ps([(40_000, 0)], 0, 0)
    step.mixed_ps([(16, 100_000)], 0, 0)
    assert step.extrapolations == 4


@pytest.mark.parametrize("name", sorted(models()))
@pytest.mark.parametrize("topology", ["1x8xh100", "4xa40", "1x2xrtx-pro-6000"])
def test_source_and_description_say_where_times_come_from(name: str, topology: str) -> None:
    spec = find_topology(topology).replicas[0]
    model, ranks = find_model(name), spec.tensor_parallel
    if model.weights_gib / ranks > 0.85 * spec.node.gpu.memory_gib or model.heads % ranks:
        return
    cluster = resolve_cluster(name, topology, overhead_gib=0.5)
    plan = cluster.replicas[0]
    step = step_time_for(cluster.model, plan)
    entry = find_table(name, plan.gpu.name, plan.tensor_parallel, "vllm")
    assert step.source == ("roofline" if entry is None else "table")
    assert ("roofline" in step.description) == (entry is None)
    assert name in step.description


def test_proxy_tables_say_so_and_the_other_back_end_is_named() -> None:
    glm = resolve_cluster("glm-4.7", "1x8xh100")
    assert "PROXY" in step_time_for(glm.model, glm.replicas[0]).description
    qwen = resolve_cluster("qwen3-8b", "1x1xh100")
    other = step_time_for(qwen.model, qwen.replicas[0], backend="sglang")
    assert "table of vllm, none for sglang" in other.description
    with pytest.raises(PerformanceDataError, match="back end `ollama`"):
        step_time_for(qwen.model, qwen.replicas[0], backend="ollama")


def test_every_shipped_table_reads_and_belongs_to_a_model_and_gpu() -> None:
    named = {entry.file for entry in table_entries()}
    assert len(named) == len(table_entries())
    for entry in table_entries():
        assert entry.gpu == find_gpu(entry.gpu).name
        experts = find_model(entry.model).experts
        if entry.kind == "operator":
            read_operator_table(PERF / f"{entry.file}.csv")
        else:
            read_layer_table(entry.file, moe=experts is not None)
    used = {p.name for p in PERF.glob("*.csv") if any(p.name.startswith(f) for f in named)}
    assert {p.name for p in PERF.glob("*.csv")} == used


ROW = "prefill,1,512,0,30.0908,3.9316,3.4083,"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (("30.0908,3.9316", "nan,3.9316"), r"line 7: `step_ms` is nan, not a finite number"),
        (("30.0908,3.9316", "-1,3.9316"), r"line 7: `step_ms` is -1, not a time above 0"),
        (("30.0908,3.9316", "x,3.9316"), r"line 7: `step_ms` is `x`, not a number"),
        (("30.0908,3.9316", "7.0,3.9316"), r"line 7: `step_ms` is not above"),
        (("prefill,1,512,0", "warmup,1,512,0"), r"line 7: `phase` is `warmup`"),
        (("prefill,1,512,0", "prefill,1,256,0"), r"line 7: repeats the point of line 6"),
        (("prefill,1,512,0", "prefill,1,512,1.5"), r"line 7: .* not a whole number"),
        ((",comm_ms,", ",other,"), r"line 1: lacks the column `comm_ms`"),
    ],
)
def test_damaged_operator_tables_name_file_and_line(
    tmp_path: Path, change: tuple[str, str], message: str
) -> None:
    text = (PERF / "aic_qwen3-32b_h100_tp2_vllm.csv").read_text()
    assert ROW in text
    (tmp_path / "t.csv").write_text(text.replace(*change, 1))
    with pytest.raises(PerformanceDataError, match="t.csv, " + message):
        read_operator_table(tmp_path / "t.csv")


def test_a_hole_in_a_table_is_named(tmp_path: Path) -> None:
    lines = (PERF / "aic_qwen3-32b_h100_tp2_vllm.csv").read_text().splitlines()
    kept = [line for line in lines if not line.startswith("decode,64,1,4096,")]
    assert len(kept) == len(lines) - 1
    (tmp_path / "t.csv").write_text("\n".join(kept))
    with pytest.raises(PerformanceDataError, match="hole: no row for batch 64, context 4096"):
        read_operator_table(tmp_path / "t.csv")
    with pytest.raises(PerformanceDataError, match=r"missing\.csv: cannot be read"):
        read_operator_table(tmp_path / "missing.csv")


@pytest.mark.parametrize(
    ("part", "drop", "message"),
    [
        ("attention", "64,128,4,256,", "hole: no row for prefill_chunk 64, kv_prefill 128"),
        ("attention", "0,0,16,512,", "hole: no row for n_decode 16, kv_decode 512"),
        ("dense", "o_proj,256,", "hole: `o_proj` has no row for tokens 256"),
        ("per_sequence", "sampler,7,", "hole: `sampler` has no row for sequences 7"),
    ],
)
def test_a_hole_in_a_layer_table_is_named(
    tmp_path: Path, part: str, drop: str, message: str
) -> None:
    stem = "llmservingsim_rtx-pro-6000_qwen3-32b_tp2"
    for name in ("attention", "dense", "per_sequence"):
        lines = (PERF / f"{stem}_{name}.csv").read_text().splitlines()
        kept = [line for line in lines if name != part or not line.startswith(drop)]
        assert (len(kept) < len(lines)) == (name == part)
        (tmp_path / f"{stem}_{name}.csv").write_text("\n".join(kept))
    with pytest.raises(PerformanceDataError, match=message):
        read_layer_table(stem, moe=False, folder=tmp_path)


@settings(max_examples=100, deadline=None)
@given(st.lists(st.lists(st.floats(0.1, 100), min_size=3, max_size=3), min_size=1, max_size=5))
def test_monotone_tables_grow_and_keep_what_grows(values: list[list[float]]) -> None:
    table = np.array(values)
    smooth = monotone(table)
    assert (np.diff(smooth, axis=0) >= 0).all()
    assert (np.diff(smooth, axis=1) >= 0).all()
    assert monotone(smooth) == pytest.approx(smooth)
    assert smooth.min() >= table.min()
    assert smooth.max() <= table.max()


def test_curve_is_flat_before_and_straight_after() -> None:
    curve = Curve([10, 20, 40], [1.0, 2.0, 6.0])
    # Slope of the last part 4 / 20 = 0.2: at 50, 6 + 10 x 0.2 = 8.
    assert [curve(x) for x in (0, 10, 15, 30, 50)] == [1.0, 1.0, 1.5, 4.0, 8.0]


def test_all_reduce_follows_vllm() -> None:
    pcie, nvlink = Link(10.0, 20.0), Link(100.0, 10.0, nvlink=True)
    # 1 MB at 10 GB/s is 0.1 ms. Two GPUs, own kernel: 20 us + 0.1 ms.
    assert all_reduce_ms(1e6, 2, pcie) == pytest.approx(0.12)
    # 16 MB: NCCL's ring, 2 x (20 us + half of 1.6 ms).
    assert all_reduce_ms(16e6, 2, pcie) == pytest.approx(1.64)
    # Four GPUs without NVLink: a ring of 2 x 3 x (20 us + a quarter of 0.1 ms).
    assert all_reduce_ms(1e6, 4, pcie) == pytest.approx(0.27)
    # With NVLink, 1 MB in two stages: 2 x 10 us + 2 x 3/4 x 0.01 ms; 0.1 MB in one: 10 us + 1 us.
    assert all_reduce_ms(1e6, 4, nvlink) == pytest.approx(0.035)
    assert all_reduce_ms(1e5, 4, nvlink) == pytest.approx(0.011)
    assert all_reduce_ms(1e9, 1, pcie) == all_gather_ms(1e9, 1, pcie) == 0.0
    assert all_gather_ms(1e6, 2, pcie) == pytest.approx(0.07)


def test_roofline_is_near_the_table_where_both_exist() -> None:
    """Within 25 % for a dense 32B model at decode and plain prefill: the size of its error."""
    model, gpu = find_model("qwen3-32b"), find_gpu("h100")
    rough = TableStepTime(RooflineCosts(model, gpu, 2))
    table = steps("qwen3-32b", "4x2xh100")
    for decodes, context in ((1, 512), (16, 8192), (64, 4096), (128, 8192)):
        ratio = rough.mixed_ps([], decodes, decodes * context) / table.mixed_ps(
            [], decodes, decodes * context
        )
        assert 0.75 < ratio < 1.25
    for new in (512, 2048, 8192):
        assert 0.75 < rough.mixed_ps([(new, 0)], 0, 0) / table.mixed_ps([(new, 0)], 0, 0) < 1.25


def test_profiles_and_api_costs_are_there_for_every_gpu() -> None:
    fitted = find_profile("rtx-pro-6000", "vllm")
    assert find_profile("h100", "vllm").host_prefill_us == fitted.host_prefill_us
    assert "carried over" in find_profile("h100", "sglang").origin
    costs = api_server_costs()
    # BLIS's 15,563 us from arrival to the engine, in three parts.
    parts = costs.request_us + costs.delay_us + fitted.host_prefill_us
    assert parts == pytest.approx(15_563)


@pytest.mark.parametrize(
    "bad",
    [
        lambda: StepSettings(host_fixed_us=-1),
        lambda: StepSettings(host_prefill_us=float("nan")),
        lambda: StepSettings(bandwidth_scale=0),
        lambda: StepSettings(compute_slowdown=0.5),
        lambda: StepSettings(compute_slowdown=1.1, memory_slowdown=1.2),
    ],
)
def test_settings_out_of_range_are_refused(bad: Callable[[], StepSettings]) -> None:
    with pytest.raises(PerformanceDataError):
        bad()
