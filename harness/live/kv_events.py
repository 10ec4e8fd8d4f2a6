"""KV-cache events of vLLM and SGLang over ZMQ: what the gateway needs to know of them.

Three frames: topic, sequence number (8 bytes, big endian), msgpack payload [time, events, rank].
An event is an array whose first item is its name, or (newer vLLM) a map with a `type`. Hashes may
be numbers or bytes. A gap in the numbers means that events were lost. The publisher's replay socket
is asked for them, where it has one: a request [empty, first number wanted], answered by messages of
four frames, the first empty, until one with the number -1. If it cannot give all of them, what was
known of the replica's cache is not to be trusted, and is dropped as if the cache had been cleared.

Sources: vLLM docs (KV events), vllm/distributed/kv_events.py, and SGLang's
sglang/srt/disaggregation/kv_events.py, which is alike; both encodings occur in the wild.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgpack
import zmq
import zmq.asyncio

from agentsched import UsageError

END = (-1).to_bytes(8, "big", signed=True)
"""Number of the message that ends a replay."""
REPLAY_S = 5.0
"""A replay must be complete in this time. Our choice; vLLM looks at requests ten times a second."""
_CLEARED = "AllBlocksCleared"
_STORED = "BlockStored"
_REMOVED = "BlockRemoved"


@dataclass(frozen=True, slots=True)
class KvBatch:
    """One message, as far as it is understood."""

    stored: int
    """Blocks."""
    removed: int
    cleared: bool


class KvStream:
    """Follows one replica's messages.

    Args:
        cleared: called when the replica's cache is empty, or must be taken to be.
    """

    def __init__(self, cleared: Callable[[], None]) -> None:
        self._cleared = cleared
        self._last: int | None = None
        self.stored = self.removed = self.gaps = self.replayed = self.unreadable = 0

    def missing(self, frames: Sequence[bytes]) -> range:
        """Numbers of the messages that were lost just before this one; empty after a restart of
        the publisher, which counts from 0 again."""
        if self._last is None or not _is_message(frames):
            return range(0)
        return range(self._last + 1, _number(frames))

    def replay(self, lost: range, found: Sequence[Sequence[bytes]]) -> bool:
        """Take in messages of a replay; False, and nothing is taken in, if not all of `lost` are
        there."""
        numbered = {_number(frames): frames for frames in found if _is_message(frames)}
        if any(number not in numbered for number in lost):
            return False
        for number in lost:
            self.message(numbered[number])
        self.replayed += len(lost)
        return True

    def message(self, frames: Sequence[bytes]) -> None:
        """Take in one message."""
        if not _is_message(frames):
            self.unreadable += 1
            return
        number = _number(frames)
        if self._last is not None and number != self._last + 1:
            self.gaps += 1
            self._cleared()
        self._last = number
        batch = decode_batch(frames[2])
        if batch is None:
            self.unreadable += 1
            return
        self.stored += batch.stored
        self.removed += batch.removed
        if batch.cleared:
            self._cleared()


def _is_message(frames: Sequence[bytes]) -> bool:
    return len(frames) == 3 and len(frames[1]) == 8


def _number(frames: Sequence[bytes]) -> int:
    return int.from_bytes(frames[1], "big")


def decode_batch(payload: bytes) -> KvBatch | None:
    """A payload in either encoding; None if it is neither."""
    try:
        # Hashes as bytes stay bytes; map keys may be bytes in old encoders.
        found = msgpack.unpackb(payload, raw=False, strict_map_key=False, unicode_errors="replace")
    except (ValueError, msgpack.exceptions.UnpackException):
        return None
    events = found.get("events") if isinstance(found, Mapping) else None
    if isinstance(found, list) and len(found) >= 2:
        events = found[1]
    if not isinstance(events, list):
        return None
    stored = removed = 0
    cleared = False
    for event in events:
        name, hashes = _name_and_hashes(event)
        if name == _CLEARED:
            cleared = True
        elif name == _STORED:
            stored += len(hashes)
        elif name == _REMOVED:
            removed += len(hashes)
    return KvBatch(stored, removed, cleared)


def _name_and_hashes(event: Any) -> tuple[str, list[Any]]:
    if isinstance(event, Mapping):
        name, hashes = event.get("type"), event.get("block_hashes")
    elif isinstance(event, list) and event:
        name, hashes = event[0], event[1] if len(event) > 1 else None
    else:
        return "", []
    return str(name), hashes if isinstance(hashes, list) else []


class KvSubscriber:
    """Listens to one replica's publisher.

    Args:
        endpoint: as `tcp://127.0.0.1:5557`.
        replay: its replay socket; None: it has none.
        replay_s: how long a replay may take.

    Raises:
        UsageError: `endpoint` or `replay` is no address.
    """

    def __init__(
        self,
        endpoint: str,
        stream: KvStream,
        replay: str | None = None,
        replay_s: float = REPLAY_S,
    ) -> None:
        self.stream = stream
        self._replay_s = replay_s
        self._context = zmq.asyncio.Context()
        self._socket = self._connect(zmq.SUB, endpoint)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        self._replay = replay
        if replay is not None:
            self._connect(zmq.DEALER, replay).close(linger=0)
        self._task = asyncio.get_running_loop().create_task(self._listen())

    def _connect(self, kind: int, endpoint: str) -> zmq.asyncio.Socket:
        socket = self._context.socket(kind)
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UsageError(
                f"`{endpoint}` is no address of KV events: {error}", "as tcp://127.0.0.1:5557"
            ) from None
        return socket

    async def _listen(self) -> None:
        while True:
            frames = await self._socket.recv_multipart()
            lost = self.stream.missing(frames)
            if lost and self._replay is not None:
                self.stream.replay(lost, await self._ask(self._replay, lost))
            self.stream.message(frames)

    async def _ask(self, replay: str, lost: range) -> list[list[bytes]]:
        """What the publisher still has of the lost messages."""
        found: list[list[bytes]] = []
        asking = self._connect(zmq.DEALER, replay)  # a late answer must not be taken for the next
        try:
            async with asyncio.timeout(self._replay_s):
                await asking.send_multipart([b"", lost.start.to_bytes(8, "big")])
                while True:
                    _, *message = await asking.recv_multipart()
                    if not _is_message(message) or message[1] == END:
                        return found
                    if _number(message) >= lost.stop:  # the others come by themselves
                        return found
                    found.append(message)
        except TimeoutError:
            return found
        finally:
            asking.close(linger=0)

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)
