"""KV-cache events: both encodings, gaps, and over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest
import zmq

from agentsched import UsageError
from harness.live.kv_events import KvBatch, KvStream, KvSubscriber, decode_batch
from tests.live.rig import engines, post, rig, run

ARRAYS = [
    ["BlockStored", [1, 2**63], None, [5, 6], 16, None, "GPU"],
    ["BlockRemoved", [1], "GPU"],
]
MAPS = [
    {"type": "BlockStored", "block_hashes": [b"\x00\xff", b"\x01"], "block_size": 16},
    {"type": "BlockRemoved", "block_hashes": [b"\x00\xff"]},
    {"type": "SomethingNew", "block_hashes": [b"\x00"]},
]


@pytest.mark.parametrize("events", [ARRAYS, MAPS])
@pytest.mark.parametrize("wrap", ["array", "map"])
def test_both_encodings(events: list[Any], wrap: str) -> None:
    batch: Any = [1.5, events, 0] if wrap == "array" else {"ts": 1.5, "events": events}
    assert decode_batch(msgpack.packb(batch)) == KvBatch(2, 1, False)


def test_clearing_in_both_encodings() -> None:
    for event in (["AllBlocksCleared"], {"type": "AllBlocksCleared"}):
        assert decode_batch(msgpack.packb([1.5, [event]])) == KvBatch(0, 0, True)


@pytest.mark.parametrize("payload", [b"", b"\xc1", msgpack.packb(5), msgpack.packb([1, 2])])
def test_what_cannot_be_read(payload: bytes) -> None:
    assert decode_batch(payload) is None


def frames(number: int, *events: Any) -> list[bytes]:
    return [b"kv@x", number.to_bytes(8, "big"), msgpack.packb([0.0, list(events)])]


def test_a_gap_resets_what_is_known() -> None:
    cleared: list[int] = []
    stream = KvStream(lambda: cleared.append(stream.stored))
    for number in (7, 8, 9):  # the first may have any number
        stream.message(frames(number, ARRAYS[0]))
    assert (stream.stored, cleared) == (6, [])
    stream.message(frames(11, ARRAYS[0]))
    assert (stream.gaps, cleared) == (1, [6])
    stream.message(frames(0))  # the engine has started anew
    assert (stream.gaps, len(cleared)) == (2, 2)
    stream.message(frames(1, ["AllBlocksCleared"]))
    assert len(cleared) == 3
    stream.message([b"x"])
    stream.message([b"kv", (2).to_bytes(8, "big"), b"\xc1"])
    assert stream.unreadable == 2


def test_events_reach_the_scheduler() -> None:
    """A real publisher clears the cache: what the gateway knew of the replica's text is gone."""

    async def test() -> None:
        context = zmq.Context()
        publisher = context.socket(zmq.PUB)
        publisher.setsockopt(zmq.LINGER, 0)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        async with rig(specs=engines(1)) as r:
            ledger = r.served.driver.plane.ledger
            await post(r.client, "/v1/completions", {"prompt": "x" * 400}, {"x-session-id": "s"})
            assert ledger.evidence("s", "r0") is not None
            stream = KvStream(lambda: r.served.driver.kv_changed("r0", cleared=True))
            subscriber = KvSubscriber(f"tcp://127.0.0.1:{port}", stream)
            number = 0
            async with asyncio.timeout(5):
                while ledger.evidence("s", "r0") is not None:
                    publisher.send_multipart(frames(number, ["AllBlocksCleared"]))
                    number += 1
                    await asyncio.sleep(0.02)
            await subscriber.close()
        publisher.close()
        context.term()

    run(test)


def test_an_address_that_is_none() -> None:
    async def test() -> None:
        with pytest.raises(UsageError):
            KvSubscriber("nowhere", KvStream(lambda: None))

    run(test)
