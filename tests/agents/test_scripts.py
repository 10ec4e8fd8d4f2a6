"""Scripts of the emulator: whose answers a conversation gets."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from agentsched import InputError
from harness.live.dialect import Reading
from harness.live.emulated_answers import Script, ScriptLine, plan_answer, read_script
from harness.live.openai_chat import ChatCompletions

SCRIPT = [
    ScriptLine("anybody 0"),
    ScriptLine("red 0", task="the red task"),
    ScriptLine("red 1", task="the red task"),
    ScriptLine("blue 0", task="blue"),
    ScriptLine("bluer 0", task="blue and bluer"),
]


def reading(*texts: str) -> Reading:
    """A conversation: system, user, then answers and results in turn."""
    roles = ["system", "user", *(["assistant", "user"] * len(texts))]
    messages = [{"role": r, "content": t} for r, t in zip(roles, texts, strict=False)]
    body = {"model": "m", "messages": messages}
    return ChatCompletions().read(body, json.dumps(body).encode())


def answer(script: Script | None, *texts: str) -> str:
    return plan_answer(reading(*texts), 10, 1000, default=4, script=script, seed="s").text


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("be good", "do the red task now"), "red 0"),
        (("be good", "do the red task now", "red 0", "blue came out"), "red 1"),
        (("be good", "do the red task now", "red 0", "x", "red 1", "y"), "red 1"),
        (("be good", "do blue and bluer"), "bluer 0"),
        (("be good", "something else"), "anybody 0"),
        (("be good", "something else", "the red task", "go on"), "anybody 0"),
        (("be good", "something else", "hm", "do blue"), "blue 0"),
    ],
)
def test_the_first_prompt_that_names_a_task_decides(texts: tuple[str, ...], expected: str) -> None:
    assert answer(SCRIPT, *texts) == expected


def test_a_task_that_no_line_is_for_gets_made_up_words() -> None:
    assert answer(SCRIPT[1:], "be good", "something else") == answer(
        None, "be good", "something else"
    )


def test_task_must_be_text(tmp_path: Path) -> None:
    file = tmp_path / "s.jsonl"
    file.write_text('{"content": "a"}\n{"content": "b", "task": 3}\n')
    with pytest.raises(InputError, match="line 2: `task` must be text"):
        read_script(file)
