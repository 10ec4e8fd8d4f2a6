"""Sessions as other tools' request traces: by hand, and read back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentsched import TraceError, UsageError
from tests.oracles.workloads_text import common_prefix, literal_prompts
from tests.workloads.strategies import families
from workloads.export import aiperf_rows, mooncake_rows, write_rows
from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.readers.convert import convert

ONE = Session(
    "a",
    (
        TurnSpec(20, 10, shared=(Segment("s", 80, 320),), tools=(ToolCall("t", 4.0),), wait_s=0.5),
        TurnSpec(30, 5, kept_turn=0, kept_tokens=110),
    ),
    "w",
    "recorded",
    arrival_s=1.25,
)


def test_aiperf_rows_by_hand() -> None:
    assert list(aiperf_rows([ONE])) == [
        {"session_id": "a", "timestamp": 1250.0, "input_length": 100, "output_length": 10},
        {"session_id": "a", "delay": 4500.0, "input_length": 30, "output_length": 5},
    ]


def test_mooncake_rows_by_hand() -> None:
    other = Session("b", (TurnSpec(40, 1, shared=(Segment("s", 80, 320),)),), "w", "recorded")
    rows = list(mooncake_rows([ONE, other], block_tokens=40))
    assert rows == [
        # 100 tokens: two blocks of `s`, and 20 begun.
        {"session_id": "a", "timestamp": 1250.0, "input_length": 100, "output_length": 10,
         "hash_ids": [0, 1, 2]},
        # 140 tokens: the third block holds 20 prompt tokens, 10 of the reply and 10 new ones.
        {"session_id": "a", "delay": 4500.0, "input_length": 140, "output_length": 5,
         "hash_ids": [0, 1, 3, 4]},
        {"session_id": "b", "timestamp": 0.0, "input_length": 120, "output_length": 1,
         "hash_ids": [0, 1, 5]},
    ]  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(families(), st.integers(1, 5))
def test_equal_ids_are_equal_texts(sessions: list[Session], block: int) -> None:
    rows = iter(list(mooncake_rows(sessions, block)))
    seen: list[tuple[list[tuple[str, int, str, int]], list[int]]] = []
    for session in sessions:
        prompts = literal_prompts(session)[0]
        seen.extend((prompt, next(rows)["hash_ids"]) for prompt in prompts)
    for prompt, ids in seen:
        assert len(ids) == -(-len(prompt) // block)
        for other, others in seen:
            whole = min(common_prefix(prompt, other) // block, len(prompt) // block)
            same = [a == b for a, b in zip(ids, others, strict=False)] + [False]
            if prompt != other:
                assert same.index(False) == min(whole, len(other) // block)


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(families())
def test_exports_read_back_with_the_same_lengths(tmp_path: Path, sessions: list[Session]) -> None:
    path = tmp_path / "out.jsonl"
    assert write_rows(path, sessions, "mooncake") == sum(len(s.turns) for s in sessions)
    read = convert(path, "mooncake-sessions", {"block_tokens": 512, "prompts": "whole"})
    assert [[t.prompt_tokens for t in s.turns] for s in read] == [
        [t.prompt_tokens for t in s.turns] for s in sessions
    ]
    assert [[t.output_tokens for t in s.turns] for s in read] == [
        [t.output_tokens for t in s.turns] for s in sessions
    ]


def test_append_only_sessions_survive_aiperf(tmp_path: Path) -> None:
    write_rows(tmp_path / "out.jsonl", [ONE], "aiperf")
    assert len((tmp_path / "out.jsonl").read_text().splitlines()) == 2
    (read,) = convert(tmp_path / "out.jsonl")
    assert read.turns == (
        TurnSpec(100, 10, tools=(ToolCall("tool", 4.5),)),
        TurnSpec(30, 5, kept_turn=0, kept_tokens=110),
    )


def test_what_cannot_be_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with pytest.raises(UsageError, match="cannot write 'csv'"):
        write_rows(path, [ONE], "csv")
    with pytest.raises(TraceError, match="no sessions"):
        write_rows(path, [], "aiperf")
    with pytest.raises(UsageError, match="cannot write"):
        write_rows(tmp_path / "none" / "out.jsonl", [ONE], "aiperf")
    assert list(tmp_path.iterdir()) == []
    assert json.dumps(list(mooncake_rows([]))) == "[]"
