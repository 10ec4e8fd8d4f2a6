"""Whatever comes from the network or the disk, it is read or refused; nothing else happens."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given, settings

from tests.cli.command import ROOT, environment
from tests.fuzz.inputs import INPUTS
from tests.fuzz.readers import CORPUS, READERS
from tests.fuzz.run import with_hypothesis

EXAMPLES = {"http": 200, "request": 250, "sse": 150, "trace": 60, "spec": 80}


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_what_once_failed(path: Path, tmp_path: Path) -> None:
    READERS[path.parent.name](path.read_bytes(), tmp_path)


@pytest.mark.parametrize("name", sorted(READERS))
def test_inputs_that_are_made_up(name: str, tmp_path: Path) -> None:
    @settings(max_examples=EXAMPLES[name], deadline=None)
    @given(INPUTS[name])
    def read(data: bytes) -> None:
        READERS[name](data, tmp_path)

    read()


def test_an_input_that_fails_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The smallest one that hypothesis finds: a zero byte is among the headers."""

    def picky(data: bytes, folder: Path) -> None:
        assert b"\x00" not in data

    monkeypatch.setitem(READERS, "http", picky)
    kept = with_hypothesis("http", 30.0, tmp_path, seed=1)
    assert kept is not None
    assert kept.parent == tmp_path / "http"
    assert kept.read_bytes() == b"\x00"


def test_the_script_tells_what_it_did(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.fuzz.run", "sse", "--seconds", "1", "--keep", str(tmp_path)],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "sse: nothing failed" in done.stdout
    assert list(tmp_path.iterdir()) == []
