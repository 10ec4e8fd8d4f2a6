"""An engine's own scheduler, step by step: runs the test that holds ours against it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from agentsched import UsageError
from harness.validation.findings import Bound, Finding, Table


@dataclass(frozen=True, slots=True)
class Stepwise:
    """`package` has to be importable by the Python that `variable` names, or else by this one."""

    name: str
    title: str
    about: str
    what: str
    package: str
    variable: str
    test: Path
    install: str


def stepwise_finding(against: Stepwise, root: Path | None = None) -> Finding:
    """Run the test; skipped, with a reason, without the package or outside a checkout.

    Args:
        root: of the checkout; None: where this package lies.

    Raises:
        UsageError: the variable names no file.
    """
    root = root or Path(__file__).parents[2]
    name, title, about, variable = against.name, against.title, against.about, against.variable
    if not (root / against.test).is_file():
        reason = f"{against.test} is not there; run it in a checkout of the project"
        return Finding(name, title, about, skipped=reason)
    python = os.environ.get(variable, sys.executable)
    if not Path(python).is_file():
        raise UsageError(f"{variable} names {python}, which is no file", "correct it")
    probe = f"import importlib.util as u, sys; sys.exit(u.find_spec('{against.package}') is None)"
    if subprocess.run([python, "-c", probe], capture_output=True, check=False).returncode:
        reason = f"{against.package} is not installed. {against.install} in {variable}"
        return Finding(name, title, about, skipped=reason)
    test = str(against.test)
    command = [python, "-m", "pytest", "-q", "--no-header", "-p", "no:cacheprovider", test]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    passed, failed = _count(done.stdout, "passed"), _count(done.stdout, "failed")
    failed += _count(done.stdout, "errors?")
    if done.returncode and not failed:
        failed = 1
    table = Table(
        "Workloads",
        ("what", "workloads", "equal at every step", "not equal"),
        ((against.what, str(passed + failed), str(passed), str(failed)),),
    )
    bound = Bound("workloads that differ", failed, 0, "workloads")
    return Finding(name, title, about, (table,), (bound,))


def _count(said: str, what: str) -> int:
    found = re.search(rf"(\d+) {what}\b", said)
    return int(found.group(1)) if found else 0
