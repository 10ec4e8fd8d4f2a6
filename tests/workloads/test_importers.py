"""Readers of files with a line for each step, request or session, on hand-made files."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentsched import TraceError, UsageError
from workloads.model import Segment, ToolCall, TurnSpec
from workloads.readers.convert import convert, detect, read_any
from workloads.readers.thunderagent import HEADER
from workloads.stats import trace_stats


def _write(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_thunderagent(tmp_path: Path) -> None:
    lines = [
        ",".join(HEADER),
        "a,1,0.5,2.0,0.0,0.0,,1000.0",
        "b,1,0.1,1.0,0.0,0.0,,1001.0",
        "a,2,0.2,0.5,0.0,7.25,0.85,1010.0",
        # The id is used again after a release.
        "a,1,0.2,0.5,0.0,0.0,,1020.0",
    ]
    path = tmp_path / "step_profiles.csv"
    path.write_text("\r\n".join(lines) + "\r\n")
    assert detect(tmp_path) == "thunderagent"
    sizes = {"first_tokens": 100, "new_tokens": 10, "output_tokens_per_s": 20}
    first, again, other = convert(path, settings=sizes)
    assert [s.id for s in (first, again, other)] == ["a", "a+2", "b"]
    assert first.turns == (
        # 2.0 s of decoding at 20 tokens/s; the second step says that 7.25 s passed before it.
        TurnSpec(100, 40, tools=(ToolCall("tool", 7.25),)),
        TurnSpec(10, 10, kept_turn=0, kept_tokens=140),
    )


def test_aiperf_rows_hold_what_they_add(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "sessions.jsonl",
        [
            {"session_id": "a", "input_length": 300, "output_length": 40, "timestamp": 1500},
            {"session_id": "b", "input_length": 20, "output_length": 4},
            {"session_id": "a", "input_length": 150, "output_length": 20, "delay": 2000},
        ],
    )
    assert detect(path) == "mooncake-sessions"
    first, other = convert(path)
    assert (first.id, first.arrival_s) == ("sessions-a", 1.5)
    assert first.turns == (
        TurnSpec(300, 40, tools=(ToolCall("tool", 2.0),)),
        TurnSpec(150, 20, kept_turn=0, kept_tokens=340),
    )
    assert (other.id, other.arrival_s) == ("sessions-b", None)
    (waiting, _) = convert(path, settings={"delays": "wait", "prompts": "whole"})
    assert (waiting.turns[0].tools, waiting.turns[0].wait_s) == ((), 2.0)
    # As whole prompts: 150 tokens of the 300 before.
    assert waiting.turns[1] == TurnSpec(0, 20, kept_turn=0, kept_tokens=150, compaction=True)


def _block(session: str, blocks: list[int], prompt: int, **fields: Any) -> dict[str, Any]:
    row = {"session_id": session, "input_length": prompt, "output_length": 10, "hash_ids": blocks}
    return row | fields


def test_dynamo_rows_hold_whole_prompts(tmp_path: Path) -> None:
    path = _write(
        tmp_path / "d.jsonl",
        [
            # 150 tokens in 3 blocks: 64 is the only power of two that fits.
            _block("a", [1, 2, 3], 150, timestamp=0),
            # Both whole blocks, and room for the reply: 150 + 10 tokens are kept.
            _block("a", [1, 2, 4], 170, delay=500),
            # The first block only.
            _block("a", [1, 5], 100, delay=0),
            _block("b", [1, 2, 3], 150, timestamp=7),
        ],
    )
    first, other = convert(path)
    three = tuple(
        Segment(f"d/{block}", tokens, 4 * tokens) for block, tokens in ((1, 64), (2, 64), (3, 22))
    )
    assert first.turns == (
        TurnSpec(0, 10, shared=three, tools=(ToolCall("tool", 0.5),)),
        TurnSpec(10, 10, kept_turn=0, kept_tokens=160),
        TurnSpec(36, 10, kept_turn=1, kept_tokens=64, compaction=True),
    )
    assert other.turns == (TurnSpec(0, 10, shared=three),)
    kept = convert(path, settings={"append_output": False})[0]
    assert kept.turns[1] == TurnSpec(42, 10, kept_turn=0, kept_tokens=128)
    with pytest.raises(TraceError, match="3 blocks for 150 tokens"):
        convert(path, settings={"block_tokens": 16})


def test_dynamo_agentic_rows_have_sub_agents(tmp_path: Path) -> None:
    rows = [
        _block("main", [1, 2], 100, request_id="r1", timestamp=2000),
        _block("main", [1, 2, 3], 130, request_id="r2", wait_for=["r1"], delay=100,
               tool_wait_ms=900),
        _block("sub", [9], 50, request_id="c1", wait_for=["r2"]),
        _block("sub", [9, 8], 90, request_id="c2", wait_for=["c1"], tool_wait_ms=40),
        _block("main", [1, 2, 3], 150, request_id="r3", wait_for=["r2", "c2"]),
    ]  # fmt: skip
    path = _write(tmp_path / "agentic.jsonl", rows)
    main, sub = convert(path)
    assert (main.id, main.arrival_s, len(main.turns)) == ("agentic-main", 2.0, 3)
    assert main.turns[0].tools == (ToolCall("tool", 0.9), ToolCall("tool", 0.1))
    assert (sub.parent, sub.spawn_turn, sub.arrival_s) == ("agentic-main", 1, None)
    assert [turn.prompt_tokens for turn in sub.turns] == [50, 90]


def test_dynamo_agentic_version_2(tmp_path: Path) -> None:
    def after(request: str, relation: str, ms: float) -> dict[str, Any]:
        return {"request_id": request, "relation": relation, "delay_ms": ms,
                "trigger": "completion"}  # fmt: skip

    common = {"play_id": "p", "model": "m"}
    rows = [
        {"schema": "dynamo.agentic_mooncake", "version": 2, "block_size": 64,
         "hash_id_scope": "local", "source": {"format": "x", "digest": "y"}},
        _block("main", [1, 2], 100, request_id="r1", not_before_ms=500.0, **common),
        _block("sub", [7], 60, request_id="c1", not_before_ms=0.0,
               dependencies=[after("r1", "spawn", 5.0)], **common),
        _block("main", [1, 2, 3], 140, request_id="r2", not_before_ms=0.0,
               dependencies=[after("r1", "sequence", 250.0)], **common),
    ]  # fmt: skip
    path = _write(tmp_path / "v2.jsonl", rows)
    assert detect(path) == "mooncake-sessions"
    main, sub = convert(path)
    assert (main.arrival_s, main.turns[0].tools) == (0.5, (ToolCall("tool", 0.25),))
    assert (sub.id, sub.parent, sub.spawn_turn) == ("v2-sub", "v2-main", 0)


def test_bailian(tmp_path: Path) -> None:
    def chat(number: int, parent: int, at: float, prompt: int, blocks: list[int]) -> dict[str, Any]:
        return {"chat_id": number, "parent_chat_id": parent, "timestamp": at, "type": "text",
                "input_length": prompt, "output_length": 50, "turn": 1,
                "hash_ids": blocks}  # fmt: skip

    path = _write(
        tmp_path / "qwen.jsonl",
        [
            chat(7, -1, 1.0, 40, [1, 2, 3]),
            chat(9, -1, 2.0, 20, [1, 4]),
            # Both whole blocks of chat 7 and room for its reply: 40 + 50 tokens.
            chat(3, 7, 12.0, 100, [1, 2, 5, 6, 7, 8, 9]),
            # Another go from chat 7: the first block only.
            chat(4, 7, 20.0, 30, [1, 11]),
            # Its parent is not in the file.
            chat(8, 1000, 21.0, 5, [12]),
        ],
    )
    assert detect(path) == "bailian"
    first, second, third = convert(path, settings={"first_token_s": 1, "output_tokens_per_s": 10})
    assert [s.id for s in (first, second, third)] == [
        "bailian-qwen-7",
        "bailian-qwen-9",
        "bailian-qwen-8",
    ]
    one, two, three = (
        Segment(f"bailian-qwen/{block}", tokens, 4 * tokens)
        for block, tokens in ((1, 16), (2, 16), (3, 8))
    )
    assert (first.arrival_s, third.arrival_s) == (1.0, 21.0)
    assert first.turns == (
        # 11 s to the next request, 1 + 50 / 10 s of them the model's.
        TurnSpec(0, 50, shared=(one, two, three), visible=True, wait_s=5.0),
        TurnSpec(10, 50, kept_turn=0, kept_tokens=90, visible=True, wait_s=2.0),
        TurnSpec(14, 50, kept_turn=0, kept_tokens=16, visible=True, compaction=True),
    )
    coder = convert(path, settings={"gaps": "tool"})
    assert coder[0].turns[0].tools[0].name == "tool"
    # 16 of the 20 tokens of chat 9 are chat 7's; then 90, 16 and 0.
    assert trace_stats([first, second, third]).reuse_share == (90 + 16 + 16) / 195


def _round(index: int, prompt: int, cached: int, **fields: Any) -> dict[str, Any]:
    row = {"session_id": "claude:1", "round_index": index, "round_id": f"r{index}",
           "provider": "claude", "input_tokens_total": prompt, "prefix_tokens": cached,
           "newly_append_tokens": prompt - cached, "output_tokens": 30, "timing_events": [],
           "tools": []}  # fmt: skip
    return row | fields


def _event(kind: str, second: float) -> dict[str, Any]:
    return {"event_type": kind, "timestamp": f"2026-06-01T05:40:{second:06.3f}Z"}


def test_tracelab(tmp_path: Path) -> None:
    second = _round(1, 1300, 1000, tools=[{"tool_name": "Write", "tool_wall_latency_ms": 1500}])
    rows = [
        _round(
            0, 1000, 600,
            timing_events=[_event("user_message", 1), _event("text", 5), _event("tool_call", 6)],
            tools=[{"tool_name": "Bash", "result_at": "2026-06-01T05:40:08.500Z"}],
        ),
        _round(0, 10, 0, session_id="codex:2", provider="codex"),
        # The same round twice counts once.
        second,
        second,
        _round(2, 1400, 1300, timing_events=[_event("user_message", 40), _event("text", 41)]),
    ]  # fmt: skip
    path = _write(tmp_path / "t.jsonl", rows)
    assert detect(path) == "tracelab"
    first, other = convert(path)
    assert (first.id, other.id) == ("tracelab-claude:1", "tracelab-codex:2")
    assert first.turns == (
        TurnSpec(400, 30, shared=(Segment("tracelab/claude", 600, 2400),),
                 tools=(ToolCall("Bash", 2.5),)),
        # No times: the tool took what the row says, and nothing is known of a wait.
        TurnSpec(270, 30, kept_turn=0, kept_tokens=1030, tools=(ToolCall("Write", 1.5),)),
        TurnSpec(70, 30, kept_turn=1, kept_tokens=1330, visible=True),
    )  # fmt: skip


def test_abench(tmp_path: Path) -> None:
    def session(name: str, task: str) -> dict[str, Any]:
        first = {"index": 0, "input_delta": [{"role": "user", "content": task}],
                 "input_tokens": 100, "output_tokens": 20, "cached_tokens": 0, "pre_gap_ms": 0.0,
                 "tool_calls": [{"name": "bash"}, {"function": {"name": "edit"}}]}  # fmt: skip
        then = {"index": 1, "input_delta": [{"role": "tool", "content": "12345678"}],
                "input_tokens": 125, "output_tokens": 70, "cached_tokens": 100,
                "pre_gap_ms": 2500.0}  # fmt: skip
        return {"session_id": name, "source": {"dataset": "deepswe"}, "system_prompt": "rules",
                "turns": [first, then]}  # fmt: skip

    path = _write(tmp_path / "data.jsonl", [session("x", "task1"), session("y", "task2")])
    assert detect(path) == detect(tmp_path) == "abench"
    first, second = convert(tmp_path)
    assert (first.id, first.workload) == ("abench-x", "abench-deepswe")
    assert first.turns == (
        # 2.5 s less 70 tokens at 140 tokens/s.
        TurnSpec(100, 20, new_bytes=5, tools=(ToolCall("bash", 2.0),
                                              ToolCall("edit", 2.0, parallel=True))),
        TurnSpec(5, 70, kept_turn=0, kept_tokens=120, new_bytes=8),
    )  # fmt: skip
    # `rulestask` of `rulestask2`: 9 of 10 bytes.
    assert second.turns[0].shared == (Segment("abench/start", 90, 9),)


def test_weka_files_read_as_the_lines_made_of_them(tmp_path: Path) -> None:
    def request(t: float, prompt: int, blocks: list[int], **fields: Any) -> dict[str, Any]:
        row = {"t": t, "type": "s", "model": "m", "in": prompt, "out": 10, "hash_ids": blocks,
               "input_types": ["tool_result"], "stop": "tool_use", "api_time": 1.0}  # fmt: skip
        return row | fields

    trace = {
        "id": "trace_1", "models": ["m"], "block_size": 64, "hash_id_scope": "local",
        "tool_tokens": 50, "system_tokens": 10,
        "requests": [
            request(0.0, 200, [1, 2, 3]),
            {"t": 1.0, "type": "subagent", "agent_id": "agent_001", "subagent_type": "Explore",
             "status": "completed", "models": ["m"], "requests": [request(1.5, 70, [9])]},
            request(30.0, 300, [1, 2, 3, 5], think_time=12.0, stop="end_turn"),
        ],
    }  # fmt: skip
    (tmp_path / "trace_1.json").write_text(json.dumps(trace))
    assert detect(tmp_path) == "weka-files"
    main, sub = convert(tmp_path)
    start = (
        Segment("claude-code/tools-50", 50, 200),
        Segment("claude-code/tools-50-system-10", 10, 40),
    )
    assert main.turns == (
        TurnSpec(140, 10, shared=start, tools=(ToolCall("Task", 12.0),)),
        # All 3 whole blocks of 200 tokens, and room for the reply.
        TurnSpec(90, 10, kept_turn=0, kept_tokens=210, visible=True),
    )
    assert (main.id, sub.parent, sub.spawn_turn) == ("weka-trace_1", "weka-trace_1", 0)


BAD = [
    ("thunderagent", ",".join(HEADER) + "\na,0,1,1,0,0,,1\n", 2, "step_id"),
    ("thunderagent", ",".join(HEADER) + "\na,1,1,x,0,0,,1\n", 2, "decode_s"),
    ("thunderagent", ",".join(HEADER) + "\na,1\n", 2, None),
    ("thunderagent", "a,b\n", 1, None),
    ("mooncake-sessions", '{"session_id":"a","output_length":1}\n', 1, "input_length"),
    ("mooncake-sessions", '{"session_id":"a","input_length":1,"output_length":1,"delay":-1}\n', 1,
     "delay"),
    ("mooncake-sessions", '{"session_id":"a","input_length":0,"output_length":1}\n', None,
     "input_length"),
    ("bailian", '{"chat_id":1,"parent_chat_id":-1,"timestamp":0,"input_length":40,'
     '"output_length":1,"hash_ids":[1]}\n', 1, "hash_ids"),
    ("bailian", '{"chat_id":"x","parent_chat_id":-1}\n', 1, "chat_id"),
    ("tracelab", '{"session_id":"a","round_index":0,"input_tokens_total":5,"prefix_tokens":9}\n',
     1, "prefix_tokens"),
    ("tracelab", '{"session_id":"a","round_index":0,"input_tokens_total":5,"output_tokens":1,'
     '"timing_events":[{"event_type":"text","timestamp":"x"}]}\n', 1, "timing_events[0].timestamp"),
    ("abench", '{"session_id":"a","turns":[]}\n', 1, "turns"),
    ("abench", '{"session_id":"a","turns":[{"input_tokens":1,"output_tokens":1},'
     '{"input_tokens":1,"output_tokens":1,"pre_gap_ms":"x"}]}\n', 1, "turns[1].pre_gap_ms"),
    ("weka-files", '{"requests":[]}', None, "block_size"),
    ("weka-files", '{"block_size":64,"requests":[{"in":-1}]}', None, "requests[0].in"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "line", "field"), BAD)
def test_bad_input_is_named(
    tmp_path: Path, name: str, text: str, line: int | None, field: str | None
) -> None:
    path = tmp_path / "bad"
    path.write_text(text)
    with pytest.raises(TraceError) as caught:
        convert(path, name)
    assert (caught.value.file, caught.value.line, caught.value.field) == (path, line, field)


def test_settings_are_checked(tmp_path: Path) -> None:
    path = _write(tmp_path / "a", [{"session_id": "a", "input_length": 1, "output_length": 1}])
    for settings, words in (
        ({"speed": 1}, "no setting"),
        ({"block_tokens": "x"}, "cannot be"),
        ({"bytes_per_token": 0}, "is 0"),
        ({"prompts": "some"}, "cannot be"),
        ({"delays": "some"}, "cannot be"),
    ):
        with pytest.raises(UsageError, match=words):
            list(read_any(path, settings=settings))
    with pytest.raises(UsageError, match="no settings"):
        convert(path, "mooncake", {"a": 1})


def test_packed_and_unknown_files_are_refused(tmp_path: Path) -> None:
    packed = tmp_path / "data.jsonl.zst"
    packed.write_bytes(b"\x28\xb5\x2f\xfd" + b"\0" * 20)
    with pytest.raises(TraceError, match="zstd"):
        detect(packed)
    with pytest.raises(TraceError, match="zstd"):
        convert(packed, "abench")
    for raw, words in (
        (b"\x7fELF\0\0", "not a text file"),
        (b"\xff\xfe\xfd", "not a text file"),
        (b"\x1f\x8b\x08\0broken", "cannot be read further"),
        (b"[1]", "not a JSON object"),
        (b"", "empty"),
    ):
        packed.write_bytes(raw)
        with pytest.raises(TraceError, match=words):
            detect(packed)
    (tmp_path / "x.jsonl").write_text('{"a":1}\n{"b":2}\n')
    with pytest.raises(TraceError, match="no known trace format"):
        detect(tmp_path / "x.jsonl")
    with pytest.raises(TraceError, match="no recorded session"):
        detect(tmp_path)
