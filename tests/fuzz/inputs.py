"""Inputs that hypothesis makes up for each reader: near the form, and far from it."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import strategies as st

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
event = encoded.map(lambda data: b"data: " + data + b"\n\n")
HTTP_PARTS = (
    *(b"GET / HTTP/1.1\r\n", b"host: a\r\n", b"\r\n", b"content-length: 3\r\n"),
    *(b"transfer-encoding: chunked\r\n", b"3\r\nabc\r\n", b"0\r\n\r\n", b"\x00", b":", b" "),
)
names = st.sampled_from(
    ["name", "model", "topology", "workloads", "schedulers", "seeds", "sim", "live", "engine"]
)

INPUTS: dict[str, st.SearchStrategy[bytes]] = {
    "http": st.binary(max_size=300)
    | st.lists(st.sampled_from(HTTP_PARTS), max_size=14).map(b"".join),
    "request": encoded | st.binary(max_size=60),
    "sse": st.lists(event | st.binary(max_size=30), max_size=4).map(b"".join),
    "trace": st.lists(encoded | st.binary(max_size=30), max_size=4).map(b"\n".join),
    "spec": st.dictionaries(names, values, max_size=6).map(lambda v: json.dumps(v).encode())
    | st.binary(max_size=60),
}
