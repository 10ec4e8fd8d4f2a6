"""Policies that tie a session or a prefix to a replica."""

from __future__ import annotations

from collections import Counter
from hashlib import sha256
from random import Random

import pytest

from schedulers.consistent_hash import ConsistentHash, ConsistentHashConfig
from schedulers.hash_ring import HashRing, position
from schedulers.prefix_hash import PrefixHash, PrefixHashConfig, prefix_key
from schedulers.session_affinity import SessionAffinity, SessionAffinityConfig
from schedulers.sticky import Sticky, StickyConfig
from schedulers.types import PromptRef
from tests.schedulers.plane_driver import PlaneDriver, mixed, text

ONE = text(("s", 1))

# Session affinity.


def test_affinity_starts_least_loaded_and_stays() -> None:
    driver = PlaneDriver(SessionAffinity(), mixed("a", "b"))
    assert driver.place("s", ONE) == "a"
    assert driver.place("t", ONE) == "b"
    driver.finish("t")
    driver.finish("s")
    for _ in range(3):
        driver.place("x", ONE)  # a gets busy
    assert driver.place("s", ONE) == "a"


def test_affinity_moves_when_the_replica_is_lost_and_does_not_move_back() -> None:
    driver = PlaneDriver(SessionAffinity(), mixed("a", "b"))
    driver.place("s", ONE)
    driver.lose("a")
    assert driver.oldest("s")[1].decode == "b"
    driver.finish("s")
    driver.recover("a")
    assert driver.place("s", ONE) == "b"


def test_rendezvous_takes_the_highest_hash_of_session_and_replica() -> None:
    driver = PlaneDriver(
        SessionAffinity(SessionAffinityConfig(first_turn="rendezvous")), mixed("a", "b", "c")
    )
    for session in ("s", "t", "u", "v"):
        hashes = {r: sha256(f"{session}/{r}".encode()).hexdigest() for r in "abc"}
        assert driver.place(session, ONE) == max(hashes, key=lambda r: hashes[r])


def test_random_first_turn_uses_the_given_generator() -> None:
    config = SessionAffinityConfig(first_turn="random")
    driver = PlaneDriver(SessionAffinity(config, Random(9)), mixed("a", "b", "c"))
    assert driver.place("s", ONE) == Random(9).choice("abc")


# Sticky.


def sticky(**settings: object) -> PlaneDriver:
    return PlaneDriver(Sticky(StickyConfig(**settings), Random(1)), mixed("a", "b", "c"))  # type: ignore[arg-type]


def test_sticky_assigns_at_random_once() -> None:
    driver = sticky()
    home = driver.place("s", ONE)
    assert home == Random(1).choice("abc")
    assert {driver.place("s", ONE) for _ in range(5)} == {home}


def test_sticky_remembers_two_replicas_and_prefers_the_older() -> None:
    driver = sticky(assignment="min-load")
    assert driver.place("s", ONE) == "a"
    driver.finish("s")
    driver.lose("a")
    assert driver.place("s", ONE) == "b"
    driver.finish("s")
    driver.recover("a")
    assert driver.place("s", ONE) == "a"  # back on the first
    driver.finish("s")
    driver.lose("a")
    driver.lose("b")
    assert driver.place("s", ONE) == "c"  # a third drops the oldest, a
    driver.finish("s")
    driver.recover("a")
    driver.recover("b")
    assert driver.place("s", ONE) == "b"


def test_sticky_min_group_counts_sessions_not_load() -> None:
    driver = sticky(assignment="min-group")
    assert [driver.place(name, ONE) for name in "stuv"] == ["a", "b", "c", "a"]
    for name in "tu":
        driver.finish(name)
    assert driver.place("w", ONE) == "b"  # groups a 2, b 1, c 1


def test_sticky_forgets_after_four_idle_hours() -> None:
    driver = sticky(assignment="min-load")
    driver.place("s", ONE)
    driver.place("t", ONE)
    driver.finish("t")
    driver.advance(4 * 3600 - 1)
    assert driver.place("t", ONE) == "b"  # still known, though c is idle too and a busy
    driver.finish("t")
    driver.advance(4 * 3600 + 61)
    driver.place("u", ONE)  # b is first among the idle ones
    assert driver.place("t", ONE) == "c"  # forgotten: least loaded


