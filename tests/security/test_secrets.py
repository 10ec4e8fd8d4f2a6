"""API keys go nowhere but to the engine they are for: not to a log, a trace, a page, a message."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

from harness.live.access import Access
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.login import Login
from harness.live.recording import TraceRecorder
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from harness.live.wire import Request
from tests.live.rig import Got, chat, engines, get, post, run

CALLER, OWN, ENGINE = "canary-caller-" + "c" * 20, "canary-own-" + "o" * 20, "canary-engine-key"
CANARIES = [CALLER, OWN, ENGINE]
PATHS = ["/v1/chat/completions", "/v1/messages", "/v1/responses", "/v1/completions"]


def body_for(path: str, **fields: Any) -> dict[str, Any]:
    return {**chat(**fields), "input": "hi", "prompt": "hi", "max_tokens": 8}


def test_no_key_is_written_anywhere(tmp_path: Path) -> None:
    """With and without tokens of the gateway; in turns that succeed and in such that fail."""

    async def test() -> None:
        for number, access in enumerate((Access(), Access((OWN,)))):
            fleet = FleetServer(engines(2), EmulatorSettings(tick_s=0.002), misbehave=True)
            await fleet.start()
            content = (tmp_path / f"content-{number}").open("wb")
            recorder = TraceRecorder(tmp_path / f"trace-{number}.jsonl", "w", content)
            served = ServedGateway(
                find_policy("tao", {}),
                fleet.urls,
                ServeSettings(port=0, access=access, backend=Login(ENGINE if number else None)),
                event_log=tmp_path / f"events-{number}.jsonl",
                watcher=recorder,
                observer=recorder,
            )
            await served.start()
            client, admin = HttpClient(served.url), HttpClient(served.admin_url)
            token = OWN if number else CALLER
            for headers in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}):
                for path in PATHS:
                    for kind in (None, "status-500", "malformed"):
                        for fault in fleet.faults:
                            fault.misbehave(kind)
                        await post(client, path, body_for(path), headers)
                        await post(client, path, body_for(path, stream=True), headers)
            for fault in fleet.faults:
                fault.misbehave(None)
            await post(client, PATHS[0], chat(), {"authorization": "Bearer " + CALLER + "x"})
            pages = ["/state", "/sessions", "/replicas", "/decisions?n=10000", "/metrics"]
            shown = [(await get(admin, page)).body for page in pages]
            for canary in CANARIES:
                assert not [page for page in shown if canary.encode() in page]
            for each in (client, admin):
                await each.close()
            await served.close()
            await fleet.close()
            content.close()
            recorder.save()

    run(test, 120.0)
    written = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert len(written) == 6
    for path in written:
        data = path.read_bytes()
        assert data
        for canary in CANARIES:
            assert canary.encode() not in data, path.name


def test_prompts_are_written_only_when_asked_for(tmp_path: Path) -> None:
    async def test() -> None:
        fleet = FleetServer(engines(1), EmulatorSettings(tick_s=0.002))
        await fleet.start()
        recorder = TraceRecorder(tmp_path / "trace.jsonl", "w", None)
        served = ServedGateway(
            find_policy("round-robin", {}),
            fleet.urls,
            ServeSettings(port=0),
            event_log=tmp_path / "events.jsonl",
            watcher=recorder,
            observer=recorder,
        )
        await served.start()
        client = HttpClient(served.url)
        got = Got()
        text = "my secret prompt"
        raw = json.dumps(chat(text=text)).encode()
        client.send(Request("POST", PATHS[0], {"x-session-id": "s"}, raw), got)
        async with asyncio.timeout(20):
            await got.ended.wait()
        assert got.status == 200
        await client.close()
        await served.close()
        await fleet.close()
        recorder.save()
        for path in tmp_path.iterdir():
            assert text.encode() not in path.read_bytes()

    run(test)
