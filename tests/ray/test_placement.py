"""Nodes of topologies on machines: found where there is a way, refused with the arithmetic."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import TopologyError
from harness.ray.placement import Machine, bundles, needs_of, place, plain
from harness.specfile import parse_document
from harness.topology import Topology, find_topology, read_topology


def topology(*nodes: tuple[str, int]) -> Topology:
    """One replica on all GPUs of each node."""
    lines = ["name: test", "nodes:"]
    lines += [f"  - {{gpu: {gpu}, gpus: {count}}}" for gpu, count in nodes]
    lines += ["replicas:"]
    lines += [f"  - {{tensor_parallel: {count}, gpu: {gpu}}}" for gpu, count in nodes]
    return read_topology(parse_document("\n".join(lines), "test.yaml"))


def test_refused_with_the_arithmetic() -> None:
    machines = [Machine("a", 2, "H100"), Machine("b", 3, "H100"), Machine("c", 8, "A40")]
    # 4 x 2 = 8 GPUs, and there are 2 + 3 = 5.
    with pytest.raises(TopologyError) as refused:
        place(topology(*[("h100", 2)] * 4), machines)
    assert refused.value.message == (
        "topology `test` does not fit the Ray cluster: h100: needs 4 x 2 GPUs on one machine each "
        "= 8; free: a 2, b 3 = 5; 3 too few"
    )
    # 2 x 2 = 4 of 5 GPUs, but tensor parallel 4 finds no machine with 4.
    with pytest.raises(TopologyError, match=r"1 x 4 .* = 4; free: a 2, b 3 = 5; room for 0 of 1"):
        place(topology(("h100", 4)), machines)
    with pytest.raises(TopologyError, match=r"l40s: needs 1 x 1 .*; free: none = 0; 1 too few"):
        place(topology(("h100", 1), ("l40s", 1)), machines)


def test_pools_and_tiers_go_to_their_kinds() -> None:
    machines = [Machine("a", 8, "A40"), Machine("h", 8, "NVIDIA-H100")]
    assert place(topology(("h100", 4), ("a40", 1), ("h100", 4)), machines) == {
        "node0": "h",
        "node1": "a",
        "node2": "h",
    }
    split = find_topology("1p3d-a40")
    (need,) = needs_of(split)
    where = place(split, machines)
    assert where == {need.node: "a"}
    # One prefill and three decode replicas, a GPU each.
    assert (
        bundles(split, need, machines[0], 1.0)
        == [{"CPU": 1.0, "GPU": 1.0, "accelerator_type:A40": 0.001}] * 4
    )


def test_unnamed_gpus_serve_one_kind_only() -> None:
    nameless = [Machine("x", 8)]
    assert place(topology(("h100", 8)), nameless) == {"node0": "x"}
    with pytest.raises(TopologyError):
        place(topology(("h100", 1), ("a40", 1)), nameless)


def test_cpus_need_no_gpu() -> None:
    assert place(find_topology("cpu-tiny"), [Machine("x", 0)]) == {"node0": "x", "node1": "x"}


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("H100", "h100"), ("NVIDIA-H100", "h100"), ("rtx-4090", "rtx4090"), ("Tesla-T4", "t4")],
)
def test_kinds_are_compared_plainly(kind: str, expected: str) -> None:
    assert plain(kind) == expected


@given(
    st.lists(st.integers(1, 5), min_size=1, max_size=5),
    st.lists(st.integers(0, 8), min_size=1, max_size=4),
)
@settings(max_examples=150, deadline=None)
def test_a_way_is_found_exactly_where_there_is_one(sizes: list[int], free: list[int]) -> None:
    wanted = topology(*[("h100", size) for size in sizes])
    machines = [Machine(f"m{i}", gpus, "H100") for i, gpus in enumerate(free)]

    def fits(assignment: tuple[int, ...]) -> bool:
        used = [0] * len(free)
        for size, machine in zip(sizes, assignment, strict=True):
            used[machine] += size
        return all(u <= f for u, f in zip(used, free, strict=True))

    possible = any(fits(one) for one in product(range(len(free)), repeat=len(sizes)))
    try:
        where = place(wanted, machines)
    except TopologyError:
        assert not possible
        return
    assert fits(tuple(int(where[f"node{i}"][1:]) for i in range(len(sizes))))
