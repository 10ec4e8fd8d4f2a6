"""The shared KV store and the links it is reached by."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sim.kv_store import KvStore, StoreSpec
from harness.sim.links import Fabric, LinkSpec

LINK = LinkSpec(gigabytes_per_s=10.0, efficiency=0.5, latency_us=7.0)


def test_a_transfer_occupies_both_ends_in_order() -> None:
    fabric = Fabric(LINK)
    # 5 MB at 10 GB/s x 0.5 = 1 ms, plus 7 us until the last byte is there.
    assert fabric.transfer("a", "b", 5_000_000, now=0) == 1_007_000
    # a is busy until 1 ms.
    assert fabric.transfer("a", "c", 5_000_000, now=400_000) == 2_007_000
    # d and e are free; b is free again at 1 ms and asked for later.
    assert fabric.transfer("d", "e", 5_000_000, now=400_000) == 1_407_000
    assert fabric.transfer("d", "b", 5_000_000, now=1_500_000) == 2_507_000
    assert (fabric.transfers, fabric.moved_bytes, fabric.waited_ns) == (4, 20_000_000, 600_000)


@pytest.mark.parametrize(("rate", "efficiency", "latency"), [(0, 0.5, 1), (1, 0, 1), (1, 0.5, -1)])
def test_impossible_links_are_refused(rate: float, efficiency: float, latency: float) -> None:
    with pytest.raises(ValueError, match="a link needs"):
        LinkSpec(rate, efficiency, latency)


def test_whole_chunks_are_found_and_the_least_recent_tail_is_dropped() -> None:
    store = KvStore(StoreSpec(capacity_tokens=40, link=LINK, chunk_tokens=10))
    a = store.intern([("tools", 20), ("a", 9)])
    b = store.intern([("tools", 20), ("b", 20)])
    assert store.missing(a, 29) == 20
    store.publish(a, 29)  # chunks tools 0, tools 1; the last 9 tokens fill none
    assert (store.lookup(a, 29), store.lookup(b, 40), store.lookup(b, 19)) == (20, 20, 10)
    store.publish(b, 40)  # now full: tools 0, tools 1, b 2, b 3
    c = store.intern([("c", 10)])
    store.publish(c, 10)  # drops the tail of the text used longest ago: b 3
    assert (store.lookup(b, 40), store.lookup(c, 10)) == (30, 10)
    assert (store.lookups, store.hits, store.hit_tokens) == (5, 5, 90)


@settings(max_examples=300, deadline=None)
@given(
    st.lists(
        st.tuples(
            st.sampled_from("ab"), st.integers(0, 12), st.sampled_from("xyz"), st.integers(0, 12)
        ),
        max_size=30,
    )
)
def test_it_never_finds_what_was_not_published(
    steps: list[tuple[str, int, str, int]],
) -> None:
    store = KvStore(StoreSpec(capacity_tokens=16, link=LINK, chunk_tokens=2))
    published: list[list[tuple[str, int]]] = []
    for head, head_tokens, tail, tail_tokens in steps:
        text = [(head, i) for i in range(head_tokens)]
        text += [(f"{head}{head_tokens}{tail}", i) for i in range(tail_tokens)]
        line = store.intern([(head, head_tokens), (f"{head}{head_tokens}{tail}", tail_tokens)])
        found = store.lookup(line, len(text))
        assert found % 2 == 0
        assert found <= len(text)
        assert found == 0 or any(p[:found] == text[:found] for p in published)
        assert store.missing(line, len(text)) == len(text) // 2 * 2 - found
        store.publish(line, len(text))
        published.append(text)
        assert store.lookup(line, len(text)) == min(len(text) // 2 * 2, 16)
