"""The audit tells what it found, and when it could not look."""

from __future__ import annotations

from pathlib import Path

import pytest

from scripts.audit import main

REPORT = """{"dependencies": [{"name": "a", "version": "1", "vulns": []},
{"name": "b", "version": "2", "vulns": [{"id": "CVE-1", "fix_versions": ["3"]}]}]}"""


def program(folder: Path, script: str) -> str:
    path = folder / "pip-audit"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    return str(path)


def test_what_is_found_fails_the_audit(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report").write_text(REPORT)
    command = program(tmp_path, f'cp {tmp_path}/report "$4"; exit 1')
    assert main(["--command", command]) == 1
    assert "b 2: CVE-1 (fixed in 3)" in capsys.readouterr().out


def test_no_service_is_said_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = program(tmp_path, "echo cannot reach the service >&2; exit 1")
    assert main(["--command", command]) == 0
    assert "no audit was made: cannot reach the service" in capsys.readouterr().err
    assert main(["--command", command, "--strict"]) == 1
    assert main(["--command", str(tmp_path / "absent")]) == 0
