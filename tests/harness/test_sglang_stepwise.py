"""The SGLang loop against SGLang's own scheduler and radix tree, step by step.

Runs where the `sglang` package and torch are importable; no GPU is needed.
"""

from __future__ import annotations

import random
from importlib.util import find_spec

import pytest

from harness.sim.content import ContentIndex
from harness.sim.engine_types import EngineEvent, EngineRequest, StepRecord
from harness.sim.radix_cache import RadixCache
from harness.sim.sglang_batcher import SglangBatcher
from harness.sim.sglang_engine import SglangEngine
from harness.sim.sglang_policy import SglangParams
from tests.harness.engine_workloads import STYLES, Action, CoarseTime
from tests.oracles.sglang_loop import SglangLoop, SglangSeen
from tests.oracles.vllm_loop import Arrival

pytestmark = [
    pytest.mark.skipif(
        find_spec("sglang") is None or find_spec("torch") is None,
        reason="the sglang package is not installed",
    ),
    pytest.mark.filterwarnings("ignore"),
]

Nodes = list[tuple[int, tuple[tuple[int, int], ...]]]


def random_params(rng: random.Random) -> SglangParams:
    page = rng.choice((1, 1, 1, 2, 4))
    chunk = rng.choice((None, 8, 20, 1000))
    return SglangParams(
        page_size=page,
        chunked_prefill=chunk,
        max_prefill_tokens=rng.choice((5, 20, 1000)),
        max_running_requests=rng.choice((1, 2, 5, 100)),
        policy=rng.choice(("fcfs", "lpm")),
        lpm_queue_limit=rng.choice((3, 128)),
        refresh_passes=rng.choice((1, 3, 32)),
        lpm_in_batch_tokens=rng.choice((4, 32)),
        conservativeness=rng.choice((0.0, 0.3, 1.0)),
        new_token_ratio_decay_steps=rng.choice((7, 600)),
        max_new_tokens=rng.choice((None, None, 100)),
        clip_max_new_tokens=rng.choice((7, 4096)),
        prefix_caching=rng.random() < 0.9,
        fast_forward=False,
    )


class Ours:
    """The same run in our engine, looked at whenever a step is composed."""

    def __init__(self, params: SglangParams, time: CoarseTime, pages: int) -> None:
        self.index = ContentIndex(params.page_size)
        self.engine = SglangEngine(params, time, pages, self.index, self._look)
        self.steps: list[StepRecord] = []
        self.trees: list[Nodes] = []
        self.available: list[int] = []
        self.ratios: list[float] = []
        self.events: list[EngineEvent] = []

    def _look(self, record: StepRecord) -> None:
        self.steps.append(record._replace(free_blocks=0))
        self.look()

    def look(self) -> None:
        cache, loop = self.engine._cache, self.engine._batcher
        assert isinstance(cache, RadixCache)
        assert isinstance(loop, SglangBatcher)
        self.trees.append([(pages[0][1], pages) for pages, _, _ in cache.nodes()])
        self.available.append(cache.available)
        self.ratios.append(loop._ratio.current)

    def run(self, arrivals: list[Arrival]) -> None:
        for arrival in arrivals:
            self.events += self.engine.advance(arrival.at)
            line = self.index.intern(arrival.text)
            request = EngineRequest(arrival.id, line, arrival.prompt, arrival.output)
            self.engine.submit(request, arrival.at)
        while (due := self.engine.next_event_time()) is not None:
            self.events += self.engine.advance(due)
        self.look()


def servable(actions: list[Action], params: SglangParams, pages: int) -> list[Arrival]:
    """Arrivals whose output SGLang would not cut to what fits beside whole pages of the prompt."""
    page = params.page_size
    return [
        Arrival(action.at, action.id, action.text, action.prompt, action.output, 0)
        for action in actions
        if action.kind == "submit"
        and -(-action.prompt // page) * page + action.output <= (pages - 1) * page - 1
    ]


@pytest.mark.parametrize("seed", range(200))
def test_every_step_equals_sglang(seed: int) -> None:
    rng = random.Random(seed)
    params = random_params(rng)
    pages = rng.randint(8, 80)
    time = CoarseTime(rng.choice((1, 10, 1000)), rng.choice((10, 37, 10**9)))
    style = rng.choice(sorted(STYLES))
    actions = STYLES[style](rng, rng.randint(1, 25), rng.choice((1, 5, 100)), rng.choice((3, 10)))
    played = servable(actions, params, pages)
    ours = Ours(params, time, pages)
    ours.run(played)
    theirs = SglangLoop(params, time, pages)
    seen = theirs.run(played)
    names = page_names(ours.index, theirs, played, params.page_size)
    for step, (mine, other) in enumerate(zip(ours.steps, seen.steps, strict=False)):
        assert mine == other, f"step {step}"
        if seen.prefills[step]:  # a decode step changes it, here at its end, there at its start
            assert ours.ratios[step] == pytest.approx(seen.ratios[step]), f"ratio in step {step}"
        theirs_now = named(seen, step, names, params.page_size)
        assert sorted(ours.trees[step]) == theirs_now, f"tree in step {step}"
        assert ours.available[step] == seen.available[step], f"free pages in step {step}"
    assert len(ours.steps) == len(seen.steps)
    assert sorted(ours.trees[-1]) == named(seen, -1, names, params.page_size)
    assert ours.available[-1] == seen.available[-1]
    finished = {e.id: e for e in ours.events if e.kind == "finished"}
    assert set(finished) == set(seen.finished) == {arrival.id for arrival in played}
    for ident, event in finished.items():
        assert event.time == -(-seen.finished[ident] // 1000)
        assert event.cached_tokens == seen.cached[ident]
        assert event.preemptions == seen.preemptions[ident]


def page_names(
    index: ContentIndex, theirs: SglangLoop, played: list[Arrival], page: int
) -> dict[tuple[int, ...], tuple[int, int]]:
    """Our (branch, page) of every page, by all tokens up to its end."""
    names = {}
    for arrival in played:
        tokens = theirs.texts[arrival.id]
        for run in index.intern(arrival.text).runs:
            for number in range(run.lo, run.hi):
                names[tuple(tokens[: (number + 1) * page])] = (run.branch, number)
    return names


def named(
    seen: SglangSeen, step: int, names: dict[tuple[int, ...], tuple[int, int]], page: int
) -> Nodes:
    nodes: Nodes = []
    for before, path in seen.trees[step]:
        ends = range((before + 1) * page, len(path) + 1, page)
        nodes.append((before, tuple(names[path[:end]] for end in ends)))
    return sorted(nodes)
