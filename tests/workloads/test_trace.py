"""The native trace: what it holds comes back, and what is wrong is named."""

from __future__ import annotations

import gzip
import json
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from agentsched import TraceError, UsageError
from tests.workloads.strategies import families
from workloads.model import Segment, Session, ToolCall, TurnSpec
from workloads.readers.convert import convert
from workloads.trace import MAX_LINE_BYTES, load_trace, read_trace, write_trace
from workloads.trace_fields import SESSION_FIELDS, TURN_FIELDS

GOLDEN = Session(
    id="demo",
    turns=(
        TurnSpec(
            new_tokens=30,
            output_tokens=8,
            shared=(Segment("template", 100, 410),),
            new_bytes=120,
            tools=(
                ToolCall("bash:ls", 0.5),
                ToolCall("bash:sleep", 2.0, hint_s=2.0, parallel=True),
            ),
            wait_s=1.5,
        ),
        TurnSpec(4, 2, kept_turn=0, kept_tokens=138, visible=True, compaction=True),
    ),
    workload="hand-made",
    origin="recorded",
    arrival_s=3.25,
    setup_s=10.0,
)
GOLDEN_LINES = (
    '{"v":1,"session":"demo","turn":0,"workload":"hand-made","origin":"recorded",'
    '"arrival_s":3.25,"setup_s":10.0,"shared":[["template",100,410]],"new_tokens":30,'
    '"new_bytes":120,"output_tokens":8,"tools":[{"name":"bash:ls","seconds":0.5},'
    '{"name":"bash:sleep","seconds":2.0,"hint_s":2.0,"parallel":true}],"wait_s":1.5}\n'
    '{"v":1,"session":"demo","turn":1,"kept_turn":0,"kept_tokens":138,"new_tokens":4,'
    '"output_tokens":2,"visible":true,"compaction":true}\n'
)


def test_golden_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    assert write_trace(path, [GOLDEN]) == 1
    assert path.read_text() == GOLDEN_LINES
    assert load_trace(path) == [GOLDEN]


