"""Whatever comes from the network or the disk, it is read or refused; nothing else happens."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from agentsched import AgentschedError
from harness.live.dialect import Dialect, RequestError, decode_body
from harness.live.gateway import GatewaySettings, default_dialects
from harness.live.gauges import read_gauges
from harness.live.identity import identify
from harness.live.sse import EventSplitter, StreamError, of_form
from harness.spec import build_spec
from harness.specfile import parse_document
from tests.security.front import ours
from workloads.readers.convert import detect, read_any
from workloads.trace import read_trace

CORPUS = Path(__file__).with_name("corpus")
DIALECTS = default_dialects(GatewaySettings())
PASSED = default_dialects(GatewaySettings(passed=frozenset({"/v1/messages", "/v1/responses"})))


def http(data: bytes) -> None:
    """Answers are whole; what follows a refusal is not read."""
    step = max(1, len(data) // 7)
    fed = ours([data[i : i + step] for i in range(0, len(data), step)])
    assert fed.written.count(b"HTTP/1.1 ") >= len(fed.requests)
    if fed.refused:
        assert not fed.open


def request(data: bytes) -> None:
    """A body is read, or refused with a status and words."""
    try:
        body = decode_body(data)
    except RequestError:
        return
    found = identify({"x-session-id": str(body.get("session_id", ""))}, body)
    assert found.session is None or found.session.isprintable()
    for dialect in (*DIALECTS, *PASSED):
        try:
            reading = dialect.read(body, data)
            if dialect.path.endswith("count_tokens"):
                dialect.answer(reading, lambda size: size)
            else:
                dialect.upstream(reading, {})
        except RequestError:
            continue


def replies_to(dialect: Dialect, data: bytes) -> None:
    asked = {"messages": [{"role": "user", "content": "x"}], "stream": True, "max_tokens": 5}
    asked |= {"prompt": "x", "input": "x"}
    raw = json.dumps(asked).encode()
    reply = dialect.reply(dialect.read(decode_body(raw), raw))
    splitter = EventSplitter()
    try:
        for i in range(0, len(data), 5):
            events = splitter.feed(data[i : i + 5])
            of_form(lambda events=events: [reply.take(event) for event in events])  # type: ignore[misc]
        of_form(reply.whole)
    except StreamError:
        return  # the relay tells the caller that the engine broke
    usage = reply.usage
    assert reply.tokens >= 0
    if usage is not None:
        assert usage.prompt >= 0
        assert usage.output >= 0
        assert usage.cached is None or usage.cached >= 0


def sse(data: bytes) -> None:
    """A stream is cut the same wherever it is cut; what is reported is possible."""
    whole, parts = EventSplitter(), EventSplitter()
    try:
        at_once = whole.feed(data)
        by_bytes = [event for i in range(len(data)) for event in parts.feed(data[i : i + 1])]
    except StreamError:
        return
    if b"\r" not in data:
        assert by_bytes == at_once
    for dialect in (*DIALECTS, *PASSED):
        if not dialect.path.endswith("count_tokens"):
            replies_to(dialect, data)
    read_gauges(data.decode("utf-8", "replace"))


def trace(data: bytes, folder: Path) -> None:
    for name in ("trace.jsonl", "trace.json"):
        path = folder / name
        path.write_bytes(data)
        for read in (read_trace, detect, read_any):
            try:
                found = read(path)
                if not isinstance(found, str):
                    list(found)
            except AgentschedError:
                continue


def spec(data: bytes) -> None:
    try:
        build_spec(parse_document(data.decode("utf-8", "replace"), "spec.yaml"))
    except AgentschedError:
        return


READERS: dict[str, Callable[[bytes, Path], None]] = {
    "http": lambda data, folder: http(data),
    "request": lambda data, folder: request(data),
    "sse": lambda data, folder: sse(data),
    "trace": trace,
    "spec": lambda data, folder: spec(data),
}


@pytest.mark.parametrize(
    "path", sorted(CORPUS.glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_what_once_failed(path: Path, tmp_path: Path) -> None:
    READERS[path.parent.name](path.read_bytes(), tmp_path)


values: st.SearchStrategy[Any] = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats(allow_nan=False)
    | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=6), inner, max_size=3)
    ),
    max_leaves=8,
)
FIELDS = (
    *("model", "messages", "prompt", "input", "stream", "max_tokens", "tools", "stream_options"),
    *("system", "metadata", "role", "content", "type", "text", "tool_calls", "function", "name"),
    *("choices", "delta", "usage", "prompt_tokens", "completion_tokens", "finish_reason", "index"),
    *("input_tokens", "output_tokens", "message", "content_block", "response", "output", "item"),
    *("session", "turn", "v", "kept_turn", "new_tokens", "output_tokens", "session_id", "user_id"),
)
known = st.dictionaries(
    st.sampled_from(FIELDS),
    st.recursive(
        values | st.sampled_from(["user", "assistant", "tool", "message_start", "text", "stop"]),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=4)
        ),
        max_leaves=12,
    ),
    max_size=6,
)
messages = st.fixed_dictionaries(
    {"messages": st.lists(known, max_size=3) | values, "stream": st.booleans() | values},
    optional={"prompt": values, "input": values, "tools": values, "system": values},
)
encoded = (known | messages).map(lambda value: json.dumps(value).encode())


@given(st.binary(max_size=300) | st.lists(st.sampled_from([b"GET / HTTP/1.1\r\n", b"host: a\r\n", b"\r\n", b"content-length: 3\r\n", b"transfer-encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"\x00", b":", b" "]), max_size=14).map(b"".join))  # fmt: skip  # noqa: E501
@settings(max_examples=200, deadline=None)
def test_http(data: bytes) -> None:
    http(data)


@given(encoded | st.binary(max_size=60))
@settings(max_examples=250, deadline=None)
def test_requests(data: bytes) -> None:
    request(data)


event = encoded.map(lambda data: b"data: " + data + b"\n\n")


@given(st.lists(event | st.binary(max_size=30), max_size=4).map(b"".join))
@settings(max_examples=150, deadline=None)
def test_streams(data: bytes) -> None:
    sse(data)


@given(st.lists(encoded | st.binary(max_size=30), max_size=4).map(b"\n".join))
@settings(max_examples=60, deadline=None)
def test_traces(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    trace(data, tmp_path_factory.getbasetemp())


names = st.sampled_from(
    ["name", "model", "topology", "workloads", "schedulers", "seeds", "sim", "live", "engine"]
)


@given(st.dictionaries(names, values, max_size=6).map(lambda v: json.dumps(v).encode()) | st.binary(max_size=60))  # fmt: skip  # noqa: E501
@settings(max_examples=80, deadline=None)
def test_specifications(data: bytes) -> None:
    spec(data)
