"""Tools that a response starts, in every form that agents use."""

from __future__ import annotations

from harness.live.tool_signals import ToolCallParts, signals
from schedulers.tool_commands import StatedTime, stated_time
from schedulers.types import ToolSignal


def test_calls_of_the_api_come_first() -> None:
    calls = [
        ToolCallParts("1", "bash", '{"command": "sleep 5"}'),
        ToolCallParts("2", "read", ""),
    ]
    found = signals(calls, "```bash\nls\n```")
    assert found == (ToolSignal("bash", '{"command": "sleep 5"}'), ToolSignal("read", None))
    assert stated_time(found[0]) == StatedTime(5.0)


def test_the_fenced_block_of_mini_swe_agent() -> None:
    for fence in ("bash", "mswea_bash_command", "sh"):
        text = f"THOUGHT: look\n\n```{fence}\nsleep 2 && ls\n```\n"
        assert signals([], text) == (ToolSignal("bash", "sleep 2 && ls"),)
    # Two blocks are a mistake that the agent sends back to the model without running anything.
    assert signals([], "```bash\nls\n```\n```bash\npwd\n```") == ()
    assert signals([], "```python\nprint(1)\n```") == ()


def test_terminus_states_its_waits() -> None:
    text = (
        'I will build.\n{"analysis": "a", "plan": "p", "commands": ['
        '{"keystrokes": "make\\n", "duration": 30.0}, {"keystrokes": "ls\\n"}]}'
    )
    # 30 s, and 1 s where the model names none.
    assert signals([], text) == (ToolSignal("terminal", "make\nls\n", 31.0),)
    xml = '<commands><keystrokes duration="0.5">ls\n</keystrokes><keystrokes>x</keystrokes>'
    assert signals([], xml) == (ToolSignal("terminal", "ls\nx", 1.5),)


def test_plain_and_broken_answers_start_nothing() -> None:
    assert signals([], "All done.") == ()
    assert signals([], '{"commands": [{"keystrokes": ') == ()
    assert signals([], '{"commands": "keystrokes"} "keystrokes"') == ()
    assert signals([], '{"commands": [{"keystrokes": 5, "duration": 1}]}') == ()