@settings(
    max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(families())
def test_round_trip(tmp_path: Path, sessions: list[Session]) -> None:
    for name in ("t.jsonl", "t.jsonl.gz"):
        write_trace(tmp_path / name, sessions)
        assert load_trace(tmp_path / name) == sessions


def test_gzip_is_reproducible(tmp_path: Path) -> None:
    write_trace(tmp_path / "a.jsonl.gz", [GOLDEN])
    write_trace(tmp_path / "b.jsonl.gz", [GOLDEN])
    assert (tmp_path / "a.jsonl.gz").read_bytes() == (tmp_path / "b.jsonl.gz").read_bytes()


def test_sessions_come_before_the_file_ends(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    path.write_text(GOLDEN_LINES + GOLDEN_LINES.replace("demo", "next") + "{broken\n")
    stream = read_trace(path)
    assert next(stream) == GOLDEN
    with pytest.raises(TraceError, match="line 5"):
        list(stream)


def test_own_fields_blank_lines_and_byte_order_mark_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    body = GOLDEN_LINES.replace('"turn":1,', '"turn":1,"x_ttft_s":0.25,')
    path.write_bytes(b"\xef\xbb\xbf" + body.encode() + b"\n")
    assert load_trace(path) == [GOLDEN]


def _rows(**change: Any) -> list[dict[str, Any]]:
    """Two turns; `first`, `second` give fields to set (None removes)."""
    rows = [json.loads(line) for line in GOLDEN_LINES.splitlines()]
    for row, name in zip(rows, ("first", "second"), strict=True):
        row |= change.get(name, {})
    return [{k: v for k, v in row.items() if v is not None} for row in rows]


TOOL = {"name": "t", "seconds": 1.0}
BAD_FIELDS: list[tuple[str, dict[str, Any], int, str]] = [
    ("negative tokens", {"second": {"new_tokens": -1}}, 2, "new_tokens"),
    ("fractional tokens", {"second": {"new_tokens": 1.5}}, 2, "new_tokens"),
    ("tokens as text", {"second": {"new_tokens": "4"}}, 2, "new_tokens"),
    ("tokens as flag", {"second": {"new_tokens": True}}, 2, "new_tokens"),
    ("huge tokens", {"second": {"new_tokens": 10**40}}, 2, "new_tokens"),
    ("tokens missing", {"second": {"new_tokens": None}}, 2, "new_tokens"),
    ("output 0", {"first": {"output_tokens": 0}}, 1, "output_tokens"),
    ("output missing", {"first": {"output_tokens": None}}, 1, "output_tokens"),
    ("negative bytes", {"first": {"new_bytes": -5}}, 1, "new_bytes"),
    ("kept more than there was", {"second": {"kept_tokens": 139}}, 2, "kept_tokens"),
    ("kept of no turn", {"first": {"kept_tokens": 3}}, 1, "kept_tokens"),
    ("kept of itself", {"second": {"kept_turn": 1}}, 2, "kept_turn"),
    ("kept and shared", {"second": {"shared": [["a", 1, 1]]}}, 2, "shared"),
    ("bad segment", {"first": {"shared": [["a", 1]]}}, 1, "shared[0]"),
    ("empty segment", {"first": {"shared": [["a", 0, 0]]}}, 1, "shared[0].tokens"),
    ("segment id", {"first": {"shared": [["", 1, 1]]}}, 1, "shared[0].id"),
    ("empty prompt", {"first": {"shared": None, "new_tokens": 0}}, 1, "new_tokens"),
    ("NaN", {"second": {"wait_s": float("nan")}}, 2, "wait_s"),
    ("infinity", {"first": {"arrival_s": float("inf")}}, 1, "arrival_s"),
    ("negative deadline", {"first": {"deadline_s": -1}}, 1, "deadline_s"),
    ("negative wait", {"second": {"wait_s": -0.5}}, 2, "wait_s"),
    ("negative tool", {"second": {"tools": [TOOL | {"seconds": -1}]}}, 2, "tools[0].seconds"),
    ("NaN hint", {"second": {"tools": [TOOL | {"hint_s": float("nan")}]}}, 2, "tools[0].hint_s"),
    ("unknown tool field", {"second": {"tools": [TOOL | {"cmd": 1}]}}, 2, "tools[0].cmd"),
    ("tool without seconds", {"second": {"tools": [{"name": "t"}]}}, 2, "tools[0]"),
    ("tool not an object", {"second": {"tools": ["ls"]}}, 2, "tools[0]"),
    ("tools not a list", {"second": {"tools": 3}}, 2, "tools"),
    ("flag as number", {"second": {"visible": 1}}, 2, "visible"),
    ("turn out of order", {"second": {"turn": 2}}, 2, "turn"),
    ("duplicate turn", {"second": {"turn": 0}}, 2, "turn"),
    ("first turn is not 0", {"first": {"turn": 1}}, 1, "turn"),
    ("turn missing", {"second": {"turn": None}}, 2, "turn"),
    ("unknown field", {"second": {"ouput_tokens": 3}}, 2, "ouput_tokens"),
    ("session field late", {"second": {"arrival_s": 3.0}}, 2, "arrival_s"),
    ("unknown version", {"second": {"v": 2}}, 2, "v"),
    ("no version", {"first": {"v": None}}, 1, "v"),
    ("version as flag", {"first": {"v": True}}, 1, "v"),
    ("no session", {"first": {"session": None}}, 1, "session"),
    ("control character", {"first": {"session": "a\nb"}}, 1, "session"),
    ("origin", {"first": {"origin": "measured"}}, 1, "origin"),
    ("no workload", {"first": {"workload": None}}, 1, "workload"),
    ("unknown parent", {"first": {"parent": "p", "spawn_turn": 0, "arrival_s": None}}, 1, "parent"),
    ("parent without turn", {"first": {"parent": "p", "arrival_s": None}}, 1, "spawn_turn"),
    ("arrival of a sub-agent", {"first": {"parent": "p", "spawn_turn": 0}}, 1, "arrival_s"),
]


@pytest.mark.parametrize(("change", "line", "field"), [c[1:] for c in BAD_FIELDS],
                         ids=[c[0] for c in BAD_FIELDS])  # fmt: skip
def test_bad_field_is_named(tmp_path: Path, change: dict[str, Any], line: int, field: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in _rows(**change)))
    with pytest.raises(TraceError) as caught:
        load_trace(path)
    error = caught.value
    assert (error.file, error.line, error.field) == (path, line, field)
    assert str(path) in error.message
    assert error.remedy
    assert error.exit_code == 2


RETURNS = GOLDEN_LINES + GOLDEN_LINES.replace("demo", "b") + GOLDEN_LINES
LONG = b'{"v":1,"session":"' + b"x" * 10_000_000 + b'"}\n'
BAD_FILES: list[tuple[str, bytes, int | None, str]] = [
    ("empty", b"", None, "empty"),
    ("blank", b"\n\n", None, "no turns"),
    ("cut off", GOLDEN_LINES.encode()[:-20], 2, "cut off"),
    ("not JSON", b"turn 1\n", 1, "not JSON"),
    ("a list", b"[1, 2]\n", 1, "not a JSON object"),
    ("deep nesting", b"[" * 100_000 + b"\n", 1, "not JSON"),
    ("huge integer", b'{"v":1,"session":"a","turn":' + b"9" * 9000 + b"}\n", 1, "not JSON"),
    ("twice a field", b'{"v":1,"v":1}\n', 1, "twice"),
    ("10 MB line", LONG, 1, "longer than"),
    ("binary", bytes(range(256)) * 4, 1, "not a text file"),
    ("NUL", b'{"v":1,"session":"a\0"}\n', 1, "not a text file"),
    ("gzip cut off", gzip.compress(GOLDEN_LINES.encode() * 50)[:-30], None, "cut off|further"),
    ("gzip damaged", gzip.compress(GOLDEN_LINES.encode())[:12] + b"\xff" * 40, 1, "further"),
    ("session comes back", RETURNS.encode(), 5, "already complete"),
]  # fmt: skip


@pytest.mark.parametrize(("content", "line", "message"), [c[1:] for c in BAD_FILES],
                         ids=[c[0] for c in BAD_FILES])  # fmt: skip
def test_bad_file_is_refused(
    tmp_path: Path, content: bytes, line: int | None, message: str
) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(content)
    with pytest.raises(TraceError, match=message) as caught:
        load_trace(path)
    assert caught.value.file == path
    assert caught.value.remedy
    if line is not None:
        assert caught.value.line == line


def test_missing_file_and_folder(tmp_path: Path) -> None:
    for path in (tmp_path / "none.jsonl", tmp_path):
        with pytest.raises(TraceError, match="cannot be read"):
            load_trace(path)


def test_parents_that_do_not_fit(tmp_path: Path) -> None:
    child = GOLDEN_LINES.replace("demo", "child").replace('"arrival_s":3.25', '"parent":"demo"')
    late = child.replace('"parent":"demo"', '"parent":"demo","spawn_turn":2')
    path = tmp_path / "t.jsonl"
    path.write_text(GOLDEN_LINES + late)
    with pytest.raises(TraceError, match="it has 2 turns") as caught:
        load_trace(path)
    assert (caught.value.line, caught.value.field) == (3, "spawn_turn")
    fits = child.replace('"parent":"demo"', '"parent":"demo","spawn_turn":1')
    path.write_text(fits + GOLDEN_LINES)
    assert [s.parent for s in load_trace(path)] == ["demo", None]


def test_ancestry_without_an_end(tmp_path: Path) -> None:
    def of(name: str, parent: str) -> str:
        return GOLDEN_LINES.replace("demo", name).replace(
            '"arrival_s":3.25', f'"parent":"{parent}","spawn_turn":0'
        )

    path = tmp_path / "t.jsonl"
    path.write_text(of("a", "b") + of("b", "a"))
    with pytest.raises(TraceError, match="its own ancestor"):
        load_trace(path)


def test_writing_refuses_what_reading_would(tmp_path: Path) -> None:
    path = tmp_path / "t.jsonl"
    bad = Session("a", (TurnSpec(5, 0),), "w", "recorded")
    with pytest.raises(TraceError, match="output_tokens"):
        write_trace(path, [bad])
    with pytest.raises(TraceError, match="already complete"):
        write_trace(path, [GOLDEN, GOLDEN])
    with pytest.raises(TraceError, match="no sessions"):
        write_trace(path, [])
    many = tuple(Segment("s" * 200 + str(i), 1, 1) for i in range(MAX_LINE_BYTES // 200))
    with pytest.raises(TraceError, match="would be longer"):
        write_trace(path, [Session("a", (TurnSpec(1, 1, shared=many),), "w", "recorded")])
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(UsageError, match="cannot write"):
        write_trace(tmp_path / "no" / "t.jsonl", [GOLDEN])


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(st.data())
def test_damage_gives_a_session_or_a_trace_error(tmp_path: Path, data: st.DataObject) -> None:
    raw = bytearray(GOLDEN_LINES.encode())
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    cut = data.draw(st.integers(0, len(raw)))
    path = tmp_path / "t.jsonl"
    path.write_bytes(bytes(raw[:cut]) if data.draw(st.booleans()) else bytes(raw))
    with suppress(TraceError):
        sessions = load_trace(path)
        write_trace(tmp_path / "again.jsonl", sessions)
        assert load_trace(tmp_path / "again.jsonl") == sessions


OTHER_FIELDS = {"t", "agent", "stop", "input_tokens", "shared_prefix_tokens", "api_s"} | {
    "gap_before_s", "input_kind", "timestamp", "input_length", "output_length", "hash_ids"
}  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.sampled_from(["native", "lmcache", "weka", "mooncake"]),
    st.dictionaries(
        st.sampled_from(sorted(SESSION_FIELDS | TURN_FIELDS | OTHER_FIELDS)),
        VALUES,
    ),
)
def test_any_json_gives_a_session_or_a_trace_error(
    tmp_path: Path, name: str, fields: dict[str, Any]
) -> None:
    base = {
        "native": json.loads(GOLDEN_LINES.splitlines()[0]),
        "lmcache": {"workload": "w", "session": "s", "t": 0, "input_tokens": 9, "output_tokens": 1},
        "weka": {"agent": "main", "session": "s", "input_tokens": 9, "output_tokens": 1},
        "mooncake": {"timestamp": 0, "input_length": 9, "output_length": 1, "hash_ids": [1]},
    }[name]
    path = tmp_path / "t.jsonl"
    path.write_text(json.dumps(base | fields) + "\n")
    with suppress(TraceError):
        write_trace(tmp_path / "again.jsonl", convert(path, name))
