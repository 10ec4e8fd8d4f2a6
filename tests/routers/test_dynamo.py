"""Dynamo's frontend with our workers: what is started, and the real thing before emulated replicas.

The real thing needs Dynamo's own environment: `agentsched engine install dynamo`, or its bin folder
in AGENTSCHED_TEST_DYNAMO.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from agentsched import UsageError
from harness.live.emulator import EmulatorSettings
from harness.live.fleet_server import FleetServer
from harness.live.http_client import HttpClient
from harness.live.parts import ReplicaAddress
from harness.live.routers import RouterError, find_router
from harness.live.routers.base import Launch
from harness.live.routers.dynamo import BRIDGE, DynamoFrontend, workers_of
from harness.live.routers.find import describe_router
from harness.live.routers.served import HEADER
from harness.live.wire import Request
from harness.live.words import words
from tests.live.rig import JSON, Got, chat, engines, post, run
from tests.routers.rig import DYNAMO, emulated, installed, started_with
from tests.routers.test_commands import HELP, flags_of

PATH = "/v1/chat/completions"
BARE = [ReplicaAddress("a", "http://127.0.0.1:1"), ReplicaAddress("b", "http://127.0.0.1:2")]
TELLING = [replace(r, kv_events=f"tcp://127.0.0.1:{i}") for i, r in enumerate(BARE, 5)]


def launch(replicas: Sequence[ReplicaAddress], folder: Path, **served: Any) -> Launch:
    return Launch(("python",), 7, 8, replicas, "m", folder, folder, served, "127.0.0.1:9")


def test_command_lines(tmp_path: Path) -> None:
    settings = {"queue_threshold": 2, "temperature": 0.5}
    router = describe_router("dynamo:kv", settings)
    given = launch(TELLING, tmp_path, root="/models/m")
    assert " ".join(router.command(given)) == (
        "python -m dynamo.frontend --http-host 127.0.0.1 --http-port 7 --namespace agentsched "
        "--discovery-backend file --request-plane tcp --event-plane zmq --router-mode kv "
        "--router-kv-events --router-temperature 0.5 --router-queue-threshold 2.0"
    )
    first, second = router.helpers(given)
    assert (first.name, second.name) == ("dynamo-a", "dynamo-b")
    assert " ".join(first.command) == (
        f"python -I {BRIDGE} --name a --url http://127.0.0.1:1 --model m --folder /models/m "
        "--namespace agentsched --batch-tokens 8192 --max-sequences 256 --interval 1.0 "
        "--kv-events tcp://127.0.0.1:5 --tell 127.0.0.1:9"
    )
    assert router.environment(given)["DYN_FILE_KV"] == str(tmp_path / "discovery")


def test_round_robin_takes_no_events(tmp_path: Path) -> None:
    router = describe_router("dynamo:round-robin", {"session_affinity_ttl_secs": 60})
    given = launch(BARE, tmp_path, root="/models/m")
    assert router.command(given)[-4:] == [
        "--router-mode",
        "round-robin",
        "--router-session-affinity-ttl-secs",
        "60",
    ]
    assert all("--kv-events" not in helper.command for helper in router.helpers(given))


def test_kv_needs_events_or_to_be_told_that_there_are_none(tmp_path: Path) -> None:
    given = launch(BARE, tmp_path, root="/models/m")
    with pytest.raises(UsageError, match="replica a does not publish"):
        describe_router("dynamo:kv").command(given)
    words = describe_router("dynamo:kv", {"kv_events": False}).command(given)
    assert words[-1] == "--no-router-kv-events"


def test_where_the_tokenizer_is(tmp_path: Path) -> None:
    def folder(served: dict[str, Any], **settings: Any) -> str:
        router = describe_router("dynamo:random", settings)
        command = list(router.helpers(launch(BARE, tmp_path, **served))[0].command)
        return command[command.index("--folder") + 1]

    assert folder({"root": "org/model"}) == "org/model"
    assert folder({"root": "org/model"}, model_folder="/m") == "/m"
    made = Path(folder({"owned_by": "agentsched", "max_model_len": 4096}))
    assert made == tmp_path / "model"
    config = json.loads((made / "tokenizer_config.json").read_text())
    assert config["model_max_length"] == 4096
    with pytest.raises(UsageError, match="needs the model's tokenizer"):
        folder({})


def test_every_flag_is_in_dynamo_s_own_help(tmp_path: Path) -> None:
    known = flags_of(HELP / f"dynamo-{DynamoFrontend.version}.txt")
    settings = {
        "kv_overlap_score_credit": 0.5,
        "prefill_load_scale": 2.0,
        "temperature": 0.1,
        "queue_threshold": 1.0,
        "session_affinity_ttl_secs": 9,
    }
    given = launch(TELLING, tmp_path, root="/m")
    for policy in DynamoFrontend.policies:
        for kv_events in (True, False):
            router = describe_router(f"dynamo:{policy}", {**settings, "kv_events": kv_events})
            used = {word for word in router.command(given) if word.startswith("--")}
            assert used <= known
    text = (HELP / f"dynamo-{DynamoFrontend.version}.txt").read_text()
    modes = text.partition("--router-mode {")[2].partition("}")[0].split(",")
    assert set(DynamoFrontend.policies) <= set(modes)


def test_workers_on_the_health_page() -> None:
    page = {
        "instances": [
            {"endpoint": "generate", "instance_id": 9},
            {"endpoint": "worker_kv_indexer_query_dp0", "instance_id": 9},
            {"endpoint": "generate", "instance_id": 4},
        ]
    }
    assert workers_of(page) == [4, 9]
    router = describe_router("dynamo")
    assert router.knows(page, BARE)
    assert not router.knows(page, [*BARE, BARE[0]])
    assert not router.knows({}, BARE)


@pytest.mark.parametrize("policy", ["round-robin", "kv"])
def test_the_real_frontend_serves_emulated_replicas(policy: str, tmp_path: Path) -> None:
    """Two talks of four turns: all turns of a talk are found in one replica's cache under kv, and
    every second one under round robin; usage is the replica's own, and so is who served."""
    installed("dynamo", program=DYNAMO)

    async def test() -> None:
        fleet = FleetServer(engines(2), EmulatorSettings(tick_s=0.002), kv_port=0)
        await fleet.start()
        replicas = [
            ReplicaAddress(f"e{i}", url, kv_events=publisher.address)
            for i, (url, publisher) in enumerate(zip(fleet.urls, fleet.publishers, strict=True))
        ]
        front = find_router(f"dynamo:{policy}", {"program": DYNAMO, "ready_s": 60.0}, tmp_path)
        await front.start(replicas)
        client = HttpClient(front.url)
        served: list[str] = []
        cached: list[int] = []
        try:
            for talk in range(2):
                said = [{"role": "user", "content": words(f"task {talk}", 400)}]
                for turn in range(4):
                    body = chat("", messages=said, max_tokens=20, ignore_eos=True)
                    answer = await post(client, PATH, body)
                    usage = answer.json["usage"]
                    text = answer.json["choices"][0]["message"]["content"]
                    assert usage["completion_tokens"] == len(text.split()) == 20
                    assert usage["prompt_tokens"] == 400 + turn * 70
                    served.append(answer.headers[HEADER])
                    details = usage["prompt_tokens_details"] or {}
                    cached.append(details.get("cached_tokens") or 0)
                    more = {"role": "user", "content": words(f"tool {talk} {turn}", 50)}
                    said += [{"role": "assistant", "content": text}, more]
                    await asyncio.sleep(0.1)  # until the router has heard of the blocks
            assert all(started_with(url) for url in fleet.urls)
        finally:
            await client.close()
            await front.close()
            await fleet.close()
        assert front.label == "external"
        assert "Dynamo's own" in front.facts()["adapter"]
        if policy == "round-robin":
            assert Counter(served) == {"e0": 4, "e1": 4}
            assert all(a != b for a, b in pairwise(served))
        else:
            assert len(set(served[:4])) == len(set(served[4:])) == 1
            # 400 + 20 tokens, the last not computed: 26 whole blocks of 16. Then 70 more a turn.
            assert cached[1:4] == [416, 480, 544]
        assert not any(started_with(url) for url in fleet.urls)

    run(test)


