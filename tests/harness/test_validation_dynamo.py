"""Comparisons with other simulators: the trace handed over, step times, bounds, the page."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from harness.validation import dynamo, dynamo_replay
from harness.validation.dynamo import Scenario, validate_dynamo
from harness.validation.dynamo_replay import LinearTiming, find_python
from harness.validation.findings import Bound, Finding, Table, markdown
from harness.validation.multi_turn import Shape, arriving, generate, write_mooncake
from harness.validation.ours import LinearSteps, play
from harness.validation.sglang import sglang_finding
from harness.validation.vllm import vllm_finding
from workloads.catalog import load_workload
from workloads.model import Segment, Session, ToolCall, TurnSpec

MS = 10**9


def rows_of(sessions: Sequence[Session], folder: Path, block: int) -> list[dict[str, Any]]:
    write_mooncake(sessions, folder / "trace.jsonl", block)
    return [json.loads(line) for line in (folder / "trace.jsonl").read_text().splitlines()]


def test_blocks_of_a_growing_session(tmp_path: Path) -> None:
    # Blocks of 4: the prompt of 6 ends in block 1, its 3 output tokens fill that block and begin
    # block 2; the next prompt keeps all 9 and adds 4: blocks 0 to 3.
    turns = (TurnSpec(6, 3, wait_s=0.5), TurnSpec(4, 1, kept_turn=0, kept_tokens=9))
    first, second = rows_of([Session("s", turns, "w", "generated", arrival_s=1.5)], tmp_path, 4)
    assert (first["timestamp"], second["delay"]) == (1500, 500)
    assert (first["input_length"], first["output_length"]) == (6, 3)
    assert (second["input_length"], second["output_length"]) == (13, 1)
    a, b, c, d = second["hash_ids"]
    assert first["hash_ids"] == [a, b]
    # The token of a position is the id of its block.
    assert first["output_token_ids"] == [b, b, c]
    assert second["output_token_ids"] == [d]
    assert len({a, b, c, d}) == 4


def test_blocks_are_shared_as_far_as_texts_are(tmp_path: Path) -> None:
    shared = (Segment("system", 8, 32),)
    sessions = [
        Session(name, (TurnSpec(4, 1, shared=shared),), "w", "generated", arrival_s=0.0)
        for name in "ab"
    ]
    first, second = rows_of(sessions, tmp_path, 4)
    assert first["hash_ids"][:2] == second["hash_ids"][:2]
    assert first["hash_ids"][2] != second["hash_ids"][2]


def test_a_prompt_that_was_cut_shares_the_whole_blocks_it_kept(tmp_path: Path) -> None:
    # 10 of the first turn's tokens are kept: blocks 0 and 1 are the same, block 2 is not.
    turns = (TurnSpec(12, 4), TurnSpec(6, 1, kept_turn=0, kept_tokens=10))
    first, second = rows_of([Session("s", turns, "w", "generated")], tmp_path, 4)
    assert second["hash_ids"][:2] == first["hash_ids"][:2]
    assert second["hash_ids"][2] != first["hash_ids"][2]


def test_generated_shapes_are_what_they_say() -> None:
    shape = Shape(3, 4, 6.0, shared_tokens=32, new_tokens=(5, 9), output_tokens=(2, 3))
    sessions = generate(shape, 1)
    assert [s.arrival_s for s in sessions] == [0.0, 2.0, 4.0]
    assert sessions == generate(shape, 1)
    assert sessions != generate(shape, 2)
    for session in sessions:
        assert len(session.turns) == 4
        for before, after in zip(session.turns, session.turns[1:], strict=False):
            assert after.kept_tokens == before.prompt_tokens + before.output_tokens
            assert 5 <= after.new_tokens <= 9


def test_workloads_arrive_with_tools_as_waiting() -> None:
    sessions = load_workload("swe-bench-mini-short", sessions=4, seed=0)
    found = arriving(sessions, 8.0)
    assert [s.arrival_s for s in found] == [0.0, 2.0, 4.0, 6.0]
    for before, after in zip(sessions, found, strict=True):
        for a, b in zip(before.turns, after.turns, strict=True):
            assert b.wait_s == pytest.approx(a.tool_seconds + a.wait_s, abs=0.001)
            assert (a.prompt_tokens, a.output_tokens) == (b.prompt_tokens, b.output_tokens)
    parallel = (ToolCall("a", 1.0), ToolCall("b", 3.0, parallel=True))
    one = Session("s", (TurnSpec(4, 1, tools=parallel, wait_s=0.5),), "w", "generated")
    child = Session("c", (TurnSpec(4, 1),), "w", "generated", parent="s", spawn_turn=0)
    assert [s.turns[0].wait_s for s in arriving([one, child], 1.0)] == [3.5]


def test_linear_steps_by_hand() -> None:
    steps = LinearSteps(LinearTiming(token_us=50, step_us=10_000), budget=100)
    # 20 new tokens and one decode: 1 ms and 10 ms.
    assert steps.mixed_ps([(20, 0)], 1, 500) == 11 * MS
    # A part of one prompt that fills the budget hands out no token; beside a decode it does.
    assert steps.mixed_ps([(100, 0)], 0, 0) == 5 * MS
    assert steps.mixed_ps([(99, 0)], 1, 7) == 4_950_000_000 + 10 * MS
    # Three chunks of 10, 10 and 11 on 0, 0 and 1 computed: means 32 / 3 and 1 / 3, whole parts 10
    # and 0, so 30 tokens count.
    assert steps.mixed_ps([(10, 0), (10, 0), (11, 1)], 0, 0) == 1_500_000_000 + 10 * MS
    assert steps.mixed_ps([], 2, 9) == steps.decode_piece(2, 9).fixed_ps == 10 * MS


def test_one_turn_of_ours_by_hand() -> None:
    # 1,000 prompt tokens: 50 ms and 10 ms to the first token, four more of 10 ms.
    session = Session("s", (TurnSpec(1000, 5),), "w", "generated", arrival_s=0.0)
    ours, _ = play([session], LinearTiming(), replicas=1, kv_blocks=1000)
    # The engine starts no step at the very nanosecond of an arrival.
    assert ours.ttft_s == pytest.approx(0.060, abs=1e-8)
    assert ours.e2e_s == pytest.approx(0.100, abs=1e-8)
    assert ours.tpot_s == pytest.approx(0.010, abs=1e-8)
    assert (ours.requests, ours.hit_rate) == (1, 0.0)


def test_without_the_package_it_is_skipped_and_says_how(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dynamo, "find_python", lambda: None)
    finding = validate_dynamo()
    assert finding.skipped is not None
    assert "ai-dynamo==1.3.1" in finding.skipped
    assert finding.missed == []


def test_a_python_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(dynamo_replay.PYTHON_VARIABLE, "/nowhere/python")
    with pytest.raises(Exception, match="which is no file"):
        find_python()


@pytest.mark.parametrize("finding", [vllm_finding, sglang_finding])
def test_without_the_tests_an_engines_scheduler_is_skipped(
    finding: Callable[[Path], Finding], tmp_path: Path
) -> None:
    skipped = finding(tmp_path).skipped
    assert skipped is not None
    assert "checkout" in skipped


def test_without_its_package_sglang_is_skipped(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    bare = tmp_path / "python"
    bare.write_text("#!/bin/sh\nexit 1\n", encoding="utf-8")
    bare.chmod(0o755)
    monkeypatch.setenv("AGENTSCHED_SGLANG_PYTHON", str(bare))
    skipped = sglang_finding().skipped
    assert skipped is not None
    assert "not installed" in skipped
    assert "AGENTSCHED_SGLANG_PYTHON" in skipped


def test_the_page_says_what_was_missed() -> None:
    finding = Finding(
        "x",
        "Against X",
        "What was done.",
        (Table("Errors", ("run", "error"), (("one", "+2.50 %"),)),),
        (Bound("one: makespan", 2.5, 2.0), Bound("one: hits", -1.0, 2.0)),
        ("A note.",),
    )
    page = markdown([finding, Finding("y", "Against Y", "More.", skipped="no Y here.")], "cmd")
    assert "| one | +2.50 % |" in page
    assert "1 of 2 bounds are kept." in page
    assert "- missed: one: makespan: +2.50 % (bound 2 %)" in page
    assert "Not done: no Y here." in page
    assert [bound.what for bound in finding.missed] == ["one: makespan"]


@pytest.mark.skipif(
    dynamo_replay.find_python() is None, reason="ai-dynamo is not installed (see validate dynamo)"
)
def test_one_replica_agrees_with_dynamo_step_for_step() -> None:
    finding = validate_dynamo((Scenario("one", Shape(8, 4, 4.0), 1, 20_000, 1),))
    errors = [float(cell.split()[0]) for cell in finding.tables[0].rows[0][2:7]]
    assert errors == pytest.approx([0, 0, 0, 0, 0], abs=0.011)
    assert finding.missed == []
