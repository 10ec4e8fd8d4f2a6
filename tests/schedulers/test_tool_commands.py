"""Durations read off tool calls."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from schedulers.tool_commands import NOTHING, StatedTime, command_time, duration_s, stated_time
from schedulers.types import ToolSignal


@pytest.mark.parametrize(
    ("command", "seconds"),
    [
        ("sleep 5", 5),
        ("sleep 2m", 120),
        ("sleep 0.5", 0.5),
        ("sleep .5s", 0.5),
        ("sleep 1h", 3600),
        ("sleep 1m 30s", 90),  # sleep(1) adds its arguments
        ("/bin/sleep 3", 3),
        ("sleep 5 && sleep 2", 7),
        ("sleep 5; sleep 2", 7),
        ("sleep 5\nsleep 2", 7),
        ("cd /repo && sleep 5 && git status", 5),
        ("sleep 5 || sleep 60", 5),  # the right side runs only if the left one fails
        ("true || sleep 60 && sleep 5", 5),
        ("sleep 5 | cat", 5),
        ("sleep 5 | sleep 8", 8),
        ("sleep 60 & sleep 1", 1),  # in the background: nobody waits
        ("make && sleep 60 & sleep 1", 1),
        ("sleep 5 > /dev/null 2>&1", 5),
        ("sleep 5 &> log", 5),
        ("A=1 sudo sleep 4", 4),
        ("time sleep 4", 4),
        ("sleep '5'", 5),
        ('bash -c "sleep 5; sleep 1"', 6),
        ("bash -lc 'sleep 5'", 5),
        ("sleep 5 # wait for the server\nsleep 1", 6),
        ("sleep \\\n 5", 5),
        ("timeout 10 sleep 60", 10),
        ("timeout 10 sleep 3", 3),
        ("timeout -k 5 10 sleep 60", 10),
        ("timeout --signal=KILL 10s sleep 60", 10),
        ("timeout 0 sleep 60", 60),
        ("sleep 0", 0),
    ],
)
def test_commands_that_state_their_length(command: str, seconds: float) -> None:
    assert command_time(command) == StatedTime(seconds)


@pytest.mark.parametrize(
    "command",
    [
        "",
        "ls -la",
        'echo "sleep 5"',
        "echo sleep 5",
        "echo ';' sleep 5",
        "sleep",
        "sleep $N",
        "sleep infinity",
        "for i in 1 2 3; do sleep 1; done",
        "while true; do sleep 1; done",
        "if true; then sleep 5; fi",
        "sleep $(cat delay)",
        "cat <<EOF\nsleep 5\nEOF",
        "(sleep 5; ls)",
        "sleep 5 & wait",
        "sleep 5 & ",
        "sleep '5",
        'sleep "5',
        "grep sleep file.py",
        "timeout",
    ],
)
def test_commands_that_state_nothing(command: str) -> None:
    assert command_time(command) == NOTHING


def test_timeout_of_something_else_is_a_limit() -> None:
    assert command_time("timeout 10 pytest -q") == StatedTime(None, 10)
    assert command_time("cd /x && timeout 2m make") == StatedTime(None, 120)
    # 5 s for certain, and at most 60 more.
    assert command_time("sleep 5; timeout 60 make") == StatedTime(5, 65)
    assert command_time("timeout 20 timeout 10 make") == StatedTime(None, 10)


def test_arguments_as_json() -> None:
    assert stated_time(ToolSignal("bash", '{"command": "sleep 5"}')) == StatedTime(5)
    assert stated_time(ToolSignal("keys", '{"keystrokes": "make\\n", "duration": 15}')) == (
        StatedTime(15)
    )
    batch = '{"commands": [{"keystrokes": "a", "duration": 0.1}, {"duration": 2}]}'
    assert stated_time(ToolSignal("terminus", batch)) == StatedTime(2.1)
    assert stated_time(ToolSignal("terminus", '{"commands": [{"keystrokes": "a"}]}')) == NOTHING
    assert stated_time(ToolSignal("bash", '{"command": "sleep')) == NOTHING
    assert stated_time(ToolSignal("x", '{"duration": -1}')) == NOTHING
    assert stated_time(ToolSignal("x", '{"duration": true}')) == NOTHING


def test_a_stated_duration_wins_over_the_command() -> None:
    assert stated_time(ToolSignal("bash", "sleep 5", hint_s=2.0)) == StatedTime(2.0)
    assert stated_time(ToolSignal("bash")) == NOTHING


def test_durations() -> None:
    assert duration_s("1.5m") == 90
    assert duration_s("1e3") is None
    assert duration_s("5 ") is None
    assert duration_s("9" * 400) is None
    assert stated_time(ToolSignal("x", '{"a":' + "[" * 15_000)) == NOTHING


@settings(max_examples=400, deadline=None)
@given(st.text(alphabet="sleptimou 15.;&|<>()\"'\\$`#\n{}-", max_size=60))
def test_any_text_gives_an_answer(text: str) -> None:
    result = command_time(text)
    assert result.duration_s is None or result.duration_s >= 0
    assert result.limit_s is None or result.limit_s >= (result.duration_s or 0)
