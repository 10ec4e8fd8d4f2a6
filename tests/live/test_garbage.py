"""Connections that have ended are gone at once: a gateway's collector of garbage rarely comes."""

from __future__ import annotations

import asyncio
import gc
import json

from tests.live.rig import chat, post, rig, run

CHAT = "/v1/chat/completions"
OURS = ("harness.live", "httptools")


def test_no_connection_waits_for_the_collector() -> None:
    """Answered ones, ones whose clients vanish, ones to an engine that goes away."""
    found: list[str] = []

    async def test() -> None:
        async with rig() as r:
            for number in range(3):
                await post(r.client, CHAT, chat(f"task {number}", stream=True))
            body = json.dumps(chat(stream=True) | {"max_tokens": 2000}).encode()
            head = f"POST {CHAT} HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n\r\n"
            for _ in range(3):
                reader, writer = await asyncio.open_connection("127.0.0.1", r.served.port)
                writer.write(head.encode() + body)
                await reader.readuntil(b"data: ")
                writer.transport.abort()
            await r.settled()
            await asyncio.sleep(0.1)
            gc.collect()  # what the test and the loop itself have made
            gc.disable()
            try:
                for _ in range(5):
                    _, writer = await asyncio.open_connection("127.0.0.1", r.served.port)
                    writer.write(head.encode() + body)
                    await asyncio.sleep(0.05)
                    writer.transport.abort()
                await r.settled()
                await r.client.close()
                await asyncio.sleep(0.1)
                gc.set_debug(gc.DEBUG_SAVEALL)
                gc.collect()
                kinds = [type(each) for each in gc.garbage]
                found.extend(
                    f"{kind.__module__}.{kind.__qualname__}"
                    for kind in kinds
                    if kind.__module__.startswith(OURS)
                )
            finally:
                gc.set_debug(0)
                gc.garbage.clear()
                gc.enable()

    run(test)
    assert found == []
