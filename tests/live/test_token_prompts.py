"""Prompts of token numbers at emulated replicas: the vocabulary, the cache, and the KV events."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.live.emulated_answers import ScriptLine
from harness.live.emulated_tokens import MARKS, numbers, write_model
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.token_numbers import MOST, PIECE, are_tokens, token_pieces
from harness.live.words import BYTES_PER_TOKEN, VOCABULARY, words
from tests.live.rig import engines, post, run

PATH = "/v1/completions"
TEXTS = st.lists(st.sampled_from([*VOCABULARY[:5], " ", "x", "\n", "é", "adds", "."])).map("".join)


def vocabulary(folder: Path) -> list[bytes]:
    """Bytes of every token, read from the tokenizer's file."""
    write_model(folder, 4096)
    found = json.loads((folder / "tokenizer.json").read_text())["model"]["vocab"]
    # GPT-2's table, from its other end: the shown ones stand for themselves.
    shown = {*range(33, 127), *range(161, 173), *range(174, 256)}
    hidden = [value for value in range(256) if value not in shown]
    table = {chr(value): value for value in shown}
    table |= {chr(256 + place): value for place, value in enumerate(hidden)}
    tokens: list[bytes] = [b""] * len(found)
    for text, number in found.items():
        tokens[number] = text.encode() if text in MARKS else bytes(table[c] for c in text)
    return tokens


@pytest.fixture(scope="module")
def tokens(tmp_path_factory: pytest.TempPathFactory) -> list[bytes]:
    return vocabulary(tmp_path_factory.mktemp("model"))


@settings(max_examples=60, deadline=None)
@given(text=TEXTS)
def test_numbers_spell_the_text(tokens: list[bytes], text: str) -> None:
    assert b"".join(tokens[number] for number in numbers(text)).decode() == text


def test_a_made_up_word_is_one_token(tokens: list[bytes]) -> None:
    found = numbers(words("w", 200))
    assert len(found) == 200
    assert all(len(tokens[number]) == BYTES_PER_TOKEN for number in found)
    assert len(set(tokens)) == len(tokens) == len(MARKS) + 256 + len(VOCABULARY)


@settings(max_examples=30, deadline=None)
@given(text=TEXTS)
def test_the_tokenizers_library_agrees(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    library = pytest.importorskip("tokenizers")
    folder = tmp_path_factory.mktemp("model")
    write_model(folder, 4096)
    tokenizer = library.Tokenizer.from_file(str(folder / "tokenizer.json"))
    assert tokenizer.encode(text, add_special_tokens=False).ids == numbers(text)
    assert tokenizer.decode(numbers(text)) == text


def test_what_is_a_prompt_of_tokens() -> None:
    assert are_tokens([0, MOST])
    for prompt in ([], "text", [1, "2"], [True], [-1], [MOST + 1], [[1]], None):
        assert not are_tokens(prompt)


@given(prompt=st.lists(st.integers(0, MOST), max_size=3 * PIECE))
@settings(max_examples=30, deadline=None)
def test_every_token_is_four_bytes_of_its_own(prompt: list[int]) -> None:
    pieces = token_pieces(prompt)
    assert sum(len(piece.text.encode()) for piece in pieces) == BYTES_PER_TOKEN * len(prompt)
    assert [ord(c) - 0x10000 for piece in pieces for c in piece.text] == prompt
    assert all(len(piece.text) == PIECE for piece, _ in pairwise(pieces))


def ask(prompt: list[int], **fields: Any) -> dict[str, Any]:
    return {"prompt": prompt, "max_tokens": 20, "ignore_eos": True, **fields}


def test_a_talk_in_numbers_is_cached_as_one_in_text() -> None:
    """Whole blocks of 16 of everything before, the answer's last token apart."""

    async def test() -> None:
        fleet = FleetServer(engines(1))
        await fleet.start()
        client = HttpClient(fleet.urls[0])
        prompt: list[int] = []
        before = 0
        try:
            for turn in range(6):
                prompt += numbers(words(f"turn {turn}", 150))
                got = await post(client, PATH, ask(prompt, return_token_ids=True))
                usage, choice = got.json["usage"], got.json["choices"][0]
                assert usage["prompt_tokens"] == len(prompt)
                cached = usage["prompt_tokens_details"]["cached_tokens"]
                assert cached == max(0, before - 1) // 16 * 16
                assert choice["token_ids"] == numbers(choice["text"])
                assert len(choice["token_ids"]) == 20
                prompt += choice["token_ids"]
                before = len(prompt)
        finally:
            await client.close()
            await fleet.close()

    run(test)


def test_streamed_numbers_come_with_their_text() -> None:
    async def test() -> None:
        fleet = FleetServer(engines(1))
        await fleet.start()
        client = HttpClient(fleet.urls[0])
        prompt = numbers(words("p", 40))
        try:
            got = await post(client, PATH, ask(prompt, stream=True, return_token_ids=True))
            plain = await post(client, PATH, ask(prompt, stream=True))
        finally:
            await client.close()
            await fleet.close()
        choices = [e["choices"][0] for e in got.events[:-1] if e["choices"]]
        assert all(numbers(choice["text"]) == choice["token_ids"] for choice in choices)
        assert sum(len(choice["token_ids"]) for choice in choices) == 20
        assert all("token_ids" not in e["choices"][0] for e in plain.events[:-1])

    run(test)


def test_kv_events_tell_the_prompt_s_own_numbers() -> None:
    async def test() -> None:
        fleet = FleetServer(engines(1), kv_port=0)
        await fleet.start()
        context = zmq.asyncio.Context()
        listener = context.socket(zmq.SUB)
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.connect(fleet.publishers[0].address)
        client = HttpClient(fleet.urls[0])
        await asyncio.sleep(0.2)  # until the subscription is there
        prompt = numbers(words("p", 100))
        told: list[int] = []
        try:
            got = await post(client, PATH, ask(prompt, return_token_ids=True))
            whole = [*prompt, *got.json["choices"][0]["token_ids"]]
            async with asyncio.timeout(5):
                while len(told) < 112:  # 7 whole blocks of the 119 tokens that are computed
                    _, _, payload = await listener.recv_multipart()
                    for event in msgpack.unpackb(payload)[1]:
                        assert len(event["token_ids"]) == 16 * len(event["block_hashes"])
                        told += event["token_ids"]
        finally:
            await client.close()
            await fleet.close()
            context.destroy(linger=0)
        assert told == whole[:112]
        assert not fleet.publishers[0].journal.numbers

    run(test)


def test_scripted_answers_need_messages() -> None:
    async def test() -> None:
        fleet = FleetServer(engines(1), script=[ScriptLine("done")])
        await fleet.start()
        client = HttpClient(fleet.urls[0])
        try:
            got = await post(client, PATH, ask([1, 2, 3]))
        finally:
            await client.close()
            await fleet.close()
        assert got.status == 400
        assert "needs messages" in got.json["error"]["message"]

    run(test)
