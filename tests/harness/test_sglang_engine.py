"""The SGLang loop against its oracle on random workloads, fast-forward on and off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import SimulationError, TopologyError, UsageError
from harness.sim.content import ContentIndex
from harness.sim.engine_types import DecodePiece, EngineEvent, EngineRequest, StepRecord
from harness.sim.radix_cache import RadixCache
from harness.sim.sglang_engine import SglangEngine
from harness.sim.sglang_policy import SglangParams
from harness.sim.sglang_settings import SglangPolicy
from tests.harness.engine_workloads import STYLES, Action, CoarseTime
from tests.oracles.block_cache import Hasher
from tests.oracles.sglang import SglangOracle

Names = dict[int, tuple[int, int]]


def play(
    params: SglangParams, time: CoarseTime, pages: int, actions: list[Action], looks: list[int]
) -> None:
    index = ContentIndex(params.page_size)
    steps: list[StepRecord] = []
    fast = SglangEngine(params, time, pages, index, steps.append)
    slow = SglangOracle(params, time, pages, Hasher(params.page_size))
    names: Names = {}
    moments = sorted(
        [(action.at, 0, action) for action in actions if action.kind != "reset"]
        + [(look, 1, None) for look in looks],
        key=lambda moment: moment[:2],
    )
    at = 0
    for at, _, action in moments:
        _compare_until(fast, slow, at)
        if action is None:
            _compare_state(fast, slow, names)
        elif action.kind == "submit":
            line = index.intern(action.text)
            keys = [(run.branch, page) for run in line.runs for page in range(run.lo, run.hi)]
            names |= dict(zip(slow.hasher.hashes(action.text), keys, strict=True))
            request = EngineRequest(
                action.id, line, action.prompt, action.output, prefill_only=action.prefill_only
            )
            fast.submit(request, at)
            slow.submit(
                action.id, action.text, action.prompt, action.output, at, action.prefill_only
            )
        else:
            fast.abort(action.id, at)
            slow.abort(action.id)
    while (due := fast.next_event_time()) is not None:
        at = due
        _compare_until(fast, slow, at)
    assert slow.advance(at + 10**15) == []
    assert [s._replace(free_blocks=0) for s in steps] == slow.steps
    _compare_state(fast, slow, names)
    assert fast.state().held_blocks == 0


def _compare_until(fast: SglangEngine, slow: SglangOracle, at: int) -> None:
    got: list[EngineEvent] = []
    while (due := fast.next_event_time()) is not None and due < at:
        got += fast.advance(due)
    got += fast.advance(at)
    assert [e._replace(reason=None) for e in got] == slow.advance(at)


def _compare_state(fast: SglangEngine, slow: SglangOracle, names: Names) -> None:
    state = fast.state()
    tree = slow.tree
    cache = fast._cache
    assert isinstance(cache, RadixCache)
    assert state.held_blocks == tree.total - tree.free()
    assert (cache.available, cache.cached) == (tree.available, tree.cached())
    assert state.evicted_blocks == tree.evicted
    assert state.preemptions == slow.preemptions
    assert state.running == len(slow.holders())
    nodes = sorted((node.used, tuple(names[key] for key in node.keys)) for node in tree.nodes())
    mine = cache.nodes()
    assert [pages for pages, _, _ in mine] == [pages for _, pages in nodes]
    assert [used for _, _, used in mine] == [used for used, _ in nodes]


class Rig:
    """One engine; a step takes 1,000 ps a decode, 100 a context token, 2,000 a prefill token."""

    def __init__(self, pages: int, **params: Any) -> None:
        self.index = ContentIndex(params.get("page_size", 1))
        self.steps: list[StepRecord] = []
        settings = SglangParams(**params)
        self.engine = SglangEngine(settings, Linear(), pages, self.index, self.steps.append)

    def submit(self, now: int, ident: int, text: str, prompt: int, output: int) -> None:
        self.engine.advance(now)
        line = self.index.intern([(text, prompt + output)])
        self.engine.submit(EngineRequest(ident, line, prompt, output), now)

    def run(self) -> list[EngineEvent]:
        events: list[EngineEvent] = []
        while (due := self.engine.next_event_time()) is not None:
            events += self.engine.advance(due)
        return events

    def batches(self) -> list[list[tuple[int, int]]]:
        return [[(ident, new) for ident, new, _ in step.batch] for step in self.steps]


class Linear:
    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        return DecodePiece(1_000 * decodes, 100, 10**9)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        return sum(2_000 * new for new, _ in chunks)


def test_decoding_pauses_while_prompts_are_computed() -> None:
    rig = Rig(100, chunked_prefill=5)
    rig.submit(0, 1, "a", 4, 4)
    rig.submit(9, 2, "b", 12, 1)
    events = rig.run()
    # Prefill of 1 until 8,000 ps. A step over 5 tokens until 9,500. Then the second request, which
    # arrived during it, is computed in chunks of 5, 5 and 2 until 33,500, and only then 1 goes on.
    assert rig.batches() == [[(1, 4)], [(1, 1)], [(2, 5)], [(2, 5)], [(2, 2)], [(1, 1)], [(1, 1)]]
    finished = {event.id: event for event in events if event.kind == "finished"}
    assert (finished[2].time, finished[1].time) == (34, 37)  # 33,500 + 1,600 + 1,700
    # From 9,500 to 35,100.
    assert finished[1].longest_gap == 26


def test_admission_reserves_room_for_output_still_to_come() -> None:
    for conservativeness, together in ((1.0, False), (0.0, True)):
        rig = Rig(40, conservativeness=conservativeness, new_token_ratio_decay_steps=10**9)
        rig.submit(0, 1, "a", 5, 30)
        rig.submit(15, 2, "b", 5, 9)
        rig.engine.advance(30)
        # With the ratio 0.7 request 1 is given 0.7 * 27 or more of the 40 - 8 tokens that are
        # left; 5 + 9 + 1 for request 2 do not fit. With 0 they do.
        assert (len(rig.engine._batcher.running) == 2) == together
        assert [e.id for e in rig.run() if e.kind == "finished"] == ([2, 1] if together else [1, 2])


def test_the_least_advanced_is_retracted_and_computed_again() -> None:
    rig = Rig(30, conservativeness=0.0, retract_steps=2)
    rig.submit(0, 1, "a", 5, 19)
    rig.submit(11, 2, "b", 5, 12)
    finished = {event.id: event for event in rig.run() if event.kind == "finished"}
    assert (finished[1].preemptions, finished[2].preemptions) == (0, 1)
    # 15 and 14 tokens have KV when both need another page and one is left: 2 goes, with 10
    # tokens of output to 1's 11. It waits for 1 to end, since 1 has 8 tokens to go, all of which
    # may be asked for at the ratio that the retraction sets: (11 + 2) / (19 + 1).
    retracting = [step for step in rig.steps if step.preempted]
    assert [(step.start_ps, step.preempted) for step in retracting] == [(58_500, (2,))]
    # Its own KV went at once; the prompt's, which the tree has, is found again: 15 tokens less 5.
    assert [step.batch for step in rig.steps[-2:]] == [((2, 10, 5),), ((2, 1, 15),)]


def test_longest_prefix_goes_first_and_twins_one_after_the_other() -> None:
    rig = Rig(500, policy="lpm", max_running_requests=1, lpm_in_batch_tokens=4)
    rig.submit(0, 1, "a", 20, 1)
    rig.run()
    rig.submit(100, 2, "b", 10, 1)
    rig.submit(101, 3, "c", 10, 1)
    rig.submit(101, 4, "c", 10, 1)
    rig.submit(101, 5, "a", 20, 1)
    # 2 is being computed when the others come. Then 5, whose prompt is cached; then 3. 4 has the
    # same prompt as 3 and goes last; by then all but its last token is cached.
    assert [e.id for e in rig.run() if e.kind == "finished"] == [2, 5, 3, 4]
    assert rig.steps[-1].batch == ((4, 1, 9),)


def test_what_cannot_be_is_refused() -> None:
    with pytest.raises(TopologyError, match="0 usable pages"):
        Rig(0)
    with pytest.raises(UsageError, match="less than a page"):
        SglangParams(page_size=16, chunked_prefill=8)
    with pytest.raises(UsageError, match="page_size"):
        SglangParams(page_size=0)
    rig = Rig(20)
    line = rig.index.intern([("a", 30)])
    with pytest.raises(UsageError, match="does not exchange KV"):
        rig.engine.submit(EngineRequest(1, line, 5, 5, keep_blocks=True), 0)
    rig.submit(0, 2, "a", 10, 9)  # 20 - 1 - 1 = 18 at most
    (event,) = rig.run()
    assert event.reason is not None
    assert "maximum length 18" in event.reason
    with pytest.raises(SimulationError, match="21 KV pages were asked for"):
        RadixCache(20).take(21)


@settings(max_examples=500, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    page_size=st.sampled_from((1, 1, 2, 4)),
    pages=st.integers(6, 80),
    chunk=st.sampled_from((None, 4, 7, 20, 1000)),
    inputs=st.sampled_from((5, 20, 1000)),
    seqs=st.sampled_from((1, 2, 5, 100)),
    policy=st.sampled_from(("fcfs", "lpm")),
    queue_limit=st.sampled_from((0, 3, 128)),
    refresh=st.sampled_from((0, 1, 3, 32)),
    in_batch=st.sampled_from((2, 32)),
    conservativeness=st.sampled_from((0.0, 0.3, 1.0)),
    asked=st.sampled_from((None, None, 5, 100)),
    clip=st.sampled_from((3, 4096)),
    retract=st.sampled_from((0, 2, 20)),
    caching=st.sampled_from((True, True, True, False)),
    api=st.sampled_from(((0, 0), (1700, 130))),
    delay=st.sampled_from((0, 777)),
    unit=st.sampled_from((1, 10, 1000)),
    spread=st.sampled_from((1, 5, 100)),
    style=st.sampled_from(sorted(STYLES)),
)
def test_loop_equals_step_by_step_oracle(
    seed: int,
    page_size: int,
    pages: int,
    chunk: int | None,
    inputs: int,
    seqs: int,
    policy: SglangPolicy,
    queue_limit: int,
    refresh: int,
    in_batch: int,
    conservativeness: float,
    asked: int | None,
    clip: int,
    retract: int,
    caching: bool,
    api: tuple[int, int],
    delay: int,
    unit: int,
    spread: int,
    style: str,
) -> None:
    rng = random.Random(seed)
    params = SglangParams(
        page_size=page_size,
        chunked_prefill=chunk,
        max_prefill_tokens=inputs,
        max_running_requests=seqs,
        policy=policy,
        lpm_queue_limit=queue_limit,
        refresh_passes=refresh,
        lpm_in_batch_tokens=in_batch,
        conservativeness=conservativeness,
        new_token_ratio_decay_steps=7,
        retract_steps=retract,
        max_new_tokens=asked,
        clip_max_new_tokens=clip,
        prefix_caching=caching,
        api_request_ps=api[0],
        api_prompt_token_ps=api[1],
        output_delay_ps=delay,
    )
    actions = STYLES[style](rng, rng.randint(1, 25), spread, rng.choice((3, 10)))
    end = actions[-1].at + 20 * spread
    looks = [rng.randint(0, end) for _ in range(rng.randint(0, 12))]
    time = CoarseTime(unit, rng.choice((10, 37, 10**9)))
    for forward in (True, False):
        play(replace(params, fast_forward=forward), time, pages, actions, looks)
