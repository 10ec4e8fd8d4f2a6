"""The engine against the step-by-step oracle on random workloads, fast-forward on and off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from heapq import heapify, heappop, heappush

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from agentsched import SimulationError
from harness.sim.async_engine import engine_for
from harness.sim.block_cache import BlockCache
from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import (
    EngineParams,
    EngineRequest,
    Policy,
    StepRecord,
    WindowHits,
)
from tests.harness.engine_workloads import STYLES, Action, CoarseTime
from tests.oracles.async_engine import OracleAsyncEngine
from tests.oracles.block_cache import Hasher
from tests.oracles.engine import OracleEngine


class Pair:
    """Engine and oracle side by side, compared whenever anything happens or is looked at.

    Args:
        lags: nanoseconds that KV is on its way to or from a request, by its number modulo their
            count.
    """

    def __init__(
        self, params: EngineParams, time: CoarseTime, blocks: int, lags: Sequence[int] = (1,)
    ) -> None:
        self.index = ContentIndex(params.block_size)
        self.steps: list[StepRecord] = []
        self.fast = engine_for(params, time, blocks, self.index, self.steps.append)
        kind = OracleAsyncEngine if params.async_scheduling else OracleEngine
        self.slow = kind(params, time, blocks, Hasher(params.block_size))
        self.names: dict[int, tuple[int, int]] = {}
        self.alive: set[int] = set()
        self.keeping: set[int] = set()
        self.lags = lags
        self.moments: list[tuple[int, int, int, Action | None]] = []
        """(time, rank, order of planning, what to do; None: look)"""
        self.planned = 0
        self.stalled_at: int | None = None

    def play(self, actions: list[Action], looks: list[int]) -> None:
        for action in actions:
            self.plan(action)
        for look in looks:
            self.moments.append((look, 1, 0, None))
        heapify(self.moments)
        now, news = -1, True
        while True:
            due = self.fast.next_event_time()
            if self.moments and (due is None or self.moments[0][0] <= due):
                now = self.moments[0][0]
                self.advance(now)
                self.act(heappop(self.moments)[3], now)
                news = True
            elif due is not None:
                assert due > now or news
                now = due
                news = self.advance(now)
            else:
                break
        assert self.slow.advance(now + 10**15) == []
        assert not self.alive
        assert [s._replace(free_blocks=0) for s in self.steps] == [
            s._replace(free_blocks=0) for s in self.slow.steps
        ]
        _compare_state(self.fast, self.slow, now, self.alive, self.names)
        state = self.fast.state()
        counts = (state.running, state.waiting, state.in_api_server, state.held_blocks)
        assert counts == (0, 0, 0, 0)

    def plan(self, action: Action) -> None:
        self.planned += 1
        heappush(self.moments, (action.at, 0, self.planned, action))

    def advance(self, at: int) -> bool:
        """Whether there were events."""
        try:
            got = self.fast.advance(at)
        except SimulationError:
            self.stalled_at = at
            raise
        expected = self.slow.advance(at)
        assert [e._replace(reason=None) for e in got] == expected
        assert [e.time for e in got] == sorted(e.time for e in got)
        for event in got:
            # A step starts when all that comes at its nanosecond is known, so it tells of loads
            # a nanosecond later.
            assert event.time <= at <= event.time + (event.kind == "loading"), (event, at)
            if event.kind == "rejected":
                assert event.reason
            if event.kind in ("finished", "rejected"):
                self.alive.remove(event.id)
            lag = self.lags[event.id % len(self.lags)]
            if event.kind == "loading":
                self.plan(Action(at + lag, "loaded", event.id))
            elif event.kind == "finished" and event.id in self.keeping:
                self.plan(Action(at + lag, "release", event.id))
        return bool(got)

    def act(self, action: Action | None, at: int) -> None:
        fast, slow = self.fast, self.slow
        if action is None:
            _compare_state(fast, slow, at, self.alive, self.names)
        elif action.kind == "submit":
            self._submit(action, at)
        elif action.kind == "abort":
            self.alive.discard(action.id)
            fast.abort(action.id, at)
            slow.abort(action.id, at)
            if action.id in self.keeping:  # it may have ended, and its client not know yet
                fast.release(action.id, at)
                slow.release(action.id, at)
        elif action.kind == "loaded":
            fast.loaded(action.id, at)
            slow.loaded(action.id, at)
        elif action.kind == "release":
            fast.release(action.id, at)
            slow.release(action.id, at)
        else:
            lost = fast.reset(at)
            assert len(lost) == len(set(lost))
            assert set(lost) == slow.reset(at)
            self.alive -= set(lost)

    def _submit(self, action: Action, at: int) -> None:
        self.alive.add(action.id)
        if action.keep_blocks:
            self.keeping.add(action.id)
        line = self.index.intern(action.text)
        keys = [(run.branch, block) for run in line.runs for block in range(run.lo, run.hi)]
        self.names |= dict(zip(self.slow.hasher.hashes(action.text), keys, strict=True))
        request = EngineRequest(
            action.id,
            line,
            action.prompt,
            action.output,
            action.priority,
            action.prefill_only,
            action.keep_blocks,
            action.remote,
        )
        self.fast.submit(request, at)
        self.slow.submit(
            action.id,
            action.text,
            action.prompt,
            action.output,
            at,
            action.priority,
            action.prefill_only,
            action.keep_blocks,
            action.remote,
        )


def _compare_state(
    fast: Engine,
    slow: OracleEngine,
    at: int,
    alive: set[int],
    names: dict[int, tuple[int, int]],
) -> None:
    for ident in sorted(alive):
        if ident in fast._requests:
            assert fast.output_tokens(ident, at) == slow.output_tokens(ident)
    sample = fast.sample()
    state = fast.state()
    passed = [r for r in slow.api if r.leaves <= at * 1000]
    assert state.running == sample.running == len(slow.running)
    assert state.waiting == sample.waiting == len(slow.waiting + slow.ready + passed)
    assert state.in_api_server == len(slow.api) - len(passed)
    cache = slow.cache
    assert state.held_blocks == cache.total - cache.free
    assert state.cached_blocks == cache.cached
    assert state.evicted_blocks == cache.evicted
    assert state.preemptions == slow.preemptions
    assert (state.prefill_tokens, state.decode_tokens) == (slow.prefill_tokens, slow.decode_tokens)
    assert (state.busy_ps, state.steps) == (slow.busy, len(slow.steps))
    queue = [None if block.hash is None else names[block.hash] for block in cache.queue]
    pool = fast._cache
    assert isinstance(pool, BlockCache)
    assert pool.free_queue() == queue
    copies = {names[key]: [b.refs for b in blocks] for key, blocks in cache.by_hash.items()}
    assert pool.copies() == copies


@settings(max_examples=800, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.integers(1, 4),
    blocks=st.integers(3, 60),
    budget=st.sampled_from((1, 2, 3, 7, 20, 1000)),
    seqs=st.sampled_from((1, 2, 5, 100)),
    threshold=st.sampled_from((0, 0, 0, 2, 5)),
    policy=st.sampled_from(("fcfs", "fcfs", "priority")),
    caching=st.sampled_from((True, True, True, False)),
    reserve=st.sampled_from((True, True, False)),
    chunked=st.sampled_from((True, True, True, False)),
    watermark=st.sampled_from((0.0, 0.0, 0.2)),
    api=st.sampled_from(((0, 0), (1000, 0), (1700, 130))),
    delay=st.sampled_from((0, 0, 777)),
    unit=st.sampled_from((1, 10, 1000)),
    limit=st.sampled_from((None, None, 30)),
    spread=st.sampled_from((1, 5, 100)),
    style=st.sampled_from(sorted(STYLES)),
    ahead=st.booleans(),
    fixed=st.sampled_from((0, 0, 0, 1, 3)),
    windows=st.sampled_from(
        (("dense", 0), ("dense", 0), ("prompt_ends", 0), ("replay", 2), ("replay", 5))
    ),
)
def test_engine_equals_step_by_step_oracle(
    seed: int,
    block_size: int,
    blocks: int,
    budget: int,
    seqs: int,
    threshold: int,
    policy: Policy,
    caching: bool,
    reserve: bool,
    chunked: bool,
    watermark: float,
    api: tuple[int, int],
    delay: int,
    unit: int,
    limit: int | None,
    spread: int,
    style: str,
    ahead: bool,
    fixed: int,
    windows: tuple[WindowHits, int],
) -> None:
    rng = random.Random(seed)
    params = EngineParams(
        block_size=block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        max_model_len=limit,
        chunked_prefill=chunked,
        long_prefill_token_threshold=threshold,
        prefix_caching=caching,
        reserve_full_input=reserve,
        watermark=watermark,
        policy=policy,
        api_request_ps=api[0],
        api_prompt_token_ps=api[1],
        output_delay_ps=delay,
        async_scheduling=ahead,
        sequence_blocks=fixed,
        window_hits=windows[0],
        window_tokens=windows[1],
    )
    actions = STYLES[style](rng, rng.randint(1, 25), spread, rng.choice((3, 10)))
    end = actions[-1].at + 20 * spread
    looks = [rng.randint(0, end) for _ in range(rng.randint(0, 12))]
    time = CoarseTime(unit, rng.choice((10, 37, 10**9)))
    for forward in (True, False):
        Pair(replace(params, fast_forward=forward), time, blocks).play(actions, looks)


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    block_size=st.integers(1, 4),
    blocks=st.integers(3, 60),
    budget=st.sampled_from((2, 7, 20, 1000)),
    seqs=st.sampled_from((1, 2, 5, 100)),
    threshold=st.sampled_from((0, 0, 2)),
    policy=st.sampled_from(("fcfs", "fcfs", "priority")),
    reserve=st.booleans(),
    watermark=st.sampled_from((0.0, 0.0, 0.2)),
    api=st.sampled_from(((0, 0), (1700, 130))),
    delay=st.sampled_from((0, 777)),
    unit=st.sampled_from((1, 10, 1000)),
    spread=st.sampled_from((1, 5, 100)),
    style=st.sampled_from(sorted(STYLES)),
    ahead=st.booleans(),
)
# A request is preempted while the first step after a pause runs, and the next one is composed.
@example(
    seed=1433383630,
    block_size=3,
    blocks=10,
    budget=1000,
    seqs=2,
    threshold=0,
    policy="priority",
    reserve=False,
    watermark=0.0,
    api=(1700, 130),
    delay=777,
    unit=10,
    spread=1,
    style="crowd",
    ahead=True,
)
# An abort of a request that waits for KV, at the very end of a step of a fast-forwarded run.
@example(
    seed=1333098068,
    block_size=2,
    blocks=49,
    budget=7,
    seqs=5,
    threshold=2,
    policy="fcfs",
    reserve=True,
    watermark=0.0,
    api=(0, 0),
    delay=777,
    unit=1,
    spread=5,
    style="sessions",
    ahead=True,
)
def test_loads_and_kept_blocks_equal_step_by_step_oracle(
    seed: int,
    block_size: int,
    blocks: int,
    budget: int,
    seqs: int,
    threshold: int,
    policy: Policy,
    reserve: bool,
    watermark: float,
    api: tuple[int, int],
    delay: int,
    unit: int,
    spread: int,
    style: str,
    ahead: bool,
) -> None:
    """Some prompts are elsewhere in part, some blocks are kept for another replica to copy.

    Without `reserve`, requests whose KV has come may hold all blocks and lack some for the rest of
    their prompts: vLLM does not prevent that. Then both must find that nothing can start.
    """
    rng = random.Random(seed)
    params = EngineParams(
        block_size=block_size,
        max_num_batched_tokens=budget,
        max_num_seqs=seqs,
        long_prefill_token_threshold=threshold,
        reserve_full_input=reserve,
        watermark=watermark,
        policy=policy,
        api_request_ps=api[0],
        api_prompt_token_ps=api[1],
        output_delay_ps=delay,
        async_scheduling=ahead,
    )
    actions = [
        _in_two_legs(action, rng)
        for action in STYLES[style](rng, rng.randint(1, 25), spread, rng.choice((3, 10)))
    ]
    end = actions[-1].at + 20 * spread
    looks = [rng.randint(0, end) for _ in range(rng.randint(0, 12))]
    time = CoarseTime(unit, rng.choice((10, 37, 10**9)))
    lags = [rng.randint(1, 4 * spread) for _ in range(7)]
    for forward in (True, False):
        pair = Pair(replace(params, fast_forward=forward), time, blocks, lags)
        try:
            pair.play(actions, looks)
        except SimulationError:
            if reserve or pair.stalled_at is None:
                raise
            with pytest.raises(AssertionError):
                pair.slow.advance(pair.stalled_at)
            assert len(pair.slow.ready) > 1
            assert not pair.slow.running + pair.slow.loading


def _in_two_legs(action: Action, rng: random.Random) -> Action:
    if action.kind != "submit":
        return action
    leg = rng.random()
    if leg < 0.25:
        return replace(action, prefill_only=True, keep_blocks=True)
    if leg < 0.7:
        return replace(action, remote=rng.choice((action.prompt, rng.randint(1, action.prompt))))
    return action