def test_sessions_are_named_as_dynamo_wants_it(tmp_path: Path) -> None:
    """With affinity, sessions that name themselves in our header alone stay where they were."""
    installed("dynamo", program=DYNAMO)

    async def test() -> None:
        async with emulated(2) as replicas:
            settings = {"program": DYNAMO, "ready_s": 60.0, "session_affinity_ttl_secs": 600}
            front = find_router("dynamo:round-robin", settings, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            homes: dict[str, set[str]] = {}
            try:
                for turn in range(3):
                    for session in "abcd"[: 4 - turn % 2]:  # else round robin could look like it
                        headers = {"x-agentsched-session": session}
                        got = await post(client, PATH, chat(f"{turn} {session}"), headers)
                        homes.setdefault(session, set()).add(got.headers[HEADER])
            finally:
                await client.close()
                await front.close()
        assert all(len(home) == 1 for home in homes.values())
        assert set.union(*homes.values()) == {"e0", "e1"}

    run(test)


def test_what_the_replica_refuses_and_who_leaves(tmp_path: Path) -> None:
    """A refusal keeps its kind and words; a client that leaves ends the replica's request too."""
    installed("dynamo", program=DYNAMO)

    async def test() -> None:
        fleet = FleetServer(engines(1), EmulatorSettings(tick_s=0.02, max_model_len=4096))
        await fleet.start()
        settings = {"program": DYNAMO, "ready_s": 60.0}
        front = find_router("dynamo:round-robin", settings, tmp_path)
        await front.start([ReplicaAddress("e0", fleet.urls[0])])
        client = HttpClient(front.url)
        try:
            refused = await post(client, PATH, chat(max_tokens=5000))
            body = chat(max_tokens=3000, ignore_eos=True, stream=True)
            got = Got()
            call = client.send(Request("POST", PATH, JSON, json.dumps(body).encode()), got)
            async with asyncio.timeout(10):
                while not fleet.replicas[0].in_flight:
                    await asyncio.sleep(0.01)
                call.cancel()
                while fleet.replicas[0].in_flight:
                    await asyncio.sleep(0.01)
        finally:
            await client.close()
            await front.close()
            await fleet.close()
        assert refused.status == 400
        assert "maximum context length is 4096 tokens" in refused.body.decode()

    run(test)


def test_a_worker_that_ends_fails_the_cell(tmp_path: Path) -> None:
    """With a model folder that has no tokenizer, no worker can register itself."""
    installed("dynamo", program=DYNAMO)
    (tmp_path / "empty").mkdir()

    async def test() -> None:
        fleet = FleetServer(engines(1))
        await fleet.start()
        settings = {"program": DYNAMO, "model_folder": str(tmp_path / "empty"), "ready_s": 60.0}
        front = find_router("dynamo:round-robin", settings, tmp_path)
        try:
            with pytest.raises(RouterError) as caught:
                await front.start([ReplicaAddress("e0", fleet.urls[0])])
        finally:
            await fleet.close()
        assert "dynamo-e0 ended before it was ready" in caught.value.message

    run(test)
