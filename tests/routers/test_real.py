"""The rivals' real programs before emulated replicas."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from harness.live.http_client import HttpClient
from harness.live.routers import find_router
from tests.live.rig import chat, post, run
from tests.routers.rig import emulated, installed

HOMED = ("vllm-router:consistent_hash", "smg:consistent_hashing")
NAMES = {"vllm-router": "x-session-id", "smg": "x-smg-routing-key"}


@pytest.mark.parametrize("target", ["vllm-router:round_robin", "smg:round_robin"])
def test_round_robin_serves_all_replicas_in_turn(target: str, tmp_path: Path) -> None:
    installed(target)

    async def test() -> None:
        async with emulated(2) as replicas:
            front = find_router(target, {}, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            try:
                answers = [await post(client, PATH, chat(f"turn {i}")) for i in range(6)]
                streamed = await post(client, PATH, chat("stream", stream=True))
            finally:
                await client.close()
                await front.close()
        homes = [answer.json["id"].split("-")[1] for answer in answers]
        assert homes[:2] in (["e0", "e1"], ["e1", "e0"])
        assert homes == homes[:2] * 3
        assert streamed.events[-1] == "[DONE]"
        words = "".join(e["choices"][0]["delta"].get("content", "") for e in streamed.events[:-1])
        assert len(words.split()) == 8
        facts = front.facts()
        assert front.label == "external"
        assert (facts["version"], facts["policy"]) == (front.router.version, "round_robin")
        assert facts["command"][0].endswith(front.router.program)
        assert front.counters()["router.requests"] == 7
        assert front.counters()["router.broken"] == 0

    run(test)


@pytest.mark.parametrize("target", HOMED)
def test_sessions_are_named_as_the_router_wants_it(target: str, tmp_path: Path) -> None:
    """With our own header, which no router knows, every session stays on one replica."""
    installed(target)

    async def test() -> None:
        async with emulated(2) as replicas:
            front = find_router(target, {}, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            homes: dict[str, set[str]] = {}
            try:
                for turn in range(4):
                    for number in range(16):
                        session = f"session-{number}"
                        headers = {"x-agentsched-session": session}
                        answer = await post(client, PATH, chat(f"{turn} {session}"), headers)
                        homes.setdefault(session, set()).add(answer.json["id"].split("-")[1])
            finally:
                await client.close()
                await front.close()
        assert all(len(home) == 1 for home in homes.values())
        # 16 hashed keys all on one of two replicas: a chance of 2 in 65,536.
        assert set.union(*homes.values()) == {"e0", "e1"}

    run(test)


def test_cache_aware_follows_the_prompt(tmp_path: Path) -> None:
    installed("vllm-router:cache_aware")

    async def test() -> None:
        async with emulated(2) as replicas:
            settings = {"cache_threshold": 0.5, "balance_abs_threshold": 4}
            front = find_router("vllm-router:cache_aware", settings, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            long = "the same words again and again " * 40
            try:
                first = await post(client, PATH, chat(long))
                later = [await post(client, PATH, chat(f"{long} {i}")) for i in range(4)]
            finally:
                await client.close()
                await front.close()
        homes = {answer.json["id"].split("-")[1] for answer in (first, *later)}
        assert len(homes) == 1
        # Found in the replica's own prefix cache: whole blocks of 16 tokens of a long prompt.
        cached = later[-1].json["usage"]["prompt_tokens_details"]["cached_tokens"]
        assert cached > 200

    run(test)


@pytest.mark.parametrize("settings", [{"program_scheduling": True}, {}], ids=["programs", "sticky"])
def test_ended_sessions_are_told_to_the_vllm_router(
    settings: dict[str, bool], tmp_path: Path
) -> None:
    target = "vllm-router:sticky_least_loaded" if not settings else "vllm-router:consistent_hash"
    installed(target)

    async def test() -> None:
        async with emulated(2) as replicas:
            front = find_router(target, settings, tmp_path)
            await front.start(replicas)
            client = HttpClient(front.url)
            try:
                answer = await post(client, PATH, chat(), {"x-session-id": "s"})
                assert answer.status == 200
                front.release("s")
                await asyncio.sleep(0.2)
                assert front.counters()["router.releases_failed"] == 0
            finally:
                await client.close()
                await front.close()

    run(test)


def test_a_flag_it_does_not_know_is_shown_with_its_own_words(tmp_path: Path) -> None:
    installed("vllm-router")
    from harness.live.routers import RouterError

    async def test() -> None:
        async with emulated(1) as replicas:
            front = find_router("vllm-router", {"args": ["--no-such-flag"]}, tmp_path)
            with pytest.raises(RouterError) as caught:
                await front.start(replicas)
        assert "unrecognized arguments: --no-such-flag" in caught.value.message
        assert str(tmp_path / "vllm-router.log") in caught.value.message
        assert "`args`" in caught.value.remedy

    run(test)


PATH = "/v1/chat/completions"
