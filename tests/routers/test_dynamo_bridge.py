"""What our worker for Dynamo asks a replica, and what it makes of the answer."""

from __future__ import annotations

import json
from typing import Any

import pytest

from harness.live.emulated_answers import engine_metrics
from harness.live.routers.dynamo_bridge import (
    Chunk,
    EventLines,
    KvShape,
    ReplicaError,
    Translation,
    completion_request,
    kv_shape,
)
from schedulers.types import ReplicaSample


def test_a_request_of_dynamo_s_as_a_completion() -> None:
    asked = completion_request(
        {
            "token_ids": (5, 6, 7),
            "sampling_options": {
                "n": 1,
                "temperature": 0.0,
                "top_p": None,
                "seed": 3,
                "guided_decoding": {"json": {"type": "object"}, "regex": None},
            },
            "stop_conditions": {
                "max_tokens": 9,
                "min_tokens": 2,
                "ignore_eos": False,
                "stop": ["END"],
                "stop_token_ids_hidden": [2, 1],
                "stop_token_ids": [2],
            },
            "output_options": {"logprobs": 1},
            "routing": {"priority": -2},
        },
        "m",
    )
    assert asked == {
        "model": "m",
        "prompt": [5, 6, 7],
        "stream": True,
        "stream_options": {"include_usage": True},
        "return_token_ids": True,
        "n": 1,
        "temperature": 0.0,
        "seed": 3,
        "max_tokens": 9,
        "min_tokens": 2,
        "ignore_eos": False,
        "stop_token_ids": [1, 2],
        "structured_outputs": {"json": {"type": "object"}},
        "logprobs": 1,
        "priority": -2,
    }


def test_ends_are_ignored_where_that_is_asked_for() -> None:
    stopping = {"ignore_eos": True, "stop_token_ids_hidden": [2]}
    asked = completion_request({"token_ids": [1], "stop_conditions": stopping}, "m")
    assert "stop_token_ids" not in asked
    assert asked["ignore_eos"] is True


def event(**choice: Any) -> dict[str, Any]:
    return {"choices": [{"index": 0, **choice}]}


USAGE = {
    "prompt_tokens": 40,
    "completion_tokens": 3,
    "total_tokens": 43,
    "prompt_tokens_details": {"cached_tokens": 32},
}


def translated(events: list[dict[str, Any]], prompt: int = 40) -> list[Chunk]:
    translation = Translation(lambda text: [ord(letter) for letter in text])
    chunks = [chunk for each in events for chunk in translation.take(each)]
    return chunks + list(translation.end(prompt))


def test_token_numbers_pass_and_the_end_brings_the_usage() -> None:
    chunks = translated(
        [
            event(text="a", token_ids=[11]),
            event(text="", token_ids=[]),
            event(text="bc", token_ids=[12, 13]),
            event(text="", token_ids=[], finish_reason="length"),
            {"choices": [], "usage": USAGE},
        ]
    )
    assert chunks == [
        {"token_ids": [11], "index": 0},
        {"token_ids": [12, 13], "index": 0},
        {"token_ids": [], "index": 0, "finish_reason": "length", "completion_usage": USAGE},
    ]


def test_text_alone_is_made_into_tokens() -> None:
    """As of SGLang, which sends no token numbers; and usage is then counted where it is missing."""
    chunks = translated([event(text="ab"), event(text="c", finish_reason="stop")])
    usage = {"prompt_tokens": 40, "completion_tokens": 3, "total_tokens": 43}
    assert chunks == [
        {"token_ids": [97, 98], "index": 0},
        {"token_ids": [99], "index": 0, "finish_reason": "stop", "completion_usage": usage},
    ]


def test_the_token_that_ended_it_is_told() -> None:
    chunks = translated([event(text="", token_ids=[2], finish_reason="stop", stop_reason=2)])
    assert chunks[0]["stop_reason"] == 2
    assert chunks[0]["token_ids"] == [2]


def test_reasons_in_dynamo_s_words() -> None:
    for said, meant in (("abort", "cancelled"), ("tool_calls", "stop"), ("stop", "stop")):
        assert translated([event(token_ids=[], finish_reason=said)])[0]["finish_reason"] == meant


def test_several_choices_end_one_by_one() -> None:
    chunks = translated(
        [
            {"choices": [{"index": 1, "token_ids": [7], "finish_reason": "length"}]},
            {"choices": [{"index": 0, "token_ids": [8], "finish_reason": "length"}]},
        ]
    )
    assert [(chunk["index"], chunk["token_ids"]) for chunk in chunks] == [(1, [7]), (0, [8])]


def test_failures_are_no_answers() -> None:
    with pytest.raises(ReplicaError, match="out of memory"):
        translated([event(token_ids=[1]), {"error": {"message": "out of memory"}}])
    with pytest.raises(ReplicaError, match="ended early"):
        translated([event(token_ids=[1])])


def test_events_however_they_are_cut() -> None:
    objects = [{"a": "x\ny"}, {"b": 2}]
    stream = b": ping\n\n" + b"".join(b"data: %s\r\n\r\n" % json.dumps(o).encode() for o in objects)
    stream += b"data: [DONE]\n\n"
    for size in (1, 2, 7, len(stream)):
        lines = EventLines()
        parts = [stream[at : at + size] for at in range(0, len(stream), size)]
        assert [found for part in parts for found in lines.feed(part)] == objects
        assert lines.done


def test_the_kv_cache_from_metrics_pages() -> None:
    sample = ReplicaSample(1, 0, 0.25, 0, 0, 0, 0, 0)
    page = engine_metrics(sample, "m", 16, 1000).decode()
    assert kv_shape(page) == KvShape(16, 1000, 0.25)
    sglang = (
        "# TYPE sglang:token_usage gauge\n"
        'sglang:token_usage{model_name="m"} 0.5\n'
        'sglang:max_total_num_tokens{model_name="m"} 4096.0\n'
    )
    assert kv_shape(sglang) == KvShape(1, 4096, 0.5)
    assert kv_shape("") == KvShape(0, 0, 0.0)
