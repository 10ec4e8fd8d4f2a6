"""Server-sent events, cut anywhere, against reading them byte by byte."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.live.sse import MAX_EVENT_BYTES, EventSplitter, StreamError, data_of, event_bytes
from tests.oracles import http_sse

_LINE = st.sampled_from(
    [
        b"data: {}",
        b'data: {"a": "b"}',
        b"data:x",
        b"data",
        b": ping",
        b"event: e",
        b"id: 1",
        b"data: ",
    ]
)
_END = st.sampled_from([b"\n", b"\r\n"])
_LINES = st.lists(st.tuples(_LINE, _END), min_size=1, max_size=3)
_STREAM = st.lists(st.tuples(_LINES, _END), max_size=6).map(
    lambda blocks: b"".join(b"".join(a + b for a, b in lines) + end for lines, end in blocks)
)


@settings(max_examples=300, deadline=None)
@given(_STREAM, st.sampled_from([b"", b"data: {", b"da", b": x\n"]), st.data())
def test_events_however_they_are_cut(whole: bytes, rest: bytes, data: st.DataObject) -> None:
    stream = whole + rest
    cuts = data.draw(st.lists(st.integers(0, len(stream)), max_size=6).map(sorted))
    splitter = EventSplitter()
    found: list[bytes] = []
    for start, end in zip([0, *cuts], [*cuts, len(stream)], strict=True):
        found += splitter.feed(stream[start:end])
    expected, left = http_sse.events(stream)
    assert found == expected
    assert splitter.rest == left
    assert [data_of(event) for event in found] == [http_sse.data(event) for event in expected]


def test_events_that_are_made_read_back() -> None:
    assert data_of(event_bytes(b'{"a":1}')) == b'{"a":1}'
    assert event_bytes(b"x", "done") == b"event: done\ndata: x\n\n"
    assert data_of(event_bytes(b"x", "done")) == b"x"


def test_an_event_without_end_is_refused() -> None:
    splitter = EventSplitter()
    assert splitter.feed(b"x" * MAX_EVENT_BYTES) == []
    with pytest.raises(StreamError):
        splitter.feed(b"x")
