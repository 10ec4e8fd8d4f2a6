"""KV-cache events: both encodings, gaps, and over a real socket."""

from __future__ import annotations

import asyncio
from typing import Any

import msgpack
import pytest
import zmq
import zmq.asyncio

from agentsched import UsageError
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.kv_events import END, KvBatch, KvStream, KvSubscriber, decode_batch
from harness.live.kv_publishing import KvJournal
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.sim.content import ContentIndex
from tests.live.rig import engines, get, post, rig, run

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
        with pytest.raises(UsageError, match="nowhere"):
            KvSubscriber("tcp://127.0.0.1:1", KvStream(lambda: None), "nowhere")

    run(test)


def test_what_a_replay_must_hold() -> None:
    """Messages 8 and 9 are lost: a replay of one of them is not taken in, one of both is."""
    cleared: list[int] = []
    stream = KvStream(lambda: cleared.append(stream.stored))
    stream.message(frames(7, ARRAYS[0]))
    after = frames(10, ARRAYS[0])
    assert stream.missing(after) == range(8, 10)
    assert not stream.replay(range(8, 10), [frames(9, ARRAYS[0]), [b"x"]])
    assert (stream.stored, stream.missing(after)) == (2, range(8, 10))
    assert stream.replay(range(8, 10), [frames(8, ARRAYS[0]), frames(9, ARRAYS[1])])
    stream.message(after)
    assert (stream.stored, stream.removed, stream.gaps, stream.replayed) == (6, 1, 0, 2)
    assert cleared == []
    assert not stream.missing(frames(0))  # the publisher has started anew
    assert not stream.missing([b"x"])


@pytest.mark.parametrize("kept", [True, False])
def test_lost_events_are_asked_for_before_the_index_is_dropped(kept: bool) -> None:
    """A publisher skips three messages on its way to the listener. One that keeps them answers,
    and nothing is dropped; one that has them no more does not, and the index is."""

    async def test() -> None:
        context = zmq.asyncio.Context()
        publisher, router = context.socket(zmq.PUB), context.socket(zmq.ROUTER)
        events = publisher.bind_to_random_port("tcp://127.0.0.1")
        replays = router.bind_to_random_port("tcp://127.0.0.1")
        asked: list[int] = []

        async def answer() -> None:
            while True:
                client, _, start = await router.recv_multipart()
                asked.append(int.from_bytes(start, "big"))
                for number in range(asked[-1] if kept else 4, 6):
                    await router.send_multipart([client, b"", *frames(number, ARRAYS[0])])
                await router.send_multipart([client, b"", b"", END, b""])

        answering = asyncio.create_task(answer())
        cleared: list[int] = []
        stream = KvStream(lambda: cleared.append(stream.stored))
        address = "tcp://127.0.0.1:"
        subscriber = KvSubscriber(f"{address}{events}", stream, f"{address}{replays}")
        try:
            async with asyncio.timeout(10):
                while not stream.stored:  # until the subscription is there
                    await publisher.send_multipart(frames(1, ARRAYS[0]))
                    await asyncio.sleep(0.02)
                await asyncio.sleep(0.1)
                stream.gaps, cleared[:] = 0, []
                before = stream.stored
                await publisher.send_multipart(frames(5, ARRAYS[0]))
                while stream.stored == before:
                    await asyncio.sleep(0.01)
                await asyncio.sleep(0.05)
            assert asked == [2]
            assert stream.stored - before == (8 if kept else 2)
            assert (stream.replayed, stream.gaps) == ((3, 0) if kept else (0, 1))
            assert len(cleared) == (0 if kept else 1)
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
            await subscriber.close()
            context.destroy(linger=0)

    run(test)


def test_a_publisher_that_does_not_answer() -> None:
    """Its replay socket is silent: after the time for it, the index is dropped."""

    async def test() -> None:
        context = zmq.asyncio.Context()
        publisher = context.socket(zmq.PUB)
        port = publisher.bind_to_random_port("tcp://127.0.0.1")
        stream = KvStream(lambda: None)
        subscriber = KvSubscriber(f"tcp://127.0.0.1:{port}", stream, "tcp://127.0.0.1:1", 0.1)
        try:
            async with asyncio.timeout(10):
                number = 0
                while stream.gaps == 0:
                    await publisher.send_multipart(frames(number, ARRAYS[0]))
                    number += 2
                    await asyncio.sleep(0.02)
            assert stream.replayed == 0
        finally:
            await subscriber.close()
            context.destroy(linger=0)

    run(test)


