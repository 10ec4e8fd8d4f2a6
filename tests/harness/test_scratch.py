"""Temporary folders go with their makers, at the latest when the next one is made."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from harness.scratch import OWNER, Scratch, sweep
from tests.cli.command import ROOT, environment

MAKER = """
import sys
from harness.scratch import Scratch
scratch = Scratch("test")
(scratch.path / "kept").mkdir()
print(scratch.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_the_folder_of_a_killed_process_is_swept(tmp_path: Path) -> None:
    maker = subprocess.Popen(
        [sys.executable, "-c", MAKER],
        cwd=ROOT,
        env={**environment(), "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert maker.stdout is not None
    folder = Path(maker.stdout.readline().strip())
    assert folder.parent == tmp_path
    assert sweep() == []  # it lives
    maker.kill()
    maker.communicate()
    with Scratch("next") as other:
        assert not folder.exists()
        assert sweep() == []
        assert other.stat().st_mode & 0o077 == 0
    assert list(tmp_path.iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    plain = tmp_path / "agentsched-recording-1"
    plain.mkdir()
    (tmp_path / "agentsched-file").write_text("")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (elsewhere / OWNER).write_text("1\n")
    (tmp_path / "agentsched-link").symlink_to(elsewhere)
    linked = tmp_path / "agentsched-owner"
    linked.mkdir()
    (linked / OWNER).symlink_to(elsewhere / OWNER)
    assert sweep() == []
    assert (elsewhere / OWNER).exists()
    assert plain.exists()


def test_closing_twice(tmp_path: Path) -> None:
    scratch = Scratch()
    scratch.close()
    scratch.close()
    assert list(tmp_path.iterdir()) == []
