"""Engine behaviour worked out by hand. Blocks of 4 tokens; a step of n decodes over S context
tokens takes 10,000 + 1,000 n + 100 S ps, a prefill adds 2,000 ps per new token. Steps are composed
between steps unless a test says that they are composed ahead."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from agentsched import PerformanceDataError, SimulationError, TopologyError, UsageError
from harness.sim.async_engine import engine_for
from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import DecodePiece, EngineEvent, EngineParams, EngineRequest


class Linear:
    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(10_000 + 1_000 * decodes, 100, 10**9)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        return 10_000 + 1_000 * decodes + 100 * context_sum + sum(2_000 * new for new, _ in chunks)


class Rig:
    """One engine, requests of private text unless told otherwise, all events collected."""

    def __init__(self, blocks: int = 100, **params: object) -> None:
        settings = {"block_size": 4, "null_blocks": 0, "async_scheduling": False} | params
        self.index = ContentIndex(4)
        self.engine = engine_for(EngineParams(**settings), Linear(), blocks, self.index)  # type: ignore[arg-type]
        self.sent = 0

    def submit(
        self, now: int, prompt: int, output: int, text: str | None = None, **more: object
    ) -> int:
        self.engine.advance(now)
        self.sent += 1
        line = self.index.intern([(text or f"r{self.sent}", prompt + output)])
        self.engine.submit(EngineRequest(self.sent, line, prompt, output, **more), now)  # type: ignore[arg-type]
        return self.sent

    def run(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while (due := self.engine.next_event_time()) is not None:
            events += self.engine.advance(due)
        return events


def times(events: list[EngineEvent]) -> list[tuple[int, str, int]]:
    return [(event.time, event.kind, event.id) for event in events]


def test_one_request() -> None:
    rig = Rig()
    rig.submit(5, 8, 3)
    # Prefill of 8: 5,000 + 10,000 + 16,000 = 31,000 ps. The first decode feeds token 9 over a
    # context of 9: 11,000 + 900; the second 11,000 + 1,000. Together 23,900 ps.
    events = rig.run()
    assert times(events) == [(31, "first_token", 1), (55, "finished", 1)]
    assert events[1].longest_gap == 12
    assert events[1].cached_tokens == 0
    state = rig.engine.state()
    assert (state.prefill_tokens, state.decode_tokens, state.steps) == (8, 2, 3)
    assert state.busy_ps == 26_000 + 23_900
    # 10 of the 11 tokens have KV: 2 full blocks stay cached, none is held.
    assert (state.cached_blocks, state.held_blocks) == (2, 0)


def test_next_turn_hits_prompt_and_output_of_the_last() -> None:
    rig = Rig()
    rig.submit(0, 8, 5, text="s")  # KV of 12 tokens: 3 blocks
    rig.run()
    rig.submit(1000, 20, 1, text="s")
    first, last = rig.run()
    assert first.cached_tokens == last.cached_tokens == 12
    assert first.time == 1000 + 10 + 8 * 2  # 8 new tokens
    sample = rig.engine.sample()
    assert (sample.prefix_queries, sample.prefix_hits) == (28, 12)
    assert (sample.prompt_tokens, sample.generation_tokens) == (28, 6)


def test_a_prompt_that_is_cached_whole_recomputes_its_last_block() -> None:
    rig = Rig()
    rig.submit(0, 8, 2, text="s")
    rig.run()
    rig.submit(1000, 8, 1, text="s")
    # 8 tokens are cached, but the last one must be fed: of 7 tokens only 1 whole block counts.
    assert rig.run()[0].cached_tokens == 4


def test_api_server_is_one_queue() -> None:
    rig = Rig(api_request_ps=50_000, api_prompt_token_ps=1_000)
    rig.submit(0, 4, 1)
    rig.submit(0, 4, 1)
    # The first leaves at 54 ns, its prefill takes 18; the second leaves at 108.
    assert times(rig.run())[::2] == [(72, "first_token", 1), (126, "first_token", 2)]


def test_output_delay_is_added_to_every_event() -> None:
    rig = Rig(output_delay_ps=100_000)
    rig.submit(0, 4, 2)
    # 18,000 ps; then 11,000 + 5 * 100.
    assert times(rig.run()) == [(118, "first_token", 1), (130, "finished", 1)]


def test_chunks_share_a_step_with_decodes() -> None:
    rig = Rig(max_num_batched_tokens=6)
    rig.submit(0, 4, 6)
    rig.submit(1, 12, 1)
    # 0-18: prefill of 1. The second waits for the step's end, then gets 5 of the 6 tokens a step
    # beside 1's decode: 5, 5 and 2 of its 12.
    # 18-39.5: 11,000 + 500 + 10,000; 39.5-61.1: 11,000 + 600 + 10,000; 61.1-76.8: + 700 + 4,000.
    assert times(rig.run()) == [
        (18, "first_token", 1),
        (77, "first_token", 2),
        (77, "finished", 2),
        # Tokens 5 and 6: 76.8 + 11,000 + 800 + 11,000 + 900 = 100.5.
        (101, "finished", 1),
    ]


def test_an_arrival_cuts_a_stretch_at_the_next_step() -> None:
    rig = Rig()
    rig.submit(0, 4, 100)
    rig.engine.advance(40)
    # Steps end at 18,000, then 29,500 and 41,100; one arriving at 40 starts at 41,100.
    assert rig.engine.output_tokens(1, 29) == 1
    assert rig.engine.output_tokens(1, 30) == 2
    rig.submit(40, 4, 1)
    event = rig.run()[0]
    # 41,100 + 10,000 + 8,000 + 1,000 + 700: the decode feeds token 7.
    assert (event.time, event.id) == (61, 2)


def test_last_running_is_preempted_and_comes_back_first() -> None:
    rig = Rig(blocks=5, max_num_batched_tokens=16)
    rig.submit(0, 7, 6)
    rig.submit(0, 7, 6)
    rig.submit(0, 4, 1)
    events = rig.run()
    finished = [event for event in events if event.kind == "finished"]
    # Step 1 holds all blocks: 2 + 2, and 1 for the first 2 tokens of request 3 (the budget's
    # rest). Step 2 ends request 3, whose block is cached and free. In step 3 requests 1 and 2
    # both feed token 9 and need a block: 1 gets it, 2 goes. It waits for 1 to end (3 blocks, 2
    # are free), then finds its first 2 blocks and evicts the last of 1's for the third.
    assert [(event.id, event.preemptions) for event in finished] == [(3, 0), (1, 0), (2, 1)]
    assert finished[2].cached_tokens == 0, "of the first admission"
    state = rig.engine.state()
    assert (state.preemptions, state.evicted_blocks) == (1, 2)
    # 7 + 7 + 4, and the ninth token of request 2. Decodes: 5 of request 1, 1 + 3 of request 2.
    assert (state.prefill_tokens, state.decode_tokens) == (19, 9)


def test_whole_input_must_fit_before_it_starts() -> None:
    for reserve, running in ((True, 1), (False, 2)):
        rig = Rig(blocks=6, max_num_batched_tokens=9, reserve_full_input=reserve)
        rig.submit(0, 8, 4)
        rig.submit(0, 20, 1)  # 5 blocks; 4 are free
        rig.engine.advance(27)  # the first step ends at 26 ns
        assert rig.engine.state().running == running
        rig.run()
        assert rig.engine.state().preemptions == (0 if reserve else 1)


def test_a_blocked_request_starts_as_soon_as_another_has_written_what_it_needs() -> None:
    rig = Rig(blocks=3)
    rig.submit(0, 5, 4, text="t")
    rig.submit(1, 9, 1, text="t")
    # Request 1 holds 2 blocks, of which the second is not full: request 2 finds 1 block of its 3
    # and 1 is free. Steps end at 20,000, 31,600 and 43,300 ps; the next feeds token 8, which
    # fills the second block: now 2 are found. 10,000 + 1,000 + 800 + 2,000 for one new token.
    first, *others = rig.run()
    assert (first.time, first.id) == (20, 1)
    assert times(others) == [(58, "finished", 1), (58, "first_token", 2), (58, "finished", 2)]
    assert others[1].cached_tokens == 8


def test_priority_policy_runs_the_urgent_first() -> None:
    rig = Rig(policy="priority", max_num_seqs=1)
    rig.submit(0, 4, 2, priority=5)
    rig.submit(1, 4, 1, priority=5)
    rig.submit(2, 4, 1, priority=1)
    assert [e.id for e in rig.run() if e.kind == "finished"] == [1, 3, 2]


def test_what_can_never_fit_is_rejected_when_it_leaves_the_api_server() -> None:
    rig = Rig(blocks=3, api_request_ps=7_000)
    rig.submit(0, 12, 2)  # 13 tokens of KV, 12 fit
    assert rig.submit(0, 12, 1) == 2
    first, *others = rig.run()
    assert (first.time, first.kind) == (7, "rejected")
    assert first.reason is not None
    assert "exceed the KV cache (12)" in first.reason
    assert [event.kind for event in others] == ["first_token", "finished"]
    rig = Rig(max_model_len=10)
    rig.submit(0, 8, 3)
    (event,) = rig.run()
    assert event.reason is not None
    assert "maximum length 10" in event.reason


def test_composed_ahead_an_arrival_starts_one_step_later() -> None:
    rig = Rig()
    ahead = Rig(async_scheduling=True)
    for one in (rig, ahead):
        one.submit(0, 4, 100)
        one.submit(40, 4, 1)
    # Steps end at 18,000, 29,500, 41,100 and 52,800. What arrives at 40 starts at 41,100 if the
    # step is composed then; if it was composed at 29,500, it starts at 52,800.
    assert rig.run()[0].time == 61  # + 10,000 + 8,000 + 1,000 + 700
    assert ahead.run()[0].time == 73  # + 10,000 + 8,000 + 1,000 + 800


def test_composed_ahead_chunks_and_ends_count_one_step_later() -> None:
    rig = Rig(max_num_batched_tokens=6, async_scheduling=True)
    rig.submit(0, 4, 6)
    rig.submit(1, 12, 1)
    # At 0 the prefill of 1 starts (18,000) and the step after it is composed: 1's decode alone,
    # since 2 is not there yet (11,000 + 500, until 29.5). At 18 the next: 1's decode and 5 of 2's
    # 12 tokens, 11,000 + 600 + 10,000, until 51.1; then 5 more, + 700: 72.8; then 2: + 800 + 4,000
    # and 11,000, until 88.6. 1 has its token 6 then: 18, 29.5, 51.1, 72.8, 88.6, and one more:
    # 11,000 + 900, until 100.5.
    assert times(rig.run()) == [
        (18, "first_token", 1),
        (89, "first_token", 2),
        (89, "finished", 2),
        (101, "finished", 1),
    ]


def test_composed_ahead_blocks_come_back_one_step_later() -> None:
    later = {}
    for ahead in (False, True):
        rig = Rig(blocks=5, async_scheduling=ahead)
        rig.submit(0, 8, 2)
        rig.submit(0, 4, 9)
        rig.submit(0, 12, 1)
        later[ahead] = next(e.time for e in rig.run() if (e.id, e.kind) == (3, "first_token"))
    # Step 1 computes 12 prompt tokens: 34. Step 2 feeds 1's token 9 and 2's token 5: 12,000 +
    # 1,400, until 47.4, when 1 ends and gives 3 blocks back: 3 (3 blocks) fits. Composed then, 3
    # runs beside 2's token 6: 11,000 + 600 + 24,000, until 83. Composed ahead, the step from 47.4
    # on is 2's token 6 alone (11,600, until 59), and 3 comes beside token 7: + 35,700 = 94.7.
    assert later == {False: 83, True: 95}


def test_prefill_only_ends_with_the_prompt() -> None:
    rig = Rig()
    rig.submit(0, 8, 50, prefill_only=True)
    assert times(rig.run()) == [(26, "finished", 1)]
    assert rig.engine.state().cached_blocks == 2


def test_abort_takes_effect_when_the_step_ends() -> None:
    rig = Rig()
    rig.submit(0, 8, 50)
    waiting = rig.submit(1, 8, 1)
    rig.engine.advance(2)
    rig.engine.abort(1, 2)
    rig.engine.abort(waiting, 2)
    rig.engine.abort(77, 2)  # unknown: ignored
    assert rig.engine.advance(25) == []
    assert rig.engine.state().held_blocks == 2
    assert rig.engine.advance(26) == []
    state = rig.engine.state()
    assert (state.held_blocks, state.running, state.waiting) == (0, 0, 0)
    assert rig.engine.next_event_time() is None


def test_reset_loses_everything_and_restarts_the_gauges() -> None:
    rig = Rig(output_delay_ps=50_000)
    rig.submit(0, 4, 1)
    rig.submit(1, 4, 9)
    rig.submit(30, 4, 9)
    rig.engine.advance(31)
    # 1 is done at 18 ns, but the client would hear of it at 68.
    assert rig.engine.reset(31) == [1, 2, 3]
    assert rig.engine.next_event_time() is None
    state, sample = rig.engine.state(), rig.engine.sample()
    assert (state.held_blocks, state.cached_blocks) == (0, 0)
    assert state.prefill_tokens == 4
    assert sample.prompt_tokens == 0
    rig.submit(100, 4, 1)
    assert [event.id for event in rig.run()] == [4, 4]


def test_impossible_set_ups_are_refused() -> None:
    with pytest.raises(TopologyError, match="0 usable blocks"):
        engine_for(EngineParams(), Linear(), 1, ContentIndex(16))
    with pytest.raises(SimulationError, match="blocks of 4 tokens"):
        engine_for(EngineParams(), Linear(), 9, ContentIndex(4))
    with pytest.raises(SimulationError, match="async_scheduling"):
        Engine(EngineParams(), Linear(), 9, ContentIndex(16))
    for bad in ({"block_size": 0}, {"watermark": 1.0}, {"policy": "lifo"}, {"max_model_len": 1}):
        with pytest.raises(UsageError):
            EngineParams(**bad)
    rig = Rig()
    rig.submit(0, 4, 4)
    line = rig.index.intern([("a", 8)])
    for request, problem in (
        (EngineRequest(1, line, 4, 4), "twice"),
        (EngineRequest(2, line, 4, 0), "asks for 0"),
        (EngineRequest(3, line, 6, 6), "has 8 tokens, its prompt and output 12"),
    ):
        with pytest.raises(SimulationError, match=problem):
            rig.engine.submit(request, 0)


def test_a_step_that_takes_no_time_is_refused() -> None:
    class Instant(Linear):
        def mixed_ps(
            self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int
        ) -> int:
            return 0

    index = ContentIndex(16)
    engine = engine_for(EngineParams(), Instant(), 10, index)
    engine.submit(EngineRequest(1, index.intern([("a", 8)]), 4, 4), 0)
    with pytest.raises(PerformanceDataError, match="takes 0 ps"):
        engine.advance(10)
