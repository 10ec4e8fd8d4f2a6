"""The engine against vLLM's own scheduler and KV cache manager, step by step.

Runs where the `vllm` package is importable (the CPU build will do).
"""

from __future__ import annotations

import random
from importlib.util import find_spec

import pytest

from harness.sim.async_engine import engine_for
from harness.sim.block_cache import BlockCache
from harness.sim.content import ContentIndex
from harness.sim.engine_types import EngineEvent, EngineParams, EngineRequest, StepRecord
from harness.sim.request_checks import never_runs
from tests.harness.engine_workloads import STYLES, Action, CoarseTime
from tests.oracles.vllm_loop import Abort, Arrival, Seen, VllmLoop

pytestmark = [
    pytest.mark.skipif(find_spec("vllm") is None, reason="the vllm package is not installed"),
    pytest.mark.filterwarnings("ignore"),
]


def random_params(rng: random.Random, ahead: bool) -> EngineParams:
    return EngineParams(
        block_size=rng.choice((1, 2, 4)),
        max_num_batched_tokens=rng.choice((8, 11, 20, 1000)),
        max_num_seqs=rng.choice((1, 2, 5, 8)),
        chunked_prefill=rng.random() < 0.8,
        long_prefill_token_threshold=rng.choice((0, 0, 0, 3, 5)),
        prefix_caching=rng.random() < 0.9,
        reserve_full_input=rng.random() < 0.7,
        watermark=rng.choice((0.0, 0.0, 0.2)),
        policy=rng.choice(("fcfs", "fcfs", "priority")),
        async_scheduling=ahead,
        fast_forward=False,
    )


def servable(
    rng: random.Random, actions: list[Action], params: EngineParams, blocks: int
) -> list[Arrival | Abort]:
    """Arrivals that vLLM would accept, and aborts after the arrivals they concern."""
    kept: list[Arrival | Abort] = []
    for action in actions:
        if action.kind != "submit":
            continue
        final = action.prompt + action.output
        if never_runs(params, blocks - params.null_blocks, action.prompt, final) is not None:
            continue
        kept.append(
            Arrival(
                action.at, action.id, action.text, action.prompt, action.output, action.priority
            )
        )
        if rng.random() < 0.1:
            kept.append(Abort(action.at + rng.randint(1, 200), action.id))
    return sorted(kept, key=lambda action: action.at)


class Ours:
    """The same run in our engine, with the free queue after each step."""

    def __init__(self, params: EngineParams, time: CoarseTime, blocks: int) -> None:
        self.index = ContentIndex(params.block_size)
        self.engine = engine_for(params, time, blocks, self.index, self._look)
        self.steps: list[StepRecord] = []
        self.queues: list[list[tuple[int, int] | None]] = []
        self.events: list[EngineEvent] = []

    def _look(self, record: StepRecord) -> None:
        self.steps.append(record._replace(preempted=(), free_blocks=0))
        if not self.engine.params.async_scheduling:
            self.queues.append(self._queue())

    def _queue(self) -> list[tuple[int, int] | None]:
        pool = self.engine._cache
        assert isinstance(pool, BlockCache)
        return pool.free_queue()

    def run(self, actions: list[Arrival | Abort]) -> None:
        for action in actions:
            self.events += self.engine.advance(action.at)
            if isinstance(action, Abort):
                self.engine.abort(action.id, action.at)
                continue
            line = self.index.intern(action.text)
            request = EngineRequest(action.id, line, action.prompt, action.output, action.priority)
            self.engine.submit(request, action.at)
        while (due := self.engine.next_event_time()) is not None:
            self.events += self.engine.advance(due)
        self.queues.append(self._queue())


@pytest.mark.parametrize("ahead", [False, True], ids=["step-by-step", "composed-ahead"])
@pytest.mark.parametrize("seed", range(300))
def test_every_step_equals_vllm(seed: int, ahead: bool) -> None:
    rng = random.Random(seed)
    params = random_params(rng, ahead)
    blocks = rng.randint(6, 60)
    time = CoarseTime(rng.choice((1, 10, 1000)), rng.choice((10, 37, 10**9)))
    style = rng.choice(sorted(STYLES))
    actions = STYLES[style](rng, rng.randint(1, 25), rng.choice((1, 5, 100)), rng.choice((3, 10)))
    played = servable(rng, actions, params, blocks)
    ours = Ours(params, time, blocks)
    ours.run(played)
    theirs = VllmLoop(params, time, blocks)
    seen = theirs.run(played)
    names = {
        key: (run.branch, block)
        for action in played
        if isinstance(action, Arrival)
        for key, (run, block) in zip(
            theirs.hashes(action.text),
            (
                (run, block)
                for run in ours.index.intern(action.text).runs
                for block in range(run.lo, run.hi)
            ),
            strict=True,
        )
    }
    for step, (mine, other) in enumerate(zip(ours.steps, seen.steps, strict=False)):
        assert mine == other, f"step {step}"
    assert len(ours.steps) == len(seen.steps)
    for step, (queue, hashes) in enumerate(zip(ours.queues, seen.queues, strict=True)):
        theirs_now = [None if key is None else names[key] for key in hashes]
        assert queue == theirs_now, f"free queue in step {step}"
    _compare_outcomes(ours, seen)


def _compare_outcomes(ours: Ours, seen: Seen) -> None:
    finished = {e.id: e for e in ours.events if e.kind == "finished"}
    for ident, event in finished.items():
        assert event.time == -(-seen.finished[ident] // 1000)
        assert event.cached_tokens == seen.cached[ident]
        assert event.preemptions == seen.preemptions[ident]
