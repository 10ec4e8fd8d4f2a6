"""The gateway restarted under load, the network cut under it, and event streams with gaps."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import msgpack
import pytest

from harness.live.http_client import HttpClient
from harness.live.kv_events import KvStream
from scripts._soak import fetch, free_port
from tests.cli.command import environment
from tests.faults.matrix import fault
from tests.faults.stage import faulted
from tests.live.rig import chat, post, run

CHAT = "/v1/chat/completions"


def command(*arguments: str, prefix: tuple[str, ...] = ()) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [*prefix, sys.executable, "-m", "agentsched", *arguments],
        env=environment(),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


async def until_up(url: str, limit_s: float = 120.0) -> None:
    async with asyncio.timeout(limit_s):
        while await asyncio.to_thread(fetch, url) is None:
            await asyncio.sleep(0.2)


@fault(
    "gateway killed and restarted under load",
    sees="a broken connection; the same request again is served",
    retried="by the caller: the session goes on under its name",
    freed="everything: a gateway keeps nothing on disk but its logs",
)
def test_gateway_restarted_under_load() -> None:
    engine_port, port, admin = (free_port() for _ in range(3))
    engine = command("emulate", "--topology", "1x1xh100", "--port", str(engine_port))
    serve = ["serve", "--port", str(port), "--admin-port", str(admin), "--wait", "120"]
    serve += ["--backend", f"http://127.0.0.1:{engine_port}"]
    gateway = command(*serve)

    async def test() -> None:
        nonlocal gateway
        url = f"http://127.0.0.1:{port}"
        await until_up(f"{url}/v1/models")
        client = HttpClient(url)
        ask = chat(max_tokens=400, ignore_eos=True)
        asked = [
            asyncio.ensure_future(post(client, CHAT, ask, {"x-session-id": f"s{i}"}))
            for i in range(20)
        ]
        async with asyncio.timeout(60):
            while (await asyncio.to_thread(fetch, f"http://127.0.0.1:{admin}/state"))[
                "in_flight"
            ] < 20:
                await asyncio.sleep(0.02)
        gateway.kill()
        gateway.wait()
        got = await asyncio.gather(*asked)
        assert all(each.error is not None for each in got)  # told at once, nothing hangs
        gateway = command(*serve)
        await until_up(f"{url}/v1/models")
        async with asyncio.timeout(60):  # what the dead gateway had asked for is dropped
            while await asyncio.to_thread(fetch, f"http://127.0.0.1:{engine_port}/load") != {
                "server_load": 0
            }:
                await asyncio.sleep(0.05)
        again = await post(client, CHAT, chat(), {"x-session-id": "s0"})
        assert again.status == 200
        await client.close()

    try:
        run(test)
    finally:
        for process in (gateway, engine):
            process.send_signal(signal.SIGTERM)
            assert process.wait(30) == 0


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


@contextmanager
def other_host() -> Iterator[tuple[str, str, str]]:
    """A network namespace as another machine: its name, our address and its address."""
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("network namespaces need root and iproute2")
    name = f"as{os.getpid()}"
    ours, theirs, net = f"{name}a", f"{name}b", "198.51.100"
    try:
        _ip("netns", "add", name)
    except subprocess.CalledProcessError as error:
        pytest.skip(f"no network namespaces here: {error.stderr.strip()}")
    try:
        _ip("link", "add", ours, "type", "veth", "peer", "name", theirs, "netns", name)
        _ip("addr", "add", f"{net}.1/30", "dev", ours)
        _ip("link", "set", ours, "up")
        _ip("netns", "exec", name, "ip", "addr", "add", f"{net}.2/30", "dev", theirs)
        _ip("netns", "exec", name, "ip", "link", "set", theirs, "up")
        _ip("netns", "exec", name, "ip", "link", "set", "lo", "up")
        yield name, ours, f"{net}.2"
    finally:
        _ip("netns", "del", name)


@fault(
    "network cut between gateway and engine (network namespaces)",
    sees="the answer of a replica that can be reached; 504 or 502 if tokens had come",
    retried="turns of which no token was delivered, after `--turn-idle`",
    freed="the turns at the engine that is cut off; it is used again when the link is back",
)
def test_network_cut_between_hosts() -> None:
    with other_host() as (name, link, address):
        far_port, near_port, port, admin = (free_port() for _ in range(4))
        near = command("emulate", "--topology", "1x1xh100", "--port", str(near_port))
        far = command(
            *("emulate", "--topology", "1x1xh100", "--port", str(far_port)),
            *("--host", address, "--allow-anyone"),
            prefix=("ip", "netns", "exec", name),
        )
        serve = ["serve", "--scheduler", "round-robin", "--port", str(port), "--wait", "120"]
        serve += ["--admin-port", str(admin), "--poll", "1", "--turn-idle", "1"]
        serve += ["--backend", f"http://{address}:{far_port}"]
        serve += ["--backend", f"http://127.0.0.1:{near_port}"]
        gateway = command(*serve)

        async def test() -> None:
            url = f"http://127.0.0.1:{port}"
            await until_up(f"{url}/v1/models")
            client = HttpClient(url)
            assert {(await post(client, CHAT, chat())).status for _ in range(2)} == {200}
            _ip("link", "set", link, "down")
            got = await asyncio.gather(
                *(post(client, CHAT, chat(), {"x-session-id": f"s{i}"}) for i in range(4))
            )
            assert [each.status for each in got] == [200] * 4
            assert {each.headers["x-agentsched-replica"] for each in got} == {"r1"}
            _ip("link", "set", link, "up")
            async with asyncio.timeout(120):
                while True:
                    again = await post(client, CHAT, chat())
                    if again.headers.get("x-agentsched-replica") == "r0":
                        break
                    await asyncio.sleep(0.2)
            state = await asyncio.to_thread(fetch, f"http://127.0.0.1:{admin}/state")
            assert (state["in_flight"], state["waiting"]) == (0, 0)
            await client.close()

        try:
            run(test)
        finally:
            for process in (gateway, near, far):
                process.send_signal(signal.SIGTERM)
            for process in (gateway, near, far):
                process.wait(30)


@fault(
    "KV-event stream with gaps",
    sees="nothing",
    retried="not concerned",
    freed="what was believed cached at the replica",
)
def test_kv_events_with_gaps() -> None:
    def frames(number: int) -> list[bytes]:
        return [b"", number.to_bytes(8, "big"), msgpack.packb([0.0, []])]

    async def test() -> None:
        async with faulted() as f:
            for session in ("a", "b"):
                assert (await f.ask(session=session)).status == 200
            driver = f.served.driver
            ledger = driver.plane.ledger
            stream = KvStream(partial(driver.kv_changed, "r0", cleared=True))
            for number in (4, 5, 6):
                stream.message(frames(number))
            (known,) = [s.id for s in ledger.session_states.values() if "r0" in s.evidence]
            stream.message(frames(8))
            assert stream.gaps == 1
            assert not ledger.session_states[known].evidence
            assert (await f.ask(session="c")).status == 200

    run(test)
