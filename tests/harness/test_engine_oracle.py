"""The engine against the step-by-step oracle on random workloads, fast-forward on and off."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from harness.sim.content import ContentIndex
from harness.sim.engine import Engine
from harness.sim.engine_types import (
    DecodePiece,
    EngineEvent,
    EngineParams,
    EngineRequest,
    Policy,
    StepRecord,
)
from tests.oracles.block_cache import Hasher
from tests.oracles.engine import OracleEngine

Segments = list[tuple[str, int]]


@dataclass(frozen=True)
class CoarseTime:
    """Step times with odd numbers and several linear pieces."""

    unit: int
    cell: int

    def decode_piece(self, decodes: int, context_sum: int) -> DecodePiece:
        cell = context_sum // self.cell
        slope = self.unit * (3 + cell % 3)
        return DecodePiece(self.unit * (101 + 7 * decodes), slope, (cell + 1) * self.cell)

    def mixed_ps(self, chunks: Sequence[tuple[int, int]], decodes: int, context_sum: int) -> int:
        prefill = sum(11 * new + computed + new * computed for new, computed in chunks)
        return self.unit * (211 + prefill + 13 * decodes + 3 * context_sum)


@dataclass(frozen=True)
class Action:
    at: int
    kind: str
    id: int
    text: tuple[tuple[str, int], ...] = ()
    prompt: int = 0
    output: int = 0
    priority: int = 0
    prefill_only: bool = False


def workload(rng: random.Random, count: int, spread: int, longest: int) -> list[Action]:
    """Sessions that grow turn by turn, forks, twins with one text, aborts, a lost replica."""
    actions: list[Action] = []
    texts: list[Segments] = [[("system", rng.randint(1, longest))]]
    now = 0
    for ident in range(count):
        now += rng.choice((0, 0, rng.randint(0, spread)))
        base = rng.choice(texts)
        if rng.random() < 0.3:
            base = _cut(base, rng.randint(0, sum(t for _, t in base)))
        if rng.random() < 0.85:
            own = rng.choice((f"u{ident}", f"u{ident}", f"common{rng.randrange(3)}"))
            text = _join(base, own, rng.randint(1, longest))
        else:
            text = base if base else [("x", 1)]
        prompt = sum(tokens for _, tokens in text)
        output = rng.choice((1, 2, rng.randint(1, longest), rng.randint(1, 4 * longest)))
        tail = rng.choice((text[-1][0], f"out{ident}", "shared-output"))
        whole = _join(text, tail, output)
        texts.append(_cut(whole, rng.randint(1, prompt + output)) if rng.random() < 0.2 else whole)
        texts = texts[-6:]
        actions.append(
            Action(
                now,
                "submit",
                ident,
                tuple(whole),
                prompt,
                output,
                rng.randrange(3),
                rng.random() < 0.05,
            )
        )
        if rng.random() < 0.12:
            actions.append(Action(now + rng.randint(0, spread), "abort", rng.randrange(ident + 1)))
        if rng.random() < 0.01:
            actions.append(Action(now + rng.randint(0, spread), "reset", -1))
    return sorted(actions, key=lambda action: action.at)


def twins(rng: random.Random, count: int, spread: int, longest: int) -> list[Action]:
    """A few texts, sent again and again at nearly the same time, some of them ahead of others."""
    actions = []
    for ident in range(count):
        name = f"t{rng.randrange(2)}"
        total = rng.randint(2, 6 * longest)
        prompt = rng.randint(1, total - 1)
        text = ((name, total),)
        at = rng.randrange(4) * spread
        actions.append(Action(at, "submit", ident, text, prompt, total - prompt, rng.randrange(3)))
    return sorted(actions, key=lambda action: action.at)


def crowd(rng: random.Random, count: int, spread: int, longest: int) -> list[Action]:
    """Everything comes at once and grows long: preemptions all the time."""
    actions = []
    for ident in range(count):
        prompt, output = rng.randint(1, longest), rng.randint(1, 8 * longest)
        text = ((f"u{ident}", prompt + output),)
        at = rng.randrange(2) * spread
        actions.append(Action(at, "submit", ident, text, prompt, output, rng.randrange(4)))
    return sorted(actions, key=lambda action: action.at)


STYLES = {"sessions": workload, "twins": twins, "crowd": crowd}


def _join(text: Segments, name: str, tokens: int) -> Segments:
    if text and text[-1][0] == name:
        return [*text[:-1], (name, text[-1][1] + tokens)]
    return [*text, (name, tokens)]


def _cut(text: Segments, tokens: int) -> Segments:
    kept: Segments = []
    for name, count in text:
        take = min(count, tokens)
        if take:
            kept.append((name, take))
        tokens -= take
    return kept


def play(
    params: EngineParams, time: CoarseTime, blocks: int, actions: list[Action], looks: list[int]
) -> None:
    """Run engine and oracle side by side; compare whenever anything is looked at."""
    index = ContentIndex(params.block_size)
    steps: list[StepRecord] = []
    fast = Engine(params, time, blocks, index, steps.append)
    slow = OracleEngine(params, time, blocks, Hasher(params.block_size))
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
    assert fast._cache.free_queue() == queue
    copies = {names[key]: [b.refs for b in blocks] for key, blocks in cache.by_hash.items()}
    assert fast._cache.copies() == copies


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
    )
    actions = STYLES[style](rng, rng.randint(1, 25), spread, rng.choice((3, 10)))
    end = actions[-1].at + 20 * spread
    looks = [rng.randint(0, end) for _ in range(rng.randint(0, 12))]
    time = CoarseTime(unit, rng.choice((10, 37, 10**9)))
    for forward in (True, False):
        play(replace(params, fast_forward=forward), time, blocks, actions, looks)
