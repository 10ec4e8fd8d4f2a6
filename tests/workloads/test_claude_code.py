"""Claude Code logs: the turns of a hand-made log, and the tree of its sub-agents."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from agentsched import TraceError
from tests.workloads import claude_code_log as log
from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.readers.claude_code import ClaudeCodeSettings, read_claude_code
from workloads.readers.convert import convert, detect
from workloads.trace import read_trace, write_trace

NAME = f"claude-code-{log.SESSION}"


def _tree(sessions: list[Session]) -> list[tuple[int, str | None, int | None]]:
    """(turns, parent's turns as a name for it, turn of the parent)"""
    turns = {session.id: str(len(session.turns)) for session in sessions}
    return [(len(s.turns), turns[s.parent] if s.parent else None, s.spawn_turn) for s in sessions]


def test_turns_of_a_log(tmp_path: Path) -> None:
    main, counter, again = read_claude_code(log.write_log(tmp_path))
    assert (main.id, main.parent, main.workload) == (NAME, None, "claude-code")
    assert main.turns == (
        # 1,000 + 9,000 tokens, of which 9,000 were cached at the start. The reply ends at 6.0 s;
        # its calls at 8.5 and 30 s.
        TurnSpec(
            1000, 80, shared=(Segment("claude-code/2.1.0/main", 9000, 36000),),
            tools=(ToolCall("bash:sleep", 2.5), ToolCall("Task", 24.0, parallel=True)),
        ),
        # 10,120 = 10,000 + 80 kept + 40 new. The person comes 57 s after the reply at 33 s.
        TurnSpec(40, 40, kept_turn=0, kept_tokens=10080, visible=True, wait_s=57.0),
        # 10,210 = 10,120 + 40 kept + 50 new; the summary comes 0.75 s after the result.
        TurnSpec(50, 30, kept_turn=1, kept_tokens=10160, tools=(ToolCall("Read", 0.25),),
                 wait_s=0.75),
        # A compaction: of 8,000 tokens the 6,000 that the cache served were kept.
        TurnSpec(2000, 20, kept_turn=2, kept_tokens=6000, visible=True, compaction=True),
    )  # fmt: skip
    assert (counter.id, counter.parent, counter.spawn_turn) == (f"{NAME}/a1", NAME, 0)
    assert counter.turns[0].tools == (
        ToolCall("bash:wc", 0.5),
        ToolCall("Task", 18.0, parallel=True),
    )
    assert (again.id, again.parent, again.spawn_turn) == (f"{NAME}/a2", f"{NAME}/a1", 0)


@pytest.mark.parametrize("write", [log.write_log, log.write_log_beside, log.write_log_in_one_file])
def test_every_layout_gives_the_same_tree(tmp_path: Path, write: Callable[[Path], Path]) -> None:
    write(tmp_path)
    assert detect(tmp_path) == "claude-code"
    sessions = convert(tmp_path)
    assert _tree(sessions) == [(4, None, None), (2, "4", 0), (1, "2", 0)]
    trace = tmp_path / "trace.jsonl"
    write_trace(trace, sessions)
    assert list(read_trace(trace)) == sessions


def test_a_sub_agent_nothing_points_to_hangs_on_the_last_turn_before_it(tmp_path: Path) -> None:
    file = log.write_log(tmp_path)
    late = [
        log.person("01:35.000", "unknown", "a9"),
        log.reply("01:36.000", "z", log.usage(5, 0, 0, 1), log.text("x"), "a9"),
    ]
    log.lines(file.parent / log.SESSION / "subagents" / "agent-a9.jsonl", late)
    found = {s.id: s for s in read_claude_code(file)}[f"{NAME}/a9"]
    # Turns 0 to 2 had ended at 1:35; turn 3 had not.
    assert (found.parent, found.spawn_turn) == (NAME, 2)


def test_at_most_so_much_is_taken_to_be_shared(tmp_path: Path) -> None:
    file = log.write_log(tmp_path)
    main, *_ = read_claude_code(file, ClaudeCodeSettings(shared_tokens=300))
    assert main.turns[0].shared[0].tokens == 300
    main, *_ = read_claude_code(file, ClaudeCodeSettings(shared_tokens=0))
    assert (main.turns[0].shared, main.turns[0].new_tokens) == ((), 10000)


def test_bad_logs_are_named(tmp_path: Path) -> None:
    bad = log.reply("00:01.000", "m", {"input_tokens": -1}, log.text("x"))
    file = log.lines(tmp_path / "s.jsonl", [log.person("00:00.000", "hi"), bad])
    with pytest.raises(TraceError) as caught:
        list(read_claude_code(file))
    assert (caught.value.line, caught.value.field) == (2, "message.usage.input_tokens")
    bad = log.person("00:00.000", "hi") | {"timestamp": "yesterday"}
    with pytest.raises(TraceError, match="not a time"):
        list(read_claude_code(log.lines(tmp_path / "t.jsonl", [bad])))
    empty = log.lines(tmp_path / "u.jsonl", [log.person("00:00.000", "hi")])
    with pytest.raises(TraceError, match="no model call"):
        list(read_claude_code(empty))
