"""Two-leg turns and the shared store in simulation: timelines worked out by hand, and losses."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sim.engine_types import EngineParams
from harness.sim.kv_store import StoreSpec
from harness.sim.links import LinkSpec
from harness.sim.settings import Fault, SimSettings
from schedulers.base import AdmissionScheduler, SchedulerInfo
from schedulers.commands import Command, Route
from schedulers.events import Event, LegFinished
from schedulers.registry import create
from schedulers.types import NS
from schedulers.views import ClusterView, Role
from tests.harness.simulated import MS, Played, play
from tests.harness.test_sim_driver import workloads
from workloads.model import Session, TurnSpec

ROLES: list[Role] = ["prefill", "decode"]
NOTICE = 1
"""An idle engine composes the step of a time one nanosecond later, when all arrivals are known."""


class TwoLegs(AdmissionScheduler):
    """Prefills on r0, decodes on r1; after a failure, everything on whatever is left."""

    name = "two-legs"
    info = SchedulerInfo("test", "nothing", False, "inferred", "none")

    def __init__(self) -> None:
        super().__init__()
        self.legs: list[LegFinished] = []

    def on_event(self, event: Event, cluster: ClusterView) -> Iterable[Command]:
        if isinstance(event, LegFinished):
            self.legs.append(event)
        healthy = [r.id for r in self.healthy(cluster)]
        for turn in list(cluster.waiting.values()):
            if len(healthy) == 2:
                yield Route(turn.id, "r1", prefill="r0")
            elif healthy:
                yield Route(turn.id, healthy[0])


def session(name: str, *turns: TurnSpec) -> Session:
    return Session(name, turns, "test", "generated")


def test_two_legs_to_the_nanosecond() -> None:
    """Prefill of 32 tokens on r0: 42 ms. 32 tokens x 1 MB at 5 GB/s: 6.4 ms, + 1 ms of latency.
    The last token again on r1: 11 ms, then two more at 10 ms. Then the same for the next turn:
    r0 has 32 of its 48 tokens, r1 too (3 written by decode fill no block), so 16 MB move."""
    scheduler = TwoLegs()
    turns = (TurnSpec(32, 3), TurnSpec(13, 2, kept_turn=0, kept_tokens=35))
    played = play([session("a", *turns)], scheduler, replicas=2, roles=ROLES)
    first, second = played.records.turns
    arrive = 42 * MS + NOTICE + 6_400_000 + MS
    assert first.first_token == arrive + 11 * MS
    assert first.finished == arrive + 31 * MS
    assert (first.replica, first.prefill_replica, first.cached_tokens) == ("r1", "r0", 0)
    assert scheduler.legs[0].now == 42 * MS
    times = (first.prefilled, first.kv_sent, first.kv_received)
    assert times == (42 * MS, 42 * MS + NOTICE, arrive), "as the record of the turn has them"
    # 16 new tokens: 26 ms; 16 MB: 3.2 + 1 ms; then 11 and 10 ms.
    start = first.finished
    assert second.first_token == start + 26 * MS + NOTICE + 4_200_000 + 11 * MS
    assert second.cached_tokens == 32
    assert played.driver.service_counters()["kv.transfers"] == 2
    assert played.driver.service_counters()["kv.transferred_gb"] == 0.048


def test_a_decoder_that_dies_during_the_prefill_is_missed_afterwards() -> None:
    """Prefill of 32 tokens on r0: 42 ms; r1 is lost at 20 ms. The turn is then sent to r0, which
    has 16 of its tokens (a hit leaves one token to compute): 26 ms, and two more at 10 ms."""
    faults = (Fault(0.02, "r1", "lost"),)
    played = play(
        [session("a", TurnSpec(32, 3))],
        TwoLegs(),
        replicas=2,
        roles=ROLES,
        settings=SimSettings(faults=faults),
    )
    [turn] = played.records.turns
    assert (turn.status, turn.attempts, turn.replica) == ("ok", 2, "r0")
    assert turn.dispatched == 42 * MS
    assert turn.first_token == 68 * MS
    assert turn.finished == 88 * MS
    assert not played.driver.service_counters()["kv.transfers"]
    _check(played, [session("a", TurnSpec(32, 3))])
    back = (*faults, Fault(0.03, "r1", "recovered"))
    played = play(
        [session("a", TurnSpec(32, 3))],
        TwoLegs(),
        replicas=2,
        roles=ROLES,
        settings=SimSettings(faults=back),
    )
    assert (played.records.turns[0].attempts, played.records.turns[0].replica) == (1, "r1")


def test_transfers_share_the_link() -> None:
    # Two prompts in one step of 10 + 40 ms; each moves 20 MB in 4 ms, one after the other.
    both = [session(name, TurnSpec(20, 1)) for name in "ab"]
    played = play(both, TwoLegs(), workers=2, replicas=2, roles=ROLES)
    first = sorted(t.first_token or 0 for t in played.records.turns)
    # a: 50 + 4 + 1, then 11 ms of its own, until 66 ms; b is there at 59 ms and waits for that.
    assert first == [66 * MS + NOTICE, 77 * MS + NOTICE]
    assert played.driver.service_counters()["kv.transfer_wait_s"] == 0.004


STORE = StoreSpec(
    capacity_tokens=10_000,
    link=LinkSpec(10, efficiency=0.5, latency_us=0),
    chunk_tokens=16,
    lookup_us=2000,
)


def test_a_shared_store_by_hand() -> None:
    """Turn 0 on r0; turn 1 on r1, which finds 32 tokens in the store: 2 ms to look them up, 32 MB
    at 5 GB/s = 6.4 ms, then 16 tokens of prefill = 26 ms."""
    turns = (
        TurnSpec(32, 3, wait_s=1.0),
        TurnSpec(13, 2, kept_turn=0, kept_tokens=35),
    )
    played = play(
        [session("a", *turns)],
        create("round-robin"),
        replicas=2,
        settings=SimSettings(kv_store=STORE),
    )
    first, second = played.records.turns
    assert (first.cached_tokens, first.finished) == (0, 62 * MS)
    assert second.first_token == 62 * MS + NS + NOTICE + 2 * MS + 6_400_000 + 26 * MS
    assert second.cached_tokens == 32
    assert (first.prefilled, first.kv_sent, first.kv_received) == (None, None, None)
    asked = 62 * MS + NS + NOTICE
    assert (second.prefilled, second.kv_sent) == (None, asked)
    assert second.kv_received == asked + 2 * MS + 6_400_000
    counters = played.driver.service_counters()
    # Written: 34 tokens make 2 chunks of 16; then 48 + 2 - 1 = 49 make 3, of which 1 is new.
    assert counters["store.hit_tokens"] == 32
    assert counters["store.moved_gb"] == 0.032 + 0.032 + 0.016


def test_a_chunk_is_found_only_when_it_has_been_written() -> None:
    slow = replace(STORE, publish_delay_us=2_000_000)
    turns = (TurnSpec(32, 3, wait_s=1.0), TurnSpec(13, 2, kept_turn=0, kept_tokens=35))
    played = play(
        [session("a", *turns)],
        create("round-robin"),
        replicas=2,
        settings=SimSettings(kv_store=slow),
    )
    assert played.records.turns[1].cached_tokens == 0


def _check(played: Played, sessions: list[Session]) -> None:
    assert len(played.records.sessions) == len(sessions)
    ledger = played.plane.ledger
    assert not ledger.attempts
    for replica in ledger.replicas:
        assert (replica.in_flight, replica.queued_prefill_tokens) == (0, 0)
    while played.driver.clock.now < played.makespan + 10 * NS and played.driver.clock.step():
        pass  # let what was under way when the last session ended come to rest
    for engine in played.engines.values():
        engine.advance(played.makespan + 10 * NS)
        assert engine.state().held_blocks == 0


@settings(max_examples=120, deadline=None)
@given(
    workloads(),
    st.sampled_from(["two-legs", "store", "both"]),
    st.sampled_from([None, "r0", "r1"]),
    st.floats(0, 20),
    st.integers(1, 4),
    st.booleans(),
)
def test_nothing_is_lost_when_replicas_die_in_the_middle_of_transfers(
    sessions: list[Session], kind: str, dies: str | None, at: float, workers: int, ahead: bool
) -> None:
    faults: tuple[Fault, ...] = ()
    if dies is not None:
        faults = (Fault(at, dies, "lost"), Fault(at + 5, dies, "recovered"))
    store = None if kind == "two-legs" else STORE
    what = SimSettings(faults=faults, kv_store=store)

    def once() -> Played:
        scheduler = create("round-robin") if kind == "store" else TwoLegs()
        return play(
            sessions,
            scheduler,
            workers=workers,
            replicas=2,
            blocks=150,
            settings=what,
            params=EngineParams(null_blocks=0, async_scheduling=ahead),
        )

    one, two = once(), once()
    assert one.records.turns == two.records.turns
    _check(one, sessions)
    for record in one.records.sessions:
        assert record.status in ("finished", "deadline", "too_long", "failed")
        assert record.status == "finished" or record.error


def test_the_published_pool_schedulers_run_end_to_end() -> None:
    turns = (TurnSpec(40, 5, wait_s=0.5), TurnSpec(20, 5, kept_turn=0, kept_tokens=45))
    sessions = [session(f"s{i}", *turns) for i in range(6)]
    for name in ("conserve", "ampd", "disaggregated", "collocated", "smetric"):
        roles: list[Role] = ["prefill", "decode", "decode"] if name != "collocated" else []
        played = play(sessions, create(name), workers=3, replicas=3, roles=roles)
        assert {s.status for s in played.records.sessions} == {"finished"}, name
        moved = played.driver.service_counters()["kv.transfers"]
        if name == "conserve":
            assert moved == 6  # once a conversation
        if name == "collocated":
            assert moved == 0
        _check(played, sessions)
