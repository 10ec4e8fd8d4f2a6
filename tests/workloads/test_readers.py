"""Readers of other formats, on small hand-made files with the answers worked out by hand."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentsched import TraceError, UsageError
from workloads.model import PromptBuilder, Segment, Session, ToolCall, TurnSpec
from workloads.readers.convert import convert, detect, quantile_sample
from workloads.readers.lmcache import LmcacheSettings, read_lmcache
from workloads.readers.weka import WekaSettings, read_weka
from workloads.stats import trace_stats
from workloads.trace import write_trace


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def _lmcache(workload: str, calls: list[tuple[float, int, int, int]]) -> list[dict[str, Any]]:
    return [
        {
            "workload": workload,
            "session": "s",
            "turn": turn,
            "t": t,
            "input_tokens": prompt,
            "shared_prefix_tokens": shared,
            "new_input_tokens": prompt - shared,
            "output_tokens": output,
            "logged_input_tokens": prompt,
        }
        for turn, (t, prompt, shared, output) in enumerate(calls)
    ]


def test_lmcache_mini_swe_agent(tmp_path: Path) -> None:
    rows = _lmcache("mini-swe-agent", [(0.0, 1500, 0, 100), (3.0, 1650, 1500, 50)])
    path = _write(tmp_path / "turns.jsonl", rows)
    choice = LmcacheSettings(first_token_s=0.5, output_tokens_per_s=100.0, template_tokens=1200)
    (session,) = read_lmcache(path, choice)
    assert (session.id, session.workload) == ("mini-swe-agent-s", "lmcache-mini-swe-agent")
    template = Segment("mini-swe-agent/template", 1200, 4800)
    assert session.turns == (
        # 3.0 s - 0.5 s - 100 / 100 tokens/s = 1.5 s of tool time; 1500 - 1200 = 300 own tokens.
        TurnSpec(300, 100, shared=(template,), tools=(ToolCall("bash", 1.5),)),
        # Append-only: 1500 + 100 kept, so 50 of the 150 new input tokens are an observation.
        TurnSpec(50, 50, kept_turn=0, kept_tokens=1600),
    )


def test_lmcache_model_time_never_makes_tool_time_negative(tmp_path: Path) -> None:
    rows = _lmcache("mini-swe-agent", [(0.0, 1500, 0, 400), (1.0, 1950, 1500, 50)])
    (session,) = read_lmcache(_write(tmp_path / "turns.jsonl", rows))
    assert session.turns[0].tool_seconds == 0.0


def test_lmcache_calls_without_a_prompt_become_waiting(tmp_path: Path) -> None:
    calls = [(0.0, 300, 0, 147), (5.0, 0, 0, 60), (7.5, 350, 0, 10), (9.0, 0, 0, 5)]
    path = _write(tmp_path / "turns.jsonl", _lmcache("magentic-one", calls))
    (session,) = read_lmcache(path)
    assert session.turns == (
        # 5.0 - 0.2 - 147 / 147 = 3.8 s of tools, then 2.5 s of the call whose size is not known.
        TurnSpec(300, 147, tools=(ToolCall("agent", 3.8),), wait_s=2.5),
        # The last call has no prompt either: 1.5 - 0.2 - 10 / 147 = 1.232 s, and nothing waits.
        TurnSpec(350, 10, tools=(ToolCall("agent", 1.232),)),
    )


def test_lmcache_magentic_keeps_what_the_log_says(tmp_path: Path) -> None:
    rows = _lmcache("magentic-one", [(0.0, 300, 0, 90), (5.0, 700, 299, 60)])
    (session,) = read_lmcache(_write(tmp_path / "turns.jsonl", rows))
    assert (session.turns[1].kept_tokens, session.turns[1].new_tokens) == (299, 401)


def _weka(agent: str, turn: int, **fields: Any) -> dict[str, Any]:
    row = {
        "session": "trace_1",
        "agent": agent,
        "turn": turn,
        "t": 0.0,
        "model": "m",
        "input_tokens": 1000,
        "shared_prefix_tokens": 0,
        "new_input_tokens": 0,
        "output_tokens": 10,
        "api_s": 1.0,
        "gap_before_s": 0.0,
        "stop": "tool_use",
        "input_kind": "tool_result",
    }
    return row | fields


WEKA = [
    _weka("main", 0, input_tokens=1000, output_tokens=50),
    _weka("sub1", 0, input_tokens=400, output_tokens=20),
    _weka("sub1", 1, input_tokens=500, shared_prefix_tokens=384, stop="end_turn"),
    # All 15 full blocks of 1000 tokens are kept (960), and 1050 fit: the reply is kept too.
    _weka("main", 1, input_tokens=1200, shared_prefix_tokens=960, gap_before_s=30.0,
          stop="end_turn"),
    # A person answers after 200 s. One block less than all 18 of 1200: 1088 kept as recorded.
    _weka("main", 2, input_tokens=1300, shared_prefix_tokens=1088, gap_before_s=200.0, stop="",
          input_kind="text"),
    # Stop reason unknown, a tool result follows: a tool call. Its gap is unknown: 40 - 25 - 5 s.
    _weka("main", 3, input_tokens=600, shared_prefix_tokens=320, gap_before_s=None, t=40.0,
          output_tokens=0),
]  # fmt: skip
WEKA[4] |= {"t": 25.0, "api_s": 5.0}


def test_weka(tmp_path: Path) -> None:
    path = _write(tmp_path / "turns.jsonl", WEKA)
    _write(
        tmp_path / "sessions.jsonl",
        [{"session": "trace_1", "tool_tokens": 500, "system_tokens": 100, "subagents": 1}],
    )
    main, sub = read_weka(path)
    prefix = (
        Segment("claude-code/tools-500", 500, 2000),
        Segment("claude-code/tools-500-system-100", 100, 400),
    )
    assert main.id == "weka-trace_1"
    assert main.turns == (
        TurnSpec(400, 50, shared=prefix, tools=(ToolCall("Task", 30.0),)),
        TurnSpec(150, 10, kept_turn=0, kept_tokens=1050, visible=True, wait_s=200.0),
        TurnSpec(212, 10, kept_turn=1, kept_tokens=1088, tools=(ToolCall("tool", 10.0),)),
        TurnSpec(280, 1, kept_turn=2, kept_tokens=320, compaction=True),
    )
    assert (sub.id, sub.parent, sub.spawn_turn) == ("weka-trace_1/sub1", "weka-trace_1", 0)
    assert [t.kept_tokens for t in sub.turns] == [0, 420]
    assert sub.turns[1].visible


def test_weka_without_the_assumption_keeps_recorded_blocks(tmp_path: Path) -> None:
    path = _write(tmp_path / "turns.jsonl", WEKA)
    main, _ = read_weka(path, WekaSettings(append_output=False))
    assert [turn.kept_tokens for turn in main.turns] == [0, 960, 1088, 320]
    assert main.turns[0].shared == ()


def _mooncake(path: Path, prompts: list[list[int]], last: int = 512) -> Path:
    rows = [
        {
            "timestamp": 3000 * i,
            "input_length": 512 * (len(blocks) - 1) + last,
            "output_length": 7,
            "hash_ids": blocks,
        }
        for i, blocks in enumerate(prompts)
    ]
    return _write(path, rows)


def test_mooncake(tmp_path: Path) -> None:
    path = _mooncake(tmp_path / "chat_trace.jsonl", [[0, 1], [0, 2]], last=100)
    first, second = convert(path)
    assert first.turns == (
        TurnSpec(
            0,
            7,
            shared=(
                Segment("mooncake-chat/0", 512, 2048),
                Segment("mooncake-chat/1", 100, 400),
            ),
            visible=True,
        ),
    )
    assert (first.id, second.id, second.arrival_s) == ("mooncake-chat-0", "mooncake-chat-1", 3.0)
    # 512 of 612 + 612 prompt tokens were there before.
    assert trace_stats([first, second]).reuse_share == 512 / 1224


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=8))
def test_mooncake_loses_no_sharing(tmp_path: Path, walks: list[list[int]]) -> None:
    # A hash names its block and all before it: number the nodes of the tree of walks.
    numbers: dict[tuple[int, ...], int] = {}
    prompts = [
        [numbers.setdefault(tuple(walk[: i + 1]), len(numbers)) for i in range(len(walk))]
        for walk in walks
    ]
    sessions = convert(_mooncake(tmp_path / "t.jsonl", prompts))
    lines = [next(iter(PromptBuilder(s).prompts())).segments for s in sessions]
    for i, blocks in enumerate(prompts):
        for j in range(i):
            alike = [a == b for a, b in zip(blocks, prompts[j], strict=False)] + [False]
            same = [a == b for a, b in zip(lines[i], lines[j], strict=False)] + [False]
            assert same.index(False) == alike.index(False)


def test_azure(tmp_path: Path) -> None:
    path = tmp_path / "code.csv.gz"
    text = (
        "TIMESTAMP,ContextTokens,GeneratedTokens\r\n"
        "2023-11-16 18:17:03.9799600,4808,10\r\n"
        "2023-11-16 18:17:05.0319600,3180,0\r\n"
    )
    path.write_bytes(gzip.compress(text.encode()))
    assert convert(path) == [
        Session("azure-code-0", (TurnSpec(4808, 10, visible=True),), "azure-code", "recorded",
                arrival_s=0.0),
        # 5.031960 - 3.979960 s; a request without output still ran one step.
        Session("azure-code-1", (TurnSpec(3180, 1, visible=True),), "azure-code", "recorded",
                arrival_s=1.052),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "text", "line", "field"),
    [
        ("weka", '{"agent":"main","session":"a","output_tokens":1}\n', 1, "input_tokens"),
        ("weka", '{"agent":"main","input_tokens":5,"output_tokens":1}\n', 1, "session"),
        ("lmcache", '{"workload":"w","session":"s","t":-1,"input_tokens":5}\n', 1, "t"),
        ("lmcache", '{"workload":"w","session":"s","t":0,"input_tokens":-5}\n', 1, "input_tokens"),
        ("mooncake", '{"timestamp":0,"input_length":600,"output_length":1,"hash_ids":[1]}\n', 1,
         "hash_ids"),
        ("mooncake", '{"input_length":6,"output_length":1,"hash_ids":[1]}\n', 1, "timestamp"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\nnever,1,1\n", 2, "TIMESTAMP"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,-4,1\n", 2,
         "ContextTokens"),
        ("azure", "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,4\n", 2,
         "GeneratedTokens"),
        ("azure", "a,b\n1,2\n", 1, None),
    ],
)  # fmt: skip
def test_bad_line_is_named(
    tmp_path: Path, name: str, text: str, line: int, field: str | None
) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        convert(path, name)
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, line, field)


def test_shared_tokens_beyond_the_prompt_are_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "turns.jsonl", [_weka("main", 0, shared_prefix_tokens=2000)])
    with pytest.raises(TraceError, match="more than input_tokens"):
        convert(path)


def test_detection(tmp_path: Path) -> None:
    assert detect(_write(tmp_path / "turns.jsonl", WEKA)) == "weka"
    assert detect(tmp_path) == "weka"
    assert detect(_write(tmp_path / "l", _lmcache("magentic-one", [(0, 5, 0, 5)]))) == "lmcache"
    assert detect(_mooncake(tmp_path / "m", [[1]])) == "mooncake"
    native = tmp_path / "n.jsonl.gz"
    session = Session("a", (TurnSpec(1, 1),), "w", "recorded")
    write_trace(native, [session])
    assert detect(native) == "native"
    assert convert(native) == [session]
    (tmp_path / "other.csv").write_text("a,b,c\n")
    for path in (_write(tmp_path / "o", [{"a": 1}]), tmp_path / "other.csv"):
        with pytest.raises(TraceError, match="no known trace format"):
            detect(path)
    with pytest.raises(UsageError, match="unknown trace format"):
        convert(native, "csv")
    empty = tmp_path / "empty"
    empty.mkdir()
    with pytest.raises(TraceError, match=r"no turns\.jsonl"):
        convert(empty)


def test_quantile_sample_spreads_and_keeps_families() -> None:
    roots = [Session(f"s{n}", (TurnSpec(1, 1),) * n, "w", "recorded") for n in range(1, 11)]
    child = Session("s6/sub", (TurnSpec(1, 1),), "w", "recorded", parent="s6", spawn_turn=0)
    # 10 sessions, 2 taken: ranks floor(2.5) = 2 and floor(7.5) = 7, of 3 and 8 turns.
    assert [s.id for s in quantile_sample([*roots, child], 2)] == ["s3", "s8"]
    # 5 taken: ranks 1, 3, 5, 7, 9.
    picked = [s.id for s in quantile_sample([*roots, child], 5)]
    assert picked == ["s2", "s4", "s6", "s8", "s10", "s6/sub"]
    with pytest.raises(UsageError):
        quantile_sample(roots, 11)
