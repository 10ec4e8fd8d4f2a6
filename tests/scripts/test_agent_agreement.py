"""Differences between the gateway's view and agents' logs, on times made by hand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.agent_agreement import (
    ANSWERS,
    ENDS,
    LOGGED,
    STARTS,
    Mark,
    SeenTurn,
    compare_cell,
    compare_session,
    table,
)

MS = 1_000_000
TURNS = [
    SeenTurn(0, 100 * MS, None),
    SeenTurn(500 * MS, 700 * MS, 480 * MS),
]


def test_differences_by_hand() -> None:
    marks = [
        Mark(110 * MS, "tool_started"),
        Mark(200 * MS, "tool_ended"),
        Mark(210 * MS, "tool_started"),
        Mark(480 * MS, "tool_ended"),
        Mark(95 * MS, "answer"),
        Mark(475 * MS, "result"),
        Mark(720 * MS, "tool_started"),  # the last turn's tools: nothing follows them
        Mark(800 * MS, "tool_ended"),
    ]
    assert compare_session(TURNS, marks) == {
        STARTS: [10.0, 20.0],  # 110 - 100, 720 - 700
        ENDS: [20.0],  # 500 - 480: the last of two tools
        ANSWERS: [-5.0],  # 95 - 100: logged before the gateway was done
        LOGGED: [-5.0],  # 475 - 480
    }


def test_turns_that_overlap_say_nothing() -> None:
    turns = [SeenTurn(0, 600 * MS, None), SeenTurn(500 * MS, 700 * MS, None)]
    assert compare_session(turns, [Mark(640 * MS, "tool_started")]) == {}


def test_a_cell_with_logs_of_both_agents(tmp_path: Path) -> None:
    zero = 1_700_000_000 * 10**9
    (tmp_path / "clock.json").write_text(json.dumps({"zero_unix_ns": zero}))
    events = [
        {"session": name, "kind": kind, "time_ns": zero + at * MS}
        for name in ("mini", "cc")
        for kind, at in (("tool_started", 130), ("tool_ended", 470), ("model_ended", 101))
    ]
    lines = "".join(json.dumps(event) + "\n" for event in events)
    (tmp_path / "events.jsonl").write_text(lines)
    mini = tmp_path / "mini" / "task"
    mini.mkdir(parents=True)
    said = [
        {"role": "user", "extra": {}},
        {"role": "assistant", "extra": {"timestamp": 1_700_000_000.104}},
        {"role": "tool", "extra": {"timestamp": 1_700_000_000.472}},
    ]
    (mini / "task.traj.json").write_text(json.dumps({"messages": said}))
    log = tmp_path / "cc" / "trial" / "agent" / "sessions" / "projects" / "-app"
    log.mkdir(parents=True)
    text = [{"type": "text"}], [{"type": "tool_result"}]
    day = "2023-11-14T22:13:20"  # 1,700,000,000 s after 1970
    written = [
        {"type": "queue-operation", "timestamp": f"{day}.001Z"},
        {"type": "user", "timestamp": f"{day}.002Z", "message": {"content": "hi"}},
        {"type": "assistant", "timestamp": f"{day}.106Z", "message": {"content": text[0]}},
        {"type": "user", "timestamp": f"{day}.484Z", "message": {"content": text[1]}},
    ]
    (log / "s.jsonl").write_text("".join(json.dumps(line) + "\n" for line in written))
    steps = [
        {"source": "user", "timestamp": f"{day}.000000+00:00"},
        {"source": "agent", "timestamp": f"{day}.471500+00:00", "tool_calls": [{}]},
        {"source": "agent", "timestamp": f"{day}.800000+00:00"},
    ]
    for name, agent in (("mini", "terminus-2"), ("cc", "claude-code")):
        path = tmp_path / name / "trial" / "agent" / "trajectory.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps({"agent": {"name": agent}, "steps": steps}))
    found = compare_cell({"mini": TURNS, "cc": TURNS, "cc/sub": TURNS}, tmp_path)
    assert (found.turns, found.calls) == (4, 2)
    assert found.gaps_ms[STARTS] == [30.0, 30.0]
    assert found.gaps_ms[ENDS] == [30.0, 30.0]
    assert found.gaps_ms[ANSWERS] == pytest.approx([4.0, 6.0], abs=0.01)
    assert found.gaps_ms[LOGGED] == pytest.approx([-8.0, 4.0], abs=0.01)
    shown = "\n".join(table(found))
    assert "3 at the gateway, 2 of agents, 2 the same" in shown
    assert "| 2 | 30.0 ms | 30.0 ms | 30.0 ms | 100.0% |" in shown
