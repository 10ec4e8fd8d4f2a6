"""Workloads by name: shipped recordings, repetition, order, what is listed."""

from __future__ import annotations

from pathlib import Path

import pytest

from agentsched import UsageError
from workloads.catalog import describe, load_workload, workload_names
from workloads.model import PromptBuilder, Segment, Session, TurnSpec
from workloads.shipped import SHIPPED, shipped_file
from workloads.stats import first_turn_over, share_over, trace_stats
from workloads.trace import write_trace


@pytest.fixture
def family(tmp_path: Path) -> str:
    """Two top-level sessions; the first has a sub-agent that starts from its parent's text."""
    path = tmp_path / "family.jsonl"
    common = Segment("system", 50, 200)
    write_trace(
        path,
        [
            Session("a", (TurnSpec(9, 5, shared=(common,)),), "w", "recorded", arrival_s=1.0),
            Session(
                "a/sub",
                (TurnSpec(3, 2, shared=(common, Segment("a#0", 9, 36))),),
                "w",
                "recorded",
                parent="a",
                spawn_turn=0,
            ),
            Session("b", (TurnSpec(7, 5, shared=(common,)),), "w", "recorded", arrival_s=4.0),
        ],
    )
    return str(path)


def test_shipped_recordings_are_small_and_whole() -> None:
    files = {shipped_file(entry) for entry in SHIPPED}
    assert sum(file.stat().st_size for file in files) < 2_000_000
    agents = load_workload("lmcache-agents")
    assert len(agents) == 28
    stats = trace_stats(agents)
    assert {name: n for name, _, n in stats.workloads} == {
        "lmcache-mini-swe-agent": 12,
        "lmcache-magentic-one": 16,
    }
    assert all(session.origin == "recorded" for session in agents)
    weka = load_workload("weka-claude-code")
    assert sum(session.parent is None for session in weka) == 120
    assert len(weka) > 120
    # The source's own figure, prompts against prompts: 96.2 % of tokens are reused.
    assert trace_stats(weka).reuse_share == pytest.approx(0.962, abs=0.01)


def test_mini_swe_agent_alone() -> None:
    sessions = load_workload("lmcache-mini-swe-agent")
    assert len(sessions) == 12
    assert {session.workload for session in sessions} == {"lmcache-mini-swe-agent"}


def test_seed_permutes_and_nothing_else() -> None:
    one, two = (load_workload("lmcache-agents", seed=seed) for seed in (1, 2))
    assert one == load_workload("lmcache-agents", seed=1)
    assert [s.id for s in one] != [s.id for s in two]
    assert sorted(one, key=lambda s: s.id) == sorted(two, key=lambda s: s.id)


def test_fewer_sessions_are_the_first_of_all() -> None:
    assert load_workload("lmcache-agents", sessions=5, seed=4) == load_workload(
        "lmcache-agents", seed=4
    )[:5]  # fmt: skip


def test_copies_have_their_own_text_beyond_shared_segments(family: str) -> None:
    sessions = {session.id: session for session in load_workload(family, sessions=5, seed=0)}
    assert {"a", "a/sub", "b", "a@2", "a/sub@2", "b@2"} <= set(sessions)
    assert len(set(sessions)) in (7, 8)
    assert sessions["a/sub@2"].parent == "a@2"
    names = {
        key: {part.id for prompt in PromptBuilder(s).prompts() for part in prompt.segments}
        for key, s in sessions.items()
    }
    assert names["a"] & names["a@2"] == {"system"}
    assert names["a@2"] & names["a/sub@2"] == {"system", "a@2#0"}
    # Arrivals 1 and 4 s: span 3 s and one mean gap of 3 s, so copies come 6 s later.
    assert (sessions["a@2"].arrival_s, sessions["b@2"].arrival_s) == (7.0, 10.0)


def test_names_and_descriptions() -> None:
    for name in workload_names():
        info = describe(name)
        assert info.name == name
        assert info.source
        assert info.licence
        assert info.sessions > 0
        sessions = load_workload(name, sessions=3, seed=1)
        assert sum(session.parent is None for session in sessions) == 3
        assert {session.origin for session in sessions} == {info.origin}
    assert describe("lmcache-agents").sessions == 28


def test_what_cannot_be_loaded() -> None:
    for name in ("swe-bench", "missing.jsonl"):
        with pytest.raises(UsageError, match="unknown workload") as caught:
            load_workload(name)
        assert "weka-claude-code" in caught.value.remedy
    with pytest.raises(UsageError):
        describe("swe-bench")
    with pytest.raises(UsageError, match="0 sessions"):
        load_workload("lmcache-agents", sessions=0)
    with pytest.raises(UsageError, match="seed -1"):
        load_workload("lmcache-agents", seed=-1)
    with pytest.raises(UsageError, match="no settings"):
        load_workload("lmcache-agents", settings={"turns_mu": 1.0})


def test_context_limit() -> None:
    session = Session(
        "s",
        (TurnSpec(90, 10), TurnSpec(10, 5, kept_turn=0, kept_tokens=100)),
        "w",
        "recorded",
    )
    # Contexts of 100 and 115 tokens.
    assert first_turn_over(session, 115) is None
    assert first_turn_over(session, 114) == 1
    assert first_turn_over(session, 99) == 0
    assert share_over([session], 99) == 1.0
    assert share_over([session, Session("t", (TurnSpec(1, 1),), "w", "recorded")], 99) == 0.5
