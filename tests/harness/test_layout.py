"""Imports run one way: cli -> harness -> schedulers, workloads, results -> the exceptions."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

FOLDERS = ("cli", "harness", "schedulers", "workloads", "results", "scripts")

ALLOWED: dict[str, set[str]] = {
    "schedulers": {"schedulers"},
    "workloads": {"workloads"},
    "results": {"results"},
    "harness": {"harness", "schedulers", "workloads", "results"},
    "cli": {"cli", "harness", "schedulers", "workloads", "results"},
    "scripts": {"scripts", "cli", "harness", "schedulers", "workloads", "results"},
}

STORE = {"results.store", "results.writer", "results.cells", "results.records", "results.run"}
"""What harness may use of results: the store and its records."""

FACE_OF_LOWER_FOLDERS = {
    "AgentschedError",
    "UsageError",
    "InputError",
    "SpecError",
    "TraceError",
    "TopologyError",
    "PerformanceDataError",
    "SchedulerError",
    "SimulationError",
    "RunDirectoryError",
    "NoRunError",
    "InvalidRunError",
    "GateFailedError",
    "__version__",
}


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def imports(file: Path) -> Iterator[tuple[int, str, tuple[str, ...]]]:
    """(line, module, names) of every import, those inside functions too."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name, ()
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}:{node.lineno}: relative import"
            yield node.lineno, node.module or "", tuple(alias.name for alias in node.names)


@pytest.mark.parametrize("folder", FOLDERS)
def test_imports_run_downwards_only(folder: str) -> None:
    wrong = []
    for file in modules(folder):
        for line, module, names in imports(file):
            top = module.split(".")[0]
            if top in FOLDERS and top not in ALLOWED[folder]:
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {module}")
            if top == "tests":
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {module}")
            if top == "agentsched" and folder in ("schedulers", "workloads", "results"):
                wrong += [
                    f"{file.relative_to(ROOT)}:{line} imports agentsched.{name}"
                    for name in names
                    if name not in FACE_OF_LOWER_FOLDERS
                ]
    assert not wrong


def test_harness_uses_only_the_store_of_results() -> None:
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {module}"
        for file in modules("harness")
        for line, module, _ in imports(file)
        if module.split(".")[0] == "results" and module not in STORE
    ]
    assert not wrong


def test_the_face_imports_nothing_of_the_project_at_import() -> None:
    tree = ast.parse((ROOT / "agentsched.py").read_text(encoding="utf-8"))
    eager = [
        node
        for node in tree.body
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in FOLDERS
    ]
    assert not eager


@pytest.mark.parametrize("folder", FOLDERS)
def test_every_folder_of_code_is_a_package(folder: str) -> None:
    """Packaging finds folders by their `__init__.py`; one without would be left out."""
    bare = [
        str(file.relative_to(ROOT))
        for file in modules(folder)
        if not (file.parent / "__init__.py").is_file()
    ]
    assert not bare