# Consistent hash.


def owner(key: str, replicas: str) -> str:
    """The first point at or after the key, by looking at all of them."""
    points = [(position(f"{r}#{i}"), r) for r in replicas for i in range(160)]
    after = [point for point in points if point[0] >= position(key)]
    return min(after or points)[1]


def test_ring_owner_is_the_next_point() -> None:
    ring = HashRing("abc")
    for i in range(200):
        walk = list(ring.walk(f"key{i}"))
        assert walk[0] == owner(f"key{i}", "abc")
        assert sorted(walk) == ["a", "b", "c"]
        # The second on the walk owns the key when the first is gone.
        assert walk[1] == owner(f"key{i}", "abc".replace(walk[0], ""))


def test_ring_spreads_keys() -> None:
    counts = Counter(next(HashRing("abcd").walk(f"key{i}")) for i in range(2000))
    assert all(350 < count < 650 for count in counts.values())


def test_consistent_hash_follows_the_session_id() -> None:
    driver = PlaneDriver(ConsistentHash(), mixed("a", "b", "c"))
    for session in ("s1", "s2", "s3", "s4"):
        assert driver.place(session, ONE) == owner(session, "abc")


@pytest.mark.parametrize("mode", ["first", "walk"])
def test_consistent_hash_when_the_owner_is_lost(mode: str) -> None:
    config = ConsistentHashConfig(when_lost=mode)  # type: ignore[arg-type]
    driver = PlaneDriver(ConsistentHash(config), mixed("a", "b", "c"))
    # A key owned by a whose next replica on the ring is c tells "walk" from "first healthy" (b).
    ring = HashRing("abc")
    session = next(f"k{i}" for i in range(999) if list(ring.walk(f"k{i}")) == ["a", "c", "b"])
    driver.lose("a")
    assert driver.place(session, ONE) == ("b" if mode == "first" else "c")


# Prefix hash.


def test_prefix_key_takes_the_first_256_tokens() -> None:
    assert prefix_key(text(("system", 200), ("s", 900)), 256) == "system:200/s:56"
    assert prefix_key(text(("system", 300), ("s", 900)), 256) == "system:256"
    assert prefix_key(PromptRef(()), 256) == ""


def test_prefix_hash_sends_equal_beginnings_to_one_replica_until_it_is_overloaded() -> None:
    driver = PlaneDriver(PrefixHash(), mixed("a", "b", "c"))
    home = owner("system:256", "abc")
    placed = [driver.place(f"s{i}", text(("system", 300), (f"s{i}", 5))) for i in range(3)]
    # Loads on the owner 0, 1, 2 against 1.25 * (total + 1) / 3: 0 <= 0.42; 1 > 0.83, so the least
    # loaded of the others (0 <= 0.83); then total 2: bound 1.25, owner 1 <= 1.25.
    others = [r for r in "abc" if r != home]
    assert placed == [home, others[0], home]


def test_prefix_hash_goes_back_to_the_owner_when_all_are_overloaded() -> None:
    # With a factor of at least 1 somebody always passes the test.
    driver = PlaneDriver(PrefixHash(PrefixHashConfig(load_factor=0.1)), mixed("a", "b", "c"))
    home = owner("system:256", "abc")
    placed = [driver.place(f"s{i}", text(("system", 300))) for i in range(4)]
    # Loads 1, 1, 1 and a bound of 0.1 * 4 / 3 for the fourth.
    assert sorted(placed[:3]) == ["a", "b", "c"]
    assert placed[3] == home


def test_prefix_hash_refuses_an_empty_prompt() -> None:
    driver = PlaneDriver(PrefixHash(), mixed("a"))
    driver.arrive("s", PromptRef(()))
    assert [one.turn.session for one in driver.refused] == ["s"]
