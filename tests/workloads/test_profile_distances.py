"""The script that holds generated profiles against recordings."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from scripts.profile_distances import BEGIN, END, main
from workloads.profiles.generate import generate


def _recordings(folder: Path) -> list[str]:
    """Two recordings, small: one session of mini-swe-agent, two rows of AutomationBench."""
    lmcache = folder / "lmcache"
    lmcache.mkdir()
    rows = [
        {"workload": "mini-swe-agent", "session": "s", "turn": turn, "t": 2.0 * turn,
         "input_tokens": 1500 + 400 * turn, "shared_prefix_tokens": 1500 * (turn > 0),
         "output_tokens": 90, "logged_input_tokens": 1}
        for turn in range(3)
    ]  # fmt: skip
    (lmcache / "turns.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    office = folder / "office"
    office.mkdir()
    (office / "sessions.csv").write_text(
        "model,num_model_calls,num_tool_calls,input_tokens,output_tokens,tool_time_s\n"
        "Qwen3.6-27B,4,8,40000,1200,0.1\n"
        "another,1,1,1,1,1\n"
    )
    return ["--lmcache", str(lmcache), "--automationbench", str(office)]


def test_tables_go_between_the_marks_of_a_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "scripts.profile_distances.generate",
        lambda name, sessions, seed: generate(name, sessions=20, seed=seed),
    )
    arguments = _recordings(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}\nold\n{END}\nafter\n")
    assert main([*arguments, "--page", str(page)]) == 0
    text = page.read_text()
    assert text.startswith(f"before\n{BEGIN}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "old" not in text
    assert "against 1 recorded runs" in text
    # The recorded session has 3 turns, generated ones have more: nearly 1 apart.
    row = next(line for line in text.splitlines() if line.startswith("| turns a session |"))
    assert row.endswith("| 3 / 3 |")
    assert main(arguments) == 0
    assert "| prompt a turn, mean of a session |" in capsys.readouterr().out


def test_bad_folders_and_pages_are_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["--mooncake", str(tmp_path)]) == 2
    assert "has no conversation_trace" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main([])
    assert "at least one recording" in capsys.readouterr().err
