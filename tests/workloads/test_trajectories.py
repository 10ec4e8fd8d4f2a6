"""Trajectories of mini-swe-agent and Harbor: small hand-made files, answers worked out by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentsched import TraceError
from workloads.model import Segment, ToolCall, TurnSpec
from workloads.readers.convert import convert, detect
from workloads.readers.documents import command_name, stated_sleep
from workloads.readers.mini_swe_agent import MiniSettings, read_mini_swe_agent


def _document(path: Path, value: dict[str, Any]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=2))
    return path


def _mini(task: str, *, usage: bool = True) -> dict[str, Any]:
    def used(prompt: int, output: int, cached: int) -> dict[str, Any]:
        details = {"cached_tokens": cached}
        counts = {"prompt_tokens": prompt, "completion_tokens": output}
        return {"usage": counts | {"prompt_tokens_details": details}} if usage else {}

    def reply(at: float, commands: list[str], response: dict[str, Any]) -> dict[str, Any]:
        extra = {"actions": [{"command": c} for c in commands], "timestamp": at}
        return {"role": "assistant", "content": "go!", "extra": extra | {"response": response}}

    return {
        "info": {"exit_status": "Submitted"},
        "messages": [
            {"role": "system", "content": "You are an agent."},
            {"role": "user", "content": f"Please: {task}"},
            reply(100.0, ["cd /src && pytest -q", "sleep 3"], used(200, 20, 0)),
            {"role": "tool", "content": "1 passed", "extra": {"timestamp": 109.0}},
            {"role": "tool", "content": "", "extra": {"timestamp": 109.0}},
            # A reply that could not be parsed: only the complaint is in the conversation.
            {
                "role": "user",
                "content": "No call!",
                "extra": {"interrupt_type": "FormatError", "response": used(250, 7, 200)},
            },
            reply(120.0, ["echo done"], used(290, 9, 240)),
            {"role": "exit", "content": "", "extra": {}},
        ],
        "trajectory_format": "mini-swe-agent-1.1",
    }


def test_mini_swe_agent(tmp_path: Path) -> None:
    _document(tmp_path / "run" / "a-1" / "a-1.traj.json", _mini("fix a"))
    _document(tmp_path / "run" / "b-2" / "b-2.traj.json", _mini("fix b"))
    assert detect(tmp_path) == "mini-swe-agent"
    first, second = convert(tmp_path)
    assert (first.id, first.workload) == ("mini-swe-agent-run/a-1", "mini-swe-agent")
    assert first.turns == (
        # 17 + 13 bytes of text. 9 s for both commands.
        TurnSpec(200, 20, new_bytes=30,
                 tools=(ToolCall("bash:pytest", 4.5), ToolCall("bash:sleep", 4.5, hint_s=3.0))),
        # 250 = 200 + 20 kept + 30.
        TurnSpec(30, 7, kept_turn=0, kept_tokens=220, new_bytes=8),
        # The unparsed reply did not come back: 250 kept, 40 new, of 8 bytes.
        TurnSpec(40, 9, kept_turn=1, kept_tokens=250, new_bytes=8),
    )  # fmt: skip
    # Of 30 bytes 29 are alike: 200 * 29 // 30 = 193 tokens.
    assert second.turns[0].shared == (Segment("mini-swe-agent/template", 193, 29),)
    assert second.turns[0].new_tokens == 7


def test_mini_swe_agent_without_usage_counts_texts(tmp_path: Path) -> None:
    path = _document(tmp_path / "a.traj.json", _mini("fix a", usage=False))
    (session,) = read_mini_swe_agent(path, MiniSettings(bytes_per_token=2.0))
    # Texts of 30, 3, 8, 8 and 3 bytes: prompts of 30, 30 + 3 + 8 = 41 and 41 + 8 = 49 bytes, 2
    # bytes a token, halves to even.
    assert [turn.prompt_tokens for turn in session.turns] == [15, 20, 24]
    assert [turn.output_tokens for turn in session.turns] == [2, 4, 2]


def test_files_that_are_no_trajectories_are_named(tmp_path: Path) -> None:
    bad = _mini("fix a")
    bad["messages"][2]["extra"]["response"]["usage"]["prompt_tokens"] = -5
    path = _document(tmp_path / "a.traj.json", bad)
    with pytest.raises(TraceError) as caught:
        convert(path)
    assert caught.value.file == path
    assert caught.value.field == "messages[2].extra.response.usage.prompt_tokens"
    silent = _document(tmp_path / "b.traj.json", {"messages": [], "trajectory_format": "x"})
    with pytest.raises(TraceError, match="never called"):
        convert(silent, "mini-swe-agent")
    cut = tmp_path / "c.traj.json"
    cut.write_text('{"messages": [\n1')
    with pytest.raises(TraceError, match="not JSON") as caught:
        convert(cut, "mini-swe-agent")
    assert caught.value.line == 2
    empty = tmp_path / "none"
    empty.mkdir()
    with pytest.raises(TraceError, match=r"no \*\.traj\.json"):
        convert(empty, "mini-swe-agent")


def _step(number: int, at: str, source: str = "agent", **fields: Any) -> dict[str, Any]:
    step = {"step_id": number, "timestamp": f"2026-03-01T10:00:{at}+00:00", "source": source}
    return step | {"message": "..."} | fields


def _metrics(prompt: int, output: int) -> dict[str, int]:
    return {"prompt_tokens": prompt, "completion_tokens": output}


def _keys(text: str, duration: float) -> dict[str, Any]:
    arguments = {"keystrokes": text, "duration": duration}
    return {"tool_call_id": text, "function_name": "bash_command", "arguments": arguments}


TERMINUS: dict[str, Any] = {
    "schema_version": "ATIF-v1.8",
    "session_id": "s",
    "agent": {"name": "terminus-2", "version": "2.0"},
    "steps": [
        _step(1, "00", "user", message="Do it."),
        _step(2, "10", metrics=_metrics(900, 100),
              tool_calls=[_keys("ls\n", 1.0), _keys("make\n", 3.0)]),
        _step(3, "30", metrics=_metrics(1200, 50), tool_calls=[_keys("cat x\n", 0.5)],
              observation={"results": [{"subagent_trajectory_ref": [{"trajectory_id": "sum"}]}]}),
        _step(4, "40", is_copied_context=True, metrics=_metrics(5, 5)),
        _step(5, "50", metrics=_metrics(400, 60)),
    ],
    "subagent_trajectories": [
        {
            "schema_version": "ATIF-v1.8",
            "trajectory_id": "sum",
            "agent": {"name": "terminus-2-summary", "version": "2.0"},
            "steps": [_step(1, "31", metrics=_metrics(1300, 200))],
        }
    ],
}  # fmt: skip
RESULT: dict[str, Any] = {
    "trial_name": "hello__1",
    "environment_setup": {"started_at": "2026-03-01T09:59:00Z",
                          "finished_at": "2026-03-01T09:59:30Z"},
    "agent_setup": {"started_at": "2026-03-01T09:59:30Z", "finished_at": "2026-03-01T09:59:42.5Z"},
    "agent_execution": {"started_at": "2026-03-01T10:00:00Z"},
    "agent_result": {"metadata": {"api_request_times_msec": [2000.0, 4000.0, 1000.0]}},
}  # fmt: skip


def test_atif_of_terminus_with_recorded_call_times(tmp_path: Path) -> None:
    _document(tmp_path / "hello__1" / "agent" / "trajectory.json", TERMINUS)
    _document(tmp_path / "hello__1" / "result.json", RESULT)
    assert detect(tmp_path) == "atif"
    session, summary = convert(tmp_path)
    assert (session.id, session.workload) == ("harbor-hello__1", "harbor-terminus-2")
    assert session.setup_s == 42.5
    assert session.turns == (
        # 10 s since the agent began, 2 s of them the model's: 8 s, shared as 1 to 3.
        TurnSpec(900, 100, tools=(ToolCall("bash:ls", 2.0, hint_s=1.0),
                                  ToolCall("bash:make", 6.0, hint_s=3.0))),
        # 20 s, 4 s of them the model's. 1,200 = 900 + 100 kept + 200.
        TurnSpec(200, 50, kept_turn=0, kept_tokens=1000,
                 tools=(ToolCall("bash:cat", 16.0, hint_s=0.5),)),
        # Summarised: nothing says what was kept.
        TurnSpec(400, 60, compaction=True),
    )  # fmt: skip
    assert (summary.parent, summary.spawn_turn) == (session.id, 1)
    assert summary.turns == (TurnSpec(1300, 200),)


def test_atif_of_others_splits_the_time_between_replies(tmp_path: Path) -> None:
    bash = {"tool_call_id": "1", "function_name": "Bash", "arguments": {"command": "git log"}}
    edit = {"tool_call_id": "2", "function_name": "Edit", "arguments": {}}
    path = _document(
        tmp_path / "trajectory.json",
        {
            "schema_version": "ATIF-v1.7",
            "session_id": "cc",
            "agent": {"name": "claude-code", "version": "2"},
            "steps": [
                _step(1, "00", "user", message="Do it."),
                _step(2, "05", metrics=_metrics(900, 100), tool_calls=[bash]),
                # A second call of the same reply, without metrics of its own.
                _step(3, "06", tool_calls=[edit]),
                _step(4, "12", metrics=_metrics(1100, 150)),
            ],
        },
    )
    (session,) = convert(path, settings={"first_token_s": 0.5, "output_tokens_per_s": 100})
    # From 6 s to 12 s, less 0.5 + 150 / 100 s of the next reply.
    assert session.turns[0].tools == (
        ToolCall("bash:git", 4.0),
        ToolCall("Edit", 4.0, parallel=True),
    )
    assert session.turns[1] == TurnSpec(100, 150, kept_turn=0, kept_tokens=1000)


def test_atif_continued_in_another_file_is_one_session(tmp_path: Path) -> None:
    first = TERMINUS | {"continued_trajectory_ref": "trajectory.cont-1.json"}
    _document(tmp_path / "trajectory.json", first)
    more = {**TERMINUS, "steps": [_step(1, "55", metrics=_metrics(500, 10))]}
    _document(tmp_path / "trajectory.cont-1.json", more)
    session, _ = convert(tmp_path / "trajectory.json")
    assert [turn.prompt_tokens for turn in session.turns] == [900, 1200, 400, 500]
    (tmp_path / "trajectory.cont-1.json").unlink()
    with pytest.raises(TraceError, match="no such file"):
        convert(tmp_path / "trajectory.json")


def test_trials_of_a_folder_are_named_by_their_place_and_failed_ones_left_out(
    tmp_path: Path,
) -> None:
    for task in ("a", "b", "c"):
        steps = TERMINUS["steps"] if task != "b" else [_step(1, "00", "user")]
        plain = {**TERMINUS, "steps": steps, "subagent_trajectories": []}
        _document(tmp_path / task / "trial" / "agent" / "trajectory.json", plain)
        _document(tmp_path / task / "trial" / "result.json", RESULT | {"trial_name": "trial"})
    assert [s.id for s in convert(tmp_path)] == ["harbor-a/trial", "harbor-c/trial"]


def test_bad_atif_is_named(tmp_path: Path) -> None:
    wrong = json.loads(json.dumps(TERMINUS))
    wrong["steps"][1]["timestamp"] = "soon"
    path = _document(tmp_path / "trajectory.json", wrong)
    with pytest.raises(TraceError) as caught:
        convert(path)
    assert (caught.value.file, caught.value.field) == (path, "steps[1].timestamp")
    _document(path, TERMINUS | {"steps": [_step(1, "00", "user")]})
    for place in (path, tmp_path):
        with pytest.raises(TraceError, match="prompt_tokens"):
            convert(place, "atif")
    _document(path, {"schema_version": "1", "steps": [], "agent": {}})
    with pytest.raises(TraceError, match="not an ATIF"):
        convert(path)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("cd /testbed && python -m pytest", "bash:python"),
        ("timeout 60 /usr/bin/git log | head", "bash:git"),
        ("FOO=1 make -j4", "bash:make"),
        ("export A=1; ls", "bash:ls"),
        ("cat <<'EOF' > x.py", "bash:cat"),
        ("", "bash"),
    ],
)
def test_commands_are_named_by_their_program(command: str, name: str) -> None:
    assert command_name(command) == name


def test_only_a_leading_sleep_states_a_time() -> None:
    assert stated_sleep("sleep 5") == 5.0
    assert stated_sleep("sleep 1.5 && ls") == 1.5
    assert stated_sleep("ls; sleep 5") is None
    assert stated_sleep("sleep $N") is None
