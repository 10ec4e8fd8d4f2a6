"""Known vulnerabilities of what is installed, by pip-audit; says so where it cannot be had.

python -m scripts.audit [--strict]

Exit status 1 if one is found; 0, with a message, if the audit cannot be made here (no pip-audit,
or its service cannot be reached), unless --strict.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

LIMIT_S = 300


def found_in(report: Any) -> list[str]:
    """One line for each vulnerability of a pip-audit report."""
    return [
        f"{package['name']} {package.get('version', '?')}: {each['id']}"
        + (f" (fixed in {', '.join(each['fix_versions'])})" if each.get("fix_versions") else "")
        for package in report["dependencies"]
        for each in package.get("vulns", ())
    ]


def audit(command: Sequence[str]) -> tuple[list[str] | None, str]:
    """What the audit found; None and why if it could not be made."""
    if shutil.which(command[0]) is None:
        return None, f"{command[0]} is not installed (pip install pip-audit)"
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "report.json"
        arguments = ["--format", "json", "--output", str(out), "--skip-editable"]
        try:
            done = subprocess.run(
                [*command, *arguments, "--progress-spinner", "off"],
                capture_output=True,
                text=True,
                timeout=LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return None, f"no answer in {LIMIT_S} s"
        try:
            return found_in(json.loads(out.read_text("utf-8"))), ""
        except (OSError, ValueError, KeyError):
            said = done.stderr.strip().splitlines()
            return None, said[-1] if said else f"exit status {done.returncode}"


def main(given: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--strict", action="store_true", help="fail where no audit can be made")
    parser.add_argument("--command", default=str(Path(sys.executable).with_name("pip-audit")))
    options = parser.parse_args(given)
    found, why = audit([options.command])
    if found is None:
        print(f"no audit was made: {why}", file=sys.stderr)
        return 1 if options.strict else 0
    for line in found:
        print(line)
    print(f"{len(found)} known vulnerabilities in what is installed")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