def test_an_emulated_replica_publishes_what_its_cache_does() -> None:
    """A cache of 63 blocks: prompts fill it, evict one another, and it is reset. Whoever follows
    the events knows its content; who asks for a replay hears all of it again."""

    async def test() -> None:
        fleet = FleetServer(engines(1, kv_blocks=64), kv_port=0)
        await fleet.start()
        publisher, replica = fleet.publishers[0], fleet.replicas[0]
        context = zmq.asyncio.Context()
        listener = context.socket(zmq.SUB)
        listener.setsockopt(zmq.SUBSCRIBE, b"")
        listener.connect(publisher.address)
        client = HttpClient(fleet.urls[0])
        await asyncio.sleep(0.2)  # until the subscription is there
        known: dict[int, int | None] = {}
        try:
            for number in range(6):  # 20 blocks each
                body = {"prompt": f"{number:04d}" + "word" * 319, "max_tokens": 1}
                assert (await post(client, "/v1/completions", body)).status == 200
            publisher.flush()
            messages: list[list[bytes]] = []
            while await listener.poll(200):
                messages.append(await listener.recv_multipart())
            assert [int.from_bytes(m[1], "big") for m in messages] == list(range(len(messages)))
            for message in messages:
                follow(known, message[2])
            state = replica.engine.state()
            assert state.evicted_blocks > 0
            assert len(known) == state.cached_blocks == 63
            assert all(parent is None or parent in known for parent in known.values())
            source = (await get(client, "/kv_event_sources")).json["0"]
            assert await replayed(context, source["replay_endpoint"], 1) == messages[1:]
            assert (await post(client, "/reset_prefix_cache", {})).json["success"]
            publisher.flush()
            follow(known, (await listener.recv_multipart())[2])
            assert known == {}
        finally:
            await client.close()
            await fleet.close()
            context.destroy(linger=0)

    run(test)


def follow(known: dict[int, int | None], payload: bytes) -> None:
    """Apply a message to an index of blocks and what stands before them."""
    _, events, rank = msgpack.unpackb(payload)
    assert rank == 0
    for event in events:
        if event["type"] == "AllBlocksCleared":
            known.clear()
        elif event["type"] == "BlockRemoved":
            for name in event["block_hashes"]:
                del known[name]
        else:
            assert len(event["token_ids"]) == 16 * len(event["block_hashes"])
            before = event["parent_block_hash"]
            for name in event["block_hashes"]:
                known[name] = before
                before = name


async def replayed(context: zmq.asyncio.Context, address: str, start: int) -> list[list[bytes]]:
    asking = context.socket(zmq.DEALER)
    asking.connect(address)
    await asking.send_multipart([b"", start.to_bytes(8, "big")])
    found: list[list[bytes]] = []
    while True:
        _, topic, number, payload = await asking.recv_multipart()
        if number == END:
            return found
        found.append([topic, number, payload])


def test_serve_follows_an_emulated_replica() -> None:
    """The gateway's index of a replica is dropped when the replica's cache is reset."""

    async def test() -> None:
        fleet = FleetServer(engines(1), kv_port=0)
        await fleet.start()
        publisher = fleet.publishers[0]
        assert publisher.replay_address is not None
        served = ServedGateway(
            find_policy("round-robin", {}),
            fleet.urls,
            ServeSettings(port=0),
            kv_events={"r0": publisher.address},
            kv_replays={"r0": publisher.replay_address},
        )
        await served.start()
        client, engine = HttpClient(served.url), HttpClient(fleet.urls[0])
        try:
            await asyncio.sleep(0.2)
            body = {"prompt": "x" * 400, "max_tokens": 2}
            await post(client, "/v1/completions", body, {"x-session-id": "s"})
            ledger = served.driver.plane.ledger
            assert ledger.evidence("s", "r0") is not None
            assert (await post(engine, "/reset_prefix_cache", {})).json["success"]
            async with asyncio.timeout(5):
                while ledger.evidence("s", "r0") is not None:
                    await asyncio.sleep(0.01)
            stream = served._subscribers[0].stream
            assert (stream.stored, stream.gaps, stream.unreadable) == (6, 0, 0)
        finally:
            for each in (client, engine):
                await each.close()
            await served.close()
            await fleet.close()

    run(test)


def test_the_encoding_is_vllms() -> None:
    """vLLM's own classes read a message, and write it in the same bytes."""
    msgspec = pytest.importorskip("msgspec")
    events = pytest.importorskip("vllm.distributed.kv_events")
    journal = KvJournal(4, lambda: None)
    journal.stored(ContentIndex(4).intern([("a", 8), ("b", 4)]), 1, 3)
    journal.removed(1, 0, 2)
    journal.cleared()
    payload = msgpack.packb([1.5, journal.take(), 0])
    batch = msgspec.msgpack.Decoder(events.KVEventBatch).decode(payload)
    assert [type(event).__name__ for event in batch.events] == [
        "BlockStored",
        "BlockRemoved",
        "AllBlocksCleared",
    ]
    assert len(batch.events[0].token_ids) == 8
    again = msgpack.unpackb(msgspec.msgpack.Encoder().encode(batch))
    assert again == msgpack.unpackb(payload)


def test_a_port_that_is_taken() -> None:
    async def test() -> None:
        context = zmq.Context()
        socket = context.socket(zmq.PUB)
        port = socket.bind_to_random_port("tcp://127.0.0.1")
        fleet = FleetServer(engines(1), kv_port=port)
        with pytest.raises(UsageError, match=str(port)):
            await fleet.start()
        await fleet.close()
        socket.close()
        context.term()

    run(test)
