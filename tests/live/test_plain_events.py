"""Events known by what stands around their text: the books are those of reading every event."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.live.openai_chat import ChatReply, CompletionReply, OpenAIReply
from harness.live.plain_events import PlainEvents
from harness.live.sse import event_bytes

TEXTS = st.one_of(
    st.sampled_from(
        ["a", "word", "", '"', "\\", "\n", "\u00a0", "é", "🙂", '"content":"', '"usage"', "\x7f"]
    ),
    st.text(max_size=8),
)


def chunk(chat: bool, text: str, **beside: Any) -> dict[str, Any]:
    choice: dict[str, Any] = {"index": beside.pop("index", 0)}
    choice |= {"delta": {"content": text}} if chat else {"text": text}
    choice |= {"logprobs": None, "finish_reason": beside.pop("finish_reason", None)}
    head = {"id": "one", "created": beside.pop("created", 1), "model": "m"}
    return {**head, "choices": [{**choice, **beside.pop("choice", {})}], **beside}


@st.composite
def streams(draw: st.DrawFn, chat: bool) -> list[bytes]:
    events: list[bytes] = []
    for text in draw(st.lists(TEXTS, min_size=1, max_size=30)):
        beside: dict[str, Any] = {}
        kind = draw(st.integers(0, 12))
        if kind == 0:
            beside["created"] = draw(st.integers(1, 3))
        elif kind == 1:
            beside["usage"] = draw(st.sampled_from([None, {"prompt_tokens": 3}]))
        elif kind == 2:
            beside["index"] = 1
        elif kind == 3:
            beside["choice"] = draw(
                st.sampled_from(
                    [{"stop_reason": None}, {"token_ids": [1]}, {"logprobs": {"content": [1]}}]
                )
            )
        elif kind == 4:
            beside["finish_reason"] = "stop"
        data = orjson.dumps(chunk(chat, text, **beside))
        if kind == 5:
            data = data.replace(b":", b": ")
        events.append(b": a comment\n\n" if kind == 6 else event_bytes(data))
    return events


def read(reply: OpenAIReply, events: list[bytes], *, quickly: bool) -> bytes:
    shown = b""
    for event in events:
        if quickly and reply.began and reply.take_plain(event):
            shown += event
        else:
            shown += reply.take(event)
    return shown


@pytest.mark.parametrize("kind", [ChatReply, CompletionReply])
@pytest.mark.parametrize("strip", [True, False])
@given(data=st.data())
@settings(max_examples=150, deadline=None)
def test_same_books_and_same_bytes(
    kind: type[OpenAIReply], strip: bool, data: st.DataObject
) -> None:
    events = data.draw(streams(kind is ChatReply))
    slow, quick = kind(strip_usage=strip), kind(strip_usage=strip)
    assert read(quick, events, quickly=True) == read(slow, events, quickly=False)
    assert quick.whole() == slow.whole()
    for name in ("began", "tokens", "usage", "texts", "calls", "broken", "failure", "complete"):
        assert getattr(quick, name) == getattr(slow, name)
    assert quick.tail() == slow.tail()


@pytest.mark.parametrize("kind", [ChatReply, CompletionReply])
def test_nearly_every_event_is_known(kind: type[OpenAIReply]) -> None:
    reply = kind()
    chat = kind is ChatReply
    events = [event_bytes(orjson.dumps(chunk(chat, f" w{number}"))) for number in range(100)]
    read(reply, events, quickly=True)
    # The first is read because nothing is known yet, and the second since a chat's first text
    # is kept with its message; every later one is known.
    assert reply.plain.count >= 98
    assert reply.tokens == 100
    assert reply.text == "".join(f" w{n}" for n in range(100))


def test_what_is_not_the_pattern_is_not_taken() -> None:
    plain = PlainEvents()
    assert plain.text_of(b"data: {}\n\n") is None
    first = chunk(True, "a")
    event = event_bytes(orjson.dumps(first))
    plain.learn(event, first, first["choices"][0]["delta"], "content")
    assert plain.text_of(event) == "a"
    assert plain.text_of(event + event) is None  # two in one
    assert plain.text_of(event[:-1]) is None  # not whole
    assert plain.text_of(event.replace(b'"a"', b'""')) is None  # no token
    assert plain.text_of(event.replace(b'"a"', b'"a\nb"')) is None  # no JSON
    assert plain.text_of(event.replace(b'"a"', b'"\xff"')) is None  # no UTF-8
    assert plain.text_of(event.replace(b'"a"', b'"a","role":"b"')) is None  # another field
    assert plain.text_of(event.replace(b'"m"', b'"n"')) is None  # another model
    assert first["choices"][0]["delta"] == {"content": "a"}


def test_an_engine_whose_chunks_all_differ_is_left_alone() -> None:
    reply = ChatReply()
    events = [event_bytes(orjson.dumps(chunk(True, "a", created=n))) for n in range(100)]
    read(reply, events, quickly=True)
    assert reply.plain.count == 0
    assert reply.tokens == 100
    same = [event_bytes(orjson.dumps(chunk(True, "a", created=1000))) for _ in range(3)]
    read(reply, same, quickly=True)
    assert reply.plain.count == 0  # it has given up
