"""The example of CONTRIBUTING.md is complete: it runs as it stands there."""

from __future__ import annotations

import re
from pathlib import Path

from tests.cli.command import agentsched, tiny_spec

ROOT = Path(__file__).resolve().parents[2]


def example() -> str:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    return str(block)


def test_the_example_runs_and_takes_its_setting(tmp_path: Path) -> None:
    file = tmp_path / "loyal.py"
    file.write_text(example(), encoding="utf-8")
    spec = tiny_spec(tmp_path)
    done = agentsched(
        *("run", spec, "--scheduler", f"{file}:Loyal", "--scheduler", "round-robin"),
        *("--set", "scheduler_settings.loyal.slack=8", "-o", "out"),
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "loyal" in agentsched("report", "out", cwd=tmp_path).stdout


def test_the_example_refuses_a_wrong_setting(tmp_path: Path) -> None:
    file = tmp_path / "loyal.py"
    file.write_text(example(), encoding="utf-8")
    done = agentsched(
        *("run", tiny_spec(tmp_path), "--scheduler", f"{file}:Loyal"),
        *("--set", "scheduler_settings.loyal.slack=-1", "--dry-run"),
        cwd=tmp_path,
    )
    assert done.returncode == 2
    assert "slack must not be negative" in done.stderr
