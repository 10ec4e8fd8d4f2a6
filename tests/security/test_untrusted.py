"""Files from anywhere: nothing in them runs, leaves its folder, or fills the machine."""

from __future__ import annotations

import ast
import gzip
import json
import tracemalloc
from pathlib import Path

import pytest

from agentsched import AgentschedError, InputError, TraceError
from harness.specfile import parse_document
from workloads.readers.convert import detect
from workloads.trace import read_trace

ROOT = Path(__file__).parents[2]
SOURCES = [
    path
    for folder in ("cli", "harness", "results", "schedulers", "workloads")
    for path in sorted((ROOT / folder).rglob("*.py"))
]
RUNNING = {"eval", "exec", "compile", "__import__"}
UNSAFE_MODULES = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "jsonpickle"}


def test_nothing_read_is_run() -> None:
    """No eval, no pickle, no unsafe YAML anywhere in the product."""
    found: list[str] = []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                owner = node.func.value if isinstance(node.func, ast.Attribute) else None
                if name in RUNNING:
                    found.append(f"{where} {name}")
                yaml = isinstance(owner, ast.Name) and owner.id == "yaml"
                if yaml and isinstance(node.func, ast.Attribute) and "load" in node.func.attr:
                    loaders = [ast.unparse(each) for each in (*node.args, *node.keywords)]
                    if not any("Safe" in text for text in loaders):
                        found.append(f"{where} {ast.unparse(node)[:60]}")
                if any(k.arg == "shell" and ast.unparse(k.value) == "True" for k in node.keywords):
                    found.append(f"{where} shell=True")
            modules = [a.name for a in node.names] if isinstance(node, ast.Import) else []
            modules += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            found += [f"{where} {m}" for m in modules if m.split(".")[0] in UNSAFE_MODULES]
    assert found == []


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object/apply:os.system ['touch pwned']",
        "!!python/module:antigravity",
        "name: !!python/name:os.system",
    ],
)
def test_yaml_makes_no_objects(text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(AgentschedError):
        parse_document(text, "spec.yaml")
    assert list(tmp_path.iterdir()) == []


def test_yaml_does_not_multiply() -> None:
    """A billion laughs: nine levels of nine aliases each."""
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]" for level in range(1, 9)]
    tracemalloc.start()
    try:
        parse_document("\n".join(lines), "spec.yaml")
    except AgentschedError:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak < 50 << 20


def bomb(path: Path, piece: bytes, times: int) -> Path:
    with gzip.open(path, "wb", compresslevel=9) as stream:
        for _ in range(times):
            stream.write(piece)
    return path


@pytest.mark.parametrize("piece", [b"\0", b" ", b"["])
def test_a_packed_trace_does_not_fill_memory(tmp_path: Path, piece: bytes) -> None:
    """64 MiB in one line of a file of some KiB."""
    path = bomb(tmp_path / "bomb.jsonl.gz", piece * (1 << 20), 64)
    assert path.stat().st_size < 1 << 20
    tracemalloc.start()
    try:
        for read in (lambda: list(read_trace(path)), lambda: detect(path)):
            with pytest.raises(InputError):
                read()
        assert tracemalloc.get_traced_memory()[1] < 24 << 20
    finally:
        tracemalloc.stop()


def test_a_session_of_any_name_stays_in_its_run(tmp_path: Path) -> None:
    """Names of sessions are data: no file is named after them."""
    from tests.cli.command import agentsched, tiny_spec

    spec = tiny_spec(tmp_path)
    trace = tmp_path / "tiny.jsonl"
    text = (
        trace.read_text()
        .replace('"s0"', json.dumps("../../escaped"))
        .replace('"s1"', json.dumps("/tmp/escaped-<script>alert(1)</script>"))
    )
    trace.write_text(text)
    done = agentsched("run", spec, "-o", "out", cwd=tmp_path)
    assert done.returncode in (0, 2), done.stderr
    assert not list(tmp_path.glob("escaped*"))
    inside = {path.relative_to(tmp_path / "out") for path in (tmp_path / "out").rglob("*")}
    assert not [path for path in inside if "escaped" in str(path)]
    if done.returncode == 0:
        assert agentsched("report", "out", "-o", "page", cwd=tmp_path).returncode == 0
        for page in (tmp_path / "page").rglob("*.html"):
            assert "<script>alert" not in page.read_text()


def test_what_is_no_gzip_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    path.write_bytes(gzip.compress(b'{"v": 1}\n' * 100)[:-20])
    with pytest.raises(TraceError):
        list(read_trace(path))
