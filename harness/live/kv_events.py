"""KV-cache events of vLLM and SGLang over ZMQ: what the gateway needs to know of them.

Three frames: topic, sequence number (8 bytes, big endian), msgpack payload [time, events, rank].
An event is an array whose first item is its name, or (newer vLLM) a map with a `type`. Hashes may
be numbers or bytes. A gap in the numbers means that events were lost: what was known of the
replica's cache is not to be trusted, and is dropped as if the cache had been cleared.

Sources: vLLM docs (KV events), vllm/distributed/kv_events.py; both encodings occur in the wild.
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
        self.stored = self.removed = self.gaps = self.unreadable = 0

    def message(self, frames: Sequence[bytes]) -> None:
        """Take in one message."""
        if len(frames) != 3 or len(frames[1]) != 8:
            self.unreadable += 1
            return
        number = int.from_bytes(frames[1], "big")
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

    Raises:
        UsageError: `endpoint` is none.
    """

    def __init__(self, endpoint: str, stream: KvStream) -> None:
        self.stream = stream
        self._context = zmq.asyncio.Context()
        self._socket = self._context.socket(zmq.SUB)
        self._socket.setsockopt(zmq.LINGER, 0)
        self._socket.setsockopt(zmq.SUBSCRIBE, b"")
        try:
            self._socket.connect(endpoint)
        except zmq.ZMQError as error:
            self._context.destroy(linger=0)
            raise UsageError(
                f"`{endpoint}` is no address of KV events: {error}", "as tcp://127.0.0.1:5557"
            ) from None
        self._task = asyncio.get_running_loop().create_task(self._listen())

    async def _listen(self) -> None:
        while True:
            self.stream.message(await self._socket.recv_multipart())

    async def close(self) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        self._context.destroy(linger=0)
