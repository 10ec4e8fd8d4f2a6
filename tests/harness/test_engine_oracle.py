"""The engine against the step-by-step oracle on random workloads, fast-forward on and off."""

from __future__ import annotations

import random
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sim.async_engine import engine_for
from harness.sim.block_cache import BlockCache
from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import (
    EngineEvent,
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


def play(
    params: EngineParams, time: CoarseTime, blocks: int, actions: list[Action], looks: list[int]
) -> None:
    """Run engine and oracle side by side; compare whenever anything is looked at."""
    index = ContentIndex(params.block_size)
    steps: list[StepRecord] = []
    fast = engine_for(params, time, blocks, index, steps.append)
    kind = OracleAsyncEngine if params.async_scheduling else OracleEngine
    slow = kind(params, time, blocks, Hasher(params.block_size))
    names: dict[int, tuple[int, int]] = {}
    moments = sorted(
        [(action.at, 0, action) for action in actions] + [(look, 1, None) for look in looks],
        key=lambda moment: moment[:2],
    )
    alive: set[int] = set()
    for at, _, action in moments:
        _compare_until(fast, slow, at, alive)
        if action is None:
            _compare_state(fast, slow, at, alive, names)
        elif action.kind == "submit":
            alive.add(action.id)
            line = index.intern(action.text)
            keys = [(run.branch, block) for run in line.runs for block in range(run.lo, run.hi)]
            names |= dict(zip(slow.hasher.hashes(action.text), keys, strict=True))
            fast.submit(
                EngineRequest(
                    action.id,
                    line,
                    action.prompt,
                    action.output,
                    action.priority,
                    action.prefill_only,
                ),
                at,
            )
            slow.submit(
                action.id,
                action.text,
                action.prompt,
                action.output,
                at,
                action.priority,
                action.prefill_only,
            )
        elif action.kind == "abort":
            alive.discard(action.id)
            fast.abort(action.id, at)
            slow.abort(action.id, at)
        else:
            lost = fast.reset(at)
            assert len(lost) == len(set(lost))
            assert set(lost) == slow.reset(at)
            alive -= set(lost)
    while (due := fast.next_event_time()) is not None:
        delivered = _compare_until(fast, slow, due, alive)
        assert due > at or delivered
        at = due
    assert slow.advance(at + 10**15) == []
    assert not alive
    assert [s._replace(free_blocks=0) for s in steps] == [
        s._replace(free_blocks=0) for s in slow.steps
    ]
    _compare_state(fast, slow, at, alive, names)
    state = fast.state()
    assert (state.running, state.waiting, state.in_api_server, state.held_blocks) == (0, 0, 0, 0)


def _compare_until(fast: Engine, slow: OracleEngine, at: int, alive: set[int]) -> int:
    got: list[EngineEvent] = []
    while (due := fast.next_event_time()) is not None and due < at:
        events = fast.advance(due)
        assert all(event.time <= due for event in events)
        got += events
    got += fast.advance(at)
    expected = slow.advance(at)
    assert [e._replace(reason=None) for e in got] == expected
    assert [e.time for e in got] == sorted(e.time for e in got)
    for event in got:
        if event.kind == "rejected":
            assert event.reason
        if event.kind != "first_token":
            alive.remove(event.id)
    return len(got)


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
    assert state.waiting == sample.waiting == len(slow.waiting) + len(passed)
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
        play(replace(params, fast_forward=forward), time, blocks, actions, looks)
