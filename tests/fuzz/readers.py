"""What reads untrusted input, each as a function of bytes that must read or refuse them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

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
