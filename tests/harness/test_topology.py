"""Topologies and KV capacity: worked out by hand, and refused with the arithmetic."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SpecError, TopologyError, UsageError
from harness.models import find_model, models
from harness.specfile import parse_document
from harness.topology import (
    Topology,
    explain,
    find_topology,
    read_topology,
    resolve_cluster,
    topology_names,
)


def topology(text: str) -> Topology:
    return read_topology(parse_document(text, "t.yaml"))


ONE = "name: t\nnodes:\n- {gpu: h100, gpus: 2}\nreplicas:\n"


def test_presets_are_what_their_names_say() -> None:
    assert set(topology_names()) >= {
        "4x2xh100", "2x4xh100", "1x8xh100", "1x1xh100", "4xa40", "1p3d-a40", "a40-300w-200w",
        "cpu-tiny",
    }  # fmt: skip
    shapes = {
        name: [(r.tensor_parallel, r.node.gpu.name) for r in find_topology(name).replicas]
        for name in topology_names()
    }
    assert shapes["4x2xh100"] == [(2, "h100")] * 4
    assert shapes["2x4xh100"] == [(4, "h100")] * 2
    assert shapes["1x8xh100"] == [(8, "h100")]
    roles = [replica.role for replica in find_topology("1p3d-a40").replicas]
    assert roles == ["prefill", "decode", "decode", "decode"]
    caps = [replica.power_cap_w for replica in find_topology("a40-300w-200w").replicas]
    assert caps == [300, 300, 200, 200]
    for name in topology_names():
        assert find_topology(name).name == name


@pytest.mark.parametrize(
    ("model", "name", "settings_", "tokens"),
    [
        # (79.6 x 0.9 - 61.02 / 2 - 3) GiB = 38.13 GiB; / (262,144 / 2) B = 312,361 tokens.
        ("qwen3-32b", "4x2xh100", {}, 312_361),
        # (79.6 x 0.92 - 33.51) GiB = 39.722 GiB.
        ("qwen3-32b", "4x2xh100", {"gpu_memory_utilization": 0.92}, 325_403),
        # (71.64 - 337 / 8 - 4) GiB = 25.515 GiB; / (376,832 / 8) B.
        ("glm-4.7", "1x8xh100", {}, 581_617),
        ("glm-4.7", "1x8xh100", {"kv_cache_dtype": "float8"}, 1_163_234),
        # (71.64 - 148.66 / 4 - 5) GiB = 29.475 GiB; / 3,915 B on every rank.
        ("deepseek-v4-flash", "2x4xh100", {}, 8_083_897),
        # (44.45 x 0.9 - 1.11 - 1.5) GiB = 37.395 GiB; / 114,688 B.
        ("qwen3-0.6b", "4xa40", {}, 350_104),
        ("qwen3-8b", "1x1xh100", {}, 388_701),
        ("qwen3-30b-a3b", "1x1xh100", {}, 128_559),
    ],
)
def test_kv_tokens_of_a_replica(
    model: str, name: str, settings_: dict[str, float], tokens: int
) -> None:
    cluster = resolve_cluster(model, name, **settings_)  # type: ignore[arg-type]
    plan = cluster.replicas[0]
    assert tokens - plan.block_size < plan.kv_tokens <= tokens
    assert plan.kv_tokens == plan.kv_blocks * plan.block_size
    assert cluster.kv_tokens == plan.kv_tokens * len(cluster.replicas)


PUBLISHED = [
    ("qwen3-32b", "4x2xh100", 312_000),
    ("glm-4.7", "1x8xh100", 582_000),
    ("deepseek-v4-flash", "2x4xh100", 8_100_000),
    ("qwen3-0.6b", "4xa40", 348_000),
    ("qwen3-8b", "1x1xh100", 392_000),
    ("qwen3-30b-a3b", "1x1xh100", 128_000),
]


@pytest.mark.parametrize(("model", "name", "tokens"), PUBLISHED)
def test_estimates_are_within_the_overheads_margin(model: str, name: str, tokens: int) -> None:
    """The overhead is known within 2 GiB: capacities computed elsewhere lie within that."""
    guess = find_model(model).overhead_gib
    more = resolve_cluster(model, name, overhead_gib=max(0.0, guess - 2)).replicas[0].kv_tokens
    less = resolve_cluster(model, name, overhead_gib=guess + 2).replicas[0].kv_tokens
    assert less < tokens < more


def test_plans_name_replicas_and_add_up() -> None:
    cluster = resolve_cluster("qwen3-32b", "4x2xh100")
    assert [plan.id for plan in cluster.replicas] == ["r0", "r1", "r2", "r3"]
    assert [plan.node.name for plan in cluster.replicas] == ["node0", "node1", "node2", "node3"]
    assert cluster.gpus == 8
    for plan in cluster.replicas:
        parts = plan.weights_gib + plan.overhead_gib + plan.kv_gib + plan.unused_gib
        assert parts == pytest.approx(plan.gpu.memory_gib)
    (row,) = explain(cluster)
    assert (row.replicas, row.count, row.gpus) == ("r0-r3", 4, "2xh100")
    assert row.sessions_at_limit == pytest.approx(312_352 / 40_960)
    rows = explain(resolve_cluster("qwen3-0.6b", "a40-300w-200w"))
    assert [(r.replicas, r.role, r.gpus) for r in rows] == [
        ("r0", "prefill", "1xa40"),
        ("r1", "decode", "1xa40"),
        ("r2", "prefill", "1xa40 at 200 W"),
        ("r3", "decode", "1xa40 at 200 W"),
    ]


def test_context_limit_is_cut_to_what_the_cache_holds() -> None:
    plan = resolve_cluster("qwen3-0.6b", "cpu-tiny").replicas[0]
    # 2 GiB / 114,688 B = 18,724 tokens: 1,170 blocks of 16.
    assert (plan.kv_tokens, plan.context_limit) == (18_720, 18_720)
    assert resolve_cluster("qwen3-0.6b", "4xa40").replicas[0].context_limit == 40_960
    limited = resolve_cluster("qwen3-0.6b", "cpu-tiny", max_model_len=4096)
    assert limited.replicas[0].context_limit == 4096
    with pytest.raises(TopologyError, match="max_model_len 20,000 is more than the 18,720 tokens"):
        resolve_cluster("qwen3-0.6b", "cpu-tiny", max_model_len=20_000)


def test_a_model_that_does_not_fit_shows_the_arithmetic() -> None:
    with pytest.raises(TopologyError) as error:
        resolve_cluster("qwen3-32b", "4xa40")
    assert "a40 44.45 GiB x 0.9 = 40.01 GiB" in error.value.message
    assert "weights 61.02 / 1 = 61.02 GiB, overhead 3.00 GiB (estimate)" in error.value.message
    assert "left for KV -24.02 GiB" in error.value.message
    assert error.value.exit_code == 2


def test_no_room_for_kv_is_refused() -> None:
    # 71.64 - 56.87 = 14.77 GiB: an overhead of that leaves nothing; a little less, no block.
    with pytest.raises(TopologyError, match="does not fit"):
        resolve_cluster("qwen3-30b-a3b", "1x1xh100", overhead_gib=14.8)
    with pytest.raises(TopologyError, match="no KV block"):
        resolve_cluster("qwen3-30b-a3b", "1x1xh100", overhead_gib=14.7695)
    with pytest.raises(TopologyError, match="no KV block"):
        resolve_cluster("qwen3-0.6b", topology(ONE + "- {tensor_parallel: 1, kv_cache_gib: 0.001}"))


@pytest.mark.parametrize(
    ("settings_", "message"),
    [
        ({"gpu_memory_utilization": 1.5}, "gpu_memory_utilization is 1.5"),
        ({"gpu_memory_utilization": 0.0}, "gpu_memory_utilization is 0.0"),
        ({"overhead_gib": -1.0}, "overhead_gib is -1.0"),
        ({"block_size": -16}, "block_size is -16"),
        ({"max_model_len": 0}, "max_model_len is 0"),
        ({"kv_cache_dtype": "int3"}, "no KV cache dtype `int3`"),
    ],
)
def test_settings_out_of_range(settings_: dict[str, float], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        resolve_cluster("qwen3-32b", "4x2xh100", **settings_)  # type: ignore[arg-type]


def test_splits_that_heads_or_blocks_do_not_allow() -> None:
    three = "name: t\nnodes:\n- {gpu: h100, gpus: 3}\nreplicas:\n- {tensor_parallel: 3}"
    with pytest.raises(TopologyError, match="64 attention heads, which 3 GPUs cannot share"):
        resolve_cluster("qwen3-32b", topology(three))
    with pytest.raises(TopologyError, match="needs blocks of 256 tokens, not 16"):
        resolve_cluster("deepseek-v4-flash", "2x4xh100", block_size=16)


@settings(max_examples=100, deadline=None)
@given(
    model=st.sampled_from(sorted(models())),
    name=st.sampled_from(["4x2xh100", "2x4xh100", "1x8xh100", "4xa40", "cpu-tiny"]),
    utilization=st.floats(0.05, 1.0),
    overhead=st.floats(0, 20),
)
def test_memory_never_exceeds_the_gpu(
    model: str, name: str, utilization: float, overhead: float
) -> None:
    try:
        cluster = resolve_cluster(
            model, name, gpu_memory_utilization=utilization, overhead_gib=overhead
        )
    except TopologyError as error:
        assert "GiB" in error.message or "attention heads" in error.message  # noqa: PT017
        return
    for plan in cluster.replicas:
        used = plan.kv_tokens * plan.kv_bytes_per_token / 2**30 + plan.weights_gib + overhead
        assert plan.kv_blocks >= 1
        assert used <= plan.gpu.memory_gib + 1e-9
        assert plan.unused_gib >= -1e-9


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("nodes: 3\nname: t", r"t.yaml, line 1, field `nodes`: is `3`, not a list"),
        ("name: t\nnodes:\n- {gpu: h300, gpus: 2}", r"line 3, field `nodes.0.gpu`: is `h300`"),
        ("name: t\nnodes:\n- {gpu: h100, gpus: 0}", r"field `nodes.0.gpus`: is `0`, not a whole"),
        ("name: t\nnodes:\n- {gpu: h100, gpus: 1, count: 99999}", r"nodes.0.count`: is above"),
        (ONE + "- {tensor_parallel: 2, rolle: mixed}", r"line 5, field `replicas.0.rolle`"),
        (ONE + "- {tensor_parallel: two}", r"field `replicas.0.tensor_parallel`: is `two`"),
        (ONE + "- {tensor_parallel: 2, role: prefil}", r"role`: is `prefil`, which is not known"),
        (ONE + "- {tensor_parallel: 1, count: 3}", r"line 5, field `replicas.0`: needs a node"),
        (ONE + "- {tensor_parallel: 1, gpu: a40}", r"with 1 free a40 GPUs"),
        (ONE + "- {tensor_parallel: 1, power_cap_w: 900}", r"power_cap_w`: is 900 W"),
        (ONE + "- {tensor_parallel: 1, gpu_memory_utilization: 2}", r"at most 1"),
        (ONE + "- {tensor_parallel: !!python/name:os.system 1}", r"tags are not allowed"),
        ("name: t\nname: u", r"field `name`: is given twice"),
    ],
)
def test_wrong_files_name_line_and_field(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message) as error:
        topology(text)
    assert error.value.exit_code == 2
    assert error.value.remedy


def test_own_topology_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.yaml"
    path.write_text(ONE + "- {tensor_parallel: 2, kv_cache_gib: 10}")
    plan = resolve_cluster("qwen3-32b", str(path)).replicas[0]
    # 10 GiB / 131,072 B = 81,920 tokens.
    assert plan.kv_tokens == 81_920
    with pytest.raises(SpecError, match="cannot be read"):
        find_topology(tmp_path / "none.yaml")
    with pytest.raises(UsageError, match="no topology `4x2xh10`") as error:
        find_topology("4x2xh10")
    assert "did you mean `4x2xh100`" in error.value.remedy


def test_copies_with_shared_experts() -> None:
    """qwen3-30b-a3b, 56.87 GiB: (30.5321 - 3.3485) x 10^9 parameters are the 120 of 128 experts
    that a token does not run through, so 28.9958 x 10^9 of all are experts' (94.97 %)."""
    model = find_model("qwen3-30b-a3b")
    one = (model.params_b - model.active_params_b) / (128 - 8)
    share = one * 128 / model.params_b
    plan = resolve_cluster(model, "1x8xh100-dp8-ep").replicas[0]
    rest, experts = model.weights_gib * (1 - share), model.weights_gib * share
    assert plan.weights_gib == pytest.approx(rest / 1 + experts / 8)
    assert (plan.gpus, plan.tensor_parallel, plan.data_parallel) == (8, 1, 8)
    kv_gib = 79.6 * 0.9 - plan.weights_gib - model.overhead_gib
    blocks = int(kv_gib * 2**30 // (model.kv.bytes_per_token * 16))
    assert (plan.kv_blocks, plan.kv_tokens) == (8 * blocks, 8 * blocks * 16)


def test_copies_without_shared_experts_hold_all_weights_each() -> None:
    two = resolve_cluster("qwen3-32b", "1x4xh100-dp2").replicas[0]
    one = resolve_cluster("qwen3-32b", "4x2xh100").replicas[0]
    assert (two.weights_gib, two.kv_gib) == (one.weights_gib, one.kv_gib)
    assert (two.gpus, two.kv_tokens) == (4, 2 * one.kv_tokens)
    assert two.context_limit == one.context_limit
    with pytest.raises(TopologyError, match="has no experts to spread"):
        resolve_cluster(
            "qwen3-32b", topology(ONE + "- {tensor_parallel: 1, expert_parallel: true}")
        )


def test_gpus_of_a_node_are_given_out_in_order() -> None:
    replicas = find_topology("1p3d-h100").replicas
    assert [replica.first_gpu for replica in replicas] == [0, 2, 4, 6]
    assert [replica.first_gpu for replica in find_topology("4x2xh100").replicas] == [0, 0, 0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (ONE + "- {tensor_parallel: 1, data_parallel: 3}", "a node with 3 free GPUs"),
        (ONE + "- {tensor_parallel: 1, port: 70000}", "is above 65535"),
        (ONE + "- {tensor_parallel: 1, port: 80, count: 2}", "one port for 2 replicas"),
        (
            ONE + "- {tensor_parallel: 1, port: 80}\n- {tensor_parallel: 1, port: 80}",
            "gives port 80 to two",
        ),
        ("base_port: 70000\n" + ONE + "- {tensor_parallel: 1}", "is above 65535"),
    ],
)
def test_ports_and_copies_that_cannot_be(text: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        topology(text)
