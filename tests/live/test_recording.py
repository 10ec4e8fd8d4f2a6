"""What was replayed through the gateway is what it records."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.recording import TraceRecorder
from harness.live.replay import Replayer, ReplaySettings
from harness.live.serving import ServedGateway, ServeSettings, find_policy
from tests.live.rig import engines, run
from tests.live.test_virtual_run import Records, workload
from workloads.model import Session, TurnSpec
from workloads.trace import load_trace


async def record(sessions: list[Session], path: Path, content: Path | None = None) -> None:
    fleet = FleetServer(engines(), EmulatorSettings(tick_s=0.002), speed=20.0)
    await fleet.start()
    stream = content.open("wb") if content is not None else None
    recorder = TraceRecorder(path, "recorded", stream)
    served = ServedGateway(
        find_policy("round-robin", {}),
        fleet.urls,
        ServeSettings(port=0),
        watcher=recorder,
        observer=recorder,
        speed=20.0,
    )
    await served.start()
    client = HttpClient(served.url)
    done = asyncio.Event()
    Replayer(
        sessions,
        workers=1,
        sender=client,
        clock=served.clock,
        recorder=Records(),
        settings=ReplaySettings(),
        done=done.set,
    ).start()
    await done.wait()
    recorder.save()
    await client.close()
    await served.close()
    await fleet.close()
    if stream is not None:
        stream.close()


def counts(turn: TurnSpec) -> tuple[object, ...]:
    return (
        turn.kept_turn,
        turn.kept_tokens,
        turn.new_tokens,
        turn.output_tokens,
        sum(s.tokens for s in turn.shared),
        tuple((call.name, call.hint_s) for call in turn.tools),
    )


def plain(sessions: list[Session]) -> list[Session]:
    """Without what a gateway cannot see: tools after the last turn, and which of two equal
    beginnings a prompt was cut from."""
    found: list[Session] = []
    for session in sessions:
        turns = [replace(turn, tools=turn.tools) for turn in session.turns]
        turns[-1] = replace(turns[-1], tools=())
        found.append(replace(session, turns=tuple(turns)))
    return found


def test_recorded_tokens_and_tools_are_those_replayed(tmp_path: Path) -> None:
    sessions = [s for s in workload(3, 8) if s.parent is None]
    # Only sessions that append: a cut of another turn may be found in more than one way.
    sessions = [
        s for s in sessions if all(t.kept_turn == i - 1 for i, t in enumerate(s.turns) if i)
    ]
    assert sum(len(s.turns) for s in sessions) > 10
    path = tmp_path / "trace.jsonl"
    run(lambda: record(sessions, path))
    recorded = load_trace(path)
    assert [s.id for s in recorded] == [s.id for s in sessions]
    for seen, sent in zip(recorded, plain(sessions), strict=True):
        assert [counts(t) for t in seen.turns] == [counts(t) for t in sent.turns]
        for a, b in zip(seen.turns[:-1], sent.turns[:-1], strict=True):
            between = a.tool_seconds + a.wait_s
            assert between >= b.tool_seconds + b.wait_s  # it saw at least what was waited


def test_prompts_that_drop_what_they_had(tmp_path: Path) -> None:
    """Kept: part of the first message; all of a turn but the answer; nothing; two turns back."""
    session = Session(
        "s",
        (
            TurnSpec(300, 20),
            TurnSpec(50, 20, kept_turn=0, kept_tokens=290),
            TurnSpec(60, 20, kept_turn=1, kept_tokens=340),
            TurnSpec(70, 20),
            TurnSpec(80, 20, kept_turn=1, kept_tokens=355),
        ),
        "test",
        "generated",
    )
    path = tmp_path / "trace.jsonl"
    run(lambda: record([session], path))
    [recorded] = load_trace(path)
    assert [counts(t) for t in recorded.turns] == [counts(t) for t in session.turns]


def test_text_is_kept_only_on_request(tmp_path: Path) -> None:
    sessions = workload(3, 2)[:1]
    trace, content = tmp_path / "trace.jsonl", tmp_path / "content.jsonl"
    run(lambda: record(sessions, trace, content))
    lines = [json.loads(line) for line in content.read_text().splitlines()]
    assert [line["turn"] for line in lines] == list(range(len(sessions[0].turns)))
    assert lines[0]["request"]["messages"][0]["role"] == "system"
    assert "messages" not in trace.read_text()
