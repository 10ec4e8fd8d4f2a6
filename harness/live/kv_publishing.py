"""KV-cache events of an emulated replica, published over ZMQ as vLLM publishes its own.

Three frames: topic, sequence number (8 bytes, big endian), msgpack payload [time, events, rank];
events are maps with their name in `type` and defaults left out (vllm/distributed/kv_events.py of
0.32). Who missed some asks a second socket for all from a number on. Hashes are made up from the
name of the text: equal text, equal hashes, at all replicas of one emulator. So are token numbers,
but of prompts that came as numbers.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b, shake_256
from typing import Any

import msgpack
import zmq
import zmq.asyncio

from agentsched import UsageError
from harness.live.clock import Clock
from harness.live.kv_events import END
from harness.sim.clock import Priority
from harness.sim.content import Line

BUFFERED = 10_000
"""Messages kept for replay (vLLM's `buffer_steps`)."""
FLUSH_S = 0.02
"""Events are sent together this often. Our choice; vLLM sends those of each step."""
_MEDIUM = "GPU"


def block_hash(branch: int, block: int) -> int:
    """64 bits that name a block's whole text, as `ContentIndex` tells texts apart."""
    name = f"{branch}/{block}".encode()
    return int.from_bytes(blake2b(name, digest_size=8).digest(), "big")


class KvJournal:
    """Writes down what a cache stores and removes (`harness.sim.block_cache.CacheWatcher`).

    Args:
        changed: called when there is something to take and was not before.
    """

    def __init__(self, block_size: int, changed: Callable[[], None]) -> None:
        self._block_size, self._changed = block_size, changed
        self._events: list[dict[str, Any]] = []
        self.numbers: dict[Line, Sequence[int]] = {}
        """Token numbers of texts that are being computed; those of others are made up."""

    def take(self) -> list[dict[str, Any]]:
        """What happened since the last time, in order."""
        events, self._events = self._events, []
        return events

    def stored(self, line: Line, lo: int, hi: int) -> None:
        before = None if lo == 0 else next(_hashes(line, lo - 1, lo))
        hashes = list(_hashes(line, lo, hi))
        size, numbers = self._block_size, self.numbers.get(line)
        if numbers is not None:
            tokens = list(numbers[lo * size : hi * size])
        else:
            tokens = [number for name in hashes for number in _tokens(name, size)]
        self._add(
            {
                "type": "BlockStored",
                "block_hashes": hashes,
                "parent_block_hash": before,
                "token_ids": tokens,
                "block_size": self._block_size,
                "lora_id": None,
                "medium": _MEDIUM,
                "lora_name": None,
            }
        )

    def removed(self, branch: int, lo: int, hi: int) -> None:
        # The last block of a text is evicted first.
        hashes = [block_hash(branch, block) for block in range(hi - 1, lo - 1, -1)]
        self._add({"type": "BlockRemoved", "block_hashes": hashes, "medium": _MEDIUM})

    def cleared(self) -> None:
        self._add({"type": "AllBlocksCleared"})

    def _add(self, event: dict[str, Any]) -> None:
        self._events.append(event)
        if len(self._events) == 1:
            self._changed()


def _hashes(line: Line, lo: int, hi: int) -> Iterator[int]:
    for branch, start, end in line.runs:
        for block in range(max(start, lo), min(end, hi)):
            yield block_hash(branch, block)


def _tokens(name: int, count: int) -> list[int]:
    digits = shake_256(name.to_bytes(8, "big")).digest(2 * count)
    return [int.from_bytes(digits[at : at + 2], "big") for at in range(0, 2 * count, 2)]


class KvPublisher:
    """Publishes one replica's journal. Make it inside the event loop, and close it.

    Args:
        endpoint: to bind, as `tcp://127.0.0.1:5557`; port 0 takes a free one (see `address`).
        replay: to bind for replays; None: there are none.

    Raises:
        UsageError: an endpoint cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        clock: Clock,
        block_size: int,
        *,
        replay: str | None = None,
        topic: str = "",
    ) -> None:
        self.journal = KvJournal(block_size, self._later)
        self._clock, self._topic = clock, topic.encode()
        self._number = 0
        self._buffer: deque[tuple[int, bytes]] = deque(maxlen=BUFFERED)
        self._closed = False
        self._context = zmq.Context()
        # Sending never waits: who does not keep up misses messages, and sees it by the numbers.
        self._socket = self._context.socket(zmq.PUB)
        self._router: zmq.asyncio.Socket | None = None
        self.address = self._bind(self._socket, endpoint)
        self.replay_address: str | None = None
        self._task: asyncio.Task[None] | None = None
        if replay is not None:
            self._router = zmq.asyncio.Socket(self._context, zmq.ROUTER)
            self.replay_address = self._bind(self._router, replay)
            self._task = asyncio.get_running_loop().create_task(self._serve_replays(self._router))

    def _bind(self, socket: zmq.Socket[Any], endpoint: str) -> str:
        socket.setsockopt(zmq.LINGER, 0)
        try:
            socket.bind(endpoint)
        except zmq.ZMQError as error:
            self._close_sockets()
            raise UsageError(
                f"KV events cannot be published at `{endpoint}`: {error}",
                "choose another port, as in tcp://127.0.0.1:5557",
            ) from None
        bound: str = socket.getsockopt_string(zmq.LAST_ENDPOINT)
        return bound

    def _later(self) -> None:
        at = self._clock.now + int(FLUSH_S * 1e9)
        self._clock.at(at, Priority.ENGINE, self.flush)

    def flush(self) -> None:
        """Send what was written down."""
        events = self.journal.take()
        if self._closed or not events:
            return
        payload = msgpack.packb([self._clock.now / 1e9, events, 0])
        number = self._number
        self._number += 1
        self._buffer.append((number, payload))
        self._socket.send_multipart([self._topic, number.to_bytes(8, "big"), payload])

    async def _serve_replays(self, router: zmq.asyncio.Socket) -> None:
        while True:
            frames = await router.recv_multipart()
            if len(frames) != 3 or len(frames[2]) != 8:
                continue
            client, start = frames[0], int.from_bytes(frames[2], "big")
            for number, payload in list(self._buffer):
                if number >= start:
                    sent = number.to_bytes(8, "big")
                    await router.send_multipart([client, b"", self._topic, sent, payload])
            await router.send_multipart([client, b"", b"", END, b""])

    async def close(self) -> None:
        self._closed = True
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        self._close_sockets()

    def _close_sockets(self) -> None:
        self._socket.close(linger=0)
        if self._router is not None:
            self._router.close(linger=0)
        self._context.term()
