"""Which replica an answer came from, as far as the router or the answer itself tells.

Some routers name it in a header of the answer. Emulated replicas put their name into the answer's
`id`, which most routers leave alone. Workers of our own (Dynamo's) tell over UDP which request
they were given, before they pass it on. Where nobody tells, it stays unknown.
"""

from __future__ import annotations

import asyncio
import re
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from uuid import uuid4

from harness.live.parts import ReplicaAddress

HEADER = "x-agentsched-replica"
"""Clients find the replica's name there, behind our gateway as behind others' routers."""
_ID = re.compile(rb'"id": ?"(?:chatcmpl|cmpl)-([^"\n]{1,200})-\d+"')
_REMEMBERED = 100_000


class ServedBy:
    """Knows who served which request.

    Args:
        header: of the answer, in which the router gives the replica's URL; None: in none.
    """

    def __init__(self, replicas: Sequence[ReplicaAddress], header: str | None) -> None:
        self._header = header
        self._urls = {replica.url.rstrip("/"): replica.name for replica in replicas}
        self._names = {replica.name.encode(): replica.name for replica in replicas}
        self._told: OrderedDict[str, str] = OrderedDict()
        self._transport: asyncio.DatagramTransport | None = None
        self.request_header: str | None = None
        self.address: str | None = None
        """Where workers tell which request they were given, as `REQUEST NAME`."""

    async def listen(self, request_header: str) -> None:
        """Let workers tell of requests, which get their names in that header."""
        self.request_header = request_header
        loop = asyncio.get_running_loop()
        self._transport, _ = await loop.create_datagram_endpoint(
            lambda: _Listener(self._hear), local_addr=("127.0.0.1", 0)
        )
        host, port = self._transport.get_extra_info("sockname")
        self.address = f"{host}:{port}"

    def name(self, headers: dict[str, str]) -> str | None:
        """Put a new name on a request, for workers to tell of; None: no worker tells."""
        if self.request_header is None:
            return None
        name = headers[self.request_header] = str(uuid4())
        return name

    def replica(self, request: str | None, headers: Mapping[str, str], part: bytes) -> str | None:
        """Who served the request of that name; None: nobody told.

        Args:
            headers: of the answer.
            part: the first one of its body.
        """
        told = self._told.pop(request, None) if request is not None else None
        return told or self.by_header(headers) or self.by_answer(part)

    def by_header(self, headers: Mapping[str, str]) -> str | None:
        value = headers.get(self._header, "") if self._header is not None else ""
        return self._urls.get(value.rstrip("/").removesuffix("/v1"))

    def by_answer(self, part: bytes) -> str | None:
        """From the first part of an answer's body."""
        found = _ID.search(part, 0, 400)
        return self._names.get(found[1]) if found is not None else None

    def _hear(self, message: bytes) -> None:
        request, _, name = message.decode("utf-8", "replace").partition(" ")
        if name.encode() in self._names:
            self._told[request] = name
            while len(self._told) > _REMEMBERED:
                self._told.popitem(last=False)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class _Listener(asyncio.DatagramProtocol):
    def __init__(self, hear: Callable[[bytes], None]) -> None:
        self._hear = hear

    def datagram_received(self, data: bytes, addr: object) -> None:
        self._hear(data)
